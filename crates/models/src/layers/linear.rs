//! Matrix products that are divided among the ranks.

use std::cell::OnceCell;
use std::sync::Arc;

use jackalope_kernels::{self as kernels, Elements, ElementsMut, Product, Threads};
use jackalope_mlx::{Array, Dtype, Pinned};

use super::kernel::{
    DivisibleKernel, Matrix, MatrixCut, MatrixKernel, elements, pinned, zeros_after,
};
use crate::error::LoadError;
use crate::parallel::Parallel;
use crate::split::Cut;
use crate::weights::{Part, Weights};

/// Whether a layer adds a vector after its product.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Bias {
    Absent,
    Present,
}

impl Bias {
    /// Converts the flag of `config.json`.
    pub(crate) fn when(is_present: bool) -> Bias {
        if is_present { Bias::Present } else { Bias::Absent }
    }
}

/// The input of a row-parallel layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowInput<'a> {
    pub(crate) cut: &'a Cut,
    /// Number of elements in a unit that is indivisible for any shares. The contribution of a unit
    /// to a sum is rounded as a whole.
    pub(crate) unit: usize,
}

/// A layer `x · weightᵀ + bias`, plain or quantised.
#[derive(Debug)]
pub(crate) struct Linear {
    matrix: Matrix,
    bias: Option<Array>, // [output]
    pinned_bias: OnceCell<Pinned>,
    dtype: Dtype,
    parallel: Parallel,
    /// Set if the products are summed over the ranks; see [`RowInput::unit`].
    summed_unit: Option<usize>,
}

impl Linear {
    /// Loads a layer of which each rank computes a part of the output.
    pub(crate) fn column(
        w: &Weights<'_>,
        input: usize,
        output: &Cut,
        bias: Bias,
        parallel: &Parallel,
    ) -> Result<Linear, LoadError> {
        let matrix = Matrix::load(w, MatrixCut::Output { output, input })?;
        Linear::new((w, matrix), (bias, output.full, Part::Rows(output)), parallel, None)
    }

    /// Loads a layer of which each rank has a part of the input; the products are summed over the
    /// ranks.
    pub(crate) fn row(
        w: &Weights<'_>,
        input: RowInput<'_>,
        output: usize,
        bias: Bias,
        parallel: &Parallel,
    ) -> Result<Linear, LoadError> {
        let matrix = Matrix::load(w, MatrixCut::Input { output, input: input.cut })?;
        Linear::new((w, matrix), (bias, output, Part::Whole), parallel, Some(input.unit))
    }

    fn new(
        (w, matrix): (&Weights<'_>, Matrix),
        (bias, output, part): (Bias, usize, Part<'_>),
        parallel: &Parallel,
        summed_unit: Option<usize>,
    ) -> Result<Linear, LoadError> {
        let bias = match bias {
            Bias::Present => Some(w.floats("bias", &[output], part)?),
            Bias::Absent => None,
        };
        Ok(Linear {
            matrix,
            bias,
            pinned_bias: OnceCell::new(),
            dtype: w.dtype(),
            parallel: parallel.clone(),
            summed_unit,
        })
    }

    /// Computes `[tokens, output]` for `x` `[tokens, input]` with MLX.
    pub(super) fn stock(&self, x: &Array) -> Array {
        let mut out = if self.matrix.is_empty() {
            zeros_after(x, self.matrix.output(), self.dtype)
        } else {
            self.matrix.stock_product(x)
        };
        if self.summed_unit.is_some() {
            out = self.parallel.all_sum(&out);
        }
        match &self.bias {
            Some(bias) => out.add(bias),
            None => out,
        }
    }

    /// Returns the weight, for use inside a primitive.
    pub(super) fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// Returns this rank's part of a sum over the ranks, for use inside a primitive.
    ///
    /// # Panics
    /// Panics if the products are not summed over the ranks.
    pub(super) fn divisible_kernel(&self) -> DivisibleKernel {
        let unit = self.summed_unit.expect("only row-parallel layers are summed");
        DivisibleKernel { matrix: self.matrix.kernel(), unit }
    }

    /// Returns the bias `[output]`; it is the whole bias if the products are summed over the ranks.
    pub(super) fn pinned_bias(&self) -> Option<Pinned> {
        let bias = self.bias.as_ref()?;
        Some(self.pinned_bias.get_or_init(|| pinned(bias)).clone())
    }

    /// Returns the layer for use inside a primitive.
    ///
    /// # Panics
    /// Panics if the products are summed over the ranks, because the bias must be added to the sum.
    pub(super) fn kernel(&self) -> LinearKernel {
        assert!(self.summed_unit.is_none(), "the bias belongs to the whole sum");
        LinearKernel { matrix: self.matrix.kernel(), bias: self.pinned_bias() }
    }
}

/// A linear layer for the kernels.
#[derive(Debug)]
pub(super) struct LinearKernel {
    matrix: Arc<MatrixKernel>,
    bias: Option<Pinned>,
}

impl LinearKernel {
    /// Computes `x · weightᵀ + bias` of each layer in f32, `[tokens, output]`.
    pub(super) fn products<const N: usize>(
        linears: &[LinearKernel; N],
        x: Elements<'_>,
        threads: &Threads,
    ) -> [Vec<f32>; N] {
        let mut results = [const { Vec::new() }; N];
        let mut products = Vec::with_capacity(N);
        for (LinearKernel { matrix, .. }, result) in linears.iter().zip(&mut results) {
            *result = vec![0.0; x.len() / matrix.input * matrix.output];
            products.push(Product { matrix: matrix.view(), out: ElementsMut::F32(result) });
        }
        kernels::matmul_each(x, products, threads);
        for (result, linear) in results.iter_mut().zip(linears) {
            if let Some(bias) = &linear.bias {
                kernels::add_bias(result, elements(bias), threads);
            }
        }
        results
    }
}
