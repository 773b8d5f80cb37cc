//! Matrix products that know how they are cut over the ranks.

use jackalope_kernels::{self as kernels, Elements, ElementsMut, Product, Threads};
use jackalope_mlx::{Array, Dtype};

use super::kernel::{Inputs, Matrix, MatrixCut, MatrixKernel, zeros_after};
use crate::error::LoadError;
use crate::parallel::TensorParallel;
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

    /// `[tokens, output]` for `x` `[tokens, input]`, by MLX.
    pub(super) fn stock(&self, x: &Array) -> Array {
        let mut out = if self.matrix.is_empty() {
            zeros_after(x, self.matrix.output(), self.dtype)
        } else {
            self.matrix.stock_product(x)
        };
        if self.is_summed {
            out = self.tp.all_sum(&out);
        }
        match &self.bias {
            Some(bias) => out.add(bias),
            None => out,
        }
    }

    /// The weight, for use inside a primitive.
    pub(super) fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// `[output]`; of all ranks' parts together if they are summed.
    pub(super) fn bias(&self) -> Option<&Array> {
        self.bias.as_ref()
    }

    /// The arrays to hand to a primitive that uses [`Linear::kernel`].
    pub(super) fn arrays(&self) -> Vec<&Array> {
        let mut arrays = self.matrix.arrays();
        arrays.extend(&self.bias);
        arrays
    }

    /// What the primitive's closure needs to know.
    ///
    /// # Panics
    /// If ranks hold parts of a sum, to which nobody may add the bias.
    pub(super) fn kernel(&self) -> LinearKernel {
        assert!(!self.is_summed, "the bias belongs to the whole sum");
        LinearKernel { matrix: self.matrix.kernel(), has_bias: self.bias.is_some() }
    }
}

/// A layer without its arrays, for use inside a primitive.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinearKernel {
    matrix: MatrixKernel,
    has_bias: bool,
}

impl LinearKernel {
    /// `x · weightᵀ + bias` of each layer in f32, `[tokens, output]`; takes their arrays from `inputs`.
    pub(super) fn products<const N: usize>(
        linears: [LinearKernel; N],
        x: Elements<'_>,
        inputs: &Inputs<'_>,
        threads: &Threads,
    ) -> [Vec<f32>; N] {
        let mut results = [const { Vec::new() }; N];
        let mut biases = [None; N];
        let mut products = Vec::with_capacity(N);
        for ((linear, result), bias) in linears.iter().zip(&mut results).zip(&mut biases) {
            let matrix = linear.matrix.view(inputs);
            *bias = linear.has_bias.then(|| inputs.elements());
            *result = vec![0.0; x.len() / linear.matrix.input * linear.matrix.output];
            products.push(Product { matrix, out: ElementsMut::F32(result) });
        }
        kernels::matmul_each(x, products, threads);
        for (result, bias) in results.iter_mut().zip(biases) {
            if let Some(bias) = bias {
                kernels::add_bias(result, bias, threads);
            }
        }
        results
    }
}
