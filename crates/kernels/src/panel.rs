//! The one matrix product behind all matmuls: rows of activations times rows of weights.
//!
//! Weights are unpacked to f32 in tiles, a few rows by [`CHUNK_COLUMNS`], and a tile meets every token of a block before
//! the next one is unpacked, so that decoding streams the weights once and a prompt pays for unpacking them only
//! once in [`BLOCK_TOKENS`]. The order of operations of a result is that of [`crate::dot`], whatever surrounds it.

use std::ops::Range;

use crate::dot::{Rows, Tile, add_products};
use crate::elements::{Elements, ElementsMut};
use crate::matmul::Matrix;
use crate::simd::{LANES, Lanes, Simd, dispatched};
use crate::threads::Threads;
use crate::unpack::{GROUPS_MAX, Region, unpack};

/// Columns unpacked at a time: a multiple of every group size, and no more groups than have room.
pub(crate) const CHUNK_COLUMNS: usize = 512;
const _: () = assert!(CHUNK_COLUMNS.is_multiple_of(128) && CHUNK_COLUMNS / 16 <= GROUPS_MAX);

/// Tokens that meet a tile before the next is unpacked.
const BLOCK_TOKENS: usize = 128;

/// Rows of a tile.
const TILE_ROWS: usize = 12;

/// Activations as f32, each row padded with zeros to whole lanes.
pub(crate) struct Activations {
    values: Vec<f32>,
    stride: usize,
    /// Columns of a row, without the padding.
    pub(crate) input: usize,
}

impl Activations {
    /// `x` is `[tokens, input]`.
    pub(crate) fn new(x: Elements<'_>, input: usize, threads: &Threads) -> Activations {
        let stride = input.next_multiple_of(LANES);
        // Rows a power of two apart would compete for the same few lines of the cache.
        let stride = if stride.is_multiple_of(256) { stride + 2 * LANES } else { stride };
        let mut values = vec![0.0; x.len() / input * stride];
        let blocks = values.chunks_mut(stride * BLOCK_TOKENS).enumerate().collect();
        threads.for_each(blocks, |(block, values): (usize, &mut [f32])| {
            for (offset, row) in values.chunks_exact_mut(stride).enumerate() {
                let token = block * BLOCK_TOKENS + offset;
                x.load(token * input, &mut row[..input]);
            }
        });
        Activations { values, stride, input }
    }

    /// Rows of activations.
    pub(crate) fn tokens(&self) -> usize {
        self.values.len() / self.stride
    }

    /// One row, in whole vectors.
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

impl Matrix<'_> {
    /// Weights of a region to `out`, `[rows, stride]`, where `stride` is the width padded to whole vectors; the padding
    /// becomes zero.
    #[inline(always)]
    pub(crate) fn unpack<S: Simd>(&self, simd: S, region: &Region, out: &mut [f32]) {
        match self {
            Matrix::Quantized(matrix) => unpack(simd, matrix, region, out),
            Matrix::Dense(matrix) => {
                let rows = out.chunks_exact_mut(region.width.next_multiple_of(LANES));
                for (row, out) in region.rows.clone().zip(rows) {
                    let (values, padding) = out.split_at_mut(region.width);
                    matrix.values.load(row * matrix.input + region.start, values);
                    padding.fill(0.0);
                }
            }
        }
    }
}

dispatched! {
    /// Results of all tokens for the weight rows `rows`; `out` has one view of `rows.len()` elements per token.
    pub(crate) fn multiply_rows(
        x: &Activations,
        weights: &Matrix<'_>,
        rows: Range<usize>,
        out: &mut [ElementsMut<'_>],
    ) = multiply_rows_with
}

#[inline(always)]
fn multiply_rows_with<S: Simd>(
    simd: S,
    x: &Activations,
    weights: &Matrix<'_>,
    rows: Range<usize>,
    out: &mut [ElementsMut<'_>],
) {
    let mut tile = vec![0.0; TILE_ROWS * CHUNK_COLUMNS];
    let mut sums = vec![[0.0; LANES]; TILE_ROWS * BLOCK_TOKENS.min(out.len())];
    for (block, out) in out.chunks_mut(BLOCK_TOKENS).enumerate() {
        let x = x.rows_from(block * BLOCK_TOKENS);
        for start in rows.clone().step_by(TILE_ROWS) {
            let tile_rows = start..(start + TILE_ROWS).min(rows.end);
            let sums = &mut sums[..out.len() * tile_rows.len()];
            multiply_tile(simd, (x, weights), tile_rows.clone(), &mut tile, sums);
            for (out, sums) in out.iter_mut().zip(sums.chunks_exact(tile_rows.len())) {
                let mut results = [0.0; TILE_ROWS];
                for (result, lanes) in results.iter_mut().zip(sums) {
                    *result = simd.sum(simd.load(lanes));
                }
                out.store(start - rows.start, &results[..tile_rows.len()]);
            }
        }
    }
}

/// Partial sums `[tokens, rows]` over all columns; `tile` is room for the unpacked weights.
#[inline(always)]
fn multiply_tile<S: Simd>(
    simd: S,
    (x, weights): (Rows<'_>, &Matrix<'_>),
    rows: Range<usize>,
    tile: &mut [f32],
    sums: &mut [Lanes],
) {
    sums.fill([0.0; LANES]);
    for start in (0..weights.input()).step_by(CHUNK_COLUMNS) {
        let width = CHUNK_COLUMNS.min(weights.input() - start);
        let padded = width.next_multiple_of(LANES);
        let tile = &mut tile[..rows.len() * padded];
        weights.unpack(simd, &Region { rows: rows.clone(), start, width }, tile);
        add_products(simd, x, start..start + padded, Tile::new(tile, padded), sums);
    }
}
