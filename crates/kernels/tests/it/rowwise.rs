//! Norms, gates, sums and rotations against their definitions in f64, and alone against together.

use half::bf16;
use jackalope_kernels::{
    ActivationFunction, Elements, ElementsMut, InstructionSet, NormParameters, Rotation, Terms,
    Threads, activate, add_bias, add_terms, gated, normalize, place_heads, rms_norm, scale_logits,
    swiglu,
};
use proptest::prelude::*;

/// Numbers in `-4..4` that a seed determines.
fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / f32::from(1_u16 << 15) / 64.0 - 4.0
    };
    (0..len).map(next).collect()
}

/// One thread and several, with every instruction set.
fn pools() -> Vec<Threads> {
    let sets = InstructionSet::available().into_iter();
    sets.flat_map(|set| [1, 3].map(|count| Threads::with_instructions(count, set))).collect()
}

#[track_caller]
fn assert_near(found: &[f32], expected: impl IntoIterator<Item = f64>) {
    let expected: Vec<f64> = expected.into_iter().collect();
    assert_eq!(found.len(), expected.len());
    for (idx, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= 4e-6 * expected.abs().max(1.0), "element {idx}: {found}, not {expected}");
    }
}

fn norm_of(row: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let squares: f64 = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let scale = 1.0 / (squares / row.len() as f64 + f64::from(eps)).sqrt();
    row.iter().zip(weight).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)).collect()
}

/// Layer normalisation, or root-mean-square normalisation, with a bias or without.
fn norm_with(row: &[f32], norm: NormParameters<'_>) -> Vec<f64> {
    let wide: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
    let mean = wide.iter().sum::<f64>() / wide.len() as f64;
    let base = if norm.is_centred { mean } else { 0.0 };
    let squares: f64 = wide.iter().map(|x| (x - base).powi(2)).sum();
    let scale = 1.0 / (squares / wide.len() as f64 + f64::from(norm.eps)).sqrt();
    let at = |vector: Option<Elements<'_>>, idx: usize, default: f64| match vector {
        Some(Elements::F32(values)) => f64::from(values[idx]),
        _ => default,
    };
    let value = |(idx, x): (usize, &f64)| {
        (x - base) * scale * at(norm.weight, idx, 1.0) + at(norm.bias, idx, 0.0)
    };
    wide.iter().enumerate().map(value).collect()
}

/// The definition of an activation. The error function is the integral of its derivative.
fn activated(activation: ActivationFunction, x: f64) -> f64 {
    let erf = |x: f64| {
        let (steps, width) = (2000, x / 2000.0);
        let middles = (0..steps).map(|step| (f64::from(step) + 0.5) * width);
        let sum: f64 = middles.map(|t| (-t * t).exp()).sum();
        sum * width * std::f64::consts::FRAC_2_SQRT_PI
    };
    match activation {
        ActivationFunction::Silu => x / (1.0 + (-x).exp()),
        ActivationFunction::BoundedSilu { bound, .. } => {
            (x / (1.0 + (-x).exp())).min(f64::from(bound))
        }
        ActivationFunction::Situ { beta, .. } => {
            let beta = f64::from(beta);
            beta * (x / beta).tanh() / (1.0 + (-x).exp())
        }
        ActivationFunction::Gelu => 0.5 * x * (1.0 + erf(x / 2.0_f64.sqrt())),
        ActivationFunction::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        ActivationFunction::ReluSquared => x.max(0.0).powi(2),
        ActivationFunction::Xielu { positive, negative, beta, eps } => {
            let [positive, negative, beta, eps] = [positive, negative, beta, eps].map(f64::from);
            let below = negative * (x.min(eps).exp_m1() - x);
            beta * x + if x > 0.0 { positive * x * x } else { below }
        }
    }
}

const ACTIVATIONS: [ActivationFunction; 7] = [
    ActivationFunction::BoundedSilu { bound: 1.5, limit: 1.5 },
    ActivationFunction::Silu,
    ActivationFunction::Situ { beta: 1.7, cap: None },
    ActivationFunction::Gelu,
    ActivationFunction::GeluTanh,
    ActivationFunction::ReluSquared,
    ActivationFunction::Xielu { positive: 0.8, negative: 1.3, beta: 0.5, eps: -1e-6 },
];

