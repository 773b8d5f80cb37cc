//! What the processors of a machine have used.

use std::time::Instant;

/// Energy that the processors had used at some time.
#[derive(Clone, Copy, Debug)]
pub struct EnergyReading {
    /// Time of the reading.
    pub at: Instant,
    /// The energy in microjoules, from any time on.
    pub microjoules: u64,
}
