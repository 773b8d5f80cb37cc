//! The recurrence of a block of values: every lane is computed independently.

use std::ops::Range;

use jackalope_simd::{Simd, dispatched};

use super::weights::{Decay, RecurrenceRule, RecurrenceWeights};
use super::{BLOCK, RecurrenceInputs};
use crate::activation::logistic;

/// A row of a block.
type Row = [f32; BLOCK];

/// One block of the values of one head of one sequence.
#[derive(Debug)]
pub(super) struct ValueJob<'a> {
    pub(super) block: Block<'a>,
    /// `[key_dim + conv_width - 1, lanes]`: the state, then the last inputs of the convolution.
    pub(super) state: &'a mut [f32],
    /// `[rows, lanes]`.
    pub(super) out: &'a mut [f32],
}

/// Inputs of a block.
#[derive(Debug)]
pub(super) struct Block<'a> {
    pub(super) head: usize,
    /// Index of the block among those of the head.
    pub(super) idx: usize,
    /// Elements of the head's values.
    pub(super) lanes: Range<usize>,
    /// Rows of the step.
    pub(super) rows: Range<usize>,
    /// Queries, keys and perhaps decays of these rows, `[rows, key_width]`.
    pub(super) placed: &'a [f32],
}

/// A token's inputs to the state of a block.
struct Token<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: Row,
    decay: Decay,
}

dispatched! {
    /// Computes the rows of a block.
    pub(super) fn value_block(
        inputs: &RecurrenceInputs<'_>,
        weights: &RecurrenceWeights,
        job: ValueJob<'_>,
    ) = value_block_with
}

#[inline(always)]
fn value_block_with<S: Simd>(
    _simd: S,
    inputs: &RecurrenceInputs<'_>,
    weights: &RecurrenceWeights,
    job: ValueJob<'_>,
) {
    let ValueJob { block, state, out } = job;
    let num_lanes = block.lanes.len();
    if num_lanes == BLOCK {
        let (rows, rest) = state.as_chunks_mut::<BLOCK>();
        assert!(rest.is_empty(), "whole rows");
        return run::<S>(inputs, weights, &block, rows, out);
    }
    let mut rows: Vec<Row> = vec![[0.0; BLOCK]; state.len() / num_lanes];
    for (row, state) in rows.iter_mut().zip(state.chunks_exact(num_lanes)) {
        row[..num_lanes].copy_from_slice(state);
    }
    run::<S>(inputs, weights, &block, &mut rows, out);
    for (row, state) in rows.iter().zip(state.chunks_exact_mut(num_lanes)) {
        state.copy_from_slice(&row[..num_lanes]);
    }
}

#[inline(always)]
fn run<S: Simd>(
    inputs: &RecurrenceInputs<'_>,
    weights: &RecurrenceWeights,
    block: &Block<'_>,
    state: &mut [Row],
    out: &mut [f32],
) {
    let sizes = weights.sizes();
    let num_lanes = block.lanes.len();
    let convolution = (weights.rule() != RecurrenceRule::Lightning).then(|| {
        let kernels = weights.value_kernels(block.head, block.idx);
        (kernels, weights.value_biases(block.head, block.idx))
    });
    let (state, history) = state.split_at_mut(sizes.key_dim);
    let placed = block.placed.chunks_exact(weights.key_width());
    for ((row, placed), out) in block.rows.clone().zip(placed).zip(out.chunks_exact_mut(num_lanes))
    {
        let (query, rest) = placed.split_at(sizes.key_dim);
        let (key, decays) = rest.split_at(sizes.key_dim);
        let head_idx = row * sizes.value_heads + block.head;
        let start = head_idx * sizes.value_dim;
        let lanes = start + block.lanes.start..start + block.lanes.end;
        let mut value = [0.0; BLOCK];
        value[..num_lanes].copy_from_slice(&inputs.values[lanes]);
        if let Some((kernels, biases)) = convolution {
            value = convolve::<S>(history, kernels, biases, &value);
        }
        let head_decay = || weights.decay(block.head, inputs.decays[head_idx]);
        let result = match weights.rule() {
            RecurrenceRule::GatedDelta { rate_max } => {
                let token = Token { query, key, value, decay: head_decay() };
                delta_step::<S>(state, &token, rate_max * logistic::<S>(inputs.rates[head_idx]))
            }
            RecurrenceRule::KimiDelta { .. } => {
                decay_rows(state, decays);
                let token = Token { query, key, value, decay: Decay::NONE };
                delta_step::<S>(state, &token, logistic::<S>(inputs.rates[head_idx]))
            }
            RecurrenceRule::StateSpace { .. } => {
                let token = Token { query, key, value, decay: head_decay() };
                space_step::<S>(state, &token, weights.skip(block.head))
            }
            RecurrenceRule::Lightning => {
                let decay = weights.constant_decay(block.head);
                space_step::<S>(state, &Token { query, key, value, decay }, 0.0)
            }
        };
        out.copy_from_slice(&result[..num_lanes]);
    }
}

