//! Products of activations with weight matrices.

use crate::elements::{Elements, ElementsMut};
use crate::panel::{Activations, TILE_ROWS, Weights, multiply_rows};
use crate::quant::QuantMatrix;
use crate::threads::Threads;

/// Pieces of a product per thread.
const THREAD_PIECES: usize = 6;

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

impl DenseMatrix<'_> {
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
    product(x, Weights::Dense(*w), (w.out, w.input), out, threads);
}

/// `out[tokens, w.out] = x[tokens, w.input] · dequantised(w)ᵀ`, accumulated in f32 and rounded once to the type of `out`.
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
    product(x, Weights::Quant(*w), (w.out, w.input), out, threads);
}

#[track_caller]
fn product(
    x: Elements<'_>,
    weights: Weights<'_>,
    (num_rows, input): (usize, usize),
    mut out: ElementsMut<'_>,
    threads: &Threads,
) {
    if input == 0 || num_rows == 0 {
        out.fill_zero();
        return;
    }
    let tokens = x.len() / input;
    assert_eq!(x.len(), tokens * input, "activations: whole rows of {input}");
    assert_eq!(out.len(), tokens * num_rows, "results of {tokens} tokens for {num_rows} rows");
    if tokens == 0 {
        return;
    }
    let x = Activations::new(x, input, threads);
    let piece_rows = piece_rows(num_rows, tokens * input, threads.count());
    let mut pieces: Vec<Vec<ElementsMut<'_>>> =
        (0..num_rows.div_ceil(piece_rows)).map(|_| Vec::with_capacity(tokens)).collect();
    for row in out.chunks(num_rows) {
        for (piece, part) in pieces.iter_mut().zip(row.chunks(piece_rows)) {
            piece.push(part);
        }
    }
    let pieces = pieces.into_iter().enumerate().collect();
    threads.for_each(pieces, |(piece, mut out): (usize, Vec<ElementsMut<'_>>)| {
        let start = piece * piece_rows;
        let rows = start..(start + piece_rows).min(num_rows);
        multiply_rows(threads.instructions(), &x, &weights, rows, &mut out);
    });
}

/// Output features of a piece of work: a few pieces per thread, so that a slow core does not hold up the others, but
/// none that is not worth waking a thread for.
fn piece_rows(num_rows: usize, row_macs: usize, num_threads: usize) -> usize {
    if num_threads == 1 {
        return num_rows;
    }
    let worthwhile = PIECE_MACS_MIN.div_ceil(row_macs);
    let share = num_rows.div_ceil(num_threads * THREAD_PIECES);
    share.max(worthwhile).next_multiple_of(TILE_ROWS)
}
