//! Reacts to memory that other programs take while the engine serves. Another component queries the
//! machines and reports readings of their memory; the guard turns these into a tier, and the
//! scheduler frees memory.
//!
//! ```text
//!            less than the limit of `warn`          less than that of `critical`
//!   normal ─────────────────────────────▶ warn ─────────────────────────────▶ critical
//!      ▲                                    ▲                                    │
//!      └──────── after `hold` of better readings, directly to their tier ────────┘
//! ```
//!
//! | Tier | Action |
//! |---|---|
//! | normal | none |
//! | warn | caches of finished sequences are freed and no more are kept; at most a quarter of the usual maximum of sequences run together |
//! | critical | as for warn; in addition, no sequence is admitted while another runs, and each reading preempts half of the running sequences, the least important first; one continues |
//! | critical for `critical_max` | as for critical; in addition, new requests are refused, and accepted ones wait |
//!
//! No token is lost: a preempted sequence is recomputed from its tokens and its stream continues.
//! Better readings have to last, because they may be better only because of the memory that was
//! just freed. If a machine is short of memory right after the model has been loaded, the model is
//! the reason: until its first better reading, `warn` counts as its normal state.

use std::time::{Duration, Instant};

use jackalope_protocol::PressureTier;

/// The memory of the machine with the least free memory.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MemoryReading {
    /// Memory pressure of the machine.
    pub tier: PressureTier,
    /// Name of the machine.
    pub host: String,
    /// Memory that its programs can still allocate, in bytes.
    pub free_bytes: u64,
}

/// Policy of the guard.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PressurePolicy {
    /// Time for which readings have to be better before the tier improves.
    pub hold: Duration,
    /// Time with critical memory after which new requests are refused.
    pub critical_max: Duration,
    /// Whether a warning counts even if the loaded model alone causes it. Meant for limits that a
    /// user has set.
    pub warns_at_rest: bool,
}

impl Default for PressurePolicy {
    fn default() -> PressurePolicy {
        PressurePolicy {
            hold: Duration::from_secs(10),
            critical_max: Duration::from_secs(30),
            warns_at_rest: false,
        }
    }
}

/// State of the memory, for health checks and metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PressureStatus {
    /// The last reading, with the resulting tier.
    pub reading: MemoryReading,
    /// Time since which the memory is critical; `None` while it is not.
    pub critical_since: Option<Instant>,
    /// Time from which new requests are refused; `None` while the memory is not critical.
    pub refuses_from: Option<Instant>,
}

impl PressureStatus {
    /// Returns for how long the memory has been critical, if new requests are refused for that.
    pub fn refuses(&self, now: Instant) -> Option<Duration> {
        self.refuses_from.filter(|from| *from <= now)?;
        Some(now.saturating_duration_since(self.critical_since?))
    }
}

/// Turns readings into tiers.
#[derive(Debug)]
pub(super) struct PressureGuard {
    policy: PressurePolicy,
    tier: PressureTier,
    /// Tier that the model alone causes; `None` before the first reading.
    at_rest: Option<PressureTier>,
    /// Time since which readings have been better than the tier.
    better_since: Option<Instant>,
    critical_since: Option<Instant>,
}

impl PressureGuard {
    pub(super) fn new(policy: PressurePolicy) -> PressureGuard {
        let tier = PressureTier::Normal;
        PressureGuard { policy, tier, at_rest: None, better_since: None, critical_since: None }
    }

