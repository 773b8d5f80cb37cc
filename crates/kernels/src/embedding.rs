//! Rows of an embedding table, of which a rank may hold only the part `first_id..first_id + rows`.
//!
//! An id outside that part gives a row of zeros, so that the rows of all ranks add up to the whole table's.

use jackalope_simd::{
    DenseMatrix, ElementsMut, LANES, Matrix, QuantMatrix, Region, Simd, Threads, dispatched,
};

use crate::panel::CHUNK_COLUMNS;

/// Number of elements below which the calling thread gathers the rows alone.
const PIECE_ELEMENTS: usize = 1 << 16;

/// Copies the rows of `table` for `ids` to `out[tokens, table.input]`. Row 0 of `table` belongs to
/// the id `first_id`.
///
/// # Panics
/// If a length does not fit.
#[track_caller]
pub fn embedding(
    ids: &[u32],
    table: &DenseMatrix<'_>,
    first_id: u32,
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    table.assert_valid();
    let _span = threads.span("embedding", 0);
    gather(&Rows { ids, first_id, table: Matrix::Dense(*table) }, out, threads);
}

/// Like [`embedding`] from a quantised table; rows are dequantised in f32 and rounded once to the type of `out`.
///
/// # Panics
/// If a length does not fit, or MLX does not have the format.
#[track_caller]
pub fn quantized_embedding(
    ids: &[u32],
    table: &QuantMatrix<'_>,
    first_id: u32,
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    table.assert_valid();
    let _span = threads.span("quantized_embedding", 0);
    gather(&Rows { ids, first_id, table: Matrix::Quantized(*table) }, out, threads);
}

struct Rows<'a> {
    ids: &'a [u32],
    first_id: u32,
    table: Matrix<'a>,
}

impl Rows<'_> {
    /// Returns the table's row for the token, if this part of the table contains it.
    fn row_idx(&self, token: usize) -> Option<usize> {
        let row = self.ids[token].checked_sub(self.first_id)? as usize;
        (row < self.table.num_rows()).then_some(row)
    }
}

#[track_caller]
fn gather(rows: &Rows<'_>, out: ElementsMut<'_>, threads: &Threads) {
    let width = rows.table.input();
    assert_eq!(out.len(), rows.ids.len() * width, "rows of {width} for {} ids", rows.ids.len());
    if out.is_empty() {
        return;
    }
    let piece_tokens = PIECE_ELEMENTS.div_ceil(width);
    let pieces = out.chunks(piece_tokens * width).into_iter().enumerate().collect();
    threads.for_each(pieces, |(piece, mut out)| {
        gather_piece(threads.instructions(), rows, piece * piece_tokens, &mut out);
    });
}

dispatched! {
    /// Gathers the rows of the tokens from `first_token` on.
    fn gather_piece(rows: &Rows<'_>, first_token: usize, out: &mut ElementsMut<'_>) = gather_piece_with
}

#[inline(always)]
fn gather_piece_with<S: Simd>(
    simd: S,
    rows: &Rows<'_>,
    first_token: usize,
    out: &mut ElementsMut<'_>,
) {
    let width = rows.table.input();
    let mut values = [0.0; CHUNK_COLUMNS];
    for offset in 0..out.len() / width {
        let row_idx = rows.row_idx(first_token + offset);
        for start in (0..width).step_by(CHUNK_COLUMNS) {
            let width = CHUNK_COLUMNS.min(width - start);
            let values = &mut values[..width.next_multiple_of(LANES)];
            match row_idx {
                Some(row) => {
                    rows.table.unpack(simd, &Region { rows: row..row + 1, start, width }, values);
                }
                None => values.fill(0.0),
            }
            out.store(offset * rows.table.input() + start, &values[..width]);
        }
    }
}
