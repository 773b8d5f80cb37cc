//! Products of few rows with the keys and values of a block, which are read in place.
//!
//! Memory bandwidth is the limit here, so the next block is prefetched line by line while this one
//! is computed. As in [`super::product`], a result is one chain of multiply-adds, so that its bits
//! depend neither on the number of rows nor on the width of the vectors.
#![expect(
    clippy::needless_range_loop,
    reason = "indices name rows and registers alike, and iterators' closures would be compiled without the set"
)]

use std::ops::Range;

use jackalope_simd::{VectorElement, WIDEST, Wide};

use super::product::{DEPTH, LeftOperand, Sums};
use super::{BLOCK_KEYS, KEY_TILE};

/// Number of bytes that a prefetch loads.
const LINE_BYTES: usize = 64;

/// Keys or values of a block of positions.
#[derive(Clone, Copy)]
pub(super) struct Block<'a, E> {
    /// Keys: `[BLOCK_KEYS / KEY_TILE, head_dim, KEY_TILE]`. Values: `[BLOCK_KEYS, value_dim]`.
    pub(super) values: &'a [E],
    /// Blocks to prefetch: of the same length, or empty.
    pub(super) ahead: [&'a [E]; 2],
}

/// Attention weights of a block's keys, for some query rows.
struct KeyWeights<'a, const ROWS: usize> {
    rows: &'a [[f32; BLOCK_KEYS]; ROWS],
    /// The keys of the block that the rows see.
    keys: Range<usize>,
}

impl<'a, E: VectorElement> Block<'a, E> {
    #[inline(always)]
    fn head_dim(&self) -> usize {
        self.values.len() / BLOCK_KEYS
    }

