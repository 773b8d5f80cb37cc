//! Authentication: API keys, stored hashed and compared in constant time, and the rights of each.
//!
//! Keys come from the command line and from a file, which is reloaded when it changes. A key's name
//! appears in logs, records and metrics; the key itself never does.

mod editing;
mod key_file;
mod quota;

use std::fmt;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method, Request};
use sha2::{Digest, Sha256};
use tracing::{info, warn};

use crate::error::ApiError;
use key_file::{FileKey, Stamp};
use quota::{KeyLimits, Quota, Reached};

pub use editing::{KeyEditError, KeySettings};
pub use key_file::KeyFileError;
pub use quota::Pass;

/// Paths that need no key, so that a supervisor works without one, and a browser can show the page
/// that asks for one. They reveal only whether the server is up, and the API's description, which
/// is the same everywhere.
const OPEN_PATHS: [&str; 6] =
    ["/", "/dashboard", "/docs", "/health/live", "/health/ready", "/openapi.json"];
const OPEN_PREFIXES: [&str; 2] = ["/assets/", "/docs/"];

/// Paths and path prefixes that need an administrator's key, because they show or affect
/// everybody's requests or models.
const ADMIN_PATHS: [&str; 6] =
    ["/errors", "/requests", "/v1/keys", "/v1/diagnosis", "/v1/logs", "/v1/copies"];
const ADMIN_PREFIXES: [&str; 5] =
    ["/requests/", "/v1/requests/", "/v1/keys/", "/v1/pulls/", "/v1/copies/"];

/// Paths that need an administrator's key for methods that change something.
const ADMIN_CHANGES: [&str; 9] = [
    "/model/load",
    "/model/unload",
    "/model/gc",
    "/v1/cache",
    "/v1/cache/prefix",
    "/api/pull",
    "/v1/pulls",
    "/api/delete",
    "/api/copy",
];

/// Minimum time between two checks of the key file.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Headers whose whole value may be a key.
const KEY_HEADERS: [&str; 2] = ["x-api-key", "xi-api-key"];

/// The holder of a key.
#[derive(Debug)]
pub struct Holder {
    name: String,
    limits: KeyLimits,
    /// Best priority that the key's requests can have; lower values are scheduled earlier.
    priority: i32,
    is_admin: bool,
    /// Number of the holder, unique as long as the server runs.
    tenant: u32,
    cache_group: Option<String>,
    quota: Arc<Quota>,
}

/// A group of requests that share cached prefixes.
#[derive(Clone, Copy, Debug)]
pub enum CacheGroup<'a> {
    /// The requests of one key, by its name.
    Key(&'a str),
    /// The requests of all keys that name this group.
    Named(&'a str),
}

impl Holder {
    /// The key's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number by which the engine distinguishes holders.
    pub fn tenant(&self) -> u32 {
        self.tenant
    }

    /// Returns whether the key has administrator rights.
    pub fn is_admin(&self) -> bool {
        self.is_admin
    }

    /// The group of keys that share cached prefixes; a key without a group shares only with itself.
    pub fn cache_group(&self) -> CacheGroup<'_> {
        match &self.cache_group {
            Some(group) => CacheGroup::Named(group),
            None => CacheGroup::Key(&self.name),
        }
    }

    /// The best priority of the key's requests; lower values are scheduled earlier.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// Counts one request against the key's limits; fails if one of them is reached. The request
    /// counts as open until the returned pass is dropped.
    pub fn take(&self) -> Result<Pass, ApiError> {
        self.quota.take(&self.limits, Instant::now()).map_err(|reached| {
            let Reached { what, limit, retry_after } = reached;
            ApiError::KeyLimit { name: self.name.clone(), limit, what, retry_after }
        })
    }

    /// Counts tokens against the key's limits.
    pub fn used_tokens(&self, tokens: u32) {
        self.quota.used_tokens(&self.limits, tokens, Instant::now());
    }

    /// Adds headers with the key's limits, the requests and tokens that remain of them, and the
    /// time until they are full again.
    pub fn add_limit_headers(&self, headers: &mut HeaderMap) {
        self.quota.add_headers(&self.limits, Instant::now(), headers);
    }
}

