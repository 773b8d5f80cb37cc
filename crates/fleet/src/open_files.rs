//! The limits of open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Twice the number of open files that the connection limits may need.
const OPEN_FILES: u64 = 8192;

/// Raises the limits of open files to at least these, as far as the system permits.
pub fn raise_limits(wanted: Option<(u64, u64)>) {
    let (soft, hard) = wanted.unwrap_or((OPEN_FILES, 0));
    let now = getrlimit(Resource::Nofile);
    // Only root may raise the hard limit.
    let set = |limit: Rlimit| setrlimit(Resource::Nofile, limit);
    let (raised, within) = (raised(now, soft, hard), within(now, soft, hard));
    if let Err(err) = set(raised).or_else(|_| set(within)) {
        tracing::warn!(%err, "the limit of open files could not be raised");
    }
}

/// Returns the soft and the hard limit, both raised to these values or as high as now. `None` means
/// unlimited.
fn raised(now: Rlimit, soft: u64, hard: u64) -> Rlimit {
    let least = |now: Option<u64>, wanted: u64| now.map(|now| now.max(wanted));
    Rlimit { current: least(now.current, soft), maximum: least(now.maximum, hard) }
}

/// Returns the limits with only the soft one raised, at most to the hard one.
fn within(now: Rlimit, soft: u64, hard: u64) -> Rlimit {
    let current = raised(now, soft, hard).current;
    let bounded = current.map(|it| now.maximum.map_or(it, |most| it.min(most)));
    Rlimit { current: bounded, maximum: now.maximum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_open_files_are_raised_and_never_lowered() {
        let limit = |current, maximum| Rlimit { current, maximum };
        let (soft, hard) = (2048, 4096);
        for (now, expected, without_root) in [
            (limit(Some(256), None), limit(Some(2048), None), limit(Some(2048), None)),
            (
                limit(Some(256), Some(1024)),
                limit(Some(2048), Some(4096)),
                limit(Some(1024), Some(1024)),
            ),
            (
                limit(Some(9999), Some(9999)),
                limit(Some(9999), Some(9999)),
                limit(Some(9999), Some(9999)),
            ),
            (limit(None, None), limit(None, None), limit(None, None)),
        ] {
            let of = |it: Rlimit| (it.current, it.maximum);
            assert_eq!(of(raised(now, soft, hard)), of(expected));
            assert_eq!(of(within(now, soft, hard)), of(without_root));
        }
    }
}
