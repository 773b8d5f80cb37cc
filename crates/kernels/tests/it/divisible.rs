//! Divided products: the sum of the parts has the bits of the whole, for any division of the
//! columns and any instruction sets.

use std::ops::Range;

use jackalope_kernels::{
    Float, GRID, InstructionSet, Matrix, QuantFormat, QuantMode, TermColumns, Threads,
    divisible_matmul, matmul_each,
};
use proptest::prelude::*;

use crate::support::{
    Floats, OwnedQuant, OwnedScales, Random, Sum, any_float, any_format, dense, pools,
};

/// Sums with a smaller magnitude are exact.
const EXACT_BELOW: f64 = (1 << 20) as f64;

/// A product to divide, without its contents, which are generated from `seed`.
#[derive(Clone, Debug)]
struct Case {
    /// `None` for a dense matrix.
    format: Option<QuantFormat>,
    weight_float: Float,
    x_float: Float,
    tokens: usize,
    out: usize,
    input: usize,
    /// Columns per term.
    chunk: usize,
    /// Powers of ten by which weights and activations are multiplied.
    factors_log10: (i32, i32),
    seed: u64,
}

fn cases(tokens: impl Strategy<Value = usize>) -> impl Strategy<Value = Case> {
    let formats = prop_oneof![2 => any_format().prop_map(Some), 1 => Just(None)];
    let sizes = (tokens, 1_usize..40, 1_usize..1200, 1_usize..600);
    let factors = (-6_i32..2, -2_i32..3);
    (formats, any_float(), any_float(), sizes, factors, any::<u64>()).prop_map(
        |(format, weight_float, x_float, (tokens, out, input, chunk), factors_log10, seed)| {
            let unit = format.map_or(1, |format| format.group_size as usize);
            let out = if tokens > 10 { out.min(14) } else { out };
            // Dense parts may end anywhere, but most terms here consist of whole registers.
            let unit_of_chunk = if chunk.is_multiple_of(3) { unit } else { unit.max(8) };
            Case {
                format,
                weight_float,
                x_float,
                tokens,
                out,
                input: input.next_multiple_of(unit),
                chunk: chunk.next_multiple_of(unit_of_chunk),
                factors_log10,
                seed,
            }
        },
    )
}

/// The contents of a case.
struct Contents {
    quant: Option<OwnedQuant>,
    plain: Floats,
    x: Floats,
}

impl Case {
    fn contents(&self) -> Contents {
        let mut random = Random(self.seed);
        let shape = (self.out, self.input);
        let [weights, activations] =
            [self.factors_log10.0, self.factors_log10.1].map(|log10| 10.0_f32.powi(log10));
        let quant = self.format.map(|it| random.quant(it, shape, self.weight_float, weights));
        let plain = random.floats(self.weight_float, self.out * self.input, weights);
        let x = random.floats(self.x_float, self.tokens * self.input, activations);
        Contents { quant, plain, x }
    }

    /// The weights, `[out, input]`, each with the magnitude of the numbers it is computed from.
    fn weights(&self, contents: &Contents) -> Vec<(f64, f64)> {
        match &contents.quant {
            Some(quant) => quant.weights(),
            None => contents.plain.to_f64().into_iter().map(|it| (it, it.abs())).collect(),
        }
    }

    /// Computes the sums of some tokens over some columns.
    fn sums(
        &self,
        contents: &Contents,
        tokens: Range<usize>,
        columns: Range<usize>,
        threads: &Threads,
    ) -> Vec<f64> {
        let rows = |from: &Floats, rows: Range<usize>| {
            let rows = rows.map(|row| {
                let start = row * self.input;
                from.part(start + columns.start, start + columns.end)
            });
            rows.reduce(Floats::joined).expect("a row")
        };
        let x = rows(&contents.x, tokens.clone());
        let quant = contents.quant.as_ref().map(|quant| columns_of(quant, &columns));
        let plain = rows(&contents.plain, 0..self.out);
        let matrix = match &quant {
            Some(quant) => Matrix::Quantized(quant.view()),
            None => Matrix::Dense(dense(&plain, (self.out, columns.len()))),
        };
        let mut out = vec![0.0; tokens.len() * self.out];
        divisible_matmul(x.view(), &matrix, TermColumns::Divided(self.chunk), &mut out, threads);
        out
    }

