//! Norms of several streams beside one another: each stream is normalised separately, with weights of its
//! own, to which one may be added.

use jackalope_kernels::{self as kernels, Elements, ElementsMut, Threads};
use jackalope_mlx::{Array, Dtype, Pinned, fast};
use jackalope_spec::TensorSpec;
use jackalope_weights::{LoadError, Part, Weights};

use super::hyper::StreamShape;
use jackalope_parallel::kernel::{elements, pinned};

/// A norm of streams `[tokens, streams * hidden]`.
#[derive(Debug)]
pub(super) struct StreamNorm {
    /// Factors, f32 `[streams * hidden]`.
    factors: Array,
    shape: StreamShape,
}

impl StreamNorm {
    /// Loads the weights, which every rank holds.
    ///
    /// # Errors
    /// Fails if the tensor cannot be read.
    pub(super) fn load(
        root: &Weights<'_>,
        spec: &TensorSpec,
        shape: StreamShape,
    ) -> Result<StreamNorm, LoadError> {
        let (path, name) = spec.name.rsplit_once('.').unwrap_or(("", &spec.name));
        let weights = root.at(path).floats_as(Dtype::F32, name, &spec.shape, Part::Whole)?;
        let added = if shape.adds_one { 1.0 } else { 0.0 };
        let factors = weights.flatten(0, -1).add(&Array::scalar(added));
        factors.eval()?;
        Ok(StreamNorm { factors, shape })
    }

    /// Normalises `x` with MLX. The result is in single precision.
    pub(super) fn stock(&self, x: &Array) -> Array {
        let streams = self.shape.stock_streams(&x.astype(Dtype::F32));
        let normed = fast::rms_norm(&streams, None, self.shape.norm_eps);
        normed.reshape(&x.shape()).mul(&self.factors)
    }

    /// Returns the norm for use inside a primitive.
    pub(super) fn kernel(&self) -> StreamNormKernel {
        StreamNormKernel { factors: pinned(&self.factors), shape: self.shape }
    }
}

/// A norm of streams for the kernels.
#[derive(Debug)]
pub(super) struct StreamNormKernel {
    factors: Pinned,
    shape: StreamShape,
}

impl StreamNormKernel {
    /// Normalises `x`.
    pub(super) fn norm(&self, x: Elements<'_>, threads: &Threads) -> Vec<f32> {
        let StreamShape { hidden, norm_eps: eps, .. } = self.shape;
        let norm = kernels::NormParameters { is_centred: false, weight: None, bias: None, eps };
        let mut normed = vec![0.0; x.len()];
        kernels::normalize(x, norm, hidden, ElementsMut::F32(&mut normed), threads);
        let Elements::F32(factors) = elements(&self.factors) else {
            panic!("factors are in single precision")
        };
        let rows = normed.chunks_exact_mut(factors.len()).collect();
        threads.for_each(rows, |row: &mut [f32]| {
            row.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
        });
        normed
    }
}
