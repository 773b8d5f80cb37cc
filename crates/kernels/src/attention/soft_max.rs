//! Soft-max in pieces: the intermediate state of a query row over some keys, and the combination of
//! two such states.
//!
//! As in FlashAttention-2 (Dao 2023, section 3.1), weights are relative to the largest score so
//! far, and earlier results are rescaled when a larger score comes.

use std::ops::Range;

use jackalope_simd::{Simd, WIDEST, exp, tanh};

use super::{AttentionConfig, BLOCK_KEYS};

/// Intermediate state of a query row, without its weighted sum of values.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// The largest score.
    max: f32,
    /// Sum of the exponentials of `score - max`; zero only if no score was above negative infinity.
    sum: f32,
}

impl State {
    pub(super) const EMPTY: State = State { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Adds a block: turns products of the query with keys into weights `exp(score - max)`, zero
    /// where the key is not visible. Returns the factor by which earlier sums of values must be
    /// multiplied.
    #[inline(always)]
    pub(super) fn take_in<S: Simd>(
        &mut self,
        products: &mut [f32; BLOCK_KEYS],
        visible: &Range<usize>,
        config: &AttentionConfig<'_>,
    ) -> f32 {
        let scores = products;
        scores.iter_mut().for_each(|score| *score *= config.scale);
        if let Some(cap) = config.soft_cap {
            scores.iter_mut().for_each(|score| *score = cap * tanh::<S>(*score / cap));
        }
        scores[..visible.start].fill(f32::NEG_INFINITY);
        scores[visible.end..].fill(f32::NEG_INFINITY);
        let mut maxima = [self.max; WIDEST];
        for scores in scores.as_chunks::<WIDEST>().0 {
            maxima.iter_mut().zip(scores).for_each(|(max, score)| *max = larger(*max, *score));
        }
        let max = folded(maxima, larger);
        let base = finite_base(max);
        scores.iter_mut().for_each(|score| *score = exp::<S>(*score - base));
        let mut sums = [0.0; WIDEST];
        for weights in scores.as_chunks::<WIDEST>().0 {
            sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight);
        }
        let factor = if max == self.max { 1.0 } else { exp::<S>(self.max - base) };
        let sum = folded(sums, |a, b| a + b);
        *self = State { max, sum: S::mul_add_scalar(self.sum, factor, sum) };
        factor
    }

    /// Adds the state and values of later keys.
    #[inline(always)]
    pub(super) fn combine<S: Simd>(
        &mut self,
        values: &mut [f32],
        later: &State,
        later_values: &[f32],
    ) {
        if later.sum == 0.0 {
            return;
        }
        if self.sum == 0.0 {
            *self = *later;
            values.copy_from_slice(later_values);
            return;
        }
        let max = self.max.max(later.max);
        let (old, new) = (exp::<S>(self.max - max), exp::<S>(later.max - max));
        *self = State { max, sum: S::mul_add_scalar(self.sum, old, later.sum * new) };
        for (value, later) in values.iter_mut().zip(later_values) {
            *value = S::mul_add_scalar(*value, old, later * new);
        }
    }

    /// Turns the weighted sum of values into their weighted mean. A sink is a score without a value.
    #[inline(always)]
    pub(super) fn finish<S: Simd>(&self, values: &mut [f32], sink: Option<f32>) {
        if self.sum == 0.0 {
            values.fill(0.0);
            return;
        }
        let factor = match sink {
            None => 1.0 / self.sum,
            Some(sink) => {
                let max = self.max.max(sink);
                let own = exp::<S>(self.max - max);
                own / S::mul_add_scalar(self.sum, own, exp::<S>(sink - max))
            }
        };
        values.iter_mut().for_each(|value| *value *= factor);
    }
}

/// Returns the number to subtract from scores whose maximum is `max`: never negative infinity,
/// because the difference would be NaN.
#[inline(always)]
fn finite_base(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// Returns the larger one, or `a` if `b` is NaN.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a < b { b } else { a }
}

/// Combines the lanes as a tree, halves onto halves.
#[inline(always)]
fn folded(mut lanes: [f32; WIDEST], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = WIDEST / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = combine(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}