    /// Cuts the columns at multiples of `chunk` into one part per share; parts may be empty.
    fn cut(&self, shares: &[usize]) -> Vec<Range<usize>> {
        let num_chunks = self.input.div_ceil(self.chunk);
        let total: usize = shares.iter().sum::<usize>().max(1);
        let mut given = 0;
        let mut start = 0;
        let parts = shares.iter().enumerate().map(|(idx, share)| {
            given += share;
            let end = if idx + 1 == shares.len() { num_chunks } else { num_chunks * given / total };
            let part = start..(end * self.chunk).min(self.input);
            start = part.end;
            part
        });
        parts.collect()
    }
}

/// Some columns of a matrix.
fn columns_of(quant: &OwnedQuant, columns: &Range<usize>) -> OwnedQuant {
    let OwnedQuant { format, out, input, .. } = *quant;
    let words = |row: usize| {
        let start = row * format.words_per_row(input);
        start + format.words_per_row(columns.start)..start + format.words_per_row(columns.end)
    };
    let groups = |row: usize| {
        let start = row * format.groups_per_row(input);
        start + format.groups_per_row(columns.start)..start + format.groups_per_row(columns.end)
    };
    let floats = |from: &Floats| {
        let rows = (0..out).map(|row| from.part(groups(row).start, groups(row).end));
        rows.reduce(Floats::joined).expect("a row")
    };
    let scales = match &quant.scales {
        OwnedScales::Affine(scales, biases) => OwnedScales::Affine(floats(scales), floats(biases)),
        OwnedScales::Bytes(scales) => {
            OwnedScales::Bytes((0..out).flat_map(|row| scales[groups(row)].to_vec()).collect())
        }
    };
    let words = (0..out).flat_map(|row| quant.words[words(row)].to_vec()).collect();
    OwnedQuant { format, out, input: columns.len(), words, scales }
}

