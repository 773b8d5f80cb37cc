//! Quantised weights: 32-bit words that hold several elements each, with scales per group.

use crate::array::{Array, built, built_all, dim, optional, refs};
use crate::device::{GpuKind, gpu_kind};
use crate::dtype::Dtype;
use crate::ffi::bridge;

/// The storage of quantised elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Integers with a scale and a bias per group, both in the weights' dtype.
    Affine,
    /// 4-bit floats with a power-of-two scale per 32 elements.
    Mxfp4,
    /// 4-bit floats with an 8-bit float scale per 16 elements.
    Nvfp4,
    /// 8-bit floats with a power-of-two scale per 32 elements.
    Mxfp8,
}

impl Mode {
    /// Returns MLX's name, which checkpoints also use.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Affine => "affine",
            Mode::Mxfp4 => "mxfp4",
            Mode::Nvfp4 => "nvfp4",
            Mode::Mxfp8 => "mxfp8",
        }
    }
}

/// A quantisation format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Format {
    /// Storage of the elements.
    pub mode: Mode,
    /// Number of bits per element.
    pub bits: i32,
    /// Number of elements that share a scale.
    pub group_size: i32,
}

impl Format {
    fn spec(&self) -> bridge::QuantSpec<'static> {
        bridge::QuantSpec { mode: self.mode.name(), group_size: self.group_size, bits: self.bits }
    }
}

/// A quantised matrix `[out, in]`.
#[derive(Debug, Clone)]
pub struct Quantized {
    /// Packed words, u32 `[out, in * bits / 32]`.
    pub words: Array,
    /// Scales `[out, in / group_size]`; u8 in the floating-point modes.
    pub scales: Array,
    /// Biases `[out, in / group_size]`, in affine mode only.
    pub biases: Option<Array>,
    /// Format of the words.
    pub format: Format,
}

/// Computes `x wᵀ` (with `transpose`) or `x w`.
#[track_caller]
pub fn quantized_matmul(x: &Array, w: &Quantized, transpose: bool) -> Array {
    if transpose && w.scales.dim(-1) == 1 && gpu_kind() == Some(GpuKind::Cuda) {
        return one_group_matmul(x, w);
    }
    let node = bridge::quantized_matmul(
        &x.0,
        &refs(&[&w.words, &w.scales]),
        &optional(w.biases.as_ref()),
        transpose,
        &w.format.spec(),
    );
    built("quantized_matmul", node)
}

/// Computes `x wᵀ` for rows of one group, which MLX 0.32 gives to a kernel of its own on NVIDIA's Hopper.
/// With it, models that have such matrices computed other logits than on a CPU.
fn one_group_matmul(x: &Array, w: &Quantized) -> Array {
    let w = dequantize(w, x.dtype());
    let last = dim(w.shape().len() - 1);
    let axes: Vec<i32> = (0..last - 1).chain([last, last - 1]).collect();
    x.matmul(&w.transpose(&axes))
}

/// The matrix that each row of activations is multiplied with.
#[derive(Debug, Clone, Copy)]
pub struct Gather<'a> {
    /// Index of the matrix for each row, `[rows]`.
    pub indices: &'a Array,
    /// Whether the indices are in ascending order.
    pub is_sorted: bool,
}

/// Computes `x[row] · w[indices[row]]ᵀ` for `x` `[rows, 1, in]` and matrices `w` `[matrices, out, in]`.
/// The result is `[rows, 1, out]`. On the CPU only f32 is supported.
#[track_caller]
pub fn gather_matmul(x: &Array, w: &Array, gather: Gather<'_>) -> Array {
    let node = bridge::gather_matmul(&x.0, &w.0, &gather.indices.0, gather.is_sorted);
    built("gather_matmul", node)
}

/// Like [`gather_matmul`], with quantised matrices.
#[track_caller]
pub fn gather_quantized_matmul(x: &Array, w: &Quantized, gather: Gather<'_>) -> Array {
    let node = bridge::gather_quantized_matmul(
        &x.0,
        &refs(&[&w.words, &w.scales, gather.indices]),
        &optional(w.biases.as_ref()),
        gather.is_sorted,
        &w.format.spec(),
    );
    built("gather_quantized_matmul", node)
}

/// Quantises a matrix along its last dimension.
#[track_caller]
pub fn quantize(w: &Array, format: Format) -> Quantized {
    let mut parts = built_all("quantize", bridge::quantize(&w.0, &format.spec())).into_iter();
    let mut next = || parts.next().expect("quantize yields words and scales");
    let (words, scales) = (next(), next());
    Quantized { words, scales, biases: parts.next(), format }
}

/// Converts a quantised matrix to elements of the floating-point type `dtype`.
#[track_caller]
pub fn dequantize(w: &Quantized, dtype: Dtype) -> Array {
    let node = bridge::dequantize(
        &w.words.0,
        &w.scales.0,
        &optional(w.biases.as_ref()),
        &w.format.spec(),
        dtype.code(),
    );
    built("dequantize", node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_group_multiply_as_dequantised_ones() {
        let values: Vec<f32> = (0..2 * 3 * 64).map(|idx| (idx % 37) as f32 / 18.0 - 1.0).collect();
        let format = Format { mode: Mode::Affine, bits: 4, group_size: 64 };
        for shape in [vec![6, 64], vec![2, 3, 64]] {
            let w = quantize(&Array::from_slice(&values, &shape), format);
            let x_shape: Vec<i32> =
                shape[..shape.len() - 2].iter().copied().chain([5, 64]).collect();
            let len = x_shape.iter().product::<i32>();
            let x = Array::arange(len, Dtype::F32).reshape(&x_shape) * (1.0 / len as f32);
            let expected = quantized_matmul(&x, &w, true);
            let found = one_group_matmul(&x, &w);
            assert_eq!(found.shape(), expected.shape());
            let differs = found.sub(&expected).to_vec::<f32>().unwrap();
            assert!(differs.iter().all(|it| it.abs() < 1e-3), "{differs:?}");
        }
    }
}
