//! The models of the simulation: what their caches take on each rank.

use crate::{CacheCapacity, RankCapacity};

/// Sizes of states on each rank, in the unit in which rank `i` needs `i + 1` for a block: models
/// without states, with small and large ones, and over stages of which one has none.
pub(super) const STATE_SIZES: [&[u64]; 6] = [&[], &[], &[], &[], &[3, 9], &[0, 40]];

/// Returns the index in [`STATE_SIZES`] of a seed's model.
pub(super) fn model_of(seed: u64) -> usize {
    (seed / 7 % STATE_SIZES.len() as u64) as usize
}

/// Returns the capacity of ranks that have memory for `num_blocks` blocks and for a number of states,
/// which `choice` selects. `state_sizes` has the size of a sequence's states on each rank, in bytes.
pub(super) fn capacity(num_blocks: usize, state_sizes: &[u64], choice: u64) -> CacheCapacity {
    let num_states = [1, 2, 3, 5, 20][(choice % 5) as usize];
    if state_sizes.is_empty() {
        return CacheCapacity::of_blocks(num_blocks);
    }
    let rank = |(idx, state_bytes): (usize, &u64)| {
        let block_bytes = 1 + idx as u64;
        let budget_bytes = num_blocks as u64 * block_bytes + num_states * state_bytes;
        RankCapacity { budget_bytes, block_bytes, state_bytes: *state_bytes }
    };
    CacheCapacity::new(state_sizes.iter().enumerate().map(rank).collect())
}
