//! Root-mean-square normalisation.

use std::cell::OnceCell;

use jackalope_kernels::{self as kernels, Elements, ElementsMut, HeadNorm, Threads};
use jackalope_mlx::{Array, Dtype, Pinned, fast};

use super::kernel::{dim, elements, pinned, primitive};
use crate::error::LoadError;
use crate::parallel::{Compute, Parallel};
use crate::weights::{Part, Weights};

/// Computes `x / sqrt(mean(x²) + eps) * weight` over the last dimension. Every rank holds the whole
/// weight.
#[derive(Debug)]
pub(crate) struct RmsNorm {
    weight: Array, // [width]
    pinned: OnceCell<Pinned>,
    eps: f32,
    compute: Compute,
}

impl RmsNorm {
    pub(crate) fn load(
        w: &Weights<'_>,
        width: usize,
        eps: f32,
        parallel: &Parallel,
    ) -> Result<RmsNorm, LoadError> {
        let weight = w.floats("weight", &[width], Part::Whole)?;
        Ok(RmsNorm { weight, pinned: OnceCell::new(), eps, compute: parallel.compute().clone() })
    }

    /// Creates a norm whose weights are one.
    pub(crate) fn unweighted(width: usize, eps: f32, dtype: Dtype, parallel: &Parallel) -> RmsNorm {
        let ones = Array::full(&[dim(width)], 1.0, dtype);
        ones.eval().expect("a constant needs no input");
        let compute = parallel.compute().clone();
        RmsNorm { weight: ones, pinned: OnceCell::new(), eps, compute }
    }

    /// Normalises `x`; `x` and the result are `[tokens, width]`.
    pub(crate) fn forward(&self, x: &Array) -> Array {
        let Compute::Kernels(threads) = &self.compute else { return self.stock(x) };
        let (kernel, out) = (self.kernel(), (x.shape(), x.dtype()));
        primitive("rms_norm", &[x], out, threads, move |inputs, out, threads| {
            kernel.norm(inputs.elements(), out, threads);
        })
    }

    /// Normalises `x` with MLX; `x` and the result are `[…, width]`.
    pub(super) fn stock(&self, x: &Array) -> Array {
        fast::rms_norm(x, Some(&self.weight), self.eps)
    }

    /// Returns the norm for use inside a primitive.
    pub(super) fn kernel(&self) -> NormKernel {
        let weight = self.pinned.get_or_init(|| pinned(&self.weight)).clone();
        NormKernel { weight, eps: self.eps }
    }
}

/// A norm for the kernels.
#[derive(Clone, Debug)]
pub(super) struct NormKernel {
    weight: Pinned,
    eps: f32,
}

impl NormKernel {
    /// Computes `out = norm(x)` for rows of the weight's width.
    pub(super) fn norm(&self, x: Elements<'_>, out: ElementsMut<'_>, threads: &Threads) {
        kernels::rms_norm(x, elements(&self.weight), self.eps, out, threads);
    }

    /// Returns the norm as one that is applied to each head.
    pub(super) fn of_heads(&self) -> HeadNorm<'_> {
        HeadNorm { weight: elements(&self.weight), eps: self.eps }
    }
}
