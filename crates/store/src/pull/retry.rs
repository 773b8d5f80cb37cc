//! Decides what is retried, how often and when.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::error::{HubError, PullError};

/// Pause after the first failure; doubled after each further one.
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// Maximum pause that is not requested by the hub.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Maximum pause that a hub may request.
pub(crate) const ASKED_PAUSE_MAX: Duration = Duration::from_secs(300);

/// Failure of an attempt.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another attempt would fail in the same way.
    Final(Box<PullError>),
    /// Another attempt may succeed, perhaps after the requested pause.
    Again { error: Box<PullError>, pause: Option<Duration> },
}

impl Failure {
    /// Creates a failure that is worth another attempt, after the requested pause.
    pub(crate) fn again(error: HubError, pause: Option<Duration>) -> Failure {
        Failure::Again { error: Box::new(error.into()), pause }
    }

    /// Creates a failure that is final.
    pub(crate) fn last(error: impl Into<PullError>) -> Failure {
        Failure::Final(Box::new(error.into()))
    }
}

/// Number of failed attempts, and their limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retries {
    max: u32,
    num_failed: u32,
}

impl Retries {
    pub(crate) fn new(max: u32) -> Retries {
        Retries { max, num_failed: 0 }
    }

    /// Resets the counter, because the last attempt was useful.
    pub(crate) fn forget(&mut self) {
        self.num_failed = 0;
    }

    /// Waits until the next attempt may begin.
    ///
    /// # Errors
    /// Returns the failure if there is no next attempt.
    pub(crate) fn again(&mut self, failure: Failure, stop: &Stop) -> Result<(), PullError> {
        let (error, asked) = match failure {
            Failure::Final(error) => return Err(*error),
            Failure::Again { error, pause } => (error, pause),
        };
        self.num_failed += 1;
        if self.max < self.num_failed {
            let (num_failed, source) = (self.num_failed, error);
            return Err(PullError::GaveUp { num_failed, source });
        }
        if let Some(asked) = asked.filter(|asked| ASKED_PAUSE_MAX < *asked) {
            let (pause_seconds, source) = (asked.as_secs(), error);
            return Err(PullError::LongPause { pause_seconds, source });
        }
        let pause = asked.unwrap_or_else(|| own_pause(self.num_failed));
        tracing::info!(%error, ?pause, "trying again");
        if stop.wait(pause) { Err(PullError::Stopped) } else { Ok(()) }
    }
}

fn own_pause(num_failed: u32) -> Duration {
    let factor = 1 << num_failed.saturating_sub(1).min(16);
    (PAUSE_MIN * factor).min(PAUSE_MAX)
}

/// Returns the pause that a `Retry-After` header requests: seconds, or a date.
pub(crate) fn asked_pause(header: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = header.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = http_date(header)?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// Parses `Sun, 06 Nov 1994 08:49:37 GMT`, the only form that RFC 9110 lets servers send.
fn http_date(text: &str) -> Option<SystemTime> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [_, day, month, year, time, "GMT"] = fields[..] else { return None };
    let day: i64 = day.parse().ok().filter(|day| (1..=31).contains(day))?;
    let year: i64 = year.parse().ok().filter(|year| (1970..10_000).contains(year))?;
    let month = MONTHS.iter().position(|it| *it == month)? as i64 + 1;
    let clock: Option<Vec<u64>> = time.split(':').map(|it| it.parse().ok()).collect();
    let [hour, minute, second] = clock?[..] else { return None };
    // Days from a civil date: Howard Hinnant, chrono-compatible low-level date algorithms. Years
    // begin in March, so that the leap day is their last.
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + day_of_year - 719_468;
    let seconds = u64::try_from(days).ok()? * 86_400 + hour * 3600 + minute * 60 + second;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Flag that ends waits and work of all threads at once.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Sets the flag. Returns true for the first caller.
    pub(crate) fn set(&self) -> bool {
        let was_set = std::mem::replace(
            &mut *self.is_set.lock().unwrap_or_else(PoisonError::into_inner),
            true,
        );
        self.changed.notify_all();
        !was_set
    }

    pub(crate) fn is_set(&self) -> bool {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `pause`, or until the flag is set. Returns whether it is set.
    fn wait(&self, pause: Duration) -> bool {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(is_set, pause, |is_set| !*is_set);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_asked_for_in_seconds_or_by_a_date() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let pause = |text| asked_pause(text, at(784_111_770)).map(|it| it.as_secs());
        assert_eq!(pause(" 17 "), Some(17));
        assert_eq!(pause("Sun, 06 Nov 1994 08:49:37 GMT"), Some(7));
        assert_eq!(pause("Sun, 06 Nov 1994 08:49:00 GMT"), Some(0));
        assert_eq!(http_date("Thu, 29 Feb 2024 00:00:00 GMT"), Some(at(1_709_164_800)));
        assert_eq!(http_date("Thu, 01 Jan 1970 00:00:01 GMT"), Some(at(1)));
        for bad in ["", "soon", "-1", "Sun, 06 Foo 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49 GMT"]
        {
            assert_eq!(pause(bad), None, "{bad}");
        }
    }

    #[test]
    fn attempts_are_counted_and_long_pauses_refused() {
        let stop = Stop::default();
        let failure = |pause| Failure::Again { error: Box::new(PullError::Stopped), pause };
        let mut retries = Retries::new(2);
        retries.again(failure(Some(Duration::ZERO)), &stop).unwrap();
        retries.again(failure(Some(Duration::ZERO)), &stop).unwrap();
        let err = retries.again(failure(None), &stop).unwrap_err();
        assert_eq!(err.to_string(), "gave up after 3 attempts: the pull was stopped");
        retries.forget();
        let err = retries.again(failure(Some(Duration::from_secs(3600))), &stop).unwrap_err();
        assert_eq!(err.to_string(), "asked to come back in 3600 seconds: the pull was stopped");
        assert!(retries.again(Failure::last(PullError::Stopped), &stop).is_err());
        // The pause is not waited for at all.
        assert!(stop.set() && !stop.set());
        assert!(Retries::new(9).again(failure(Some(ASKED_PAUSE_MAX)), &stop).is_err());
        let pauses: Vec<u128> = (1..=9).map(|it| own_pause(it).as_millis()).collect();
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
    }
}
