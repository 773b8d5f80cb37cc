//! How short of memory a machine is, from the system's own assessment and from the free memory.

use serde::{Deserialize, Serialize};

use crate::PressureTier;

/// A machine's memory, in bytes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MachineMemory {
    /// Installed memory.
    pub total_bytes: u64,
    /// Memory that a program can allocate now without evicting others.
    pub free_bytes: u64,
}

/// By default, a machine is short of memory if less than one `WARN_PART`-th of the installed memory
/// is free, but not if [`WARN_BYTES_MAX`] are free.
const WARN_PART: u64 = 16;
/// By default, a machine is critically short of memory if less than one `CRITICAL_PART`-th of the
/// installed memory is free, but not if [`CRITICAL_BYTES_MAX`] are free.
const CRITICAL_PART: u64 = 32;

/// Free memory in bytes that is enough on any machine, whatever is installed.
const WARN_BYTES_MAX: u64 = 1 << 30;
/// Free memory in bytes that is not critical on any machine, whatever is installed.
const CRITICAL_BYTES_MAX: u64 = 512 << 20;

/// The state of a machine's memory.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MemoryPressure {
    /// Installed and free memory.
    pub memory: MachineMemory,
    /// The system's own assessment, if it makes one. macOS does; there the free memory says little,
    /// because a loaded model stays wired.
    pub assessment: Option<PressureTier>,
}

/// Limits below which memory counts as short, if the user sets them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PressureLimits {
    /// Memory is short if fewer bytes are free; `None` uses the default.
    pub warn_bytes: Option<u64>,
    /// Memory is critically short if fewer bytes are free; `None` uses the default.
    pub critical_bytes: Option<u64>,
}

impl MemoryPressure {
    /// Returns how short of memory the machine is: the worse of the system's assessment and of what
    /// the limits say. A limit that is not set defaults to a fraction of the memory, or to none if
    /// the system makes an assessment.
    pub fn tier(&self, limits: PressureLimits) -> PressureTier {
        let MachineMemory { total_bytes, free_bytes } = self.memory;
        let usual = |part: u64, most: u64| match self.assessment {
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
        counted.max(self.assessment.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn tier(total_bytes: u64, free_bytes: u64, assessment: Option<PressureTier>) -> PressureTier {
        let memory = MachineMemory { total_bytes, free_bytes };
        MemoryPressure { memory, assessment }.tier(PressureLimits::default())
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
    fn system_pressure_and_user_limits_both_count() {
        assert_eq!(tier(64 * GIB, 0, Some(PressureTier::Normal)), PressureTier::Normal);
        assert_eq!(tier(64 * GIB, 60 * GIB, Some(PressureTier::Warn)), PressureTier::Warn);
        let memory = MachineMemory { total_bytes: 64 * GIB, free_bytes: 5 * GIB };
        let pressure = MemoryPressure { memory, assessment: Some(PressureTier::Warn) };
        let with = |warn: u64, critical: u64| {
            let bytes = |gib: u64| Some(gib * GIB);
            pressure
                .tier(PressureLimits { warn_bytes: bytes(warn), critical_bytes: bytes(critical) })
        };
        assert_eq!(with(0, 0), PressureTier::Warn);
        assert_eq!(with(0, 6), PressureTier::Critical);
        let unassessed = MemoryPressure { assessment: None, ..pressure };
        let off = PressureLimits { warn_bytes: Some(0), critical_bytes: Some(0) };
        assert_eq!(unassessed.tier(off), PressureTier::Normal);
    }
}
