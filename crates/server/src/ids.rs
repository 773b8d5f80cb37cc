//! Names for requests and answers, seeds for those who bring none, and the time of day.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

/// 64 bits that differ from call to call and from process to process. Nothing secret depends on
/// them: the standard library's hasher keys, which the system's random source fills, are enough.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().hash_one(0_u64)
}

/// `prefix` and 24 hexadecimal digits.
pub(crate) fn new_id(prefix: &str) -> String {
    let low = random_u64() as u32;
    format!("{prefix}{:016x}{low:08x}", random_u64())
}

/// Seconds since 1970, as the API's `created`.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

/// Seconds since 1970 and their parts.
pub(crate) fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}
