//! Products of activations with weight matrices.

use std::ops::Range;

use crate::dense;
use crate::elements::{Elements, ElementsMut};
use crate::float8;
use crate::integer::{self, Prepared};
use crate::panel::{Activations, Weights, multiply_rows};
use crate::quant::{QuantMatrix, QuantMode};
use crate::threads::Threads;

/// Output features of a piece are a multiple of this: the rows of a tile of whole numbers.
const PIECE_ROWS: usize = 32;

/// Multiplications of a piece at least: some microseconds.
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
    /// Some rows as a matrix.
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

/// `out[tokens, w.out] = x[tokens, w.input] · wᵀ`.
///
/// # Panics
/// When a length does not fit.
#[track_caller]
pub fn matmul(x: Elements<'_>, w: &DenseMatrix<'_>, out: ElementsMut<'_>, threads: &Threads) {
    w.assert_valid();
    if let Some(rows) = result_rows(&x, (w.out, w.input), out) {
        multiply(x, Weights::Dense(*w), rows, threads);
    }
}

/// `out[tokens, w.out] = x[tokens, w.input] · dequantised(w)ᵀ`, accumulated in f32 and rounded once to the type of `out`.
///
/// Activations in f32 are used as they are. Those of 16 bits are first rounded, for each group of the weights, to
/// whole multiples of a power of two, with an error below a 32639th of the group's largest magnitude: so every bf16 of
/// at least a 128th of that maximum, and every f16 of at least a 16th, is used as it is. A row with an element that
/// is not finite is never rounded and has the results of IEEE 754; no row shows in another's results.
///
/// # Panics
/// When a length does not fit, or the format is none of MLX's.
#[track_caller]
pub fn quantized_matmul(
    x: Elements<'_>,
    w: &QuantMatrix<'_>,
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    w.assert_valid();
    if let Some(rows) = result_rows(&x, (w.out, w.input), out) {
        multiply(x, Weights::Quant(*w), rows, threads);
    }
}

/// A view of each token's results, after all lengths were checked; `None` if nothing is left to compute.
#[track_caller]
fn result_rows<'a>(
    x: &Elements<'_>,
    (num_rows, input): (usize, usize),
    mut out: ElementsMut<'a>,
) -> Option<Vec<ElementsMut<'a>>> {
    if input == 0 || num_rows == 0 {
        out.fill_zero();
        return None;
    }
    let tokens = x.len() / input;
    assert_eq!(x.len(), tokens * input, "activations: whole rows of {input}");
    assert_eq!(out.len(), tokens * num_rows, "results of {tokens} tokens for {num_rows} rows");
    (tokens > 0).then(|| out.chunks(num_rows))
}

/// Results of each token to its view; the matrix has rows and columns.
pub(crate) fn multiply(
    x: Elements<'_>,
    weights: Weights<'_>,
    mut out: Vec<ElementsMut<'_>>,
    threads: &Threads,
) {
    match &weights {
        Weights::Quant(w) if integer::is_supported(x.float(), w, threads.instructions()) => {
            let prepared = Prepared::new(x, w, threads);
            let rows = out.iter_mut().map(ElementsMut::reborrow).collect();
            for_pieces(rows, &weights, threads, |rows, out| prepared.multiply_rows(w, rows, out));
            for &token in prepared.exact_tokens() {
                let x = x.part(token * w.input..(token + 1) * w.input);
                multiply_exactly(x, &weights, vec![out[token].reborrow()], threads);
            }
        }
        _ => multiply_exactly(x, &weights, out, threads),
    }
}

/// As [`multiply`], with activations as they are.
fn multiply_exactly(
    x: Elements<'_>,
    weights: &Weights<'_>,
    out: Vec<ElementsMut<'_>>,
    threads: &Threads,
) {
    let x = Activations::new(x, weights.input(), threads);
    for_pieces(out, weights, threads, |rows, out| match weights {
        Weights::Dense(matrix) if x.tokens() <= dense::FEW_TOKENS => {
            dense::multiply_few(threads.instructions(), &x, matrix, rows, out);
        }
        Weights::Quant(matrix)
            if matrix.format.mode == QuantMode::Mxfp8 && x.tokens() <= float8::FEW_TOKENS =>
        {
            float8::multiply_few(threads.instructions(), &x, matrix, rows, out);
        }
        _ => multiply_rows(threads.instructions(), &x, weights, rows, out),
    });
}

/// Computes `work` for pieces of the output features, with a view of the piece's results for each token.
fn for_pieces(
    out: Vec<ElementsMut<'_>>,
    weights: &Weights<'_>,
    threads: &Threads,
    work: impl Fn(Range<usize>, &mut [ElementsMut<'_>]) + Sync,
) {
    let tokens = out.len();
    let row_macs = tokens * weights.input();
    let mut pieces: Vec<(Range<usize>, Vec<ElementsMut<'_>>)> =
        cut_rows(weights.num_rows(), row_macs, threads.count())
            .into_iter()
            .map(|rows| (rows, Vec::with_capacity(tokens)))
            .collect();
    for mut rest in out {
        for (rows, views) in &mut pieces {
            let (view, others) = rest.split_at(rows.len());
            views.push(view);
            rest = others;
        }
    }
    threads.for_each(pieces, |(rows, mut out)| work(rows, &mut out));
}

/// Output features of each piece of work. The first pieces are large, because memory is fastest in long runs; the last
/// ones are small, so that a slow core does not hold up the others; none is not worth waking a thread for.
fn cut_rows(num_rows: usize, row_macs: usize, num_threads: usize) -> Vec<Range<usize>> {
    if num_threads == 1 {
        return std::iter::once(0..num_rows).collect();
    }
    let worthwhile = PIECE_MACS_MIN.div_ceil(row_macs);
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < num_rows {
        let left = num_rows - start;
        let share = left.div_ceil(num_threads * 3 / 2);
        let len = share.max(worthwhile).next_multiple_of(PIECE_ROWS).min(left);
        pieces.push(start..start + len);
        start += len;
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
                let pieces = cut_rows(num_rows, 1024, num_threads);
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
