//! Products in which each row of activations selects its matrix: the experts of a mixture.

use crate::elements::{Elements, ElementsMut};
use crate::floats::Floats;
use crate::matmul::{DenseMatrix, Matrix, RowProducts, multiply};
use crate::quant::QuantMatrix;
use crate::threads::Threads;

/// The matrix that each row selects.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// For each row of activations, the index of its expert.
    pub experts: &'a [u32],
    /// Number of experts: the matrix has the rows of the first expert, then those of the second,
    /// and so on.
    pub num_experts: usize,
}

/// `out[row] = x[row] · wᵀ` with the rows of `w` that belong to the row's expert; `w` is
/// `[num_experts * features, input]`, `x` is `[rows, input]` and `out` is `[rows, features]`.
///
/// A result has the bits that [`crate::matmul()`] gives for its row and expert alone.
///
/// # Panics
/// If a length does not fit, or there is no such expert.
#[track_caller]
pub fn gathered_matmul(
    x: Elements<'_>,
    choice: Choice<'_>,
    w: &DenseMatrix<'_>,
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    w.assert_valid();
    gather(x, choice, Matrix::Dense(*w), out, threads);
}

/// Like [`gathered_matmul`] with a quantised matrix; see [`crate::quantized_matmul`].
///
/// # Panics
/// If a length does not fit, MLX does not have the format, or there is no such expert.
#[track_caller]
pub fn gathered_quantized_matmul(
    x: Elements<'_>,
    choice: Choice<'_>,
    w: &QuantMatrix<'_>,
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    w.assert_valid();
    gather(x, choice, Matrix::Quantized(*w), out, threads);
}

#[track_caller]
fn gather(
    x: Elements<'_>,
    Choice { experts, num_experts }: Choice<'_>,
    w: Matrix<'_>,
    mut out: ElementsMut<'_>,
    threads: &Threads,
) {
    assert!(num_experts > 0 && w.num_rows().is_multiple_of(num_experts), "as many rows of each");
    let (features, input) = (w.num_rows() / num_experts, w.input());
    assert_eq!(x.len(), experts.len() * input, "a row of {input} for each choice");
    assert_eq!(out.len(), experts.len() * features, "results of {} rows", experts.len());
    assert!(experts.iter().all(|&expert| (expert as usize) < num_experts), "{num_experts} experts");
    if features == 0 || input == 0 || experts.is_empty() {
        out.fill_zero();
        return;
    }
    let mut rows_of: Vec<Vec<usize>> = vec![Vec::new(); num_experts];
    for (row, expert) in experts.iter().enumerate() {
        rows_of[*expert as usize].push(row);
    }
    let mut views: Vec<_> = out.chunks(features).into_iter().map(Some).collect();
    for (expert, rows) in rows_of.into_iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
        let matrix = w.rows(expert * features..(expert + 1) * features);
        let out = rows.iter().map(|row| views[*row].take().expect("a row has one expert"));
        let (out, x) = (out.collect(), Floats::of_rows(x, &rows, input));
        multiply(x.elements(), vec![RowProducts { matrix, out }], threads);
    }
}
