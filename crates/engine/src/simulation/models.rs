//! The models of the simulation: what their caches take on each rank.

use crate::{CacheCapacity, RankCapacity};

/// Number of positions that a query sees in layers with windows; 0 without such layers. Chosen apart
/// from the states, so that some models have both.
const WINDOW_TOKENS: [usize; 5] = [0, 0, 1, 6, 11];

/// Returns the window of a seed's model.
pub(super) fn window_of(seed: u64) -> usize {
    WINDOW_TOKENS[(seed / 11 % WINDOW_TOKENS.len() as u64) as usize]
}

/// Sizes of states on each rank, in the unit in which rank `i` needs `i + 1` for a block: models
/// without states, with small and large ones, and over stages of which one has none.
pub(super) const STATE_SIZES: [&[u64]; 6] = [&[], &[], &[], &[], &[3, 9], &[0, 40]];

/// Returns the index in [`STATE_SIZES`] of a seed's model.
pub(super) fn model_of(seed: u64) -> usize {
    (seed / 7 % STATE_SIZES.len() as u64) as usize
}

/// Returns the capacity of ranks that have memory for `num_blocks` blocks and for a number of states,
/// which `choice` selects. `state_sizes` has the size of a sequence's states on each rank, in bytes;
/// layers with windows of `window_tokens` positions are on the last rank.
pub(super) fn capacity(
    num_blocks: usize,
    state_sizes: &[u64],
    window_tokens: usize,
    choice: u64,
) -> CacheCapacity {
    let num_states = [1, 2, 3, 5, 20][(choice % 5) as usize];
    let state_sizes = if state_sizes.is_empty() { &[0] } else { state_sizes };
    let rank = |(idx, state_bytes): (usize, &u64)| {
        let block_bytes = 1 + idx as u64;
        let has_windows = 0 < window_tokens && idx + 1 == state_sizes.len();
        let window_block_bytes = if has_windows { 3 } else { 0 };
        let of_blocks = num_blocks as u64 * (block_bytes + window_block_bytes);
        RankCapacity {
            budget_bytes: of_blocks + num_states * state_bytes,
            block_bytes,
            window_block_bytes,
            window_tokens: if has_windows { window_tokens } else { 0 },
            state_bytes: *state_bytes,
        }
    };
    CacheCapacity::new(state_sizes.iter().enumerate().map(rank).collect())
}
