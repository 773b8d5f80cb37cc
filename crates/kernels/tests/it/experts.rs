//! Products with the experts of a mixture: each choice has the bits that its expert computes alone,
//! and the parts of a divided product add up to the whole.

use std::ops::Range;

use jackalope_kernels::{
    Elements, ElementsMut, ExpertRows, Float, Matrix, Product, QuantFormat, QuantMode,
    RouterConfig, Scores, TermColumns, Threads, add_expert_bias, add_weighted_biases, clamp,
    clamp_gates, divisible_expert_matmul, divisible_matmul, expert_matmul, matmul_each, route,
    scale_rows, swiglu,
};
use proptest::prelude::*;

use crate::support::{
    Floats, OwnedQuant, PLAIN_ROUTER, Random, any_float, any_format, dense, pools,
};

/// A mixture without its contents, which are generated from `seed`.
#[derive(Clone, Debug)]
struct Case {
    /// `None` for dense matrices.
    format: Option<QuantFormat>,
    float: Float,
    tokens: usize,
    num_experts: usize,
    num_chosen: usize,
    /// Output features of an expert.
    features: usize,
    input: usize,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let formats = prop_oneof![2 => any_format().prop_map(Some), 1 => Just(None)];
    let sizes = (0_usize..24, 1_usize..20, 1_usize..7, 1_usize..40, 1_usize..300);
    (formats, any_float(), sizes, any::<u64>()).prop_map(|(format, float, sizes, seed)| {
        let (tokens, num_experts, num_chosen, features, input) = sizes;
        let unit = format.map_or(1, |format| format.group_size as usize);
        let num_chosen = num_chosen.min(num_experts);
        let input = input.next_multiple_of(unit);
        Case { format, float, tokens, num_experts, num_chosen, features, input, seed }
    })
}

/// The matrices of all experts.
#[derive(Debug)]
enum Experts {
    Quant(OwnedQuant),
    Dense { values: Floats, shape: (usize, usize) },
}

impl Experts {
    fn view(&self) -> Matrix<'_> {
        match self {
            Experts::Quant(matrix) => Matrix::Quantized(matrix.view()),
            Experts::Dense { values, shape } => Matrix::Dense(dense(values, *shape)),
        }
    }
}

impl Case {
    fn experts(&self, random: &mut Random) -> Experts {
        let shape = (self.num_experts * self.features, self.input);
        match self.format {
            Some(format) => Experts::Quant(random.quant(format, shape, self.float, 0.01)),
            None => Experts::Dense { values: random.dense(shape, self.float), shape },
        }
    }

    fn rows(&self, random: &mut Random) -> ExpertRows {
        let logits: Vec<f32> = (0..self.tokens * self.num_experts).map(|_| random.unit()).collect();
        let config = RouterConfig {
            scores: Scores::Softmax,
            selection_bias: None,
            groups: None,
            num_chosen: self.num_chosen,
            given: None,
            normalization_eps: None,
            scale: 1.0,
            expert_scales: None,
        };
        route(&logits, self.num_experts, &config)
    }

