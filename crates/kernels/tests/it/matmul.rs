//! Products against double precision, and the same product in other company.

use jackalope_kernels::{
    DenseMatrix, Elements, ElementsMut, Float, Product, QuantFormat, QuantMode, Threads, matmul,
    matmul_each, quantized_matmul,
};
use proptest::prelude::*;

use crate::support::{
    Floats, OwnedQuant, OwnedScales, Random, Sum, any_float, any_format, dense, formats, pools,
};

/// Either kind of matrix, so that every property is asked of both.
#[derive(Debug)]
enum Matrix {
    Quant(OwnedQuant),
    Dense { out: usize, input: usize, values: Floats },
}

impl Matrix {
    fn weights(&self) -> Vec<(f64, f64)> {
        match self {
            Matrix::Quant(matrix) => matrix.weights(),
            Matrix::Dense { values, .. } => {
                values.to_f64().into_iter().map(|weight| (weight, weight.abs())).collect()
            }
        }
    }

    fn view(&self) -> jackalope_kernels::Matrix<'_> {
        match self {
            Matrix::Quant(matrix) => jackalope_kernels::Matrix::Quantized(matrix.view()),
            Matrix::Dense { out, input, values } => {
                jackalope_kernels::Matrix::Dense(dense(values, (*out, *input)))
            }
        }
    }

    fn multiply(&self, x: Elements<'_>, out: ElementsMut<'_>, threads: &Threads) {
        match self {
            Matrix::Quant(matrix) => quantized_matmul(x, &matrix.view(), out, threads),
            Matrix::Dense { out: rows, input, values } => {
                matmul(x, &dense(values, (*rows, *input)), out, threads);
            }
        }
    }
}

/// A product to compute: everything but the contents, which come from `seed`.
#[derive(Clone, Debug)]
struct Case {
    /// `None` for a dense matrix.
    format: Option<QuantFormat>,
    weight_float: Float,
    x_float: Float,
    out_float: Float,
    tokens: usize,
    out: usize,
    input: usize,
    /// Power of ten that multiplies the scales.
    factor_log10: i32,
    seed: u64,
}

impl Case {
    fn contents(&self) -> (Matrix, Floats) {
        let mut random = Random(self.seed);
        let shape = (self.out, self.input);
        let factor = 10.0_f32.powi(self.factor_log10);
        let matrix = match self.format {
            Some(format) => Matrix::Quant(random.quant(format, shape, self.weight_float, factor)),
            None => Matrix::Dense {
                out: self.out,
                input: self.input,
                values: random.floats(self.weight_float, self.out * self.input, factor),
            },
        };
        let x = random.floats(self.x_float, self.tokens * self.input, 2.0);
        (matrix, x)
    }
}

impl Case {
    /// How much a result may be off because 16-bit activations of a quantised product are rounded: by a 32639th of
    /// the largest one of their group.
    fn input_error(&self, x: &[f64], weights: &[(f64, f64)]) -> f64 {
        let Some(QuantFormat { mode, group_size, .. }) = self.format else { return 0.0 };
        if mode == QuantMode::Mxfp8 || self.x_float == Float::F32 {
            return 0.0;
        }
        let groups = x.chunks(group_size as usize).zip(weights.chunks(group_size as usize));
        let error = |(x, weights): (&[f64], &[(f64, f64)])| {
            let max = x.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
            // Elements that are whole multiples of the unit are not rounded.
            let exponent = (max * 32768.0 / 32639.0).log2().floor() as i32;
            let unit = 2.0_f64.powi(exponent - 14);
            let terms = x.iter().zip(weights);
            terms.map(|(x, w)| ((x / unit).round() * unit - x).abs() * w.0.abs()).sum::<f64>()
        };
        groups.map(error).sum()
    }
}

