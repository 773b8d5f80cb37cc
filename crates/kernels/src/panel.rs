//! The one matrix product behind all matmuls: rows of activations times rows of weights.
//!
//! Weights are unpacked to f32 in tiles, a few rows by [`CHUNK_COLUMNS`], and a tile is multiplied
//! with every token of a block before the next tile is unpacked. So decoding streams the weights
//! once, and a prompt pays for unpacking them only once in [`BLOCK_TOKENS`] tokens. The order of
//! operations of a result is always that of [`crate::dot`].

use std::ops::Range;

use jackalope_simd::{
    Elements, GROUPS_MAX, LANES, Lanes, Matrix, Region, Simd, Threads, dispatched,
};

use crate::dot::{Rows, TILE_ROWS, TermPart, Tile, TileResults};
use crate::terms::{Fold, Results};

/// Number of columns that are unpacked at a time: a multiple of every group size, within the
/// maximum number of groups.
pub(crate) const CHUNK_COLUMNS: usize = 512;
const _: () = assert!(CHUNK_COLUMNS.is_multiple_of(128) && CHUNK_COLUMNS / 16 <= GROUPS_MAX);

/// Number of tokens that use a tile before the next one is unpacked.
const BLOCK_TOKENS: usize = 128;

/// Columns of a product and their division into terms.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    pub(crate) range: Range<usize>,
    /// Columns per term; the last term may have fewer. At least one.
    pub(crate) chunk: usize,
}

impl Columns {
    /// The columns up to `end`, as a single term.
    pub(crate) fn all(end: usize) -> Columns {
        Columns { range: 0..end, chunk: end }
    }

    /// The columns of each term.
    #[inline(always)]
    pub(crate) fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Columns { range: Range { start, end }, chunk } = *self;
        (start..end).step_by(chunk).map(move |start| start..(start + chunk).min(end))
    }
}

/// Activations as f32; each term of a row is padded with zeros to whole lanes.
pub(crate) struct Activations {
    values: Vec<f32>,
    stride: usize,
    pub(crate) columns: Columns,
}

impl Activations {
    /// Converts `x`, which is `[tokens, columns]`.
    pub(crate) fn new(x: Elements<'_>, columns: Columns, threads: &Threads) -> Activations {
        let input = columns.range.len();
        let last = input % columns.chunk;
        let padded_chunk = columns.chunk.next_multiple_of(LANES);
        let stride = input / columns.chunk * padded_chunk + last.next_multiple_of(LANES);
        // Rows at distances of a power of two would compete for the same few cache lines.
        let stride = if stride.is_multiple_of(256) { stride + 2 * LANES } else { stride };
        let mut values = vec![0.0; x.len() / input * stride];
        let blocks = values.chunks_mut(stride * BLOCK_TOKENS).enumerate().collect();
        threads.for_each(blocks, |(block, values): (usize, &mut [f32])| {
            for (offset, row) in values.chunks_exact_mut(stride).enumerate() {
                let first = (block * BLOCK_TOKENS + offset) * input;
                for (chunk, row) in columns.chunks().zip(row.chunks_mut(padded_chunk)) {
                    let start = first + chunk.start - columns.range.start;
                    x.load(start, &mut row[..chunk.len()]);
                }
            }
        });
        Activations { values, stride, columns }
    }

    /// Number of rows of activations.
    pub(crate) fn tokens(&self) -> usize {
        self.values.len() / self.stride
    }

    /// Returns one row, in whole vectors.
    #[inline(always)]
    pub(crate) fn row(&self, token: usize) -> &[Lanes] {
        self.values[token * self.stride..][..self.stride].as_chunks().0
    }

    /// The rows from `token` on.
    #[inline(always)]
    fn rows_from(&self, token: usize) -> Rows<'_> {
        Rows { values: &self.values[token * self.stride..], stride: self.stride }
    }
}

dispatched! {
    /// Results of all tokens for the weight rows `rows`; `out` has one view of `rows.len()` elements per token.
    pub(crate) fn multiply_rows<R: Results>(
        x: &Activations,
        weights: &Matrix<'_>,
        rows: Range<usize>,
        out: &mut [R],
    ) = multiply_rows_with
}

#[inline(always)]
fn multiply_rows_with<S: Simd, R: Results>(
    simd: S,
    x: &Activations,
    weights: &Matrix<'_>,
    rows: Range<usize>,
    out: &mut [R],
) {
    let mut tile = vec![0.0; TILE_ROWS * CHUNK_COLUMNS];
    for (block, out) in out.chunks_mut(BLOCK_TOKENS).enumerate() {
        let x_rows = x.rows_from(block * BLOCK_TOKENS);
        let mut results = TileResults::<R::Fold>::new(out.len());
        for start in rows.clone().step_by(TILE_ROWS) {
            let tile_rows = start..(start + TILE_ROWS).min(rows.end);
            results.clear();
            let mut x_start = 0;
            for columns in x.columns.chunks() {
                let (rows, width) = (tile_rows.clone(), columns.len());
                let term = Term {
                    x: x_rows,
                    x_start,
                    weights,
                    region: Region { rows, start: columns.start, width },
                };
                term.add_to(simd, &mut tile, &mut results);
                x_start += width.next_multiple_of(LANES);
            }
            for (token, out) in out.iter_mut().enumerate() {
                let values = results.of_token(token);
                out.store(start - rows.start, &values[..tile_rows.len()]);
            }
        }
    }
}

/// A term of some tokens and rows.
struct Term<'a> {
    x: Rows<'a>,
    /// Index of the first element of the term in each row of activations.
    x_start: usize,
    weights: &'a Matrix<'a>,
    region: Region,
}

impl Term<'_> {
    /// Computes the term and adds it to `results`; `tile` is scratch space for the unpacked weights.
    #[inline(always)]
    fn add_to<S: Simd, F: Fold>(self, simd: S, tile: &mut [f32], results: &mut TileResults<F>) {
        let Region { rows, start, width } = self.region;
        for offset in (0..width).step_by(CHUNK_COLUMNS) {
            let part_width = CHUNK_COLUMNS.min(width - offset);
            let padded = part_width.next_multiple_of(LANES);
            let tile = &mut tile[..TILE_ROWS * padded];
            let region = Region { rows: rows.clone(), start: start + offset, width: part_width };
            self.weights.unpack(simd, &region, &mut tile[..rows.len() * padded]);
            let part = TermPart {
                columns: self.x_start + offset..self.x_start + offset + padded,
                is_first: offset == 0,
                is_last: offset + part_width == width,
            };
            let tile = Tile { values: tile.as_chunks().0, num_rows: rows.len() };
            results.add_products(simd, self.x, tile, &part);
        }
    }
}
