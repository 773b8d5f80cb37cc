//! Rounding to few bits with MLX; see [`jackalope_kernels::CodeFormat`].

use jackalope_kernels::CodeFormat;
use jackalope_mlx::{Array, Dtype, dim};

const MANTISSA_BITS: u32 = 23;

/// As [`CodeFormat::round`], with MLX, for vectors in the last dimension.
pub fn stock_rounded(format: CodeFormat, x: &Array) -> Array {
    let (shape, len) = (x.shape(), dim(format.block_len()));
    let (max, least) = format.bounds();
    let blocks = x.astype(Dtype::F32).reshape(&[-1, len]);
    let largest = blocks.abs().max(-1, true).maximum(&Array::scalar(least));
    let scale = match format {
        CodeFormat::E4M3 | CodeFormat::E2M1 => power_above(&(&largest * (1.0 / max))),
        CodeFormat::E2M1InE4M3 => nearest(&largest.div(&Array::scalar(max)), 3, 127 - 6),
    };
    let codes = blocks.div(&scale);
    let codes = codes.maximum(&Array::scalar(-max)).minimum(&Array::scalar(max));
    let codes = match format {
        CodeFormat::E4M3 => nearest(&codes, 3, 127 - 6),
        CodeFormat::E2M1 | CodeFormat::E2M1InE4M3 => nearest(&codes, 1, 127),
    };
    codes.mul(&scale).reshape(&shape).astype(x.dtype())
}

fn bits(value: u32) -> Array {
    Array::from_slice(&[value], &[1])
}

/// Returns the least powers of two that are not less than positive normal numbers.
fn power_above(x: &Array) -> Array {
    let shift = bits(MANTISSA_BITS);
    // What is added carries into the exponent unless the mantissa is zero.
    let carried = x.view(Dtype::U32).add(&bits((1 << MANTISSA_BITS) - 1));
    carried.right_shift(&shift).left_shift(&shift).view(Dtype::F32)
}

/// Rounds to `mantissa_bits` bits of mantissa, ties to even. `min_exponent` is the biased exponent
/// of the smallest normal number.
fn nearest(x: &Array, mantissa_bits: u32, min_exponent: u32) -> Array {
    let shift = bits(MANTISSA_BITS);
    let exponent = x.abs().view(Dtype::U32).right_shift(&shift).maximum(&bits(min_exponent));
    let step = exponent.sub(&bits(mantissa_bits)).left_shift(&shift).view(Dtype::F32);
    x.div(&step).round().mul(&step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_mlx_round_to_the_same_values() {
        let value = |idx: usize| {
            let scale = 2.0_f32.powi((idx / 96 % 40) as i32 - 20);
            ((idx * 7919 % 2003) as f32 / 1000.0 - 1.0).powi(3) * scale
        };
        let values: Vec<f32> = (0..96 * 80).map(value).collect();
        for format in [CodeFormat::E4M3, CodeFormat::E2M1, CodeFormat::E2M1InE4M3] {
            let mut expected = values.clone();
            format.round(&mut expected);
            let found = stock_rounded(format, &Array::from_slice(&values, &[80, 96]));
            assert_eq!(found.to_vec::<f32>().unwrap(), expected, "{format:?}");
        }
    }
}
