//! How short of memory a machine is: what its system says, and how much is left.

use jackalope_protocol::PressureTier;
use serde::{Deserialize, Serialize};

use super::MachineMemory;

/// A machine is short of memory once less than one part in so many of what is installed is left …
const WARN_PART: u64 = 16;
/// … and critically short once it is less than one part in so many.
const CRITICAL_PART: u64 = 32;

/// However much is installed, this is enough …
const WARN_BYTES_MAX: u64 = 1 << 30;
/// … and this is not critical.
const CRITICAL_BYTES_MAX: u64 = 512 << 20;

/// What a machine says when it is asked how its memory is.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MemoryPressure {
    /// What there is.
    pub memory: MachineMemory,
    /// What the system itself makes of it, where it does. macOS does: there what is left says little,
    /// because a loaded model stays wired.
    pub told: Option<PressureTier>,
}

/// What counts as short, where a person says so.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PressureLimits {
    /// With less than this left, memory is short.
    pub warn_bytes: Option<u64>,
    /// With less than this left, it is critical.
    pub critical_bytes: Option<u64>,
}

impl MemoryPressure {
    /// How short of memory the machine is. A person's limits count beside what the system says; without
    /// either, parts of the memory do.
    pub fn tier(&self, limits: PressureLimits) -> PressureTier {
        let MachineMemory { total_bytes, free_bytes } = self.memory;
        let usual = |part: u64, most: u64| match self.told {
            Some(_) => 0,
            None => (total_bytes / part).min(most),
        };
        let warn = limits.warn_bytes.unwrap_or_else(|| usual(WARN_PART, WARN_BYTES_MAX));
        let critical =
            limits.critical_bytes.unwrap_or_else(|| usual(CRITICAL_PART, CRITICAL_BYTES_MAX));
        let counted = match free_bytes {
            free if free < critical => PressureTier::Critical,
            free if free < warn => PressureTier::Warn,
            _ => PressureTier::Normal,
        };
        counted.max(self.told.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn tier(total_bytes: u64, free_bytes: u64, told: Option<PressureTier>) -> PressureTier {
        let memory = MachineMemory { total_bytes, free_bytes };
        MemoryPressure { memory, told }.tier(PressureLimits::default())
    }

    #[test]
    fn what_is_left_counts_where_the_system_says_nothing() {
        assert_eq!(tier(64 * GIB, GIB, None), PressureTier::Normal);
        assert_eq!(tier(64 * GIB, GIB - 1, None), PressureTier::Warn);
        assert_eq!(tier(64 * GIB, GIB / 2 - 1, None), PressureTier::Critical);
        assert_eq!(tier(8 * GIB, GIB / 2, None), PressureTier::Normal, "small machines have less");
        assert_eq!(tier(8 * GIB, GIB / 4, None), PressureTier::Warn);
        assert_eq!(tier(8 * GIB, GIB / 4 - 1, None), PressureTier::Critical);
    }

    #[test]
    fn the_systems_own_word_counts_and_so_does_a_persons() {
        assert_eq!(tier(64 * GIB, 0, Some(PressureTier::Normal)), PressureTier::Normal);
        assert_eq!(tier(64 * GIB, 60 * GIB, Some(PressureTier::Warn)), PressureTier::Warn);
        let memory = MachineMemory { total_bytes: 64 * GIB, free_bytes: 5 * GIB };
        let pressure = MemoryPressure { memory, told: Some(PressureTier::Warn) };
        let with = |warn: u64, critical: u64| {
            let bytes = |gib: u64| Some(gib * GIB);
            pressure
                .tier(PressureLimits { warn_bytes: bytes(warn), critical_bytes: bytes(critical) })
        };
        assert_eq!(with(0, 0), PressureTier::Warn);
        assert_eq!(with(0, 6), PressureTier::Critical);
        let told = MemoryPressure { told: None, ..pressure };
        let off = PressureLimits { warn_bytes: Some(0), critical_bytes: Some(0) };
        assert_eq!(told.tier(off), PressureTier::Normal);
    }
}