    /// Processes a reading, the first one right after the model was loaded, and returns the status
    /// to publish.
    pub(super) fn take(&mut self, mut reading: MemoryReading, now: Instant) -> PressureStatus {
        let at_rest = self.at_rest.unwrap_or(PressureTier::Warn).min(reading.tier);
        self.at_rest = Some(at_rest);
        if reading.tier <= at_rest && !self.policy.warns_at_rest {
            reading.tier = PressureTier::Normal;
        }
        let is_better = reading.tier < self.tier;
        let mut held = || now.duration_since(*self.better_since.get_or_insert(now));
        if !is_better || self.policy.hold <= held() {
            (self.tier, self.better_since) = (reading.tier, None);
        }
        self.critical_since = match self.tier {
            PressureTier::Critical => self.critical_since.or(Some(now)),
            _ => None,
        };
        // While readings are better already, refusing may go on but does not begin.
        let begins = |from: &Instant| self.better_since.is_none_or(|better| *from <= better);
        let refuses_from = self.critical_since.map(|since| since + self.policy.critical_max);
        PressureStatus {
            reading: MemoryReading { tier: self.tier, ..reading },
            critical_since: self.critical_since,
            refuses_from: refuses_from.filter(begins),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_rises_at_once_and_falls_when_better_readings_last() {
        let policy = PressurePolicy { hold: Duration::from_secs(10), ..PressurePolicy::default() };
        let mut guard = PressureGuard::new(policy);
        let begin = Instant::now();
        let mut tier_at = |seconds, tier| {
            let reading = MemoryReading { tier, ..MemoryReading::default() };
            guard.take(reading, begin + Duration::from_secs(seconds)).reading.tier
        };
        use PressureTier::{Critical, Normal, Warn};
        assert_eq!(tier_at(0, Normal), Normal);
        assert_eq!(tier_at(1, Critical), Critical);
        assert_eq!(tier_at(2, Warn), Critical);
        assert_eq!(tier_at(11, Warn), Critical);
        assert_eq!(tier_at(12, Warn), Warn, "ten seconds are over");
        assert_eq!(tier_at(13, Normal), Warn);
        assert_eq!(tier_at(15, Warn), Warn, "and begin anew");
        assert_eq!(tier_at(24, Normal), Warn);
        assert_eq!(tier_at(34, Normal), Normal);
    }

    #[test]
    fn what_the_model_itself_takes_is_no_pressure() {
        use PressureTier::{Critical, Normal, Warn};
        let policy = PressurePolicy { hold: Duration::ZERO, ..PressurePolicy::default() };
        let tiers = |readings: &[PressureTier]| -> Vec<PressureTier> {
            let mut guard = PressureGuard::new(policy);
            let take = |&tier: &PressureTier| {
                let reading = MemoryReading { tier, ..MemoryReading::default() };
                guard.take(reading, Instant::now()).reading.tier
            };
            readings.iter().map(take).collect()
        };
        assert_eq!(tiers(&[Warn, Warn, Critical, Warn]), [Normal, Normal, Critical, Normal]);
        assert_eq!(tiers(&[Warn, Normal, Warn]), [Normal, Normal, Warn], "it can be better");
        assert_eq!(tiers(&[Critical, Warn]), [Critical, Normal], "nobody is to be killed");
        let mut guard = PressureGuard::new(PressurePolicy { warns_at_rest: true, ..policy });
        let reading = MemoryReading { tier: Warn, ..MemoryReading::default() };
        assert_eq!(guard.take(reading, Instant::now()).reading.tier, Warn);
    }

    #[test]
    fn requests_are_refused_once_it_has_been_critical_for_too_long() {
        let mut guard = PressureGuard::new(PressurePolicy::default());
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let critical = MemoryReading { tier: PressureTier::Critical, ..MemoryReading::default() };
        let status = guard.take(critical.clone(), at(0));
        assert_eq!((status.refuses(at(29)), status.refuses(at(31))), (None, Some(at(31) - at(0))));
        let later = guard.take(critical, at(40));
        assert_eq!(later.refuses(at(41)), Some(Duration::from_secs(41)));
        let normal = MemoryReading::default();
        assert!(guard.take(normal.clone(), at(50)).refuses(at(50)).is_some());
        assert_eq!(guard.take(normal, at(60)).refuses(at(60)), None);
    }

    #[test]
    fn a_shortage_that_is_over_refuses_nothing() {
        let mut guard = PressureGuard::new(PressurePolicy::default());
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let critical = MemoryReading { tier: PressureTier::Critical, ..MemoryReading::default() };
        guard.take(critical.clone(), at(0));
        let better = guard.take(MemoryReading::default(), at(25));
        assert_eq!(better.reading.tier, PressureTier::Critical, "it has to last");
        assert_eq!(better.refuses(at(34)), None);
        assert!(guard.take(critical, at(34)).refuses(at(34)).is_some(), "it did not last");
    }
}
