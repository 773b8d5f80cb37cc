//! Matrices that stay in single precision, whatever the type of the model.

use jackalope_kernels::{self as kernels, DenseMatrix, Elements, ElementsMut, Threads};
use jackalope_mlx::{Array, Dtype, Pinned};
use jackalope_weights::LoadError;
use jackalope_weights::{Part, Weights};

use super::kernel::{elements, pinned};

/// A matrix f32 `[output, input]` that every rank holds.
#[derive(Debug)]
pub struct WideMatrix {
    values: Array,
    /// The same elements as `[input, output]`.
    transposed: Array,
}

impl WideMatrix {
    /// Loads the tensor `name` at `w`, `[output, input]`.
    ///
    /// # Errors
    /// Fails if the tensor cannot be read.
    pub fn load(w: &Weights<'_>, name: &str, shape: [usize; 2]) -> Result<WideMatrix, LoadError> {
        let values = w.floats_as(Dtype::F32, name, &shape, Part::Whole)?;
        Ok(WideMatrix { transposed: values.transpose(&[1, 0]), values })
    }

    /// Computes `[tokens, output]` for f32 `x` `[tokens, input]` with MLX.
    pub fn stock(&self, x: &Array) -> Array {
        x.matmul(&self.transposed)
    }

    /// Returns the matrix for use inside a primitive.
    pub fn kernel(&self) -> WideMatrixKernel {
        let [output, input] = [0, 1].map(|axis| self.values.dim(axis) as usize);
        WideMatrixKernel { values: pinned(&self.values), output, input }
    }
}

/// A matrix in single precision for the kernels.
#[derive(Debug)]
pub struct WideMatrixKernel {
    values: Pinned,
    /// Number of rows.
    pub output: usize,
    /// Number of columns.
    pub input: usize,
}

impl WideMatrixKernel {
    /// Computes `[tokens, output]` for `x` `[tokens, input]`.
    pub fn product(&self, x: &[f32], threads: &Threads) -> Vec<f32> {
        let &WideMatrixKernel { ref values, output: out, input } = self;
        let matrix = DenseMatrix { out, input, values: elements(values) };
        let mut products = vec![0.0; x.len() / input * out];
        kernels::matmul(Elements::F32(x), &matrix, ElementsMut::F32(&mut products), threads);
        products
    }
}
