//! The memory that caches take on a rank.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Number of positions by which a sequence's cache grows on a rank, the size of a KV block. The
/// coordinator's accounting of memory and the ranks' allocation must agree on this number.
pub const KV_BLOCK_TOKENS: u32 = 256;

/// Memory that the caches of sequences take on one rank. The coordinator computes it from the
/// checkpoint's description, the rank from what it allocates; both have to agree.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct CacheCost {
    /// Bytes for each position of a sequence in layers that keep all positions.
    pub bytes_per_token: u64,
    /// Bytes for each position that layers with windows hold.
    pub window_bytes_per_token: u64,
    /// Number of positions that a query sees at most in layers with windows, its own included; 0
    /// without such layers.
    pub window_tokens: u32,
    /// Bytes of the states of a sequence, whatever its length. Each kept length takes the same
    /// number of bytes in addition.
    pub state_bytes: u64,
}

impl CacheCost {
    /// Returns the bytes of one KV block in layers that keep all positions.
    pub fn block_bytes(&self) -> u64 {
        self.bytes_per_token * u64::from(KV_BLOCK_TOKENS)
    }

    /// Returns the bytes of one KV block in layers with windows.
    pub fn window_block_bytes(&self) -> u64 {
        self.window_bytes_per_token * u64::from(KV_BLOCK_TOKENS)
    }

    /// Returns the bytes for each position if layers with windows keep all positions too.
    pub fn bytes_per_held_token(&self) -> u64 {
        self.bytes_per_token + self.window_bytes_per_token
    }

    /// Returns the largest number of KV blocks that a running sequence holds in layers with windows,
    /// if a row has at most `row_tokens` tokens; 0 without such layers.
    pub fn window_blocks_max(&self, row_tokens: usize) -> usize {
        window_blocks_max(self.window_tokens as usize, KV_BLOCK_TOKENS as usize, row_tokens)
    }

    /// Whether the rank holds layers with a state, whose caches cannot be cut to any length.
    pub fn has_states(&self) -> bool {
        0 < self.state_bytes
    }
}

impl fmt::Display for CacheCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes per token", self.bytes_per_token)?;
        if 0 < self.window_tokens {
            let CacheCost { window_bytes_per_token: bytes, window_tokens: tokens, .. } = self;
            write!(f, ", {bytes} bytes per token of windows of {tokens}")?;
        }
        if self.has_states() {
            write!(f, " and {} bytes per state", self.state_bytes)?;
        }
        Ok(())
    }
}

/// Returns the numbers of the KV blocks that a row that starts at `num_tokens` reads, and those that
/// it continues, in layers where a query sees at most `window_tokens` positions.
pub fn window_blocks(window_tokens: usize, block_tokens: usize, num_tokens: usize) -> Range<usize> {
    (num_tokens + 1).saturating_sub(window_tokens) / block_tokens..num_tokens.div_ceil(block_tokens)
}

/// Returns the largest number of KV blocks that a running sequence holds in layers where a query
/// sees at most `window_tokens` positions, if a row has at most `row_tokens` tokens: those of the
/// row and of the window before it.
pub fn window_blocks_max(window_tokens: usize, block_tokens: usize, row_tokens: usize) -> usize {
    if window_tokens == 0 {
        return 0;
    }
    let num_tokens = window_tokens - 1 + row_tokens;
    // A run of tokens that begins with the last position of a block touches most blocks.
    (num_tokens + block_tokens - 2) / block_tokens + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_reads_the_blocks_of_its_window() {
        assert_eq!(window_blocks(4, 4, 0), 0..0);
        assert_eq!(window_blocks(4, 4, 6), 0..2, "the query at 6 sees 3, 4, 5 and itself");
        assert_eq!(window_blocks(4, 4, 7), 1..2);
        assert_eq!(window_blocks(1, 4, 8), 2..2, "a query sees only itself");
    }

    #[test]
    fn no_row_needs_more_blocks_than_the_maximum_and_some_row_needs_them() {
        for (window, block, row) in [(1, 1, 1), (4, 4, 1), (5, 3, 7), (128, 256, 512), (9, 2, 1)] {
            let held = |start: usize| {
                (start + row).div_ceil(block) - window_blocks(window, block, start).start
            };
            let most = (window..2000).map(held).max();
            assert_eq!(most, Some(window_blocks_max(window, block, row)), "{window} {block} {row}");
        }
        assert_eq!(window_blocks_max(0, 256, 512), 0);
    }
}
