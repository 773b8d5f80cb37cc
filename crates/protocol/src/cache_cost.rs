//! The memory that caches take on a rank.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of positions by which a sequence's cache grows on a rank, the size of a KV block. The
/// coordinator's accounting of memory and the ranks' allocation must agree on this number.
pub const KV_BLOCK_TOKENS: u32 = 256;

/// Memory that the caches of sequences take on one rank. The coordinator computes it from the
/// checkpoint's description, the rank from what it allocates; both have to agree.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct CacheCost {
    /// Bytes for each position of a sequence.
    pub bytes_per_token: u64,
    /// Bytes of the states of a sequence, whatever its length. Each kept length takes the same
    /// number of bytes in addition.
    pub state_bytes: u64,
}

impl CacheCost {
    /// Returns the bytes of one KV block.
    pub fn block_bytes(&self) -> u64 {
        self.bytes_per_token * u64::from(KV_BLOCK_TOKENS)
    }

    /// Whether the rank holds layers with a state, whose caches cannot be cut to any length.
    pub fn has_states(&self) -> bool {
        0 < self.state_bytes
    }
}

impl fmt::Display for CacheCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes per token", self.bytes_per_token)?;
        if self.has_states() {
            write!(f, " and {} bytes per state", self.state_bytes)?;
        }
        Ok(())
    }
}