fn normed(x: &[f32], weight: &[f32], threads: &Threads) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    let (x, weight) = (Elements::F32(x), Elements::F32(weight));
    rms_norm(x, weight, 1e-5, ElementsMut::F32(&mut out), threads);
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_norm_is_its_definition_and_a_row_alone_is_the_row_among_others(
        rows in 1_usize..40, width in 1_usize..3000, seed: u64,
    ) {
        let (x, weight) = (numbers(rows * width, seed), numbers(width, seed ^ 1));
        for threads in pools() {
            let found = normed(&x, &weight, &threads);
            for (row, found) in x.chunks(width).zip(found.chunks(width)) {
                assert_near(found, norm_of(row, &weight, 1e-5));
                prop_assert_eq!(&normed(row, &weight, &threads), found);
            }
        }
    }

    #[test]
    fn a_norm_may_subtract_the_mean_and_lack_or_have_any_vector(
        rows in 1_usize..20, width in 2_usize..700, is_centred: bool, has_weight: bool,
        has_bias: bool, seed: u64,
    ) {
        let x = numbers(rows * width, seed);
        let (weight, bias) = (numbers(width, seed ^ 1), numbers(width, seed ^ 2));
        let norm = NormParameters {
            is_centred,
            weight: has_weight.then_some(Elements::F32(&weight)),
            bias: has_bias.then_some(Elements::F32(&bias)),
            eps: 1e-5,
        };
        for threads in pools() {
            let mut found = vec![0.0; x.len()];
            normalize(Elements::F32(&x), norm, width, ElementsMut::F32(&mut found), &threads);
            for (row, found) in x.chunks(width).zip(found.chunks(width)) {
                assert_near(found, norm_with(row, norm));
            }
        }
    }

    #[test]
    fn an_activation_is_its_definition(len in 1_usize..600, which in 0_usize..6, seed: u64) {
        let activation = ACTIVATIONS[which];
        let (x, up) = (numbers(len, seed), numbers(len, seed ^ 1));
        let expected: Vec<f64> = x.iter().map(|x| activated(activation, f64::from(*x))).collect();
        for threads in pools() {
            let mut found = vec![0.0; len];
            activate(activation, &x, ElementsMut::F32(&mut found), &threads);
            assert_near(&found, expected.iter().copied());
            gated(activation, &x, &up, ElementsMut::F32(&mut found), &threads);
            assert_near(&found, expected.iter().zip(&up).map(|(x, up)| x * f64::from(*up)));
        }
    }

    #[test]
    fn logits_are_scaled_and_capped(len in 1_usize..30_000, has_cap: bool, seed: u64) {
        let logits = numbers(len, seed);
        for threads in pools() {
            let mut found = logits.clone();
            scale_logits(&mut found, 2.5, has_cap.then_some(6.0), &threads);
            assert_near(&found, logits.iter().map(|logit| {
                let scaled = f64::from(*logit) * 2.5;
                if has_cap { 6.0 * (scaled / 6.0).tanh() } else { scaled }
            }));
        }
    }

    #[test]
    fn a_product_is_normalised_and_scaled_before_it_is_added(
        rows in 1_usize..10, width in 2_usize..600, is_centred: bool, seed: u64,
    ) {
        let product = numbers(rows * width, seed);
        let wide: Vec<f64> = product.iter().map(|value| f64::from(*value)).collect();
        let (residual, weight) = (numbers(rows * width, seed ^ 1), numbers(width, seed ^ 2));
        let norm = NormParameters {
            is_centred,
            weight: Some(Elements::F32(&weight)),
            bias: None,
            eps: 1e-5,
        };
        let residual_of = Elements::F32(&residual);
        let terms =
            Terms { residual: residual_of, bias: None, norm: Some(norm), factor: 0.25, scale: 1.0, width };
        for threads in pools() {
            let mut found = vec![0.0; product.len()];
            add_terms(&wide, terms, ElementsMut::F32(&mut found), &threads);
            for (row, found) in found.chunks(width).enumerate() {
                let row = row * width..(row + 1) * width;
                let normed = norm_with(&product[row.clone()], norm);
                let residual = residual[row].iter().map(|value| f64::from(*value));
                assert_near(found, normed.iter().zip(residual).map(|(x, h)| h + 0.25 * x));
            }
        }
    }

    #[test]
    fn a_gate_is_its_definition(len in 1_usize..100_000, seed: u64) {
        let (gate, up) = (numbers(len, seed), numbers(len, seed ^ 1));
        for threads in pools() {
            let mut found = vec![0.0; len];
            swiglu(&gate, &up, ElementsMut::F32(&mut found), &threads);
            let expected = gate.iter().zip(&up).map(|(gate, up)| {
                let gate = f64::from(*gate);
                gate / (1.0 + (-gate).exp()) * f64::from(*up)
            });
            assert_near(&found, expected);
        }
    }

    #[test]
    fn terms_are_added_before_the_one_rounding(
        rows in 1_usize..40, width in 1_usize..2000, has_bias: bool, seed: u64,
    ) {
        let product = numbers(rows * width, seed);
        let wide: Vec<f64> = product.iter().map(|value| f64::from(*value)).collect();
        let to_bf16 = |values: Vec<f32>| values.into_iter().map(bf16::from_f32).collect::<Vec<_>>();
        let bias = to_bf16(numbers(width, seed ^ 1));
        let residual = to_bf16(numbers(rows * width, seed ^ 2));
        let terms = Terms {
            bias: has_bias.then_some(Elements::Bf16(&bias)),
            residual: Elements::Bf16(&residual),
            norm: None,
            factor: 1.0,
            scale: 0.5,
            width,
        };
        for threads in pools() {
            let mut found = vec![bf16::ZERO; product.len()];
            add_terms(&wide, terms, ElementsMut::Bf16(&mut found), &threads);
            for (idx, found) in found.iter().enumerate() {
                let bias = if has_bias { bias[idx % width].to_f32() } else { 0.0 };
                let residual = residual[idx].to_f32();
                prop_assert_eq!(*found, bf16::from_f32((product[idx] + bias + residual) * 0.5));
            }
            let mut sums = product.clone();
            add_bias(&mut sums, Elements::Bf16(&bias), &threads);
            for (idx, sum) in sums.iter().enumerate() {
                prop_assert_eq!(*sum, product[idx] + bias[idx % width].to_f32());
            }
        }
    }

    #[test]
    fn heads_are_normalised_and_rotated_by_their_rows_angles(
        rows in 1_usize..20, heads in 1_usize..9, pairs in 0_usize..70, unrotated in 0_usize..20,
        is_traditional: bool, has_norm: bool, seed: u64,
    ) {
        let head_dim = (2 * pairs + unrotated).max(1);
        let x = numbers(rows * heads * head_dim, seed);
        let angles = numbers(rows * pairs, seed ^ 1);
        let has_own_weights = seed.is_multiple_of(2);
        let own = if has_own_weights { heads * head_dim } else { head_dim };
        let weight = numbers(own, seed ^ 2);
        let cos: Vec<f32> = angles.iter().map(|angle| angle.cos()).collect();
        let sin: Vec<f32> = angles.iter().map(|angle| angle.sin()).collect();
        let rotation = Rotation { cos: &cos, sin: &sin, head_dim, pairs, is_traditional };
        let norm = has_norm.then_some(NormParameters {
            is_centred: false,
            weight: Some(Elements::F32(&weight)),
            bias: None,
            eps: 1e-6,
        });
        for threads in pools() {
            let mut found = x.clone();
            place_heads(&mut found, norm, rotation, &threads);
            for (idx, (head, found)) in x.chunks(head_dim).zip(found.chunks(head_dim)).enumerate() {
                let (row, first) = (idx / heads, idx % heads * head_dim % own);
                let weight = &weight[first..first + head_dim];
                let plain: Vec<f64> = head.iter().map(|x| f64::from(*x)).collect();
                let head = if has_norm { norm_of(head, weight, 1e-6) } else { plain };
                let mut expected = head.clone();
                for pair in 0..pairs {
                    let (a, b) = if is_traditional {
                        (2 * pair, 2 * pair + 1)
                    } else {
                        (pair, pair + pairs)
                    };
                    let cos = f64::from(cos[row * pairs + pair]);
                    let sin = f64::from(sin[row * pairs + pair]);
                    expected[a] = head[a] * cos - head[b] * sin;
                    expected[b] = head[a] * sin + head[b] * cos;
                }
                assert_near(found, expected);
            }
        }
    }
}

#[test]
fn extreme_gates_stay_finite_or_say_that_they_are_not() {
    let threads = Threads::new(1);
    let gate = [-1e30, -200.0, -0.0, 0.0, 200.0, 1e30, f32::NAN];
    let mut out = [0.0; 7];
    swiglu(&gate, &[1.0; 7], ElementsMut::F32(&mut out), &threads);
    assert_eq!(out[..6], [0.0, 0.0, 0.0, 0.0, 200.0, 1e30]);
    assert!(out[6].is_nan());
}
