//! Which keys queries attend to, where an indexer chooses them: several operations.

use crate::{Array, Dtype, dim};

/// How blocks of neighbouring keys are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// Number of keys in a block.
    pub len: usize,
    /// Number of blocks that a query chooses.
    pub num_chosen: usize,
    /// Number of blocks among them that need no score: those with the last keys that a query sees.
    pub num_local: usize,
}

/// Returns `Σ weight · max(query · key, 0)` over the heads, f32 `[sequences, 1, seq, keys]`, for queries
/// `[sequences, heads, seq, head_dim]`, weights `[sequences, heads, seq, 1]` and keys
/// `[sequences, 1, keys, head_dim]`.
#[track_caller]
pub fn scores(queries: &Array, weights: &Array, keys: &Array) -> Array {
    let keys = keys.swapaxes(-1, -2);
    let zero = Array::scalar_of(0.0, queries.dtype());
    let weigh = |queries: &Array, weights: &Array| {
        queries.matmul(&keys).maximum(&zero).mul(weights).astype(Dtype::F32)
    };
    if queries.dim(2) == 1 {
        return weigh(queries, weights).sum(1, true);
    }
    // Head by head, because the scores of all heads of a prompt would be large.
    let of_heads = (0..queries.dim(1)).map(|idx| weigh(&head(queries, idx), &head(weights, idx)));
    of_heads.reduce(|sum, scores| sum.add(&scores)).expect("an indexer has heads")
}

/// Returns where the largest of the visible scores are; of equal ones the first.
#[track_caller]
pub fn best(scores: &Array, visible: Option<&Array>, num_chosen: usize) -> Array {
    let least = Array::scalar(f32::NEG_INFINITY);
    let seen = visible.map_or(scores.clone(), |mask| Array::where_(mask, scores, &least));
    let ranks = seen.neg().argsort(-1).argsort(-1).astype(Dtype::I32);
    let chosen = ranks.less(&Array::from_slice(&[dim(num_chosen)], &[1]));
    visible.map_or(chosen.clone(), |mask| chosen.logical_and(mask))
}

/// Returns which visible keys are in the best blocks of each head, boolean `[sequences, heads, seq, keys]`:
/// those with the largest products of queries `[sequences, heads, seq, head_dim]` and visible keys
/// `[sequences, 1, keys, head_dim]`. A query sees a first part of the keys; `visible` broadcasts to
/// `[sequences, 1, seq, keys]`.
#[track_caller]
pub fn best_blocks(
    queries: &Array,
    keys: &Array,
    visible: Option<&Array>,
    blocks: Blocks,
) -> Array {
    let (len, num_keys) = (dim(blocks.len), keys.dim(2));
    let num_blocks = (num_keys + len - 1) / len;
    let everything = Array::zeros(&[1, 1, 1, num_keys], Dtype::I32).less(&Array::scalar(1.0));
    let visible = visible.unwrap_or(&everything);
    let least = Array::scalar(f32::NEG_INFINITY);
    // Blocks are seen with their first keys; the last of them are local.
    let firsts: Vec<i32> = (0..num_blocks).map(|block| block * len).collect();
    let seen = visible.take(&Array::from_slice(&firsts, &[num_blocks]), -1);
    let num_local = dim(blocks.num_local).min(num_blocks);
    let mut shape = seen.shape();
    *shape.last_mut().expect("it has blocks") = num_local;
    let nothing = Array::zeros(&shape, Dtype::I32).greater(&Array::scalar(1.0));
    let before_local =
        Array::concatenate(&[&seen.slice_axis(-1, num_local, num_blocks), &nothing], -1);
    let keys = keys.astype(Dtype::F32).swapaxes(-1, -2);
    let chosen = (0..queries.dim(1)).map(|idx| {
        let scores = head(queries, idx).astype(Dtype::F32).matmul(&keys);
        let scores = Array::where_(visible, &scores, &least);
        let mut shape = scores.shape();
        shape[3] = num_blocks * len - num_keys;
        let rest = Array::full(&shape, f32::NEG_INFINITY, Dtype::F32);
        let padded = Array::concatenate(&[&scores, &rest], -1);
        let of_blocks = padded.reshape(&[shape[0], 1, shape[2], num_blocks, len]).max(-1, false);
        let scores = Array::where_(&before_local, &of_blocks, &Array::scalar(f32::INFINITY));
        let chosen = best(&scores, Some(&seen), blocks.num_chosen);
        chosen.repeat(len, -1).slice_axis(-1, 0, num_keys).logical_and(visible)
    });
    Array::concatenate(&chosen.collect::<Vec<_>>().iter().collect::<Vec<_>>(), 1)
}

fn head(x: &Array, head: i32) -> Array {
    x.slice_axis(1, head, head + 1)
}