    /// Returns the block without prefetches, unless it is read for the first time.
    #[inline(always)]
    fn read(self, is_first: bool) -> Block<'a, E> {
        Block { ahead: if is_first { self.ahead } else { [&[]; 2] }, ..self }
    }

    /// Prefetches a part of the later blocks.
    #[inline(always)]
    fn prefetch<W: Wide>(&self, simd: W, part: Range<usize>) {
        for block in self.ahead {
            let Some(part) = block.get(part.clone()) else { continue };
            for line in part.chunks(LINE_BYTES / size_of::<E>()) {
                simd.prefetch_soon(&line[0]);
            }
        }
    }

    /// Writes the products of rows with keys: `scores` is `[rows, BLOCK_KEYS]`.
    #[inline(always)]
    pub(super) fn multiply_keys<W: Wide>(
        self,
        simd: W,
        queries: LeftOperand<'_>,
        scores: &mut [[f32; BLOCK_KEYS]],
    ) {
        let mut row = 0;
        while row < queries.num_rows {
            let block = self.read(row == 0);
            let left = LeftOperand { values: &queries.values[row..], ..queries };
            let scores = &mut scores[row..];
            row += match (queries.num_rows - row, W::LANES == WIDEST) {
                (4.., true) => block.key_strip::<W, 4, 2>(simd, left, scores),
                (2.., true) => block.key_strip::<W, 2, 2>(simd, left, scores),
                (_, true) => block.key_strip::<W, 1, 2>(simd, left, scores),
                (4.., false) => block.key_strip::<W, 4, 1>(simd, left, scores),
                (2.., false) => block.key_strip::<W, 2, 2>(simd, left, scores),
                (_, false) => block.key_strip::<W, 1, 4>(simd, left, scores),
            };
        }
    }

    /// Like [`Block::multiply_keys`], for the first `ROWS` rows; returns the number of rows.
    #[inline(always)]
    fn key_strip<W: Wide, const ROWS: usize, const PAIRS: usize>(
        self,
        simd: W,
        queries: LeftOperand<'_>,
        scores: &mut [[f32; BLOCK_KEYS]],
    ) -> usize {
        let scores: &mut [_; ROWS] = scores.first_chunk_mut().expect("as many rows");
        for column in (0..BLOCK_KEYS).step_by(PAIRS * 2 * W::LANES) {
            let block = self.read(column == 0);
            block.key_tile::<W, ROWS, PAIRS>(simd, queries, column, scores);
        }
        ROWS
    }

    /// The inner loop of [`Block::multiply_keys`], with the products of `ROWS` rows and `PAIRS` pairs of vectors in
    /// registers.
    #[inline(always)]
    fn key_tile<W: Wide, const ROWS: usize, const PAIRS: usize>(
        self,
        simd: W,
        queries: LeftOperand<'_>,
        column: usize,
        scores: &mut [[f32; BLOCK_KEYS]; ROWS],
    ) {
        let head_dim = self.head_dim();
        let tiles = self.values.as_chunks::<KEY_TILE>().0;
        let tiles = [&tiles[..head_dim], &tiles[head_dim..][..head_dim]];
        let mut acc = [[[simd.splat(0.0); 2]; PAIRS]; ROWS];
        let mut start = 0;
        while start < head_dim {
            let end = head_dim.min(start + DEPTH);
            let factors = &queries.values[start / DEPTH * queries.num_rows..];
            let factors: &[[f32; DEPTH]; ROWS] = factors.first_chunk().expect("as many rows");
            for k in start..end {
                self.prefetch(simd, k * BLOCK_KEYS..(k + 1) * BLOCK_KEYS);
                for p in 0..PAIRS {
                    let key = column + p * 2 * W::LANES;
                    let pair = E::load_pair(simd, &tiles[key / KEY_TILE][k][key % KEY_TILE..]);
                    for r in 0..ROWS {
                        let factor = simd.splat(factors[r][k - start]);
                        acc[r][p][0] = simd.mul_add(factor, pair[0], acc[r][p][0]);
                        acc[r][p][1] = simd.mul_add(factor, pair[1], acc[r][p][1]);
                    }
                }
            }
            start = end;
        }
        for r in 0..ROWS {
            for p in 0..PAIRS {
                let scores = &mut scores[r][column + p * 2 * W::LANES..];
                E::store_sums(simd, acc[r][p], scores);
            }
        }
    }

    /// Adds the weighted values at some keys to the rows' sums: `weights` is `[rows, BLOCK_KEYS]`.
    #[inline(always)]
    pub(super) fn add_values<W: Wide>(
        self,
        simd: W,
        weights: &[[f32; BLOCK_KEYS]],
        keys: &Range<usize>,
        sums: &mut Sums<'_>,
    ) {
        let mut row = 0;
        while row < weights.len() {
            let block = self.read(row == 0);
            let stride = sums.stride;
            let sums = &mut Sums { values: &mut sums.values[row * stride..], stride };
            let left = &weights[row..];
            row += match (weights.len() - row, W::LANES == WIDEST) {
                (4.., true) => block.value_strip::<W, 4, 2>(simd, left, keys, sums),
                (2.., true) => block.value_strip::<W, 2, 4>(simd, left, keys, sums),
                (_, true) => block.value_strip::<W, 1, 4>(simd, left, keys, sums),
                (4.., false) => block.value_strip::<W, 4, 1>(simd, left, keys, sums),
                (2.., false) => block.value_strip::<W, 2, 2>(simd, left, keys, sums),
                (_, false) => block.value_strip::<W, 1, 4>(simd, left, keys, sums),
            };
        }
    }

    /// Like [`Block::add_values`], for the first `ROWS` rows; returns the number of rows.
    #[inline(always)]
    fn value_strip<W: Wide, const ROWS: usize, const PAIRS: usize>(
        self,
        simd: W,
        weights: &[[f32; BLOCK_KEYS]],
        keys: &Range<usize>,
        sums: &mut Sums<'_>,
    ) -> usize {
        let rows: &[_; ROWS] = weights.first_chunk().expect("as many rows");
        let weights = KeyWeights { rows, keys: keys.start..keys.end.min(BLOCK_KEYS) };
        let pair = 2 * W::LANES;
        let mut column = 0;
        while column + PAIRS * pair <= self.head_dim() {
            let block = self.read(column == 0);
            block.value_tile::<W, ROWS, PAIRS>(simd, &weights, column, sums);
            column += PAIRS * pair;
        }
        while column < self.head_dim() {
            let block = self.read(column == 0);
            block.value_tile::<W, ROWS, 1>(simd, &weights, column, sums);
            column += pair;
        }
        ROWS
    }

    /// The inner loop of [`Block::add_values`], with the sums of `ROWS` rows and `PAIRS` pairs of vectors in registers.
    #[inline(always)]
    fn value_tile<W: Wide, const ROWS: usize, const PAIRS: usize>(
        self,
        simd: W,
        weights: &KeyWeights<'_, ROWS>,
        column: usize,
        sums: &mut Sums<'_>,
    ) {
        let head_dim = self.head_dim();
        let width = PAIRS * 2 * W::LANES;
        let mut acc = [[[simd.splat(0.0); 2]; PAIRS]; ROWS];
        for r in 0..ROWS {
            let sums = &sums.values[r * sums.stride + column..][..width];
            for p in 0..PAIRS {
                acc[r][p] = E::load_sums(simd, &sums[p * 2 * W::LANES..]);
            }
        }
        for k in weights.keys.clone() {
            self.prefetch(simd, k * head_dim..(k + 1) * head_dim);
            let values = &self.values[k * head_dim + column..][..width];
            for p in 0..PAIRS {
                let pair = E::load_pair(simd, &values[p * 2 * W::LANES..]);
                for r in 0..ROWS {
                    let weight = simd.splat(weights.rows[r][k]);
                    acc[r][p][0] = simd.mul_add(weight, pair[0], acc[r][p][0]);
                    acc[r][p][1] = simd.mul_add(weight, pair[1], acc[r][p][1]);
                }
            }
        }
        for r in 0..ROWS {
            let sums = &mut sums.values[r * sums.stride + column..][..width];
            for p in 0..PAIRS {
                E::store_sums(simd, acc[r][p], &mut sums[p * 2 * W::LANES..]);
            }
        }
    }
}
