//! The caller on whose behalf code runs: the HTTP request's name, and the key that it came with.
//!
//! The caller is task-local instead of an argument of every handler: code that runs within a
//! request, on its task or on a worker for it, gets it with [`ApiCaller::current`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jackalope_engine::{CacheScope, TenantId};
use sha2::{Digest, Sha256};

use crate::auth::{CacheGroup, Holder};
use crate::trace_parent::TraceParent;

tokio::task_local! {
    static CURRENT: ApiCaller;
}

/// The properties of a request that are known before its body is read.
#[derive(Clone, Debug)]
pub struct ApiCaller {
    /// Name of the request in logs and answers.
    pub request_id: Arc<str>,
    /// Kind of the request in one word: `chat`, `completions`, …
    pub kind: &'static str,
    /// Holder of the key; none where no keys are required.
    pub holder: Option<Arc<Holder>>,
    /// The client's span that the request belongs to.
    pub trace_parent: Option<TraceParent>,
    /// Size of the request's body in bytes, once it has been read.
    pub body_bytes: Arc<AtomicUsize>,
}

/// Paths of requests that compute something, with their kinds.
const KINDS: [(&str, &str); 13] = [
    ("/v1/chat/completions", "chat"),
    ("/v1/completions", "completions"),
    ("/v1/messages", "messages"),
    ("/v1/responses", "responses"),
    ("/v1/embeddings", "embeddings"),
    ("/api/chat", "ollama_chat"),
    ("/api/generate", "ollama_generate"),
    ("/api/embed", "embeddings"),
    ("/api/embeddings", "embeddings"),
    ("/v1/rerank", "rerank"),
    ("/backend.Backend/Predict", "predict"),
    ("/backend.Backend/PredictStream", "predict"),
    ("/backend.Backend/Embedding", "embeddings"),
];

/// The kind of a request on this path.
pub fn kind_of(path: &str) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == path).map_or("other", |(_, kind)| kind)
}

impl ApiCaller {
    /// The caller on whose behalf this code runs; an anonymous one outside of a request.
    pub fn current() -> ApiCaller {
        CURRENT.try_with(Clone::clone).unwrap_or_else(|_| ApiCaller {
            request_id: Arc::from(""),
            kind: "other",
            holder: None,
            trace_parent: None,
            body_bytes: Arc::default(),
        })
    }

    /// Runs `work` on this caller's behalf.
    pub async fn scope<T>(self, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self, work).await
    }

    /// Like [`ApiCaller::scope`], for synchronous work.
    pub fn scope_blocking<T>(self, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self, work)
    }

    /// The caller's tenant in the engine, which admits requests of different tenants in turn.
    pub fn tenant(&self) -> Option<TenantId> {
        self.holder.as_ref().map(|holder| TenantId(holder.tenant()))
    }

    /// The priority of a request that asks for `requested`: never better than the key's own.
    pub fn priority(&self, requested: Option<i32>) -> i32 {
        let own = self.holder.as_ref().map_or(0, |holder| holder.priority());
        requested.map_or(own, |requested| requested.max(own))
    }

    /// Returns whether the caller may see what the holder of the key `key_name` does: that holder,
    /// an administrator, or anyone where no keys are required.
    pub fn sees(&self, key_name: Option<&str>) -> bool {
        self.holder.as_ref().is_none_or(|it| it.is_admin() || key_name == Some(it.name()))
    }

    /// The scope of cached prefixes that the request may use: those of the same key, or the same
    /// group of keys, with the same salt. Requests without key and salt share one scope.
    pub fn cache_scope(&self, salt: Option<&str>) -> CacheScope {
        let (kind, group) = match self.holder.as_ref().map(|holder| holder.cache_group()) {
            None if salt.is_none() => return CacheScope::default(),
            None => (0, ""),
            Some(CacheGroup::Key(name)) => (1, name),
            Some(CacheGroup::Named(group)) => (2, group),
        };
        let mut hash = Sha256::new_with_prefix([kind, u8::from(salt.is_some())]);
        hash.update((group.len() as u64).to_le_bytes());
        hash.update(group);
        hash.update(salt.unwrap_or_default());
        let digest = hash.finalize();
        let (first, _) = digest.split_first_chunk().expect("SHA-256 has 32 bytes");
        CacheScope(u128::from_le_bytes(*first))
    }

    /// Size of the request's body in bytes; 0 before it is read.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes.load(Ordering::Relaxed)
    }

    /// Records the size of the request's body.
    pub fn set_body_bytes(&self, num_bytes: usize) {
        self.body_bytes.store(num_bytes, Ordering::Relaxed);
    }

    /// The name of the key.
    pub fn key_name(&self) -> Option<&str> {
        self.holder.as_ref().map(|holder| holder.name())
    }
}
