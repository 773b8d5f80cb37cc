//! How short of memory a machine is, in words that agents, the brain and its callers share.

use serde::{Deserialize, Serialize};

/// How short of memory a machine is.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
#[serde(rename_all = "lowercase")]
pub enum PressureTier {
    /// There is enough.
    #[default]
    Normal,
    /// Little is left.
    Warn,
    /// Next to nothing is left: the system is about to swap, or to kill somebody.
    Critical,
}

impl PressureTier {
    /// The word in messages and metrics.
    pub fn name(self) -> &'static str {
        match self {
            PressureTier::Normal => "normal",
            PressureTier::Warn => "warn",
            PressureTier::Critical => "critical",
        }
    }
}
