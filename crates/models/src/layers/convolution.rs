//! Causal convolutions of each channel separately.

use jackalope_mlx::{Array, Dtype};
use jackalope_spec::HeadRows;

use super::kernel::OwnRows;
use crate::error::LoadError;
use crate::split::Cut;
use crate::weights::Weights;

/// Loads this rank's kernels of a convolution that sees `width` positions, f32 `[channels, width]`.
///
/// # Errors
/// Fails if the tensor cannot be read.
pub(super) fn conv_kernels(
    root: &Weights<'_>,
    rows: &HeadRows,
    width: usize,
    cut: &Cut,
) -> Result<Array, LoadError> {
    let own = OwnRows::new(rows, cut);
    let shape = [rows.num_rows, width, 1];
    let kernels = root.at(&rows.module).floats_as(Dtype::F32, "weight", &shape, own.part())?;
    let kernels = kernels.squeeze(2);
    kernels.eval()?;
    Ok(kernels)
}

/// Returns kernels `[channels, width]` by position, `[width, channels]`.
pub(super) fn taps(kernels: &Array) -> Array {
    kernels.swapaxes(0, 1).contiguous()
}

/// Computes the convolution of the last rows of `inputs` `[sequences, width - 1 + seq, channels]` with
/// `taps` `[width, channels]`, with MLX.
pub(super) fn stock_convolution(inputs: &Array, taps: &Array) -> Array {
    let width = taps.dim(0);
    let seq = inputs.dim(1) - (width - 1);
    if seq == 1 {
        return inputs.mul(taps).sum(1, true);
    }
    let terms = (0..width)
        .map(|tap| inputs.slice_axis(1, tap, tap + seq).mul(&taps.slice_axis(0, tap, tap + 1)));
    let sum = terms.reduce(|sum, term| sum.add(&term));
    sum.expect("a convolution sees a position")
}
