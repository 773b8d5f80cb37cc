//! Matrix products that know how they are cut over the ranks.

use std::sync::Arc;

use jackalope_kernels::{self as kernels, Elements, ElementsMut, Terms, Threads};
use jackalope_mlx::{Array, Dtype};

use super::kernel::{Inputs, Matrix, MatrixCut, MatrixKernel, dim, primitive, zeros_after};
use crate::error::LoadError;
use crate::parallel::{Compute, TensorParallel};
use crate::split::Cut;
use crate::weights::{Part, Weights};

/// Whether a layer adds a vector after its product.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Bias {
    Absent,
    Present,
}

impl Bias {
    /// As `config.json` says.
    pub(crate) fn when(is_present: bool) -> Bias {
        if is_present { Bias::Present } else { Bias::Absent }
    }
}

/// `x · weightᵀ + bias`, plain or quantised.
#[derive(Debug)]
pub(crate) struct Linear {
    matrix: Matrix,
    bias: Option<Array>, // [output]
    dtype: Dtype,
    tp: TensorParallel,
    is_summed: bool,
}

impl Linear {
    /// Each rank computes its part of the output.
    pub(crate) fn column(
        w: &Weights<'_>,
        input: usize,
        output: &Cut,
        bias: Bias,
        tp: &TensorParallel,
    ) -> Result<Linear, LoadError> {
        let matrix = Matrix::load(w, MatrixCut::Output { output, input })?;
        Linear::new((w, matrix), (bias, output.full, Part::Rows(output)), tp, false)
    }

    /// Each rank has a part of the input; the products are summed over the ranks.
    pub(crate) fn row(
        w: &Weights<'_>,
        input: &Cut,
        output: usize,
        bias: Bias,
        tp: &TensorParallel,
    ) -> Result<Linear, LoadError> {
        let matrix = Matrix::load(w, MatrixCut::Input { output, input })?;
        Linear::new((w, matrix), (bias, output, Part::Whole), tp, true)
    }

    fn new(
        (w, matrix): (&Weights<'_>, Matrix),
        (bias, output, part): (Bias, usize, Part<'_>),
        tp: &TensorParallel,
        is_summed: bool,
    ) -> Result<Linear, LoadError> {
        let bias = match bias {
            Bias::Present => Some(w.floats("bias", &[output], part)?),
            Bias::Absent => None,
        };
        Ok(Linear { matrix, bias, dtype: w.dtype(), tp: tp.clone(), is_summed })
    }

    /// `[tokens, output]` for `x` `[tokens, input]`.
    pub(crate) fn forward(&self, x: &Array) -> Array {
        self.compute(x, None)
    }

    /// `residual + forward(x)`, rounded once.
    pub(crate) fn add_to(&self, residual: &Array, x: &Array) -> Array {
        self.compute(x, Some(residual))
    }

    fn compute(&self, x: &Array, residual: Option<&Array>) -> Array {
        match self.tp.compute() {
            Compute::Kernels(threads) if self.is_partial() => {
                let partial = self.kernel_product(x, None, Dtype::F32, threads);
                self.kernel_finish(&self.tp.all_sum(&partial), residual, threads)
            }
            Compute::Kernels(threads) => self.kernel_product(x, residual, self.dtype, threads),
            Compute::Stock => self.stock(x, residual),
        }
    }

    fn stock(&self, x: &Array, residual: Option<&Array>) -> Array {
        let mut out = if self.matrix.is_empty() {
            zeros_after(x, self.matrix.output(), self.dtype)
        } else {
            self.matrix.stock_product(x)
        };
        if self.is_summed {
            out = self.tp.all_sum(&out);
        }
        for term in self.bias.iter().chain(residual) {
            out = out.add(term);
        }
        out
    }

    /// True if the product is only a part of a sum, to which bias and residual are added later.
    fn is_partial(&self) -> bool {
        self.is_summed && 1 < self.tp.size()
    }

    /// The arrays to hand to a primitive that uses [`Linear::kernel`].
    pub(super) fn arrays(&self) -> Vec<&Array> {
        let mut arrays = self.matrix.arrays();
        arrays.extend(self.bias.as_ref().filter(|_| !self.is_partial()));
        arrays
    }

    /// What the primitive's closure needs to know.
    pub(super) fn kernel(&self) -> LinearKernel {
        let has_bias = self.bias.is_some() && !self.is_partial();
        LinearKernel { matrix: self.matrix.kernel(), has_bias }
    }

    /// The product; a partial one (f32) has neither bias nor residual yet.
    fn kernel_product(
        &self,
        x: &Array,
        residual: Option<&Array>,
        dtype: Dtype,
        threads: &Arc<Threads>,
    ) -> Array {
        if self.matrix.is_empty() {
            return zeros_after(x, self.matrix.output(), dtype);
        }
        let out_shape = vec![x.dim(0), dim(self.matrix.output())];
        let mut inputs = vec![x];
        inputs.extend(self.arrays());
        inputs.extend(residual);
        let (kernel, has_residual) = (self.kernel(), residual.is_some());
        let out = (out_shape, dtype);
        primitive("linear", &inputs, out, threads, move |inputs, out, threads| {
            let x = inputs.elements();
            if !kernel.has_bias && !has_residual {
                return kernel.matrix.multiply(x, inputs, out, threads);
            }
            let product = kernel.matrix.product(x, inputs, threads);
            let bias = kernel.has_bias.then(|| inputs.elements());
            let residual = has_residual.then(|| inputs.elements());
            let terms = Terms { bias, residual };
            kernels::add_terms(&product, kernel.matrix.output, terms, out, threads);
        })
    }

    /// The sum over the ranks (f32) with bias and residual, rounded.
    fn kernel_finish(
        &self,
        sum: &Array,
        residual: Option<&Array>,
        threads: &Arc<Threads>,
    ) -> Array {
        let mut inputs = vec![sum];
        inputs.extend(&self.bias);
        inputs.extend(residual);
        let (has_bias, has_residual) = (self.bias.is_some(), residual.is_some());
        let (width, out) = (self.matrix.output(), (sum.shape(), self.dtype));
        primitive("residual", &inputs, out, threads, move |inputs, out, threads| {
            let sum = inputs.next().values::<f32>();
            let bias = has_bias.then(|| inputs.elements());
            let residual = has_residual.then(|| inputs.elements());
            kernels::add_terms(sum, width, Terms { bias, residual }, out, threads);
        })
    }
}

/// A layer without its arrays, for use inside a primitive.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinearKernel {
    matrix: MatrixKernel,
    has_bias: bool,
}

impl LinearKernel {
    /// `x · weightᵀ + bias` in f32, `[tokens, output]`; takes its arrays from `inputs`.
    pub(super) fn product(
        self,
        x: Elements<'_>,
        inputs: &Inputs<'_>,
        threads: &Threads,
    ) -> Vec<f32> {
        let product = self.matrix.product(x, inputs, threads);
        if !self.has_bias {
            return product;
        }
        let terms = Terms { bias: Some(inputs.elements()), residual: None };
        let mut sum = vec![0.0; product.len()];
        let out = ElementsMut::F32(&mut sum);
        kernels::add_terms(&product, self.matrix.output, terms, out, threads);
        sum
    }
}
