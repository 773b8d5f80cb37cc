//! Causal convolutions of each channel separately.

use jackalope_mlx::{Array, Dtype};
use jackalope_spec::HeadRows;

use super::kernel::OwnRows;
use jackalope_protocol::split::Cut;
use jackalope_weights::LoadError;
use jackalope_weights::Weights;

/// Loads this rank's kernels of a convolution that sees `width` positions, f32 `[channels, width]`.
///
/// # Errors
/// Fails if the tensor cannot be read.
pub fn conv_kernels(
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