/// The keys that are accepted; without any, no key is required.
#[derive(Clone, Default)]
pub struct ApiKeys {
    ring: Arc<Mutex<Ring>>,
    /// Whether keys come from a file; with an empty file, no request is accepted.
    has_file: bool,
}

#[derive(Default)]
struct Ring {
    /// Keys given at the start.
    fixed: Vec<FileKey>,
    /// Keys of the file when it was last read.
    from_file: Vec<FileKey>,
    file: Option<WatchedFile>,
    keys: Vec<([u8; 32], Arc<Holder>)>,
    /// Every name that was ever used, indexed by tenant, with its quota.
    tenants: Vec<(String, Arc<Quota>)>,
}

struct WatchedFile {
    path: PathBuf,
    stamp: Option<Stamp>,
    looked: Instant,
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({} keys)", self.lock().keys.len())
    }
}

impl ApiKeys {
    /// Accepts these keys, named `key-1`, `key-2`, … White space around a key is removed; empty
    /// keys are dropped.
    pub fn new<K: AsRef<str>>(keys: impl IntoIterator<Item = K>) -> ApiKeys {
        ApiKeys::default().with_fixed(keys, "key", false)
    }

    /// Also accepts these keys, with administrator rights. They are named `admin-1`, `admin-2`, …
    #[must_use]
    pub fn with_admins<K: AsRef<str>>(self, keys: impl IntoIterator<Item = K>) -> ApiKeys {
        self.with_fixed(keys, "admin", true)
    }

    /// Also accepts this key, with administrator rights, if any keys are required. It is for the
    /// operator of the server, on the server's own machine.
    #[must_use]
    pub fn with_operator(self, key: &str) -> ApiKeys {
        if self.is_empty() { self } else { self.with_fixed([key], "operator", true) }
    }

    /// Also accepts the keys of a file, which is reloaded when it changes.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not a valid key file. If the file becomes
    /// invalid later, a warning is logged and the keys that were read last stay valid.
    pub fn with_file(mut self, path: &Path) -> Result<ApiKeys, KeyFileError> {
        let stamp = Stamp::of(path);
        let keys = key_file::read(path)?;
        if key_file::is_readable_by_others(path) {
            warn!(path = %path.display(), "others can read the file of keys; chmod 600 keeps them out");
        }
        self.has_file = true;
        {
            let mut ring = self.lock();
            ring.file = Some(WatchedFile { path: path.to_owned(), stamp, looked: Instant::now() });
            ring.from_file = keys;
            ring.rebuild();
        }
        Ok(self)
    }

