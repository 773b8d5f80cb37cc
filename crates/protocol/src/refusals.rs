//! Bounds the logging of refused connections: one line for the first refusal of a source, then one
//! line per interval for all further ones. Pure: the caller provides the clock and the log.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::admission::source_of;

/// Time between two lines about one source.
pub const REFUSALS_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of sources counted separately; further ones share one line.
const SOURCES_MAX: usize = 32;

/// One line of the log about refused connections.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refusals {
    /// Source of the connections; absent if the line is about several sources that are not counted
    /// separately.
    pub source: Option<IpAddr>,
    /// Number of connections from this source that were refused since the previous line about it.
    pub count: u64,
    /// Time since the previous line; absent for the first refusal of a source.
    pub within: Option<Duration>,
    /// Reason for the last refusal.
    pub reason: String,
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusals { source, count, within, reason } = self;
        match count {
            1 => f.write_str("refused a connection from ")?,
            count => write!(f, "refused {count} connections from ")?,
        }
        match source {
            Some(source) => write!(f, "{source}")?,
            None => f.write_str("further addresses")?,
        }
        if let Some(within) = within {
            write!(f, " in {} s, the last one", within.as_secs())?;
        }
        write!(f, ": {reason}")
    }
}

/// Refusals that have not been logged yet.
#[derive(Debug, Default)]
pub struct RefusalLog {
    sources: BTreeMap<IpAddr, Source>,
    others: Option<Source>,
    num_refused: u64,
    last_reason: Option<String>,
}

#[derive(Debug)]
struct Source {
    logged_at: Instant,
    count: u64,
    reason: String,
}

impl RefusalLog {
    /// Counts a refusal. Returns the line that the caller must log now, if any.
    pub fn refused(&mut self, ip: IpAddr, reason: &str, now: Instant) -> Option<Refusals> {
        self.num_refused += 1;
        self.last_reason = Some(reason.to_owned());
        let ip = source_of(ip);
        let source = if let Some(known) = self.sources.get_mut(&ip) {
            known
        } else if self.sources.len() < SOURCES_MAX {
            let source = Source { logged_at: now, count: 0, reason: String::new() };
            self.sources.insert(ip, source);
            let reason = reason.to_owned();
            return Some(Refusals { source: Some(ip), count: 1, within: None, reason });
        } else {
            let new = || Source { logged_at: now, count: 0, reason: String::new() };
            self.others.get_or_insert_with(new)
        };
        source.count += 1;
        reason.clone_into(&mut source.reason);
        None
    }

    /// Returns the lines whose interval has passed.
    pub fn due(&mut self, now: Instant) -> Vec<Refusals> {
        let mut lines = Vec::new();
        self.sources.retain(|ip, source| source.take_due(Some(*ip), now, &mut lines));
        if self.others.as_mut().is_some_and(|others| !others.take_due(None, now, &mut lines)) {
            self.others = None;
        }
        lines
    }

    /// Returns the time at which [`RefusalLog::due`] has to be called next.
    pub fn deadline(&self) -> Option<Instant> {
        let sources = self.sources.values().chain(&self.others);
        sources.map(|source| source.logged_at + REFUSALS_INTERVAL).min()
    }

    /// Returns the number of refusals so far.
    pub fn num_refused(&self) -> u64 {
        self.num_refused
    }

    /// Returns the reason for the last refusal.
    pub fn last_reason(&self) -> Option<&str> {
        self.last_reason.as_deref()
    }
}

impl Source {
    /// Appends the due line, if any. Returns false if the source can be forgotten because nothing
    /// was refused within its interval.
    fn take_due(
        &mut self,
        source: Option<IpAddr>,
        now: Instant,
        lines: &mut Vec<Refusals>,
    ) -> bool {
        let within = now.saturating_duration_since(self.logged_at);
        if within < REFUSALS_INTERVAL {
            return true;
        }
        if self.count == 0 {
            return false;
        }
        let reason = std::mem::take(&mut self.reason);
        lines.push(Refusals { source, count: self.count, within: Some(within), reason });
        (self.logged_at, self.count) = (now, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(last: u16) -> IpAddr {
        let [high, low] = last.to_be_bytes();
        [10, 0, high, low].into()
    }

    #[test]
    fn a_flood_is_two_lines_with_its_count() {
        let (mut log, now) = (RefusalLog::default(), Instant::now());
        let first = log.refused(ip(9), "it said nothing", now).unwrap();
        assert_eq!(first.to_string(), "refused a connection from 10.0.0.9: it said nothing");
        for _ in 0..1234 {
            assert_eq!(log.refused(ip(9), "it closed", now), None);
        }
        assert_eq!(log.due(now + REFUSALS_INTERVAL / 2), []);
        let lines = log.due(now + REFUSALS_INTERVAL);
        let wanted = "refused 1234 connections from 10.0.0.9 in 10 s, the last one: it closed";
        assert_eq!(lines.iter().map(ToString::to_string).collect::<Vec<_>>(), [wanted]);
        assert_eq!(log.due(now + 2 * REFUSALS_INTERVAL), [], "it has stopped");
        assert!(log.deadline().is_none(), "and is forgotten");
    }

    proptest! {
        /// For any number of sources and refusals: the number of lines and the memory are bounded,
        /// and every refusal is counted in exactly one line.
        #[test]
        fn lines_are_bounded_and_counts_are_whole(
            refusals in prop::collection::vec((0_u16..200, 0_u64..50), 1..600),
        ) {
            let (mut log, began) = (RefusalLog::default(), Instant::now());
            let (mut now, mut counted, mut num_lines) = (began, 0, 0);
            for (from, pause_ms) in &refusals {
                now += Duration::from_millis(*pause_ms);
                let lines = log.due(now).into_iter().chain(log.refused(ip(*from), "no", now));
                for line in lines {
                    counted += line.count;
                    num_lines += 1;
                }
                prop_assert!(log.sources.len() <= SOURCES_MAX);
            }
            for line in log.due(now + REFUSALS_INTERVAL) {
                counted += line.count;
            }
            prop_assert_eq!(counted, refusals.len() as u64);
            prop_assert_eq!(log.num_refused(), refusals.len() as u64);
            let intervals = 1 + now.duration_since(began).as_secs() / REFUSALS_INTERVAL.as_secs();
            prop_assert!(num_lines <= intervals * 2 * (SOURCES_MAX as u64 + 1), "{}", num_lines);
        }
    }
}
