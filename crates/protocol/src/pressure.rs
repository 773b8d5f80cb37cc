//! Memory pressure of a machine, in levels that agents, the coordinator and its callers share.

use serde::{Deserialize, Serialize};

/// Memory pressure of a machine.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
#[serde(rename_all = "lowercase")]
pub enum PressureTier {
    /// Enough memory is free.
    #[default]
    Normal,
    /// Little memory is free.
    Warn,
    /// Almost no memory is free: the system is about to swap or to kill a process.
    Critical,
}

impl PressureTier {
    /// Returns the name used in messages and metrics.
    pub fn name(self) -> &'static str {
        match self {
            PressureTier::Normal => "normal",
            PressureTier::Warn => "warn",
            PressureTier::Critical => "critical",
        }
    }
}
