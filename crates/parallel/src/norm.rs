//! Normalisation of rows and of heads.

use std::cell::OnceCell;

use jackalope_kernels::{self as kernels, Elements, ElementsMut, Threads};
use jackalope_mlx::{Array, Dtype, Pinned, dim, fast};
use jackalope_spec::NormKind;

use super::kernel::{elements, pinned, primitive};
use crate::parallel::{Compute, Parallel};
use jackalope_protocol::split::Cut;
use jackalope_weights::LoadError;
use jackalope_weights::{Part, Weights};

/// How a norm normalises.
#[derive(Clone, Copy, Debug)]
pub struct NormSettings {
    /// What it subtracts and adds.
    pub kind: NormKind,
    /// Epsilon added to the mean of the squares.
    pub eps: f32,
}

/// The weights of a norm that are a vector times a factor.
#[derive(Clone, Copy, Debug)]
pub struct VectorNorm {
    /// Number of elements.
    pub width: usize,
    /// Factor of all elements.
    pub factor: f32,
}

/// Computes `x / sqrt(mean(x²) + eps) * weight + bias` over the last dimension, of `x` or of its
/// difference from its mean. Every rank holds the whole weight.
#[derive(Debug)]
pub struct Norm {
    weight: Array,       // [width], or [heads, 1, width]
    bias: Option<Array>, // [width]
    kernel: OnceCell<NormKernel>,
    is_centred: bool,
    eps: f32,
    compute: Compute,
}

impl Norm {
    /// Loads a norm of vectors of `width` elements: `weight` and, if there is one, `bias`, each
    /// `[width]`.
    ///
    /// # Errors
    /// Fails if a tensor is missing, has another shape or cannot be read.
    pub fn load(
        w: &Weights<'_>,
        width: usize,
        settings: NormSettings,
        parallel: &Parallel,
    ) -> Result<Norm, LoadError> {
        let weight = w.floats("weight", &[width], Part::Whole)?;
        let has_bias = settings.kind.has_bias;
        let bias = has_bias.then(|| w.floats("bias", &[width], Part::Whole)).transpose()?;
        let norm = Norm::new(weight, settings, parallel)?;
        Ok(Norm { bias, ..norm })
    }

    /// Loads a norm of heads of `width` elements, each with weights of its own, of which `heads` are
    /// on this rank: its rows of `weight` `[heads, width]`.
    ///
    /// # Errors
    /// Fails if a tensor is missing, has another shape or cannot be read.
    pub fn load_heads(
        w: &Weights<'_>,
        width: usize,
        heads: &Cut,
        settings: NormSettings,
        parallel: &Parallel,
    ) -> Result<Norm, LoadError> {
        let weight = w.floats("weight", &[heads.full, width], Part::rows(heads))?.expand_dims(1);
        weight.eval()?;
        Norm::new(weight, settings, parallel)
    }

    fn new(
        weight: Array,
        NormSettings { kind, eps }: NormSettings,
        parallel: &Parallel,
    ) -> Result<Norm, LoadError> {
        let compute = parallel.compute().clone();
        let weight = if kind.adds_one {
            // As mlx-lm, MLX's operations add in the type of the model; our kernels do not round.
            let wide = match compute {
                Compute::Kernels(_) => weight.astype(Dtype::F32),
                Compute::Stock => weight,
            };
            let sum = wide.add(&Array::scalar_of(1.0, wide.dtype()));
            sum.eval()?;
            sum
        } else {
            weight
        };
        let kernel = OnceCell::new();
        Ok(Norm { weight, bias: None, kernel, is_centred: kind.is_centred, eps, compute })
    }

    /// Creates a norm whose weights are one.
    pub fn unweighted(width: usize, eps: f32, dtype: Dtype, parallel: &Parallel) -> Norm {
        let ones = Array::full(&[dim(width)], 1.0, dtype);
        ones.eval().expect("a constant needs no input");
        let compute = parallel.compute().clone();
        let (bias, kernel) = (None, OnceCell::new());
        Norm { weight: ones, bias, kernel, is_centred: false, eps, compute }
    }

    /// Loads a norm whose weights are the vector at `w`, `[width]`, times a factor.
    ///
    /// # Errors
    /// Fails if a tensor is missing, has another shape or cannot be read.
    pub fn of_vector(
        w: &Weights<'_>,
        VectorNorm { width, factor }: VectorNorm,
        settings: NormSettings,
        parallel: &Parallel,
    ) -> Result<Norm, LoadError> {
        let dtype = weight_dtype(w, parallel);
        let weight = &w.vector_as(dtype, width, Part::Whole)? * factor;
        weight.eval()?;
        Norm::new(weight, settings, parallel)
    }