/// Returns `silu(convolution)` of a token, and puts it at the end of the history.
#[inline(always)]
fn convolve<S: Simd>(history: &mut [Row], kernels: &[Row], biases: &Row, x: &Row) -> Row {
    let mut sums = *biases;
    for (inputs, weights) in history.iter().chain([x]).zip(kernels) {
        for lane in 0..BLOCK {
            sums[lane] = S::mul_add_scalar(inputs[lane], weights[lane], sums[lane]);
        }
    }
    if !history.is_empty() {
        history.rotate_left(1);
        history[history.len() - 1] = *x;
    }
    sums.map(silu::<S>)
}

/// Corrects the state, whose rows belong to the elements of the key, and returns the token's result.
#[inline(always)]
fn delta_step<S: Simd>(state: &mut [Row], token: &Token<'_>, rate: f32) -> Row {
    let &Token { query, key, value, decay: Decay { factor: decay, .. } } = token;
    let mut found = [0.0; BLOCK];
    for (row, key) in state.iter().zip(key) {
        for lane in 0..BLOCK {
            found[lane] = S::mul_add_scalar(row[lane], *key, found[lane]);
        }
    }
    let mut correction = [0.0; BLOCK];
    for lane in 0..BLOCK {
        correction[lane] = (value[lane] - decay * found[lane]) * rate;
    }
    let mut result = [0.0; BLOCK];
    for ((row, key), query) in state.iter_mut().zip(key).zip(query) {
        for lane in 0..BLOCK {
            row[lane] = S::mul_add_scalar(correction[lane], *key, decay * row[lane]);
            result[lane] = S::mul_add_scalar(row[lane], *query, result[lane]);
        }
    }
    result
}

/// Multiplies each row of the state by its decay.
#[inline(always)]
fn decay_rows(state: &mut [Row], decays: &[f32]) {
    for (row, decay) in state.iter_mut().zip(decays) {
        row.iter_mut().for_each(|value| *value *= decay);
    }
}

/// Adds the token to the state, whose rows belong to the elements of the key, and returns the token's
/// result.
#[inline(always)]
fn space_step<S: Simd>(state: &mut [Row], token: &Token<'_>, skip: f32) -> Row {
    let &Token { query, key, value, decay: Decay { step, factor } } = token;
    let input = value.map(|value| step * value);
    let mut result = [0.0; BLOCK];
    for ((row, key), query) in state.iter_mut().zip(key).zip(query) {
        for lane in 0..BLOCK {
            row[lane] = S::mul_add_scalar(input[lane], *key, factor * row[lane]);
            result[lane] = S::mul_add_scalar(row[lane], *query, result[lane]);
        }
    }
    for lane in 0..BLOCK {
        result[lane] = S::mul_add_scalar(skip, value[lane], result[lane]);
    }
    result
}

/// `x` times its logistic function.
#[inline(always)]
pub(super) fn silu<S: Simd>(x: f32) -> f32 {
    x * logistic::<S>(x)
}
