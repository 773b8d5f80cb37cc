//! Rate limits of a key: token buckets refilled over a minute, and a limit of concurrent requests.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// The period of "per minute" limits.
const MINUTE: Duration = Duration::from_secs(60);

/// The limits of one key; an absent limit is unbounded.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct KeyLimits {
    pub requests_per_minute: Option<u32>,
    /// Maximum number of tokens per minute, those of prompts and answers together.
    pub tokens_per_minute: Option<u32>,
    pub concurrent_requests: Option<u32>,
}

/// Usage counted against the limits. It survives a change of the limits.
#[derive(Debug)]
pub(super) struct Quota {
    buckets: Mutex<Buckets>,
    num_open: AtomicU32,
}

#[derive(Debug)]
struct Buckets {
    requests: Bucket,
    tokens: Bucket,
}

/// The used part of a limit, from 0 to 1; more than 1 if the limit was exceeded.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    used: f64,
    at: Instant,
}

impl Bucket {
    fn settle(&mut self, now: Instant) {
        let minutes = now.duration_since(self.at).as_secs_f64() / MINUTE.as_secs_f64();
        self.used = (self.used - minutes).max(0.0);
        self.at = now;
    }

    /// Returns the time until the used part has fallen to `used`.
    fn time_to(&self, used: f64) -> Duration {
        MINUTE.mul_f64((self.used - used).max(0.0))
    }
}

/// The limit that was reached, and when to retry, where that is known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Reached {
    pub what: &'static str,
    pub limit: u32,
    pub retry_after: Option<Duration>,
}

/// One of the key's concurrent requests; it is counted until this value is dropped.
#[derive(Debug)]
pub struct Pass {
    quota: Arc<Quota>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.quota.num_open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Quota {
    pub(super) fn new() -> Quota {
        let empty = Bucket { used: 0.0, at: Instant::now() };
        Quota {
            buckets: Mutex::new(Buckets { requests: empty, tokens: empty }),
            num_open: AtomicU32::new(0),
        }
    }

    /// Counts one request against every limit, or against none if one of them is reached. The
    /// request counts as concurrent until the returned pass is dropped.
    pub(super) fn take(
        self: &Arc<Quota>,
        limits: &KeyLimits,
        now: Instant,
    ) -> Result<Pass, Reached> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.requests.settle(now);
        buckets.tokens.settle(now);
        if let Some(limit) = limits.tokens_per_minute
            && 1.0 <= buckets.tokens.used
        {
            let one = 1.0 / f64::from(limit);
            let retry_after = Some(buckets.tokens.time_to(1.0 - one));
            return Err(Reached { what: "tokens per minute", limit, retry_after });
        }
        // Rounding errors in the sum must not refuse the last request that fits into a minute.
        const SLACK: f64 = 1e-9;
        let share = limits.requests_per_minute.map(|limit| (limit, 1.0 / f64::from(limit)));
        if let Some((limit, share)) = share
            && 1.0 + SLACK < buckets.requests.used + share
        {
            let retry_after = Some(buckets.requests.time_to(1.0 - share));
            return Err(Reached { what: "requests per minute", limit, retry_after });
        }
        let most = limits.concurrent_requests.unwrap_or(u32::MAX);
        let count = |open: u32| (open < most).then_some(open + 1);
        self.num_open
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, count)
            .map_err(|_| Reached { what: "requests at once", limit: most, retry_after: None })?;
        buckets.requests.used += share.map_or(0.0, |(_, share)| share);
        Ok(Pass { quota: Arc::clone(self) })
    }

    /// Counts tokens against their limit, even beyond it: the cost of a request is known only when
    /// it has ended.
    pub(super) fn used_tokens(&self, limits: &KeyLimits, tokens: u32, now: Instant) {
        let Some(limit) = limits.tokens_per_minute else { return };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.tokens.settle(now);
        buckets.tokens.used += f64::from(tokens) / f64::from(limit);
    }

    /// Adds, for each per-minute limit that is set, the limit, its remaining part and the time
    /// until it is full again, under the names that clients of OpenAI's API read.
    pub(super) fn add_headers(&self, limits: &KeyLimits, now: Instant, headers: &mut HeaderMap) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.requests.settle(now);
        buckets.tokens.settle(now);
        let mut add = |name: &'static str, value: String| {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        let left = |limit: u32, bucket: &Bucket| {
            (f64::from(limit) * (1.0 - bucket.used) + 1e-6).floor().max(0.0).to_string()
        };
        let reset = |bucket: &Bucket| spoken(bucket.time_to(0.0));
        if let Some(limit) = limits.requests_per_minute {
            add("x-ratelimit-limit-requests", limit.to_string());
            add("x-ratelimit-remaining-requests", left(limit, &buckets.requests));
            add("x-ratelimit-reset-requests", reset(&buckets.requests));
        }
        if let Some(limit) = limits.tokens_per_minute {
            add("x-ratelimit-limit-tokens", limit.to_string());
            add("x-ratelimit-remaining-tokens", left(limit, &buckets.tokens));
            add("x-ratelimit-reset-tokens", reset(&buckets.tokens));
        }
    }
}

/// Formats a duration as OpenAI's headers have it: `120ms`, `7s`, `1m30s`.
fn spoken(time: Duration) -> String {
    let (seconds, millis) = (time.as_secs(), time.subsec_millis());
    match (seconds / 60, seconds % 60) {
        (0, 0) => format!("{millis}ms"),
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_holds_its_requests_and_fills_up_evenly() {
        let (quota, start) = (Arc::new(Quota::new()), Instant::now());
        let limits = KeyLimits { requests_per_minute: Some(3), ..KeyLimits::default() };
        for _ in 0..3 {
            quota.take(&limits, start).unwrap();
        }
        let reached = quota.take(&limits, start).unwrap_err();
        assert_eq!((reached.what, reached.limit), ("requests per minute", 3));
        let wait = reached.retry_after.unwrap();
        assert!((19.9..20.1).contains(&wait.as_secs_f64()), "{wait:?}");
        assert!(quota.take(&limits, start + wait / 2).is_err());
        assert!(quota.take(&limits, start + wait).is_ok());
        assert!(quota.take(&limits, start + wait).is_err());
    }

    #[test]
    fn tokens_are_paid_afterwards() {
        let (quota, start) = (Arc::new(Quota::new()), Instant::now());
        let limits = KeyLimits { tokens_per_minute: Some(600), ..KeyLimits::default() };
        quota.take(&limits, start).unwrap();
        quota.used_tokens(&limits, 900, start);
        let reached = quota.take(&limits, start).unwrap_err();
        assert_eq!(reached.what, "tokens per minute");
        assert!((30.0..30.2).contains(&reached.retry_after.unwrap().as_secs_f64()));
        let mut headers = HeaderMap::new();
        quota.add_headers(&limits, start, &mut headers);
        assert_eq!(headers["x-ratelimit-remaining-tokens"], "0");
        assert_eq!(headers["x-ratelimit-reset-tokens"], "1m30s");
        quota.take(&limits, start + Duration::from_millis(30_200)).unwrap();
    }

    #[test]
    fn a_place_comes_back_when_its_request_ends() {
        let (quota, now) = (Arc::new(Quota::new()), Instant::now());
        let limits = KeyLimits { concurrent_requests: Some(1), ..KeyLimits::default() };
        let pass = quota.take(&limits, now).unwrap();
        assert_eq!(quota.take(&limits, now).unwrap_err().what, "requests at once");
        drop(pass);
        quota.take(&limits, now).unwrap();
    }
}
