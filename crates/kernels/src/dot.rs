//! Dot products in one fixed order of operations, on which all results are based.
//!
//! There are eight partial sums: lane `l` has the columns `l, l + 8, l + 16, …` from left to right,
//! with one multiply-add per step; at the end the lanes are added as a tree ([`Simd::sum`]). The
//! number of tokens and weight rows that are computed together decides only which registers hold
//! the sums; between two chunks of columns they may be stored in memory.

use std::array;
use std::ops::Range;

use crate::simd::{Element, LANES, Lanes, Simd};

/// Maximum number of tokens whose products are computed together.
const TOKENS_MAX: usize = 4;

/// Rows of activations, each padded with zeros to whole lanes.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// `[tokens, stride]`.
    pub(crate) values: &'a [f32],
    /// Number of elements of a row, a multiple of [`LANES`].
    pub(crate) stride: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn lanes(&self, token: usize, columns: &Range<usize>) -> &'a [Lanes] {
        self.values[token * self.stride..][columns.clone()].as_chunks().0
    }
}

/// Adds the products over a chunk of columns, whole lanes, to `sums[tokens, rows]`; `tile` is `[rows, columns]`.
#[inline(always)]
pub(crate) fn add_products<S: Simd, E: Element>(
    simd: S,
    x: Rows<'_>,
    columns: Range<usize>,
    tile: Tile<'_, E>,
    sums: &mut [Lanes],
) {
    let mut token = 0;
    for sums in sums.chunks_mut(TOKENS_MAX * tile.num_rows()) {
        let num_tokens = sums.len() / tile.num_rows();
        let lanes = |t| x.lanes(token + t, &columns);
        // The number of rows is limited by the registers, of which unpacking needs some.
        match num_tokens {
            1 => strip::<S, E, 1, 6>(simd, array::from_fn(lanes), tile, sums),
            2 if E::IS_F32 => strip::<S, E, 2, 6>(simd, array::from_fn(lanes), tile, sums),
            2 => strip::<S, E, 2, 4>(simd, array::from_fn(lanes), tile, sums),
            3 => strip::<S, E, 3, 4>(simd, array::from_fn(lanes), tile, sums),
            _ => strip::<S, E, 4, 3>(simd, array::from_fn(lanes), tile, sums),
        }
        token += num_tokens;
    }
}

/// Weights or keys, `[rows, width]`.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a, E> {
    values: &'a [[E; LANES]],
    width: usize,
}

impl<'a, E: Element> Tile<'a, E> {
    /// Rows of `columns` elements, whole lanes.
    #[inline(always)]
    pub(crate) fn new(values: &'a [E], columns: usize) -> Tile<'a, E> {
        Tile { values: values.as_chunks().0, width: columns / LANES }
    }

    #[inline(always)]
    fn num_rows(&self) -> usize {
        self.values.len() / self.width
    }

    #[inline(always)]
    fn row(&self, row: usize) -> &'a [[E; LANES]] {
        &self.values[row * self.width..][..self.width]
    }
}

/// Computes a few tokens with all rows of the tile, `ROWS` at a time.
#[inline(always)]
fn strip<S: Simd, E: Element, const TOKENS: usize, const ROWS: usize>(
    simd: S,
    x: [&[Lanes]; TOKENS],
    tile: Tile<'_, E>,
    sums: &mut [Lanes],
) {
    let num_rows = tile.num_rows();
    let whole = num_rows - num_rows % ROWS;
    for row in (0..whole).step_by(ROWS) {
        let w = array::from_fn(|r| tile.row(row + r));
        block::<S, E, TOKENS, ROWS>(simd, x, w, &mut sums[row..], num_rows);
    }
    for row in whole..num_rows {
        block::<S, E, TOKENS, 1>(simd, x, [tile.row(row)], &mut sums[row..], num_rows);
    }
}

/// The inner loop: `TOKENS * ROWS` sums in registers; `sums` has `stride` between tokens.
#[inline(always)]
fn block<S: Simd, E: Element, const TOKENS: usize, const ROWS: usize>(
    simd: S,
    x: [&[Lanes]; TOKENS],
    w: [&[[E; LANES]]; ROWS],
    sums: &mut [Lanes],
    stride: usize,
) {
    // Equal lengths, known to the compiler: no bounds are checked inside the loop.
    let width = w[0].len();
    let x: [&[Lanes]; TOKENS] = array::from_fn(|t| &x[t][..width]);
    let w: [&[[E; LANES]]; ROWS] = array::from_fn(|r| &w[r][..width]);
    // No closures around vectors: a closure is compiled on its own, without the features, unless it is inlined.
    let mut acc = [[simd.splat(0.0); ROWS]; TOKENS];
    for t in 0..TOKENS {
        for r in 0..ROWS {
            acc[t][r] = simd.load(&sums[t * stride + r]);
        }
    }
    for i in 0..width {
        let mut weights = [simd.splat(0.0); ROWS];
        for r in 0..ROWS {
            weights[r] = E::load(simd, &w[r][i]);
        }
        for t in 0..TOKENS {
            let x = simd.load(&x[t][i]);
            for r in 0..ROWS {
                acc[t][r] = simd.mul_add(x, weights[r], acc[t][r]);
            }
        }
    }
    for t in 0..TOKENS {
        for r in 0..ROWS {
            simd.store(acc[t][r], &mut sums[t * stride + r]);
        }
    }
}