    /// Loads a norm of vectors of `width` elements whose weights are the products of those of two norms.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    ///
    /// # Panics
    /// Panics if the settings say that one is added to weights.
    pub fn of_product(
        norms: &[Weights<'_>; 2],
        width: usize,
        settings: NormSettings,
        parallel: &Parallel,
    ) -> Result<Norm, LoadError> {
        assert!(!settings.kind.adds_one, "weights that lack one are not multiplied");
        let load = |w: &Weights<'_>| w.floats_as(Dtype::F32, "weight", &[width], Part::Whole);
        let weight = load(&norms[0])?.mul(&load(&norms[1])?);
        let weight = weight.astype(weight_dtype(&norms[0], parallel));
        weight.eval()?;
        Norm::new(weight, settings, parallel)
    }

    /// Returns the norm of heads of which some have the first norm, and the rest the second; `None` if the norms
    /// are of different kinds. `counts` are the numbers of heads.
    ///
    /// # Errors
    /// Fails if MLX cannot copy the weights.
    pub fn of_heads(norms: &[Norm; 2], counts: [usize; 2]) -> Result<Option<Norm>, LoadError> {
        let kind = |norm: &Norm| (norm.is_centred, norm.eps.to_bits(), norm.weight.array_type());
        let has_biases = norms.iter().any(|norm| norm.bias.is_some());
        if has_biases || norms[0].weight.ndim() != 1 || kind(&norms[0]) != kind(&norms[1]) {
            return Ok(None);
        }
        let width = norms[0].weight.dim(0);
        let of_heads =
            |idx: usize| norms[idx].weight.reshape(&[1, 1, width]).repeat(dim(counts[idx]), 0);
        let weight = Array::concatenate(&[&of_heads(0), &of_heads(1)], 0);
        weight.eval()?;
        let Norm { is_centred, eps, ref compute, .. } = norms[0];
        let (kernel, compute) = (OnceCell::new(), compute.clone());
        Ok(Some(Norm { weight, bias: None, kernel, is_centred, eps, compute }))
    }

    /// Normalises `x`; `x` and the result are `[tokens, width]`.
    pub fn forward(&self, x: &Array) -> Array {
        let Compute::Kernels(threads) = &self.compute else { return self.stock(x) };
        let (kernel, out) = (self.kernel(), x.array_type());
        primitive("norm", &[x], out, threads, move |inputs, out, threads| {
            kernel.norm(inputs.elements(), out, threads);
        })
    }

    /// Normalises `x` with MLX; `x` and the result are `[…, width]`, or `[…, heads, 1, width]` if each head has weights of
    /// its own.
    pub fn stock(&self, x: &Array) -> Array {
        let norm = |weight: Option<&Array>, bias: Option<&Array>| {
            if self.is_centred {
                fast::layer_norm(x, weight, bias, self.eps)
            } else {
                fast::rms_norm(x, weight, self.eps)
            }
        };
        if self.weight.ndim() == 1 {
            norm(Some(&self.weight), self.bias.as_ref())
        } else {
            norm(None, None).mul(&self.weight)
        }
    }

    /// Returns the norm for use inside a primitive.
    pub fn kernel(&self) -> NormKernel {
        let kernel = || NormKernel {
            weight: pinned(&self.weight),
            bias: self.bias.as_ref().map(pinned),
            is_centred: self.is_centred,
            eps: self.eps,
        };
        self.kernel.get_or_init(kernel).clone()
    }
}

/// Returns the type of weights that are computed from those at `w`: as with `adds_one`, our kernels do not
/// round them.
fn weight_dtype(w: &Weights<'_>, parallel: &Parallel) -> Dtype {
    match parallel.compute() {
        Compute::Kernels(_) => Dtype::F32,
        Compute::Stock => w.dtype(),
    }
}

/// A norm for the kernels.
#[derive(Clone, Debug)]
pub struct NormKernel {
    weight: Pinned,
    bias: Option<Pinned>,
    is_centred: bool,
    eps: f32,
}

impl NormKernel {
    /// Computes `out = norm(x)` for rows of the weight's width.
    pub fn norm(&self, x: Elements<'_>, out: ElementsMut<'_>, threads: &Threads) {
        kernels::normalize(x, self.view(), elements(&self.weight).len(), out, threads);
    }

    /// Returns the number of elements of a row.
    pub fn width(&self) -> usize {
        elements(&self.weight).len()
    }

    /// Returns the norm in the form that the kernels take.
    pub fn view(&self) -> kernels::NormParameters<'_> {
        kernels::NormParameters {
            is_centred: self.is_centred,
            weight: Some(elements(&self.weight)),
            bias: self.bias.as_ref().map(elements),
            eps: self.eps,
        }
    }
}
