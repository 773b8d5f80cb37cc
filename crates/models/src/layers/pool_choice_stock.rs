//! Choices of pools that layers share in a step, with MLX's operations: those of each group of sequences that
//! decode, and then those of each prompt.

use std::cell::Cell;

use jackalope_cache::KvArrays;
use jackalope_mlx::choice;
use jackalope_mlx::{Array, Dtype, dim};
use jackalope_parallel::codes::stock_rounded;
use jackalope_spec::PoolCandidates;

use super::pool_choice::PoolIndexer;
use super::pooled::{IndexVectors, OwnPools, PooledPools};
use crate::step::{Choice, EndedPools, Step};

/// The choice of pools that a layer makes for each part of a step, or that an earlier one has made.
#[derive(Debug, Default)]
pub(super) struct SharedChoice {
    choice: Choice,
    next: Cell<usize>,
}

impl SharedChoice {
    /// Returns what a layer with these pools writes, or reads if an earlier one has written it.
    pub(super) fn new(pools: Option<&PooledPools>, step: &mut Step<'_, '_>) -> SharedChoice {
        let chooser = pools.and_then(|pools| pools.chooser.as_ref());
        let choice = chooser.map_or_else(Choice::default, |it| it.choice(step));
        SharedChoice { choice, next: Cell::new(0) }
    }

    /// Returns the number of the next part of the step.
    pub(super) fn next_part(&self) -> usize {
        self.next.replace(self.next.get() + 1)
    }

    /// Returns which pools an earlier layer has chosen; `None` if all that a query sees.
    pub(super) fn chosen(&self, part: usize) -> Option<Array> {
        self.choice.masks.borrow()[part].clone()
    }

    /// Returns which of the pools with these `keys`, `[sequences, 1, pools, head_dim]`, the queries of the next
    /// part attend to; `None` if all that they see. `queries` returns rotated queries and their factors.
    pub(super) fn choose(
        &self,
        indexer: &PoolIndexer,
        keys: Option<&Array>,
        seen: Option<&Array>,
        queries: impl FnOnce() -> [Array; 2],
    ) -> Option<Array> {
        let mut masks = self.choice.masks.borrow_mut();
        let mut candidates = self.choice.candidates.masks.borrow_mut();
        let part = masks.len();
        let keys = keys.filter(|keys| dim(indexer.num_chosen) < keys.dim(2));
        let scores = keys.map(|keys| {
            // Rounded vectors are compared in single precision.
            let wide = |x: &Array| match indexer.codes {
                Some(_) => x.astype(Dtype::F32),
                None => x.clone(),
            };
            let [queries, weights] = queries();
            choice::scores(&wide(&queries), &wide(&weights), &wide(keys))
        });
        let among = match indexer.candidates {
            Some(PoolCandidates::OfLayer { .. }) => match (candidates[part].as_ref(), seen) {
                (Some(left), Some(seen)) => Some(left.logical_and(seen)),
                (left, seen) => left.or(seen).cloned(),
            },
            Some(PoolCandidates::Blocks { len, num_blocks }) => {
                let left = scores.as_ref();
                candidates.push(left.and_then(|it| in_best_blocks(it, seen, [len, num_blocks])));
                seen.cloned()
            }
            None => seen.cloned(),
        };
        let mask = scores.map(|it| choice::best(&it, among.as_ref(), indexer.num_chosen));
        masks.push(mask.clone());
        mask
    }
}

/// Returns which pools are in the blocks of `len` pools with the largest scores and in the last one that a query
/// sees; `None` if there are no more blocks.
fn in_best_blocks(
    scores: &Array,
    seen: Option<&Array>,
    [len, num_blocks]: [usize; 2],
) -> Option<Array> {
    let num_pools = scores.dim(3);
    let len = dim(len);
    let all_blocks = (num_pools + len - 1) / len;
    if all_blocks <= dim(num_blocks) {
        return None;
    }
    let least = Array::scalar(f32::NEG_INFINITY);
    let scores = seen.map_or(scores.clone(), |seen| Array::where_(seen, scores, &least));
    let mut shape = scores.shape();
    shape[3] = all_blocks * len - num_pools;
    let rest = Array::full(&shape, f32::NEG_INFINITY, Dtype::F32);
    let padded = Array::concatenate(&[&scores, &rest], -1);
    let blocks = padded.reshape(&[shape[0], shape[1], shape[2], all_blocks, len]).max(-1, false);
    let count = match seen {
        Some(seen) => seen.astype(Dtype::I32).sum(-1, true),
        None => Array::from_slice(&[num_pools], &[1]),
    };
    let last =
        count.sub(&Array::from_slice(&[1], &[1])).floor_divide(&Array::from_slice(&[len], &[1]));
    let is_last = Array::arange(all_blocks, Dtype::I32).equal(&last);
    let blocks = Array::where_(&is_last, &Array::scalar(f32::INFINITY), &blocks);
    let kept = choice::best(&blocks, Some(&blocks.greater(&least)), num_blocks);
    Some(kept.repeat(len, -1).slice_axis(-1, 0, num_pools))
}

impl PoolIndexer {
    /// Rotates queries `[tokens, heads, 1, head_dim]`, and rounds them.
    pub(super) fn stock_placed(&self, queries: &Array, positions: &Array) -> Array {
        let placed = self.rope.stock(queries, positions);
        self.codes.map_or(placed.clone(), |codes| stock_rounded(codes, &placed))
    }
}

impl OwnPools {
    /// Returns what pools are computed from, for `x` `[tokens, hidden]`: `[tokens, raw_dim]`.
    pub(super) fn stock_raw(&self, x: &Array) -> Array {
        let parts: Vec<Array> = self.compressors().map(|it| it.stock_raw(x)).collect();
        Array::concatenate(&parts.iter().collect::<Vec<_>>(), 1)
    }

    /// Returns the vectors of pools and what indexers compare, `[pools, 1, 1, dim]`, from what is kept of the
    /// positions that they are computed from, `[pools, positions, raw_dim]`.
    pub(super) fn stock(&self, raw: &Array, pools: &EndedPools) -> KvArrays {
        let own = dim(self.vectors.raw_dim());
        let normed = self.vectors.stock_normed(&raw.slice_axis(2, 0, own), pools);
        let index = self.index.as_ref().map(|index| match index {
            IndexVectors::Compressed(index) => {
                index.stock(&raw.slice_axis(2, own, raw.dim(2)), pools)
            }
            IndexVectors::Projected(index) => index.stock(&normed, pools),
        });
        KvArrays { keys: self.vectors.stock_placed(&normed, pools), values: None, index }
    }
}
