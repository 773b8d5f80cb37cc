//! Products of activations with weight matrices.

use std::ops::Range;

use crate::dense;
use crate::divisible::Results;
use crate::elements::{Elements, ElementsMut};
use crate::float8;
use crate::integer::{self, InputColumns, Prepared};
use crate::panel::{Activations, Columns, multiply_rows};
use crate::quant::{QuantFormat, QuantMatrix, QuantMode};
use crate::threads::Threads;

/// Output features of a piece are a multiple of this: the rows of a tile of integers.
const PIECE_ROWS: usize = 32;

/// Minimum number of multiplications of a piece; they take some microseconds.
const PIECE_MACS_MIN: usize = 1 << 15;

/// A plain matrix `[out, input]`; it multiplies as its transpose.
#[derive(Clone, Copy, Debug)]
pub struct DenseMatrix<'a> {
    /// Output features: rows of the matrix.
    pub out: usize,
    /// Input features: columns.
    pub input: usize,
    /// The elements, row by row.
    pub values: Elements<'a>,
}

impl<'a> DenseMatrix<'a> {
    /// Returns some rows as a matrix.
    pub(crate) fn rows(&self, rows: Range<usize>) -> DenseMatrix<'a> {
        let DenseMatrix { input, values, .. } = *self;
        let values = values.part(rows.start * input..rows.end * input);
        DenseMatrix { out: rows.len(), input, values }
    }

    #[track_caller]
    pub(crate) fn assert_valid(&self) {
        assert_eq!(self.values.len(), self.out * self.input, "elements of a dense matrix");
    }
}

/// A matrix `[out, input]` in one of the forms in which weights are held; it multiplies as its transpose.
#[derive(Clone, Copy, Debug)]
pub enum Matrix<'a> {
    /// Floats.
    Dense(DenseMatrix<'a>),
    /// Packed codes under scales.
    Quantized(QuantMatrix<'a>),
}

impl<'a> Matrix<'a> {
    /// Returns some rows as a matrix.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Matrix<'a> {
        match self {
            Matrix::Dense(matrix) => Matrix::Dense(matrix.rows(rows)),
            Matrix::Quantized(matrix) => Matrix::Quantized(matrix.rows(rows)),
        }
    }

    /// Rows of the matrix: output features, or ids of an embedding.
    pub(crate) fn num_rows(&self) -> usize {
        match self {
            Matrix::Dense(matrix) => matrix.out,
            Matrix::Quantized(matrix) => matrix.out,
        }
    }

    /// Columns of the matrix: input features, or the width of an embedding.
    pub(crate) fn input(&self) -> usize {
        match self {
            Matrix::Dense(matrix) => matrix.input,
            Matrix::Quantized(matrix) => matrix.input,
        }
    }

    pub(crate) fn format(&self) -> Option<QuantFormat> {
        match self {
            Matrix::Dense(_) => None,
            Matrix::Quantized(matrix) => Some(matrix.format),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Matrix::Dense(matrix) => matrix.values.bytes(),
            Matrix::Quantized(matrix) => matrix.bytes(),
        }
    }

    #[track_caller]
    pub(crate) fn assert_valid(&self) {
        match self {
            Matrix::Dense(matrix) => matrix.assert_valid(),
            Matrix::Quantized(matrix) => matrix.assert_valid(),
        }
    }
}

/// A matrix, and the destination of its product.
#[derive(Debug)]
pub struct Product<'a> {
    /// The matrix to multiply with.
    pub matrix: Matrix<'a>,
    /// `[tokens, matrix.out]`.
    pub out: ElementsMut<'a>,
}

