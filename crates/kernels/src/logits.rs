//! Operations on the logits of a whole vocabulary that sampling needs. Each is one pass over memory.

use std::sync::OnceLock;

use jackalope_simd::{InstructionSet, LANES, Simd, dispatched, exp};

/// Number of logits that are processed together.
const CHUNK: usize = 1024;

/// Returns the requested instruction set, or the best one if the request is invalid, which loading
/// a model reports.
fn instructions() -> InstructionSet {
    static SET: OnceLock<InstructionSet> = OnceLock::new();
    *SET.get_or_init(|| {
        InstructionSet::from_environment().unwrap_or_else(|_| InstructionSet::best())
    })
}

/// Returns the index of the largest logit, the first one of equals. A NaN is chosen only if all
/// logits are NaN. Returns 0 without logits.
pub fn argmax(logits: &[f32]) -> usize {
    let mut best = (f32::NEG_INFINITY, 0);
    for (idx, chunk) in logits.chunks(CHUNK).enumerate() {
        let mut max = f32::NEG_INFINITY;
        max_of(instructions(), chunk, &mut max);
        if max > best.0 {
            best = (max, idx);
        }
    }
    let (max, chunk) = best;
    if max == f32::NEG_INFINITY {
        return logits.iter().position(|logit| !logit.is_nan()).unwrap_or(0);
    }
    let start = chunk * CHUNK;
    start + logits[start..].iter().position(|logit| *logit == max).expect("it was just seen")
}

/// Returns false if a logit is NaN or positive infinity, or if all are negative infinity.
pub fn are_numbers(logits: &[f32]) -> bool {
    let (mut has_strange, mut has_number) = (false, false);
    for chunk in logits.chunks(CHUNK) {
        // Without an early exit, the compiler vectorises the loop.
        let (mut strange, mut number) = (0_u32, 0_u32);
        for logit in chunk {
            strange |= u32::from(logit.is_nan() | (*logit == f32::INFINITY));
            number |= u32::from(*logit > f32::NEG_INFINITY);
        }
        has_strange |= strange != 0;
        has_number |= number != 0;
    }
    has_number && !has_strange
}

/// Replaces each value `x`, which must not be above 0, by `exp(x)`, within two units in the last
/// place. Results below the normal numbers become zero.
pub fn exp_each(values: &mut [f32]) {
    exp_values(instructions(), values);
}

/// Returns the sum of `exp(logit - max)`; no logit may be above `max`.
pub fn sum_exp(logits: &[f32], max: f32) -> f64 {
    let mut total = 0.0;
    for chunk in logits.chunks(CHUNK) {
        let mut powers = [f32::NEG_INFINITY; CHUNK];
        for (power, logit) in powers.iter_mut().zip(chunk) {
            *power = logit - max;
        }
        exp_each(&mut powers[..chunk.len()]);
        total += powers[..chunk.len()].iter().map(|power| f64::from(*power)).sum::<f64>();
    }
    total
}

dispatched! { fn exp_values(values: &mut [f32]) = exp_values_with }

#[inline(always)]
fn exp_values_with<S: Simd>(_simd: S, values: &mut [f32]) {
    for value in values {
        *value = exp::<S>(*value);
    }
}

dispatched! { fn max_of(values: &[f32], max: &mut f32) = max_with }

/// Finds the largest number; NaN is skipped.
#[inline(always)]
fn max_with<S: Simd>(_simd: S, values: &[f32], max: &mut f32) {
    let mut maxima = [f32::NEG_INFINITY; 4 * LANES];
    let (whole, rest) = values.as_chunks::<{ 4 * LANES }>();
    for values in whole {
        for (max, value) in maxima.iter_mut().zip(values) {
            *max = if *value > *max { *value } else { *max };
        }
    }
    for value in maxima.iter().chain(rest) {
        if *value > *max {
            *max = *value;
        }
    }
}
