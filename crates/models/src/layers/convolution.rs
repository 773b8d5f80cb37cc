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

/// Computes the convolution of the last rows of `inputs` `[sequences, width - 1 + seq, channels]` with
/// `kernels` `[channels, width]`, with MLX.
pub(super) fn stock_convolution(inputs: &Array, kernels: &Array) -> Array {
    let width = kernels.dim(1);
    let seq = inputs.dim(1) - (width - 1);
    let terms = (0..width).map(|tap| {
        let weights = kernels.slice_axis(1, tap, tap + 1).squeeze(1);
        inputs.slice_axis(1, tap, tap + seq).mul(&weights)
    });
    let sum = terms.reduce(|sum, term| sum.add(&term));
    sum.expect("a convolution sees a position")
}