/// Sizes around the kernels' tiles: 4, 5, 16 and 17 tokens, 12 and 32 rows, 128 tokens, 512 columns, 16 groups.
fn cases() -> impl Strategy<Value = Case> {
    let tokens = prop_oneof![0_usize..20, 120_usize..140];
    let formats = prop_oneof![3 => any_format().prop_map(Some), 1 => Just(None)];
    let floats = (any_float(), any_float(), any_float());
    let sizes = (tokens, 0_usize..40, 0_usize..1200);
    (formats, floats, sizes, -9_i32..4, any::<u64>()).prop_map(
        |(format, (weight_float, x_float, out_float), (tokens, out, input), factor_log10, seed)| {
            // Few rows for many tokens: the reference is slow.
            let out = if tokens > 20 { out.min(14) } else { out };
            let input = match format {
                Some(format) => input.next_multiple_of(format.group_size as usize),
                None => input,
            };
            Case {
                format,
                weight_float,
                x_float,
                out_float,
                tokens,
                out,
                input,
                factor_log10,
                seed,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn products_agree_with_double_precision(case in cases()) {
        let (matrix, x) = case.contents();
        let weights = matrix.weights();
        let x_values = x.to_f64();
        for threads in pools(1) {
            let mut out = Floats::unwritten(case.out_float, case.tokens * case.out);
            matrix.multiply(x.view(), out.view_mut(), &threads);
            for (idx, value) in out.to_f64().into_iter().enumerate() {
                let (token, row) = (idx / case.out, idx % case.out);
                let x = &x_values[token * case.input..][..case.input];
                let weights = &weights[row * case.input..][..case.input];
                let terms = x.iter().zip(weights);
                let (expected, magnitude) = terms.fold((0.0, 0.0), |(sum, magnitude), (x, w)| {
                    (sum + x * w.0, magnitude + (x * w.1).abs())
                });
                let sum = Sum { expected, magnitude, input_error: case.input_error(x, weights) };
                sum.assert_close(value, case.out_float);
            }
        }
    }

    #[test]
    fn a_token_s_bits_depend_neither_on_its_company_nor_on_the_threads(
        case in cases(),
        num_threads in 1_usize..5,
        cut in 0_usize..140,
    ) {
        let (matrix, x) = case.contents();
        for (alone, together) in pools(1).iter().zip(&pools(num_threads)) {
            let mut whole = Floats::unwritten(case.out_float, case.tokens * case.out);
            matrix.multiply(x.view(), whole.view_mut(), together);
            let cut = cut.min(case.tokens);
            let singles = (0..case.tokens).map(|token| (token, token + 1));
            for (start, end) in [(0, cut), (cut, case.tokens)].into_iter().chain(singles) {
                let x = x.part(start * case.input, end * case.input);
                let mut part = Floats::unwritten(case.out_float, (end - start) * case.out);
                matrix.multiply(x.view(), part.view_mut(), alone);
                let expected = whole.part(start * case.out, end * case.out);
                prop_assert_eq!(part.bits(), expected.bits(), "tokens {}..{}", start, end);
            }
        }
    }

    #[test]
    fn a_matrix_among_others_gives_what_it_gives_alone(
        case in cases(),
        others in prop::collection::vec((any_format(), 0_usize..70), 1..4),
        num_threads in 1_usize..4,
    ) {
        // Two of one format, which go together, and others, which may not.
        let mut all = vec![case.clone(), Case { out: case.out + 3, seed: !case.seed, ..case.clone() }];
        let input = case.input.next_multiple_of(128);
        all.extend(others.iter().map(|&(format, out)| Case { format: Some(format), out, ..case.clone() }));
        all.iter_mut().for_each(|case| case.input = input);
        all.rotate_left(case.seed as usize % 3);
        let contents: Vec<(Matrix, Floats)> = all.iter().map(Case::contents).collect();
        let x = &contents[0].1;
        for threads in pools(num_threads) {
            let mut found: Vec<Floats> = all
                .iter()
                .map(|it| Floats::unwritten(it.out_float, it.tokens * it.out))
                .collect();
            let products = contents.iter().zip(&mut found).map(|((matrix, _), out)| {
                Product { matrix: matrix.view(), out: out.view_mut() }
            });
            matmul_each(x.view(), products.collect(), &threads);
            for ((case, (matrix, _)), found) in all.iter().zip(&contents).zip(&found) {
                let mut expected = Floats::unwritten(case.out_float, case.tokens * case.out);
                matrix.multiply(x.view(), expected.view_mut(), &threads);
                prop_assert_eq!(found.bits(), expected.bits());
            }
        }
    }

    #[test]
    fn a_row_s_bits_do_not_depend_on_the_other_rows(case in cases(), cut in 0_usize..40) {
        let (matrix, x) = case.contents();
        let Matrix::Dense { values, .. } = &matrix else { return Ok(()) };
        let cut = cut.min(case.out);
        for threads in pools(1) {
            let mut whole = Floats::unwritten(case.out_float, case.tokens * case.out);
            matrix.multiply(x.view(), whole.view_mut(), &threads);
            let mut part = Floats::unwritten(case.out_float, case.tokens * (case.out - cut));
            let shard = values.part(cut * case.input, case.out * case.input);
            let shard = dense(&shard, (case.out - cut, case.input));
            matmul(x.view(), &shard, part.view_mut(), &threads);
            for token in 0..case.tokens {
                let expected = whole.part(token * case.out + cut, (token + 1) * case.out);
                let width = case.out - cut;
                prop_assert_eq!(part.part(token * width, (token + 1) * width).bits(), expected.bits());
            }
        }
    }

    #[test]
    fn what_is_not_finite_shows_in_its_own_token_alone(
        case in cases(),
        strange in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
        place in any::<prop::sample::Index>(),
    ) {
        let (matrix, mut x) = case.contents();
        if case.tokens * case.input * case.out == 0 {
            return Ok(());
        }
        let weights = matrix.weights();
        for threads in pools(2) {
            let mut before = Floats::unwritten(Float::F32, case.tokens * case.out);
            matrix.multiply(x.view(), before.view_mut(), &threads);
            let place = place.index(case.tokens * case.input);
            let mut after = Floats::unwritten(Float::F32, case.tokens * case.out);
            x.set(place, strange);
            matrix.multiply(x.view(), after.view_mut(), &threads);
            let (before_bits, after_bits) = (before.bits(), after.bits());
            for (idx, value) in after.to_f64().into_iter().enumerate() {
                if idx / case.out != place / case.input {
                    prop_assert_eq!(after_bits[idx], before_bits[idx], "another token's result");
                    continue;
                }
                // The rules of IEEE 754 for the product with the dequantised weight.
                let weight = weights[(idx % case.out) * case.input + place % case.input].0;
                let expected = f64::from(strange) * weight;
                if expected.is_nan() {
                    prop_assert!(value.is_nan(), "{} for {} times {}", value, strange, weight);
                } else if (weight as f32).abs() > 1e-30 {
                    prop_assert_eq!(value, expected, "{} times {}", strange, weight);
                }
            }
        }
    }
}

#[test]
fn a_result_beyond_half_precision_is_infinite() {
    let format = QuantFormat { mode: QuantMode::Mxfp4, bits: 4, group_size: 32 };
    let mut matrix = Random(1).quant(format, (5, 64), Float::F32, 1.0);
    matrix.words.fill(0x7777_7777);
    let x = Floats::new(Float::Bf16, vec![3.0e30; 64]);
    for threads in pools(1) {
        let mut out = Floats::unwritten(Float::F16, 5);
        quantized_matmul(x.view(), &matrix.view(), out.view_mut(), &threads);
        assert!(out.to_f64().iter().all(|value| *value == f64::INFINITY), "{out:?}");
    }
}

/// Also scales that are not numbers, and rows whose last groups fill no register.
#[test]
fn scales_of_eight_bits_are_the_same_for_few_and_many_tokens() {
    const ROWS: usize = 256;
    /// More than are computed from weights in registers.
    const MANY: usize = 32;
    for (mode, group_size) in [(QuantMode::Mxfp4, 32), (QuantMode::Nvfp4, 16)] {
        let format = QuantFormat { mode, bits: 4, group_size };
        for num_groups in 1..=20 {
            let (input, mut random) = (num_groups * group_size as usize, Random(num_groups as u64));
            let mut matrix = random.quant(format, (ROWS, input), Float::F32, 1.0);
            let code = |idx: usize| (idx / num_groups + 37 * (idx % num_groups)) as u8;
            matrix.scales = OwnedScales::Bytes((0..ROWS * num_groups).map(code).collect());
            let x = random.floats(Float::Bf16, input, 1.0);
            let many = (1..MANY).fold(x.clone(), |many, _| many.joined(x.clone()));
            for threads in pools(1) {
                let multiply = |x: &Floats, tokens: usize| {
                    let mut out = Floats::unwritten(Float::F32, tokens * ROWS);
                    quantized_matmul(x.view(), &matrix.view(), out.view_mut(), &threads);
                    out.part(0, ROWS)
                };
                let (few, many) = (multiply(&x, 1), multiply(&many, MANY));
                for (row, (few, many)) in few.to_f64().into_iter().zip(many.to_f64()).enumerate() {
                    let is_same = few.to_bits() == many.to_bits() || few.is_nan() && many.is_nan();
                    assert!(is_same, "{mode:?}, {num_groups} groups, row {row}: {few}, {many}");
                }
            }
        }
    }
}

#[test]
fn every_format_computes_empty_shapes() {
    for format in formats() {
        for (tokens, out, input) in [(0, 0, 0), (0, 7, 128), (3, 0, 128), (3, 7, 0), (0, 7, 0)] {
            let matrix = Random(2).quant(format, (out, input), Float::Bf16, 1.0);
            let x = Floats::new(Float::F16, vec![1.0; tokens * input]);
            for threads in pools(3) {
                let mut result = Floats::unwritten(Float::F32, tokens * out);
                quantized_matmul(x.view(), &matrix.view(), result.view_mut(), &threads);
                assert_eq!(result.to_f64(), vec![0.0; tokens * out]);
            }
        }
    }
}

#[test]
fn a_dense_product_without_columns_is_zero() {
    let matrix = DenseMatrix { out: 4, input: 0, values: Elements::F32(&[]) };
    let mut out = Floats::unwritten(Float::Bf16, 8);
    matmul(Elements::F32(&[]), &matrix, out.view_mut(), &Threads::new(1));
    assert_eq!(out.to_f64(), vec![0.0; 8]);
}
