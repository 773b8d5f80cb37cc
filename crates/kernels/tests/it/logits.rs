//! What sampling asks of logits.

use jackalope_kernels::logits::{are_numbers, argmax, sum_exp};

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
