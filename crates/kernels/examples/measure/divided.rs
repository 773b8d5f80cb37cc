//! Measures the cost of divisible products: the same product computed in both ways.

use half::bf16;
use jackalope_kernels::{
    DenseMatrix, Elements, ElementsMut, Matrix, Product, QuantFormat, QuantMatrix, QuantMode,
    Scales, divisible_matmul, matmul_each,
};

use super::cases::{filled, num_copies};
use super::{Report, Work};

/// Output and input features of the last MLP product of Qwen3 0.6B.
const OUT: usize = 1024;
const INPUT: usize = 3072;

/// Columns per term in that product.
const CHUNK: usize = 256;

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
        measure_quantized(report, QuantFormat { mode, bits, group_size });
    }
    for tokens in TOKENS {
        let copies = num_copies(OUT * INPUT * 2, tokens * OUT * INPUT, tokens);
        let weights = filled(copies * OUT * INPUT, |idx| bf16::from_f32((idx % 255) as f32));
        let matrix = |copy: usize| {
            let values = Elements::Bf16(&weights[copy * OUT * INPUT..][..OUT * INPUT]);
            Matrix::Dense(DenseMatrix { out: OUT, input: INPUT, values })
        };
        measure_both(report, "bf16", (tokens, copies), matrix);
    }
}

fn measure_quantized(report: &mut Report<'_>, format: QuantFormat) {
    let QuantFormat { mode, bits, group_size } = format;
    let name = format!("{}-{bits} group {group_size}", format!("{mode:?}").to_lowercase());
    let (num_words, num_groups) =
        (OUT * format.words_per_row(INPUT), OUT * format.groups_per_row(INPUT));
    for tokens in TOKENS {
        let copies = num_copies(num_words * 4, tokens * OUT * INPUT, tokens);
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
            let matrix = QuantMatrix { format, out: OUT, input: INPUT, words, scales, biases };
            Matrix::Quantized(matrix)
        };
        measure_both(report, &name, (tokens, copies), matrix);
    }
}

fn measure_both<'a>(
    report: &mut Report<'_>,
    name: &str,
    (tokens, copies): (usize, usize),
    matrix: impl Fn(usize) -> Matrix<'a>,
) {
    let name = format!("{name}, down, {tokens} tokens");
    if !report.wants(&format!("{name}, divided")) {
        return;
    }
    let x = filled(tokens * INPUT, |idx| bf16::from_f32((idx % 251) as f32 - 125.0));
    let x = Elements::Bf16(&x);
    let mut plain = vec![0.0_f32; tokens * OUT];
    let mut sums = vec![0.0_f64; tokens * OUT];
    let work = Work { bytes: 0, macs: copies * tokens * OUT * INPUT, is_whole: true };
    // Alternating, so that other load on the machine affects both equally.
    for _ in 0..3 {
        report.measure(&format!("{name}, whole"), work, |threads| {
            for copy in 0..copies {
                let out = ElementsMut::F32(&mut plain);
                matmul_each(x, vec![Product { matrix: matrix(copy), out }], threads);
            }
        });
        report.measure(&format!("{name}, divided"), work, |threads| {
            for copy in 0..copies {
                divisible_matmul(x, &matrix(copy), CHUNK, &mut sums, threads);
            }
        });
    }
}
