//! Causal convolutions of each channel by itself.

use jackalope_mlx::Array;

/// Returns kernels `[channels, width]` by position, `[width, channels]`.
pub fn taps(kernels: &Array) -> Array {
    kernels.swapaxes(0, 1).contiguous()
}

/// Computes the convolution of the last rows of `inputs` `[sequences, width - 1 + seq, channels]` with
/// `taps` `[width, channels]`, with MLX.
///
/// # Panics
/// Panics if `width` is 0.
pub fn convolution(inputs: &Array, taps: &Array) -> Array {
    dilated_convolution(inputs, taps, 1)
}

/// As [`convolution`], of positions that are `dilation` apart: `inputs` are
/// `[sequences, (width - 1) * dilation + seq, channels]`.
///
/// # Panics
/// Panics if `width` is 0.
pub fn dilated_convolution(inputs: &Array, taps: &Array, dilation: i32) -> Array {
    let width = taps.dim(0);
    let seq = inputs.dim(1) - (width - 1) * dilation;
    if seq == 1 && dilation == 1 {
        return inputs.mul(taps).sum(1, true);
    }
    let terms = (0..width).map(|tap| {
        let rows = inputs.slice_axis(1, tap * dilation, tap * dilation + seq);
        rows.mul(&taps.slice_axis(0, tap, tap + 1))
    });
    let sum = terms.reduce(|sum, term| sum.add(&term));
    sum.expect("a convolution sees a position")
}