/// Adds `parts`, beginning with the one at `first`.
fn added(parts: &[Vec<f64>], first: usize) -> Vec<f64> {
    let mut sums = vec![0.0; parts[0].len()];
    for part in parts[first..].iter().chain(&parts[..first]) {
        sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    sums
}

/// Whether two sums agree as required. `magnitude` is the sum of the magnitudes of their terms.
/// Below the exact limit the bits must be equal, otherwise the sums must agree within the rounding
/// of f64.
fn is_same(a: f64, b: f64, magnitude: f64) -> bool {
    a.to_bits() == b.to_bits()
        || (EXACT_BELOW <= magnitude && (a - b).abs() <= magnitude * 1e-13)
        || (1e35 <= magnitude && !a.is_finite() && !b.is_finite())
}

/// The sum of the magnitudes of all terms of each result, `[tokens, out]`.
fn magnitudes(case: &Case, contents: &Contents) -> Vec<f64> {
    let (weights, x) = (case.weights(contents), contents.x.to_f64());
    let results = x.chunks(case.input).flat_map(|x| {
        weights.chunks(case.input).map(move |weights| {
            x.iter().zip(weights).map(|(x, weight)| (x * weight.1).abs()).sum::<f64>()
        })
    });
    results.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn parts_add_up_to_the_bits_of_the_whole(
        case in cases(prop_oneof![1_usize..10, 120_usize..140]),
        shares in prop::collection::vec(prop_oneof![1 => Just(0_usize), 4 => 1_usize..9], 1..6),
        first in any::<prop::sample::Index>(),
        num_threads in 1_usize..4,
    ) {
        let contents = case.contents();
        let magnitudes = magnitudes(&case, &contents);
        for (alone, together) in pools(1).iter().zip(&pools(num_threads)) {
            let whole = case.sums(&contents, 0..case.tokens, 0..case.input, together);
            let cut = case.cut(&shares);
            let part = |columns| case.sums(&contents, 0..case.tokens, columns, alone);
            let parts: Vec<Vec<f64>> = cut.into_iter().map(part).collect();
            let found = added(&parts, first.index(parts.len()));
            for (idx, magnitude) in magnitudes.iter().enumerate() {
                let (found, whole) = (found[idx], whole[idx]);
                prop_assert!(is_same(found, whole, *magnitude), "{} is not {}", found, whole);
                let is_exact = *magnitude < EXACT_BELOW;
                prop_assert!(!is_exact || whole % GRID == 0.0, "{} is not on the grid", whole);
            }
        }
    }

    #[test]
    fn instruction_sets_with_fused_multiply_add_give_the_same_bits(
        case in cases(prop_oneof![1_usize..10, 120_usize..140]),
    ) {
        let case = Case { x_float: Float::Bf16, ..case };
        prop_assume!(case.format.is_some_and(|format| format.mode != QuantMode::Mxfp8));
        let contents = case.contents();
        let magnitudes = magnitudes(&case, &contents);
        let pools = pools(1);
        let sets = pools.iter().filter(|it| it.instructions() != InstructionSet::Scalar);
        let sums = |threads| case.sums(&contents, 0..case.tokens, 0..case.input, threads);
        let found: Vec<Vec<f64>> = sets.map(sums).collect();
        for other in found.iter().skip(1) {
            for (idx, magnitude) in magnitudes.iter().enumerate() {
                let (first, other) = (found[0][idx], other[idx]);
                prop_assert!(is_same(first, other, *magnitude), "{} is not {}", other, first);
            }
        }
    }

    #[test]
    fn a_token_s_sums_depend_neither_on_its_company_nor_on_the_threads(
        case in cases(prop_oneof![1_usize..20, 120_usize..140]),
        num_threads in 1_usize..5,
    ) {
        let contents = case.contents();
        let magnitudes = magnitudes(&case, &contents);
        for (alone, together) in pools(1).iter().zip(&pools(num_threads)) {
            let whole = case.sums(&contents, 0..case.tokens, 0..case.input, together);
            for token in 0..case.tokens {
                let found = case.sums(&contents, token..token + 1, 0..case.input, alone);
                for (row, found) in found.into_iter().enumerate() {
                    let idx = token * case.out + row;
                    prop_assert!(is_same(found, whole[idx], magnitudes[idx]), "token {}", token);
                }
            }
        }
    }

    #[test]
    fn sums_agree_with_double_precision_and_with_the_undivided_product(
        case in cases(1_usize..10),
    ) {
        let contents = case.contents();
        let (weights, x) = (case.weights(&contents), contents.x.to_f64());
        let magnitudes = magnitudes(&case, &contents);
        let is_rounded = case.x_float != Float::F32
            && case.format.is_some_and(|format| format.mode != QuantMode::Mxfp8);
        for threads in pools(1) {
            let found = case.sums(&contents, 0..case.tokens, 0..case.input, &threads);
            let mut plain = Floats::unwritten(Float::F32, found.len());
            let matrix = match &contents.quant {
                Some(quant) => Matrix::Quantized(quant.view()),
                None => Matrix::Dense(dense(&contents.plain, (case.out, case.input))),
            };
            let out = plain.view_mut();
            let product = jackalope_kernels::Product { matrix, out };
            matmul_each(contents.x.view(), vec![product], &threads);
            let plain = plain.to_f64();
            for (idx, value) in found.into_iter().enumerate() {
                let (token, row) = (idx / case.out, idx % case.out);
                let terms = x[token * case.input..].iter().zip(&weights[row * case.input..]);
                let exact: f64 = terms.take(case.input).map(|(x, weight)| x * weight.0).sum();
                // Each term may lose half of the grid; activations are rounded to 1/32639 of the
                // largest in their group.
                let on_grid = case.input as f64 * GRID;
                let rounded = if is_rounded { magnitudes[idx] * 128.0 / 32639.0 } else { 0.0 };
                let magnitude = magnitudes[idx];
                Sum { expected: exact, magnitude, input_error: rounded + on_grid }
                    .assert_close(value, Float::F32);
                Sum { expected: plain[idx], magnitude, input_error: on_grid }
                    .assert_close(value, Float::F32);
            }
        }
    }

    #[test]
    fn what_is_not_ordinary_is_the_same_in_parts_and_concerns_its_token_alone(
        case in cases(1_usize..12),
        strange in prop::sample::select(vec![
            f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e31, -1e-31, 1e-40, 3.0e38,
        ]),
        place in any::<prop::sample::Index>(),
        shares in prop::collection::vec(0_usize..5, 1..6),
    ) {
        let case = Case { x_float: if case.x_float == Float::F16 { Float::Bf16 } else { case.x_float }, ..case };
        let mut contents = case.contents();
        let ordinary = case.contents();
        let place = place.index(case.tokens * case.input);
        // Alone in its group, or together with others.
        if case.seed.is_multiple_of(2) {
            let unit = case.format.map_or(8, |format| format.group_size as usize);
            let start = place - place % case.input % unit;
            let end = (start + unit).min(start - start % case.input + case.input);
            (start..end).for_each(|idx| contents.x.set(idx, 0.0));
        }
        contents.x.set(place, strange);
        for threads in pools(2) {
            let before = case.sums(&ordinary, 0..case.tokens, 0..case.input, &threads);
            let whole = case.sums(&contents, 0..case.tokens, 0..case.input, &threads);
            let cut = case.cut(&shares);
            let part = |columns| case.sums(&contents, 0..case.tokens, columns, &threads);
            let found = added(&cut.into_iter().map(part).collect::<Vec<_>>(), 0);
            for idx in 0..whole.len() {
                if idx / case.out != place / case.input {
                    prop_assert_eq!(whole[idx].to_bits(), before[idx].to_bits());
                } else if strange.is_finite() && strange.abs() < 1.0 && whole[idx].abs() < 1e3 {
                    prop_assert_eq!(whole[idx].to_bits(), found[idx].to_bits());
                } else if strange.is_finite() {
                    let (whole, found) = (whole[idx], found[idx]);
                    let is_close = (whole - found).abs() <= whole.abs().max(1e6) * 1e-12;
                    prop_assert!(is_close || (whole - found).is_nan(), "{} {}", whole, found);
                } else {
                    prop_assert_eq!(whole[idx].is_nan(), found[idx].is_nan());
                    prop_assert!(!whole[idx].is_finite(), "{} times {}", strange, whole[idx]);
                }
            }
        }
    }
}

#[test]
fn a_term_between_two_multiples_is_rounded_away_from_zero_whatever_it_is_added_to() {
    // Sums of halves of the grid: with ties to even, the result would depend on the order.
    let half = GRID as f32 / 2.0;
    for threads in pools(1) {
        for terms in [[1.0, 1.0, 1.0, 1.0], [1.0, 3.0, -1.0, 5.0], [2.0, 1.0, -3.0, -7.0]] {
            let rounded: f64 =
                terms.iter().map(|term: &f32| f64::from(*term / 2.0).round() * GRID).sum();
            let x: Vec<f32> = terms.iter().flat_map(|term| [term * half, 0.0]).collect();
            let x = Floats::F32(x);
            let ones = Floats::F32(vec![1.0; 8]);
            for tokens in [1, 40] {
                let x = (1..tokens).fold(x.clone(), |all, _| all.joined(x.clone()));
                let mut out = vec![5.0; tokens];
                let matrix = Matrix::Dense(dense(&ones, (1, 8)));
                divisible_matmul(x.view(), &matrix, TermColumns::Divided(2), &mut out, &threads);
                assert_eq!(out, vec![5.0 + rounded; tokens], "{terms:?}");
            }
        }
    }
}

#[test]
fn empty_products_add_nothing() {
    for (tokens, out, input) in [(0, 3, 8), (2, 0, 8), (2, 3, 0)] {
        let weights = Floats::F32(vec![1.0; out * input]);
        let x = Floats::F32(vec![1.0; tokens * input]);
        let mut sums = vec![5.0; tokens * out];
        let matrix = Matrix::Dense(dense(&weights, (out, input)));
        divisible_matmul(x.view(), &matrix, TermColumns::Divided(8), &mut sums, &Threads::new(1));
        assert!(sums.iter().all(|sum| *sum == 5.0));
    }
}
