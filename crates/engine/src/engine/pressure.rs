//! The guard against memory that other programs take while we serve. Whoever can ask the machines
//! reports what they say; the guard turns that into a tier, and the scheduler makes room.
//!
//! ```text
//!            less than the limit of `warn`          less than that of `critical`
//!   normal ─────────────────────────────▶ warn ─────────────────────────────▶ critical
//!      ▲                                    ▲                                    │
//!      └──────── after `hold` of better readings, straight to what they say ─────┘
//! ```
//!
//! | Tier | What is done |
//! |---|---|
//! | normal | nothing |
//! | warn | caches of finished sequences are given back and no more are kept; a quarter of the usual number of sequences runs side by side |
//! | critical | caches likewise; no sequence is admitted beside another, and with each reading half of the running sequences are preempted, the least important first; one goes on |
//! | critical for `critical_max` | the same, and new requests are refused; those that were taken wait |
//!
//! Nobody loses a token: a preempted sequence is computed again from its tokens and its stream goes on.
//! Better readings have to last, because what was just given back is what made them better. A machine that
//! is short of memory when the model has just been loaded is so because of the model: until it has once
//! said better, its `warn` is how it is at rest.

use std::time::{Duration, Instant};

use jackalope_protocol::PressureTier;

/// What a machine said of its memory: the one that is shortest of it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MemoryReading {
    /// How short it is.
    pub tier: PressureTier,
    /// The machine.
    pub host: String,
    /// What its programs could still get.
    pub free_bytes: u64,
}

/// How the guard behaves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PressurePolicy {
    /// How long readings have to be better before the tier is.
    pub hold: Duration,
    /// Time of critical memory after which new requests are refused.
    pub critical_max: Duration,
    /// Whether a warning counts that the loaded model alone gives rise to: a person has said what is
    /// too little.
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

/// How the memory is, for health checks and metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PressureStatus {
    /// The last reading, with the tier that it led to.
    pub reading: MemoryReading,
    /// While the memory is critical: since when.
    pub critical_since: Option<Instant>,
    /// While the memory is critical: from when on new requests are refused.
    pub refuses_from: Option<Instant>,
}

impl PressureStatus {
    /// Since when the memory has been critical, if that is too long for new requests.
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
    /// What the model alone makes of the memory; none before the first reading.
    at_rest: Option<PressureTier>,
    /// Since when readings have been better than the tier.
    better_since: Option<Instant>,
    critical_since: Option<Instant>,
}

impl PressureGuard {
    pub(super) fn new(policy: PressurePolicy) -> PressureGuard {
        let tier = PressureTier::Normal;
        PressureGuard { policy, tier, at_rest: None, better_since: None, critical_since: None }
    }

    /// Takes a reading, the first one when the model has been loaded; what is to be told of it.
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
        PressureStatus {
            reading: MemoryReading { tier: self.tier, ..reading },
            critical_since: self.critical_since,
            refuses_from: self.critical_since.map(|since| since + self.policy.critical_max),
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
}
