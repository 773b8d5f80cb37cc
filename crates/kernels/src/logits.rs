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

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of both signs, derived from a seed, with a few of the values that could end a search too early.
    fn numbers(len: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (((state >> 40) % 2000) as f32) / 10.0 - 150.0
            })
            .collect()
    }

    #[test]
    fn the_first_of_the_largest_is_found_wherever_it_stands() {
        for len in [1, 7, 31, 32, 33, 1023, 1024, 1025, 5000] {
            for seed in 0..20 {
                let mut logits = numbers(len, seed);
                if seed % 3 == 0 {
                    logits[seed as usize % len] = f32::NAN;
                }
                if seed % 4 == 0 {
                    logits[len / 2] = f32::NEG_INFINITY;
                }
                let mut expected = 0;
                for (idx, logit) in logits.iter().enumerate() {
                    if *logit > logits[expected] || (logits[expected].is_nan() && !logit.is_nan()) {
                        expected = idx;
                    }
                }
                assert_eq!(argmax(&logits), expected, "{len} logits of seed {seed}");
            }
        }
        assert_eq!(argmax(&[]), 0);
        assert_eq!(argmax(&[f32::NAN, f32::NAN]), 0);
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), 1);
        assert_eq!(argmax(&[0.0, f32::INFINITY, f32::INFINITY]), 1);
    }

    #[test]
    fn one_strange_logit_among_many_is_seen() {
        for len in [1, 1024, 3000] {
            for at in [0, len / 2, len - 1] {
                let mut logits = numbers(len, 1);
                assert!(are_numbers(&logits));
                for strange in [f32::NAN, f32::INFINITY] {
                    logits[at] = strange;
                    assert!(!are_numbers(&logits), "{strange} at {at} of {len}");
                }
                logits[at] = f32::NEG_INFINITY;
                assert_eq!(are_numbers(&logits), len > 1);
            }
        }
        assert!(!are_numbers(&[]));
    }

    #[test]
    fn sums_of_exponentials_are_those_of_double_precision() {
        let logits = numbers(10_000, 3);
        let max = logits[argmax(&logits)];
        let expected: f64 = logits.iter().map(|it| f64::from(it - max).exp()).sum();
        assert!((sum_exp(&logits, max) / expected - 1.0).abs() < 1e-6);
        assert_eq!(sum_exp(&[f32::NEG_INFINITY, 1.0], 1.0), 1.0);
    }
}
