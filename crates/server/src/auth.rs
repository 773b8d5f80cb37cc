//! Who may ask: API keys, kept hashed and compared in constant time.

use std::fmt;
use std::hint::black_box;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};

use crate::error::ApiError;

/// Paths that are answered without a key, so that a supervisor needs none. They tell no more than
/// whether the server is up.
const OPEN_PATHS: [&str; 2] = ["/health/live", "/health/ready"];

/// The keys that are accepted; with none, everybody is served.
#[derive(Clone, Default)]
pub struct ApiKeys {
    digests: Vec<[u8; 32]>,
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({} keys)", self.digests.len())
    }
}

impl ApiKeys {
    /// Accepts these keys. White space around a key does not belong to it; empty keys are dropped.
    pub fn new<K: AsRef<str>>(keys: impl IntoIterator<Item = K>) -> ApiKeys {
        let digests = keys
            .into_iter()
            .map(|key| key.as_ref().trim().to_owned())
            .filter(|key| !key.is_empty())
            .map(|key| Sha256::digest(key.as_bytes()).into())
            .collect();
        ApiKeys { digests }
    }

    /// True if everybody is served.
    pub fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }

    /// Compares with every key and all of its bytes, whatever the first of them says.
    fn accepts(&self, key: &str) -> bool {
        let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let matches = self.digests.iter().fold(0_u8, |found, expected| {
            let difference =
                expected.iter().zip(digest).fold(0_u8, |difference, (a, b)| difference | (a ^ b));
            found | u8::from(black_box(difference) == 0)
        });
        black_box(matches) != 0
    }

    /// True if the request presents one of these keys.
    pub(crate) fn are_presented(&self, headers: &HeaderMap) -> bool {
        presented_key(headers).is_some_and(|key| self.accepts(key))
    }

    /// Lets a request pass or says what it lacks.
    pub(crate) fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.is_empty() || OPEN_PATHS.contains(&path) {
            return Ok(());
        }
        let key = presented_key(headers).ok_or(ApiError::Unauthorized { missing: true })?;
        match self.accepts(key) {
            true => Ok(()),
            false => Err(ApiError::Unauthorized { missing: false }),
        }
    }
}

/// The key of `Authorization: Bearer …` or `X-Api-Key: …`.
fn presented_key(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer
        .and_then(|value| value.split_once(' '))
        .and_then(|(scheme, key)| scheme.eq_ignore_ascii_case("bearer").then_some(key.trim()));
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok().map(str::trim))
}
