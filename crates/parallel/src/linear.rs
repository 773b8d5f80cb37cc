//! WeightMatrix products that are divided among the ranks.

use std::sync::Arc;

use jackalope_kernels::{self as kernels, Elements, ElementsMut, Product, TermColumns, Threads};
use jackalope_mlx::{Array, Dtype, Pinned};

use super::kernel::{
    DivisibleKernel, MatrixCut, MatrixKernel, OwnRows, WeightMatrix, elements, zeros_after,
};
use super::output::{Bias, BlockOutput};
use jackalope_protocol::split::Cut;
use jackalope_weights::LoadError;
use jackalope_weights::{Part, Weights};

/// Whether a layer adds a vector after its product.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HasBias {
    /// The layer has no bias.
    No,
    /// The layer has a bias.
    Yes,
}

impl HasBias {
    /// Converts the flag of `config.json`.
    pub fn when(is_present: bool) -> HasBias {
        if is_present { HasBias::Yes } else { HasBias::No }
    }
}

/// The input of a row-parallel layer.
#[derive(Clone, Copy, Debug)]
pub struct RowInput<'a> {
    /// Columns of this rank.
    pub cut: &'a Cut,
    /// Terms of the sum over the ranks.
    pub terms: TermColumns,
}

/// A layer `x · weightᵀ + bias`, plain or quantised.
#[derive(Debug)]
pub struct Linear {
    matrix: WeightMatrix,
    bias: Option<Bias>,
    dtype: Dtype,
    /// Terms of the sums over the ranks; `None` if the products are not summed.
    terms: Option<TermColumns>,
}

impl Linear {
    /// Loads a layer of which each rank computes a part of the output: its rows of `weight`
    /// `[output, input]` and, if there is one, of `bias` `[output]`.
    ///
    /// # Errors
    /// Fails if a tensor is missing, has another shape or cannot be read.
    pub fn column(
        w: &Weights<'_>,
        input: usize,
        output: &Cut,
        bias: HasBias,
    ) -> Result<Linear, LoadError> {
        let matrix = WeightMatrix::load(w, MatrixCut::Output { output, input })?;
        let bias = match bias {
            HasBias::Yes => Some(w.floats("bias", &[output.full], Part::rows(output))?),
            HasBias::No => None,
        };
        Ok(Linear { matrix, bias: bias.map(Bias::new), dtype: w.dtype(), terms: None })
    }

    /// Loads a layer whose output are this rank's `rows` of `weight` `[rows.full, input]` and, if
    /// there is one, of `bias` `[rows.full]`.
    ///
    /// # Errors
    /// Fails if a tensor is missing, has another shape or cannot be read.
    pub fn of_rows(
        w: &Weights<'_>,
        input: usize,
        rows: &OwnRows,
        bias: HasBias,
    ) -> Result<Linear, LoadError> {
        let matrix = WeightMatrix::load(w, MatrixCut::Rows { rows, input })?;
        let bias = match bias {
            HasBias::Yes => Some(w.floats("bias", &[rows.full], rows.part())?),
            HasBias::No => None,
        };
        Ok(Linear { matrix, bias: bias.map(Bias::new), dtype: w.dtype(), terms: None })
    }

    /// Loads a layer of which each rank has a part of the input: its columns of `weight`
    /// `[output, input]` and, if there is one, the whole `bias` `[output]`. The products are summed
    /// over the ranks.
    ///
    /// # Errors
    /// Fails if a tensor is missing, has another shape or cannot be read.
    pub fn row(
        w: &Weights<'_>,
        input: RowInput<'_>,
        output: usize,
        bias: HasBias,
    ) -> Result<Linear, LoadError> {
        let matrix = WeightMatrix::load(w, MatrixCut::Input { output, input: input.cut })?;
        let bias = match bias {
            HasBias::Yes => Some(w.floats("bias", &[output], Part::Whole)?),
            HasBias::No => None,
        };
        let terms = Some(input.terms);
        Ok(Linear { matrix, bias: bias.map(Bias::new), dtype: w.dtype(), terms })
    }

