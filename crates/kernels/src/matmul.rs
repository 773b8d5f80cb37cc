//! Products of activations with weight matrices.

use std::ops::Range;

use crate::elements::{Elements, ElementsMut};
use crate::integer::{self, Prepared};
use crate::panel::{Activations, Weights, multiply_rows};
use crate::quant::QuantMatrix;
use crate::threads::Threads;

/// Pieces of a product per thread.
const THREAD_PIECES: usize = 6;

/// Output features of a piece are a multiple of this: of the rows of every kind of tile, 12 and 32.
const PIECE_ROWS: usize = 96;

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
    if !integer::is_supported(x.float(), w) || x.is_empty() || out.is_empty() {
        return product(x, Weights::Quant(*w), (w.out, w.input), out, threads);
    }
    let tokens = num_tokens(&x, (w.out, w.input), &out);
    let mut out = out;
    let prepared = Prepared::new(x, w, threads);
    let piece_rows = piece_rows(w.out, tokens * w.input, threads.count());
    for_pieces(out.reborrow(), w.out, piece_rows, threads, |rows, out| {
        prepared.multiply_rows(w, rows, out);
    });
    let mut rows: Vec<_> = out.chunks(w.out).into_iter().map(Some).collect();
    for token in prepared.exact_tokens() {
        let x = x.part(token * w.input..(token + 1) * w.input);
        let out = rows[*token].take().expect("every token is named once");
        product(x, Weights::Quant(*w), (w.out, w.input), out, threads);
    }
}

/// Rows of activations, after all lengths were checked.
#[track_caller]
fn num_tokens(x: &Elements<'_>, (num_rows, input): (usize, usize), out: &ElementsMut<'_>) -> usize {
    let tokens = x.len() / input;
    assert_eq!(x.len(), tokens * input, "activations: whole rows of {input}");
    assert_eq!(out.len(), tokens * num_rows, "results of {tokens} tokens for {num_rows} rows");
    tokens
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
    let tokens = num_tokens(&x, (num_rows, input), &out);
    if tokens == 0 {
        return;
    }
    let x = Activations::new(x, input, threads);
    let piece_rows = piece_rows(num_rows, tokens * input, threads.count());
    for_pieces(out, num_rows, piece_rows, threads, |rows, out| {
        multiply_rows(threads.instructions(), &x, &weights, rows, out);
    });
}

/// Computes `work` for pieces of the output features, with a view of the piece's results for each token.
fn for_pieces(
    out: ElementsMut<'_>,
    num_rows: usize,
    piece_rows: usize,
    threads: &Threads,
    work: impl Fn(Range<usize>, &mut [ElementsMut<'_>]) + Sync,
) {
    let tokens = out.len() / num_rows;
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
        work(start..(start + piece_rows).min(num_rows), &mut out);
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
    share.max(worthwhile).next_multiple_of(PIECE_ROWS)
}