    /// Computes the products of all rows with the matrices of all experts.
    fn all_products(&self, matrix: &Matrix<'_>, x: &Floats, threads: &Threads) -> Floats {
        let len = self.tokens * self.num_experts * self.features;
        let mut out = Floats::unwritten(Float::F32, len);
        let product = Product { matrix: *matrix, out: out.view_mut() };
        matmul_each(x.view(), vec![product], threads);
        out
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #[test]
    fn a_choice_is_what_its_expert_computes_alone(case in cases(), num_threads in 1_usize..4) {
        let mut random = Random(case.seed);
        let [first, second] = [(); 2].map(|()| case.experts(&mut random));
        let x = random.floats(case.float, case.tokens * case.input, 1.0);
        let rows = case.rows(&mut random);
        prop_assert_eq!(rows.len(), case.tokens * case.num_chosen);
        for threads in pools(num_threads) {
            let views = [first.view(), second.view()];
            let found = expert_matmul(x.view(), &rows, views.each_ref(), &threads);
            for (matrix, found) in views.iter().zip(&found) {
                let all = case.all_products(matrix, &x, &threads);
                for ((expert, token, _), found) in rows.iter().zip(found.chunks(case.features)) {
                    let start = (token * case.num_experts + expert) * case.features;
                    let expected = all.part(start, start + case.features);
                    prop_assert_eq!(bits(found), expected.bits());
                }
            }
        }
    }

    #[test]
    fn parts_of_a_mixture_add_up_to_the_whole(case in cases(), cut in 0_usize..6) {
        let mut random = Random(case.seed);
        let matrix = Experts::Dense {
            values: random.dense((case.num_experts * case.features, case.input), case.float),
            shape: (case.num_experts * case.features, case.input),
        };
        let Experts::Dense { values, shape } = &matrix else { unreachable!("it is dense") };
        let rows = case.rows(&mut random);
        let x = random.floats(case.float, rows.len() * case.input, 1.0);
        let chunk = 32;
        let columns = |from: &Floats, range: Range<usize>| {
            let num_rows = from.to_f64().len() / case.input;
            let parts = (0..num_rows).map(|row| {
                from.part(row * case.input + range.start, row * case.input + range.end)
            });
            parts.reduce(Floats::joined).unwrap_or_else(|| Floats::new(case.float, []))
        };
        for threads in pools(2) {
            let sums = |range: Range<usize>| {
                let (x, values) = (columns(&x, range.clone()), columns(values, range.clone()));
                let matrix = Matrix::Dense(dense(&values, (shape.0, range.len())));
                divisible_expert_matmul(x.view(), &rows, &matrix, TermColumns::Divided(chunk), &threads)
            };
            let end = (cut * chunk).min(case.input);
            let whole = sums(0..case.input);
            let (first, second) = (sums(0..end), sums(end..case.input));
            let added: Vec<f64> = first.iter().zip(&second).map(|(a, b)| a + b).collect();
            prop_assert_eq!(&added, &whole);
        }
    }

    #[test]
    fn a_mixture_adds_the_products_of_its_experts(case in cases()) {
        // Scales far from one would leave the range in which sums are exact.
        let is_moderate = case.format.is_none_or(|format| format.mode == QuantMode::Affine);
        prop_assume!(is_moderate);
        let mut random = Random(case.seed);
        let matrix = case.experts(&mut random);
        let rows = case.rows(&mut random);
        let x = random.floats(case.float, rows.len() * case.input, 1.0);
        let chunk = case.format.map_or(1, |format| format.group_size as usize) * 4;
        let both = [TermColumns::Divided(chunk), TermColumns::Whole];
        for (threads, terms) in pools(2).iter().flat_map(|pool| both.map(|terms| (pool, terms))) {
            let found =
                divisible_expert_matmul(x.view(), &rows, &matrix.view(), terms, threads);
            let mut expected = vec![0.0; found.len()];
            for (idx, (expert, token, _)) in rows.iter().enumerate() {
                let x = x.part(idx * case.input, (idx + 1) * case.input);
                let mut all = vec![0.0; case.num_experts * case.features];
                divisible_matmul(x.view(), &matrix.view(), terms, &mut all, threads);
                if let TermColumns::Whole = terms {
                    let mut rounded = vec![0.0; all.len()];
                    let out = ElementsMut::F32(&mut rounded);
                    matmul_each(x.view(), vec![Product { matrix: matrix.view(), out }], threads);
                    prop_assert!(all.iter().zip(&rounded).all(|(a, b)| *a == f64::from(*b)));
                }
                let own = &all[expert * case.features..][..case.features];
                let sums = &mut expected[token * case.features..][..case.features];
                sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
            }
            prop_assert_eq!(&found, &expected);
        }
    }
}

#[test]
fn values_that_are_not_finite_stay_with_their_token() {
    let format = QuantFormat { mode: QuantMode::Affine, bits: 4, group_size: 32 };
    let case = Case {
        format: Some(format),
        float: Float::Bf16,
        tokens: 6,
        num_experts: 3,
        num_chosen: 2,
        features: 16,
        input: 96,
        seed: 5,
    };
    let mut random = Random(case.seed);
    let matrix = case.experts(&mut random);
    let rows = case.rows(&mut random);
    let mut x = random.floats(case.float, case.tokens * case.input, 1.0);
    x.set(5 * case.input + 40, f32::NAN);
    let mut inner = random.floats(case.float, rows.len() * case.input, 1.0);
    inner.set(40, f32::INFINITY);
    let (_, strange_token, _) = rows.iter().next().expect("a choice");
    for threads in pools(1) {
        let [found] = expert_matmul(x.view(), &rows, [&matrix.view()], &threads);
        for ((_, token, _), found) in rows.iter().zip(found.chunks(case.features)) {
            assert_eq!(found.iter().all(|it| it.is_finite()), token != 5);
        }
        let sums = divisible_expert_matmul(
            inner.view(),
            &rows,
            &matrix.view(),
            TermColumns::Divided(32),
            &threads,
        );
        for (token, sums) in sums.chunks(case.features).enumerate() {
            assert_eq!(sums.iter().all(|it| it.is_finite()), token != strange_token);
        }
    }
}

#[test]
fn rows_are_scaled_by_their_factors() {
    let mut rows = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    scale_rows(&mut rows, &[2.0, 0.0, -1.0]);
    assert_eq!(rows, [2.0, 4.0, 0.0, 0.0, -5.0, -6.0]);
    scale_rows(&mut [], &[]);
}

/// Three rows that choose two of four experts each.
fn three_rows() -> ExpertRows {
    let logits = [3.0, 1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 3.0, 5.0, 5.0, 1.0, 1.0];
    let config = RouterConfig { scores: Scores::SoftmaxOfChosen, ..PLAIN_ROUTER };
    route(&logits, 4, &config)
}

#[test]
fn each_choice_gets_the_bias_of_its_expert() {
    let rows = three_rows();
    let biases: Vec<f32> = (0..8).map(|idx| idx as f32 + 0.5).collect();
    let mut results = vec![0.25; rows.len() * 2];
    add_expert_bias(&mut results, &rows, Elements::F32(&biases));
    let experts = rows.iter().map(|(expert, ..)| expert);
    let expected: Vec<f32> =
        experts.flat_map(|it| [it as f32 * 2.0 + 0.75, it as f32 * 2.0 + 1.75]).collect();
    assert_eq!(results, expected);
    let mut sums = vec![1.0; 6];
    add_weighted_biases(&mut sums, &rows, Elements::F32(&biases));
    for (token, sums) in sums.chunks(2).enumerate() {
        let own = rows.iter().filter(|(_, row, _)| *row == token);
        let bias: f32 = own.map(|(expert, _, weight)| weight * biases[expert * 2]).sum();
        assert!((sums[0] - 1.0 - f64::from(bias)).abs() < 1e-6, "{sums:?}");
        // The weights of a row sum to one, and the biases differ by one.
        assert!((sums[1] - sums[0] - 1.0).abs() < 1e-6, "{sums:?}");
    }
}

#[test]
fn bounded_gates_are_their_definition() {
    let (alpha, limit) = (1.702_f32, 7.0_f32);
    let mut gate: Vec<f32> = (-40..40).map(|idx| idx as f32 * 0.3).collect();
    let mut up: Vec<f32> = gate.iter().map(|gate| -gate * 0.9).collect();
    let definition = |gate: f32, up: f32| {
        let (gate, up) = (f64::from(gate.min(limit)), f64::from(up.clamp(-limit, limit)));
        gate / (1.0 + (-f64::from(alpha) * gate).exp()) * (up + 1.0)
    };
    let expected: Vec<f64> =
        gate.iter().zip(&up).map(|(gate, up)| definition(*gate, *up)).collect();
    clamp_gates(&mut gate, &mut up, alpha, limit);
    let mut found = vec![0.0; gate.len()];
    swiglu(&gate, &up, ElementsMut::F32(&mut found), &Threads::new(1));
    for (found, expected) in found.iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() < 1e-4, "{found} {expected}");
    }
    let (mut gate, mut up) = ([f32::NAN, 1.0], [1.0, f32::NAN]);
    clamp_gates(&mut gate, &mut up, alpha, limit);
    assert!(gate[0].is_nan() && up[1].is_nan());
}

#[test]
fn values_are_clamped_on_both_sides() {
    let mut values = [-3.0, -0.5, 0.25, 2.0, f32::NAN, f32::INFINITY];
    clamp(&mut values, 0.5);
    assert_eq!(values[..4], [-0.5, -0.5, 0.25, 0.5]);
    assert!(values[4].is_nan() && values[5] == 0.5);
}
