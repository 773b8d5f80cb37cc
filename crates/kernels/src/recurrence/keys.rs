//! The convolution and the norm of keys and queries.

use std::ops::Range;

use jackalope_simd::{LANES, Simd, dispatched};

use super::convolution::add_taps;
use super::weights::{RecurrenceRule, RecurrenceWeights};
use super::{RecurrenceInputs, block};

/// Epsilon added to the squared length of a key, as in the reference (`normalize_qk` of mlx-lm).
const LENGTH_EPS: f32 = 1e-6;

/// One key head of one sequence.
#[derive(Debug)]
pub(super) struct KeyJob<'a> {
    pub(super) head: usize,
    pub(super) rows: Range<usize>,
    /// Last inputs of the convolution, `[conv_width - 1, 2 * key_dim]`.
    pub(super) history: &'a mut [f32],
    /// `[rows, key_width]`: queries, then keys, then decays if each element of a key has one.
    pub(super) placed: &'a mut [f32],
}

dispatched! {
    /// Computes the queries and keys of one head.
    pub(super) fn key_rows(
        inputs: &RecurrenceInputs<'_>,
        weights: &RecurrenceWeights,
        job: KeyJob<'_>,
    ) = key_rows_with
}

#[inline(always)]
fn key_rows_with<S: Simd>(
    simd: S,
    inputs: &RecurrenceInputs<'_>,
    weights: &RecurrenceWeights,
    job: KeyJob<'_>,
) {
    let sizes = weights.sizes();
    let (key_dim, num_heads) = (sizes.key_dim, sizes.key_heads);
    for (row, placed) in job.rows.zip(job.placed.chunks_exact_mut(weights.key_width())) {
        let start = (row * num_heads + job.head) * key_dim;
        let (placed, decays) = placed.split_at_mut(2 * key_dim);
        let (query, key) = placed.split_at_mut(key_dim);
        query.copy_from_slice(&inputs.queries[start..start + key_dim]);
        key.copy_from_slice(&inputs.keys[start..start + key_dim]);
        if weights.rule() != RecurrenceRule::Lightning {
            let (kernels, biases) = (weights.key_kernels(job.head), weights.key_biases(job.head));
            convolve::<S>(job.history, kernels, biases, placed);
        }
        let (query, key) = placed.split_at_mut(key_dim);
        match weights.rule() {
            RecurrenceRule::GatedDelta { .. } | RecurrenceRule::KimiDelta { .. } => {
                let scale = 1.0 / (key_dim as f32).sqrt();
                scale_to(simd, query, scale);
                scale_to(simd, key, 1.0);
            }
            RecurrenceRule::StateSpace { .. } | RecurrenceRule::Lightning => {}
        }
        for (element, decay) in decays.iter_mut().enumerate() {
            *decay = weights.element_decay(job.head, element, inputs.decays[start + element]);
        }
    }
}

/// Replaces `x` by `silu(convolution)`, and puts it at the end of the history.
#[inline(always)]
fn convolve<S: Simd>(history: &mut [f32], kernels: &[f32], biases: &[f32], x: &mut [f32]) {
    let width = x.len();
    let mut sums = biases.to_vec();
    add_taps::<S>(history.chunks_exact(width).chain([&*x]), kernels, &mut sums);
    if !history.is_empty() {
        let last = history.len() - width;
        history.copy_within(width.., 0);
        history[last..].copy_from_slice(x);
    }
    for (x, sum) in x.iter_mut().zip(&sums) {
        *x = block::silu::<S>(*sum);
    }
}

/// Scales `x` to the length `length`.
#[inline(always)]
fn scale_to<S: Simd>(simd: S, x: &mut [f32], length: f32) {
    let (whole, rest) = x.as_chunks::<LANES>();
    let mut last = [0.0; LANES];
    last[..rest.len()].copy_from_slice(rest);
    let mut sums = simd.splat(0.0);
    for lanes in whole.iter().chain([&last]) {
        let lanes = simd.load(lanes);
        sums = simd.mul_add(lanes, lanes, sums);
    }
    let scale = length / (simd.sum(sums) + LENGTH_EPS).sqrt();
    x.iter_mut().for_each(|x| *x *= scale);
}