    /// Fuses layers with the same input, for MLX: the result has the output of the first, then that of the second,
    /// and so on. The weights of the given layers become views of it. Returns `None` if the layers are of different
    /// kinds, one has no output on this rank, or their products are summed over the ranks.
    ///
    /// # Errors
    /// Fails if MLX cannot copy the weights.
    pub fn fuse<const N: usize>(layers: [&mut Linear; N]) -> Result<Option<Linear>, LoadError> {
        let has_bias = layers[0].bias.is_some();
        let is_alike = |it: &Linear| {
            it.terms.is_none()
                && it.bias.is_some() == has_bias
                && it.matrix.is_like(&layers[0].matrix)
        };
        if !layers.iter().all(|layer| is_alike(layer)) {
            return Ok(None);
        }
        let dtype = layers[0].dtype;
        let biases: Vec<Array> =
            layers.iter().filter_map(|it| it.bias.as_ref()).map(|it| it.array().clone()).collect();
        let matrix = WeightMatrix::fuse(layers.map(|layer| &mut layer.matrix))?;
        let bias = if has_bias {
            let all = Array::concatenate(&biases.iter().collect::<Vec<_>>(), 0);
            all.eval()?;
            Some(Bias::new(all))
        } else {
            None
        };
        Ok(Some(Linear { matrix, bias, dtype, terms: None }))
    }

    /// Computes `[tokens, output]` for `x` `[tokens, input]` with MLX. If the products are summed
    /// over the ranks, computes this rank's part of the sum, without the bias.
    pub fn stock(&self, x: &Array) -> Array {
        let out = if self.matrix.is_empty() {
            zeros_after(x, self.matrix.output(), self.dtype)
        } else {
            self.matrix.stock_product(x)
        };
        match &self.bias {
            Some(bias) if self.terms.is_none() => out.add(bias.array()),
            _ => out,
        }
    }

    /// Returns the number of elements of this rank's part of the output.
    pub fn output(&self) -> usize {
        self.matrix.output()
    }

    /// Returns what a block that ends with this layer adds to the stream.
    pub fn block_output(&self) -> BlockOutput<'_> {
        BlockOutput {
            hidden: self.matrix.output(),
            halves: None,
            bias: self.bias.as_ref(),
            num_sums: 0,
            is_empty: self.matrix.is_empty(),
            dtype: self.dtype,
        }
    }

    /// Returns this rank's part of a sum over the ranks, for use inside a primitive.
    ///
    /// # Panics
    /// Panics if the products are not summed over the ranks.
    pub fn divisible_kernel(&self) -> DivisibleKernel {
        let terms = self.terms.expect("only row-parallel layers are summed");
        DivisibleKernel { matrix: self.matrix.kernel(), terms }
    }

    /// Returns the layer for use inside a primitive.
    ///
    /// # Panics
    /// Panics if the products are summed over the ranks, because the bias must be added to the sum.
    pub fn kernel(&self) -> LinearKernel {
        assert!(self.terms.is_none(), "the bias belongs to the whole sum");
        LinearKernel { matrix: self.matrix.kernel(), bias: self.bias.as_ref().map(Bias::pinned) }
    }
}

/// A linear layer for the kernels.
#[derive(Debug)]
pub struct LinearKernel {
    matrix: Arc<MatrixKernel>,
    bias: Option<Pinned>,
}

impl LinearKernel {
    /// Computes `x · weightᵀ + bias` of each layer in f32, `[tokens, output]`.
    pub fn products<const N: usize>(
        linears: &[LinearKernel; N],
        x: Elements<'_>,
        threads: &Threads,
    ) -> [Vec<f32>; N] {
        let results = LinearKernel::products_of(linears, x, threads);
        results.try_into().expect("a product for each layer")
    }

    /// As [`LinearKernel::products`], for any number of layers.
    pub fn products_of(
        linears: &[LinearKernel],
        x: Elements<'_>,
        threads: &Threads,
    ) -> Vec<Vec<f32>> {
        let mut results = vec![Vec::new(); linears.len()];
        let mut products = Vec::with_capacity(linears.len());
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