    fn with_fixed<K: AsRef<str>>(
        self,
        keys: impl IntoIterator<Item = K>,
        prefix: &str,
        is_admin: bool,
    ) -> ApiKeys {
        let keys = keys.into_iter().map(|key| key.as_ref().trim().to_owned());
        let keys = keys.filter(|key| !key.is_empty()).enumerate().map(|(idx, key)| FileKey {
            name: format!("{prefix}-{}", idx + 1),
            digest: Sha256::digest(key.as_bytes()).into(),
            limits: KeyLimits::default(),
            priority: 0,
            is_admin,
            cache_group: None,
        });
        {
            let mut ring = self.lock();
            // New keys go first, so that a key that is also an administrator's has administrator
            // rights.
            ring.fixed.splice(..0, keys);
            ring.rebuild();
        }
        self
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if no key is required.
    pub fn is_empty(&self) -> bool {
        !self.has_file && self.lock().keys.is_empty()
    }

    /// Finds the holder of a key. Always compares with every key and all of its bytes, so that the
    /// time reveals nothing.
    fn holder_of(&self, key: &str) -> Option<Arc<Holder>> {
        let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let mut ring = self.lock();
        ring.look_again();
        let mut found: Option<&Arc<Holder>> = None;
        for (expected, holder) in &ring.keys {
            let pairs = expected.iter().zip(digest);
            let difference = pairs.fold(0_u8, |difference, (a, b)| difference | (a ^ b));
            if black_box(difference) == 0 && found.is_none() {
                found = Some(holder);
            }
        }
        found.map(Arc::clone)
    }

    /// Authorises a request and returns the holder of its key; none where no key is required.
    pub fn check(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Option<Arc<Holder>>, ApiError> {
        if self.is_empty()
            || OPEN_PATHS.contains(&path)
            || OPEN_PREFIXES.iter().any(|it| path.starts_with(it))
        {
            return Ok(None);
        }
        let key = presented_key(headers).ok_or(ApiError::Unauthorized { missing: true })?;
        let holder = self.holder_of(key).ok_or(ApiError::Unauthorized { missing: false })?;
        if is_for_admins(method, path) && !holder.is_admin {
            let name = holder.name.clone();
            return Err(ApiError::NotAdmin { path: path.to_owned(), name });
        }
        Ok(Some(holder))
    }
}

impl Ring {
    /// Reloads the file if it has changed since the last time.
    fn look_again(&mut self) {
        let Some(file) = &mut self.file else { return };
        if file.looked.elapsed() < LOOK_INTERVAL {
            return;
        }
        file.looked = Instant::now();
        let stamp = Stamp::of(&file.path);
        if stamp == file.stamp {
            return;
        }
        file.stamp = stamp;
        match key_file::read(&file.path) {
            Ok(keys) => {
                info!(path = %file.path.display(), keys = keys.len(), "the file of keys was read again");
                self.from_file = keys;
                self.rebuild();
            }
            Err(err) => warn!(%err, "the keys stay as they were"),
        }
    }

    /// Combines the fixed keys and those of the file. Names that existed before keep their quota.
    fn rebuild(&mut self) {
        let all: Vec<FileKey> = self.fixed.iter().chain(&self.from_file).cloned().collect();
        self.keys = all
            .into_iter()
            .map(|key| {
                let tenant = self.tenant_of(&key.name);
                let holder = Holder {
                    quota: Arc::clone(&self.tenants[tenant].1),
                    tenant: u32::try_from(tenant).unwrap_or(u32::MAX),
                    cache_group: key.cache_group,
                    name: key.name,
                    limits: key.limits,
                    priority: key.priority,
                    is_admin: key.is_admin,
                };
                (key.digest, Arc::new(holder))
            })
            .collect();
    }

    fn tenant_of(&mut self, name: &str) -> usize {
        self.tenants.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            self.tenants.push((name.to_owned(), Arc::new(Quota::new())));
            self.tenants.len() - 1
        })
    }
}

/// Returns whether a request needs an administrator's key, where keys are required.
fn is_for_admins(method: &Method, path: &str) -> bool {
    let is_change = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    ADMIN_PATHS.contains(&path)
        || ADMIN_PREFIXES.iter().any(|prefix| path.starts_with(prefix))
        || (is_change && ADMIN_CHANGES.contains(&path))
}

/// Returns whether a request counts against the limits of its key.
pub fn is_limited<B>(request: &Request<B>) -> bool {
    let (method, path) = (request.method(), request.uri().path());
    *method == Method::POST && !is_for_admins(method, path)
}

/// Returns the key in `Authorization: Bearer …`, or else the one in the first of [`KEY_HEADERS`]
/// that is present.
fn presented_key(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer
        .and_then(|value| value.split_once(' '))
        .and_then(|(scheme, key)| scheme.eq_ignore_ascii_case("bearer").then_some(key.trim()));
    let own = |name: &&str| headers.get(*name)?.to_str().ok().map(str::trim);
    bearer.or_else(|| KEY_HEADERS.iter().find_map(own))
}
