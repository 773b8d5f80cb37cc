//! Root-mean-square normalisation.

use jackalope_kernels as kernels;
use jackalope_mlx::{Array, fast};

use super::kernel::primitive;
use crate::error::LoadError;
use crate::parallel::{Compute, TensorParallel};
use crate::weights::{Part, Weights};

/// `x / sqrt(mean(x²) + eps) * weight` over the last dimension, held by every rank.
#[derive(Debug)]
pub(crate) struct RmsNorm {
    weight: Array, // [width]
    eps: f32,
    compute: Compute,
}

impl RmsNorm {
    pub(crate) fn load(
        w: &Weights<'_>,
        width: usize,
        eps: f32,
        tp: &TensorParallel,
    ) -> Result<RmsNorm, LoadError> {
        let weight = w.floats("weight", &[width], Part::Whole)?;
        Ok(RmsNorm { weight, eps, compute: tp.compute().clone() })
    }

    /// `x` and the result are `[tokens, width]`.
    pub(crate) fn forward(&self, x: &Array) -> Array {
        let Compute::Kernels(threads) = &self.compute else { return self.stock(x) };
        let (eps, out) = (self.eps, (x.shape(), x.dtype()));
        primitive("rms_norm", &[x, &self.weight], out, threads, move |inputs, out, threads| {
            kernels::rms_norm(inputs.elements(), inputs.elements(), eps, out, threads);
        })
    }

    /// By MLX: `x` and the result are `[…, width]`.
    pub(super) fn stock(&self, x: &Array) -> Array {
        fast::rms_norm(x, Some(&self.weight), self.eps)
    }

    /// For use inside another primitive: the array to hand to it.
    pub(super) fn array(&self) -> &Array {
        &self.weight
    }

    /// Added to the mean of the squares.
    pub(super) fn eps(&self) -> f32 {
        self.eps
    }
}
