//! Norms, gates, sums and rotations against their definitions in f64, and alone against together.

use half::bf16;
use jackalope_kernels::{
    Elements, ElementsMut, HeadNorm, InstructionSet, Rotation, Terms, Threads, add_bias, add_terms,
    place_heads, rms_norm, swiglu,
};
use proptest::prelude::*;

/// Numbers in `-4..4` that are told by a seed.
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
        };
        for threads in pools() {
            let mut found = vec![bf16::ZERO; product.len()];
            add_terms(&wide, terms, ElementsMut::Bf16(&mut found), &threads);
            for (idx, found) in found.iter().enumerate() {
                let bias = if has_bias { bias[idx % width].to_f32() } else { 0.0 };
                let residual = residual[idx].to_f32();
                prop_assert_eq!(*found, bf16::from_f32(product[idx] + bias + residual));
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
        let weight = numbers(head_dim, seed ^ 2);
        let cos: Vec<f32> = angles.iter().map(|angle| angle.cos()).collect();
        let sin: Vec<f32> = angles.iter().map(|angle| angle.sin()).collect();
        let rotation = Rotation { cos: &cos, sin: &sin, head_dim, pairs, is_traditional };
        let norm = has_norm.then_some(HeadNorm { weight: Elements::F32(&weight), eps: 1e-6 });
        for threads in pools() {
            let mut found = x.clone();
            place_heads(&mut found, norm, rotation, &threads);
            for (idx, (head, found)) in x.chunks(head_dim).zip(found.chunks(head_dim)).enumerate() {
                let row = idx / heads;
                let head = match norm {
                    Some(_) => norm_of(head, &weight, 1e-6),
                    None => head.iter().map(|x| f64::from(*x)).collect(),
                };
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
