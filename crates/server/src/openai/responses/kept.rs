//! Responses kept in memory, so that later requests can continue them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use jackalope_engine::TenantId;

use super::items::Item;

/// A finished response.
#[derive(Debug)]
pub(super) struct KeptResponse {
    /// The response object as it was sent, in JSON.
    pub(super) body: Bytes,
    /// The items of the conversation, including those of the response.
    pub(super) conversation: Vec<Arc<Item>>,
    /// Number of items of `conversation` that precede the response's own.
    pub(super) num_input: usize,
    /// The key that made the request; only this key may read the response. None where no keys are
    /// required.
    pub(super) owner: Option<TenantId>,
}

impl KeptResponse {
    /// Memory taken by the response, in bytes. Items shared with the responses it continues are
    /// counted again, because each response may be the last one that holds them.
    fn num_bytes(&self) -> usize {
        self.body.len() + self.conversation.iter().map(|item| item.num_bytes()).sum::<usize>()
    }
}

/// The kept responses; the least recently used one is dropped first.
#[derive(Debug)]
pub(crate) struct KeptResponses {
    responses_max: usize,
    bytes_max: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    responses: HashMap<String, (u64, Arc<KeptResponse>)>,
    num_bytes: usize,
    /// Number of uses so far, as a clock for the least recently used order.
    clock: u64,
}

impl KeptResponses {
    /// Creates a store for at most `responses_max` responses and at most `bytes_max` bytes.
    pub(crate) fn new(responses_max: usize, bytes_max: usize) -> KeptResponses {
        KeptResponses { responses_max, bytes_max, inner: Mutex::default() }
    }

    /// Stores a response, unless it exceeds the limit in bytes by itself.
    pub(super) fn keep(&self, id: &str, response: KeptResponse) {
        let num_bytes = response.num_bytes();
        if self.responses_max == 0 || self.bytes_max < num_bytes {
            return;
        }
        let mut inner = self.lock();
        inner.num_bytes += num_bytes;
        inner.clock += 1;
        let used_at = inner.clock;
        inner.responses.insert(id.to_owned(), (used_at, Arc::new(response)));
        while inner.responses.len() > self.responses_max || inner.num_bytes > self.bytes_max {
            let Some(oldest) = inner.least_recently_used() else { break };
            inner.forget(&oldest);
        }
    }

    /// Returns the response with this id, if it is still kept and belongs to `owner`.
    pub(super) fn find(&self, id: &str, owner: Option<TenantId>) -> Option<Arc<KeptResponse>> {
        let mut inner = self.lock();
        inner.clock += 1;
        let now = inner.clock;
        let kept = inner.responses.get_mut(id);
        let (used_at, response) = kept.filter(|(_, response)| response.owner == owner)?;
        *used_at = now;
        Some(Arc::clone(response))
    }

    /// Removes a response; returns false if it is not kept or does not belong to `owner`.
    pub(super) fn forget(&self, id: &str, owner: Option<TenantId>) -> bool {
        let mut inner = self.lock();
        let is_own = inner.responses.get(id).is_some_and(|(_, it)| it.owner == owner);
        is_own && inner.forget(id)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // A poisoned lock is harmless: no code here panics between two related changes.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn least_recently_used(&self) -> Option<String> {
        let oldest = self.responses.iter().min_by_key(|(_, (used_at, _))| *used_at);
        oldest.map(|(id, _)| id.clone())
    }

    fn forget(&mut self, id: &str) -> bool {
        let Some((_, response)) = self.responses.remove(id) else { return false };
        self.num_bytes -= response.num_bytes();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(num_bytes: usize) -> KeptResponse {
        let (body, conversation) = (vec![0; num_bytes].into(), Vec::new());
        KeptResponse { body, conversation, num_input: 0, owner: None }
    }

    #[test]
    fn no_key_reads_or_deletes_responses_of_another_key() {
        let kept = KeptResponses::new(2, 1000);
        let (mine, other) = (Some(TenantId(1)), Some(TenantId(2)));
        kept.keep("a", KeptResponse { owner: mine, ..response(1) });
        for stranger in [other, None] {
            assert!(kept.find("a", stranger).is_none() && !kept.forget("a", stranger));
        }
        assert!(kept.find("a", mine).is_some() && kept.forget("a", mine));
    }

    #[test]
    fn the_least_recently_used_is_forgotten_first() {
        let kept = KeptResponses::new(2, 1000);
        kept.keep("a", response(1));
        kept.keep("b", response(1));
        assert!(kept.find("a", None).is_some());
        kept.keep("c", response(1));
        assert_eq!(["a", "b", "c"].map(|id| kept.find(id, None).is_some()), [true, false, true]);
    }

    #[test]
    fn bytes_are_bounded_and_given_back() {
        let kept = KeptResponses::new(100, 1000);
        for id in ["a", "b", "c"] {
            kept.keep(id, response(400));
        }
        assert_eq!(["a", "b", "c"].map(|id| kept.find(id, None).is_some()), [false, true, true]);
        assert!(kept.forget("b", None) && !kept.forget("b", None));
        kept.keep("d", response(600));
        assert!(kept.find("c", None).is_some() && kept.find("d", None).is_some());
        kept.keep("e", response(1001));
        assert_eq!(["c", "d", "e"].map(|id| kept.find(id, None).is_some()), [true, true, false]);
        assert!(kept.forget("c", None) && kept.forget("d", None));
        assert_eq!(kept.lock().num_bytes, 0);
    }
}
