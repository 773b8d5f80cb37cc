//! Measures the cost of divisible products: the same product computed in both ways.

use half::bf16;
use jackalope_kernels::{
    DenseMatrix, Elements, ElementsMut, Matrix, Product, QuantFormat, QuantMatrix, QuantMode,
    Scales, TermColumns, Threads, divisible_matmul, matmul_each,
};

use super::cases::{filled, num_copies};
use super::{Call, Report, Work};

/// Output features.
const OUT: usize = 1024;

/// Input features, and columns that are never divided.
#[derive(Clone, Copy)]
struct Shape {
    input: usize,
    chunk: usize,
}

/// The last MLP product of Qwen3 0.6B.
const SMALL: Shape = Shape { input: 3072, chunk: 256 };

/// A part of the one of Qwen3 4B and of larger models.
const LARGE: Shape = Shape { input: 6144, chunk: 512 };

/// One product, computed with copies of its matrix in turn, so that they come from memory.
#[derive(Clone, Copy)]
struct Run {
    shape: Shape,
    tokens: usize,
    copies: usize,
}

/// Numbers of tokens.
const TOKENS: [usize; 3] = [1, 8, 512];

pub(super) fn measure_all(report: &mut Report<'_>) {
    for (mode, bits, group_size) in [
        (QuantMode::Affine, 4, 64),
        (QuantMode::Affine, 4, 32),
        (QuantMode::Affine, 8, 64),
        (QuantMode::Mxfp4, 4, 32),
        (QuantMode::Nvfp4, 4, 16),
        (QuantMode::Mxfp8, 8, 32),
    ] {
        for shape in [SMALL, LARGE] {
            measure_quantized(report, QuantFormat { mode, bits, group_size }, shape);
        }
    }
    for shape in [SMALL, LARGE] {
        measure_plain(report, shape);
    }
}

fn measure_plain(report: &mut Report<'_>, shape: Shape) {
    let Shape { input, .. } = shape;
    for tokens in TOKENS {
        if !report.wants(&full_name("bf16", shape, tokens)) {
            continue;
        }
        let copies = num_copies(OUT * input * 2, tokens * OUT * input, tokens);
        let weights = filled(copies * OUT * input, |idx| bf16::from_f32((idx % 255) as f32));
        let matrix = |copy: usize| {
            let values = Elements::Bf16(&weights[copy * OUT * input..][..OUT * input]);
            Matrix::Dense(DenseMatrix { out: OUT, input, values })
        };
        measure_both(report, "bf16", Run { shape, tokens, copies }, matrix);
    }
}

fn measure_quantized(report: &mut Report<'_>, format: QuantFormat, shape: Shape) {
    let Shape { input, .. } = shape;
    let QuantFormat { mode, bits, group_size } = format;
    let name = format!("{}-{bits} group {group_size}", format!("{mode:?}").to_lowercase());
    let (num_words, num_groups) =
        (OUT * format.words_per_row(input), OUT * format.groups_per_row(input));
    for tokens in TOKENS {
        if !report.wants(&full_name(&name, shape, tokens)) {
            continue;
        }
        let copies = num_copies(num_words * 4, tokens * OUT * input, tokens);
        let words = filled(copies * num_words, |idx| {
            (idx as u32).wrapping_mul(2_654_435_761).rotate_left(9) & 0x3f3f_3f3f
        });
        let floats = filled(copies * num_groups, |_| bf16::ONE);
        let codes = filled(copies * num_groups, |_| 110_u8);
        let matrix = |copy: usize| {
            let groups = copy * num_groups..(copy + 1) * num_groups;
            let (scales, biases) = match mode {
                QuantMode::Affine => {
                    let floats = Elements::Bf16(&floats[groups]);
                    (Scales::Elements(floats), Some(floats))
                }
                _ => (Scales::Bytes(&codes[groups]), None),
            };
            let words = &words[copy * num_words..][..num_words];
            let matrix = QuantMatrix { format, out: OUT, input, words, scales, biases };
            Matrix::Quantized(matrix)
        };
        measure_both(report, &name, Run { shape, tokens, copies }, matrix);
    }
}

fn full_name(name: &str, Shape { input, chunk }: Shape, tokens: usize) -> String {
    format!("{name}, divided, {input} in {chunk}s, {tokens} tokens")
}

fn measure_both<'a>(
    report: &mut Report<'_>,
    name: &str,
    run: Run,
    matrix: impl Fn(usize) -> Matrix<'a>,
) {
    let Run { shape: Shape { input, chunk }, tokens, copies } = run;
    let name = full_name(name, run.shape, tokens);
    let x = filled(tokens * input, |idx| bf16::from_f32((idx % 251) as f32 - 125.0));
    let x = Elements::Bf16(&x);
    let mut plain = vec![0.0_f32; tokens * OUT];
    let mut sums = vec![0.0_f64; tokens * OUT];
    let work = Work { bytes: 0, macs: copies * tokens * OUT * input, is_whole: true };
    report.compare(
        &name,
        work,
        Call {
            name: "whole",
            run: |threads: &Threads| {
                for copy in 0..copies {
                    let out = ElementsMut::F32(&mut plain);
                    matmul_each(x, vec![Product { matrix: matrix(copy), out }], threads);
                }
            },
        },
        Call {
            name: "divided",
            run: |threads: &Threads| {
                for copy in 0..copies {
                    divisible_matmul(
                        x,
                        &matrix(copy),
                        TermColumns::Divided(chunk),
                        &mut sums,
                        threads,
                    );
                }
            },
        },
    );
}
