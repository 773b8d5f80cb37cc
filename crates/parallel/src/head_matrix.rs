//! Matrices of which each head has its own.

use std::rc::Rc;
use std::sync::Arc;

use jackalope_kernels::{self as kernels, Elements, HeadMatrices, HeadResults, Threads};
use jackalope_mlx::Array;

use super::kernel::{HeadPart, MatrixCut, MatrixKernel, WeightMatrix};
use crate::parallel::{Compute, Parallel};
use jackalope_protocol::split::Cut;
use jackalope_weights::LoadError;
use jackalope_weights::Weights;

/// A matrix for each of this rank's heads.
#[derive(Debug)]
pub struct HeadMatrix {
    /// The rows of the first head, then those of the second, and so on.
    matrix: Rc<WeightMatrix>,
    part: HeadPart,
    /// Whether it multiplies as its transpose, as all other matrices do.
    is_transposed: bool,
}

impl HeadMatrix {
    /// Loads a tensor `[heads, rows, columns]`; it multiplies as its transpose.
    pub fn load(
        w: &Weights<'_>,
        heads: &Cut,
        [rows, columns]: [usize; 2],
    ) -> Result<HeadMatrix, LoadError> {
        let cut = MatrixCut::Stack { count: heads, output: rows, input: columns };
        let part = HeadPart { num_heads: heads.len(), stored_rows: rows, first: 0, rows };
        Ok(HeadMatrix { matrix: Rc::new(WeightMatrix::load(w, cut)?), part, is_transposed: true })
    }

    /// Loads the tensor `[heads * (keys + values), rank]` that holds the matrices of keys and of
    /// values. Those of keys multiply as they are, those of values as their transpose.
    pub fn load_joint(
        w: &Weights<'_>,
        heads: &Cut,
        [keys, values]: [usize; 2],
        rank: usize,
        parallel: &Parallel,
    ) -> Result<[HeadMatrix; 2], LoadError> {
        let stored_rows = keys + values;
        let cut = MatrixCut::Output { output: &heads.scaled(stored_rows), input: rank };
        let matrix = Rc::new(WeightMatrix::load(w, cut)?);
        let num_heads = heads.len();
        let parts = [
            (HeadPart { num_heads, stored_rows, first: 0, rows: keys }, false),
            (HeadPart { num_heads, stored_rows, first: keys, rows: values }, true),
        ];
        let [keys, values] = parts.map(|(part, is_transposed)| {
            let (matrix, part) = match parallel.compute() {
                Compute::Kernels(_) => (Rc::clone(&matrix), part),
                // MLX would copy a part whenever it multiplies with it.
                Compute::Stock => {
                    let whole = HeadPart { stored_rows: part.rows, first: 0, ..part };
                    (Rc::new(matrix.part_of_heads(part)?), whole)
                }
            };
            Ok::<_, LoadError>(HeadMatrix { matrix, part, is_transposed })
        });
        Ok([keys?, values?])
    }

    /// Computes the product of each head with MLX: `x` is `[heads, tokens, …]`, and so is the result.
    pub fn stock(&self, x: &Array) -> Array {
        self.matrix.stock_heads_product(x, self.part, self.is_transposed)
    }

    /// Returns the matrices for use inside a primitive.
    pub fn kernel(&self) -> HeadMatrixKernel {
        let HeadMatrix { part, is_transposed, .. } = *self;
        HeadMatrixKernel { matrix: self.matrix.kernel(), part, is_transposed }
    }
}

/// A matrix for each head, for the kernels.
#[derive(Debug)]
pub struct HeadMatrixKernel {
    matrix: Arc<MatrixKernel>,
    part: HeadPart,
    is_transposed: bool,
}

impl HeadMatrixKernel {
    /// Computes the product of each head; `x` is `[heads, tokens, …]`.
    pub fn multiply(&self, x: Elements<'_>, out: HeadResults<'_>, threads: &Threads) {
        let HeadPart { num_heads, first, rows: num_rows, .. } = self.part;
        let matrices = HeadMatrices { matrix: self.matrix.view(), num_heads, first, num_rows };
        if self.is_transposed {
            kernels::head_matmul(x, &matrices, out, threads);
        } else {
            kernels::head_matmul_untransposed(x, &matrices, out, threads);
        }
    }
}