/// `out[tokens, matrix.out] = x[tokens, matrix.input] · matrixᵀ` for each of some matrices, accumulated in f32 and
/// rounded once to the type of `out`.
///
/// Each result has the bits that its matrix alone would give it; together they share what must be done with the
/// activations, and the threads begin only once.
///
/// With a quantised matrix, activations in f32 are used as they are. Those of 16 bits are first rounded, for each group
/// of the weights, to whole multiples of a power of two, with an error below a 32639th of the group's largest
/// magnitude: so every bf16 of at least a 128th of that maximum, and every f16 of at least a 16th, is used as it is. A
/// row with an element that is not finite is never rounded and has the results of IEEE 754; no row shows in another's
/// results.
///
/// # Panics
/// If a length does not fit, the matrices differ in their columns, or MLX does not have a format.
#[track_caller]
pub fn matmul_each(x: Elements<'_>, products: Vec<Product<'_>>, threads: &Threads) {
    let bytes = products.iter().map(|product| product.matrix.bytes()).sum();
    let is_quantized = products.iter().any(|product| product.matrix.format().is_some());
    let _span = threads.span(if is_quantized { "quantized_matmul" } else { "matmul" }, bytes);
    let input = products.first().map_or(0, |product| product.matrix.input());
    assert!(products.iter().all(|it| it.matrix.input() == input), "matrices for the same rows");
    let mut together: Vec<RowProducts<'_>> = Vec::with_capacity(products.len());
    for Product { matrix, out } in products {
        matrix.assert_valid();
        let Some(out) = result_rows(&x, &matrix, out) else { continue };
        if together.first().is_some_and(|first| first.matrix.format() != matrix.format()) {
            multiply(x, std::mem::take(&mut together), threads);
        }
        together.push(RowProducts { matrix, out });
    }
    multiply(x, together, threads);
}

/// [`matmul_each`] with one matrix.
///
/// # Panics
/// If a length does not fit.
#[track_caller]
pub fn matmul(x: Elements<'_>, w: &DenseMatrix<'_>, out: ElementsMut<'_>, threads: &Threads) {
    matmul_each(x, vec![Product { matrix: Matrix::Dense(*w), out }], threads);
}

/// [`matmul_each`] with one quantised matrix.
///
/// # Panics
/// If a length does not fit, or MLX does not have the format.
#[track_caller]
pub fn quantized_matmul(
    x: Elements<'_>,
    w: &QuantMatrix<'_>,
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    matmul_each(x, vec![Product { matrix: Matrix::Quantized(*w), out }], threads);
}

/// A matrix with rows and columns, and a view of each token's results.
pub(crate) struct RowProducts<'a, R = ElementsMut<'a>> {
    pub(crate) matrix: Matrix<'a>,
    pub(crate) out: Vec<R>,
}

impl RowProducts<'_> {
    /// Returns a view of the results of some tokens.
    fn tokens(&mut self, tokens: Range<usize>) -> RowProducts<'_> {
        let out = self.out[tokens].iter_mut().map(ElementsMut::reborrow).collect();
        RowProducts { matrix: self.matrix, out }
    }
}

/// Checks all lengths, and returns a view of each token's results; `None` if there is nothing to
/// compute.
#[track_caller]
fn result_rows<'a>(
    x: &Elements<'_>,
    matrix: &Matrix<'_>,
    mut out: ElementsMut<'a>,
) -> Option<Vec<ElementsMut<'a>>> {
    let (num_rows, input) = (matrix.num_rows(), matrix.input());
    if input == 0 || num_rows == 0 {
        out.fill_zero();
        return None;
    }
    let tokens = x.len() / input;
    assert_eq!(x.len(), tokens * input, "activations: whole rows of {input}");
    assert_eq!(out.len(), tokens * num_rows, "results of {tokens} tokens for {num_rows} rows");
    (tokens > 0).then(|| out.chunks(num_rows))
}

/// Computes products with matrices of one format.
pub(crate) fn multiply(x: Elements<'_>, mut products: Vec<RowProducts<'_>>, threads: &Threads) {
    let prepared = match products.first().map(|first| first.matrix) {
        None => return,
        Some(Matrix::Quantized(w))
            if integer::is_supported(x.float(), &w, threads.instructions()) =>
        {
            Prepared::new(x, &w, InputColumns::Whole, threads)
        }
        Some(first) => {
            let columns = Columns::all(first.input());
            return multiply_in_f32(&Activations::new(x, columns, threads), products, threads);
        }
    };
    let tokens = 0..products[0].out.len();
    let all = products.iter_mut().map(|it| it.tokens(tokens.clone())).collect();
    for_pieces(all, threads, |matrix, rows, out| match matrix {
        Matrix::Quantized(matrix) => prepared.multiply_rows(matrix, rows, out),
        Matrix::Dense(_) => unreachable!("one format, which is quantised"),
    });
    for token in prepared.unrounded_tokens() {
        let columns = Columns::all(products[0].matrix.input());
        let x = x.part(token * columns.range.end..(token + 1) * columns.range.end);
        let row = products.iter_mut().map(|it| it.tokens(token..token + 1)).collect();
        multiply_in_f32(&Activations::new(x, columns, threads), row, threads);
    }
}

/// Like [`multiply`], with unrounded activations.
pub(crate) fn multiply_in_f32<R: Results>(
    x: &Activations,
    products: Vec<RowProducts<'_, R>>,
    threads: &Threads,
) {
    for_pieces(products, threads, |matrix, rows, out| match matrix {
        Matrix::Dense(matrix) if x.tokens() <= dense::FEW_TOKENS => {
            dense::multiply_few(threads.instructions(), x, matrix, rows, out);
        }
        Matrix::Quantized(matrix)
            if matrix.format.mode == QuantMode::Mxfp8 && x.tokens() <= float8::FEW_TOKENS =>
        {
            float8::multiply_few(threads.instructions(), x, matrix, rows, out);
        }
        _ => multiply_rows(threads.instructions(), x, matrix, rows, out),
    });
}

/// Some output features of a matrix, with a view of their results for each token.
struct Piece<'a, R> {
    matrix: Matrix<'a>,
    rows: Range<usize>,
    out: Vec<R>,
}

/// Computes `work` for pieces of the output features, with a view of the piece's results for each token.
pub(crate) fn for_pieces<R: Results>(
    products: Vec<RowProducts<'_, R>>,
    threads: &Threads,
    work: impl Fn(&Matrix<'_>, Range<usize>, &mut [R]) + Sync,
) {
    let mut rows_left: usize = products.iter().map(|it| it.matrix.num_rows()).sum();
    let mut pieces: Vec<Piece<'_, R>> = Vec::new();
    for RowProducts { matrix, out } in products {
        let (num_rows, tokens) = (matrix.num_rows(), out.len());
        rows_left -= num_rows;
        let first_piece = pieces.len();
        let cuts = cut_rows((num_rows, rows_left), tokens * matrix.input(), threads.count());
        pieces.extend(cuts.into_iter().map(|rows| Piece {
            matrix,
            rows,
            out: Vec::with_capacity(tokens),
        }));
        for view in out {
            let mut rest = view;
            for piece in &mut pieces[first_piece..] {
                let (view, others) = rest.split_at(piece.rows.len());
                piece.out.push(view);
                rest = others;
            }
        }
    }
    threads.for_each(pieces, |Piece { matrix, rows, mut out }| work(&matrix, rows, &mut out));
}

/// Divides the output features into pieces of work. The first pieces are large, because memory is
/// fastest in long sequential reads; the last ones are small, so that a slow core does not delay
/// the others; none is too small to be worth waking a thread. `rows_after` rows are computed in the
/// same job.
fn cut_rows(
    (num_rows, rows_after): (usize, usize),
    row_macs: usize,
    num_threads: usize,
) -> Vec<Range<usize>> {
    if num_threads == 1 {
        return std::iter::once(0..num_rows).collect();
    }
    let worthwhile = PIECE_MACS_MIN.div_ceil(row_macs);
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < num_rows {
        // A round of pieces, one per thread, has four fifths of the remaining rows.
        let left = num_rows - start + rows_after;
        let share = (left * 4 / 5).div_ceil(num_threads);
        let len = share.max(worthwhile).next_multiple_of(PIECE_ROWS);
        for _ in 0..num_threads {
            let end = (start + len).min(num_rows);
            if start < end {
                pieces.push(start..end);
            }
            start = end;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::{PIECE_ROWS, cut_rows};

    #[test]
    fn pieces_cover_all_rows_in_order_and_begin_at_tiles() {
        for num_rows in [1, 31, 32, 1024, 3072, 151_936] {
            for num_threads in 1..9 {
                let pieces = cut_rows((num_rows, num_rows % 7), 1024, num_threads);
                let mut next = 0;
                for rows in pieces {
                    assert_eq!(rows.start, next);
                    assert!(rows.start.is_multiple_of(PIECE_ROWS) && !rows.is_empty());
                    next = rows.end;
                }
                assert_eq!(next, num_rows);
            }
        }
    }
}
