//! Dot products in one fixed order of operations, on which all results are based.
//!
//! There are eight partial sums: lane `l` has the columns `l, l + 8, l + 16, …` from left to right,
//! with one multiply-add per step; at the end the lanes are added as a tree ([`Simd::sum`]). The
//! number of tokens and weight rows that are computed together decides only which registers hold
//! the sums; between two chunks of columns they may be stored in memory.

use std::array;
use std::ops::Range;

use jackalope_simd::{Lanes, Simd};

use crate::terms::{Fold, add_terms};

/// Maximum number of tokens whose products are computed together.
const TOKENS_MAX: usize = 4;

/// Sums in registers at a time; weights and activations need the other registers.
const BLOCK_SUMS: usize = 12;

/// Maximum number of rows of a tile, a multiple of the rows computed together.
pub(crate) const TILE_ROWS: usize = 12;

/// Rows of activations, each padded with zeros to whole lanes.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// `[tokens, stride]`.
    pub(crate) values: &'a [f32],
    /// Elements of a row, a multiple of the lanes.
    pub(crate) stride: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn lanes(&self, token: usize, columns: &Range<usize>) -> &'a [Lanes] {
        self.values[token * self.stride..][columns.clone()].as_chunks().0
    }
}

/// Unpacked weights, `[TILE_ROWS, width]`. The contents of rows beyond `num_rows` are arbitrary.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    pub(crate) values: &'a [Lanes],
    pub(crate) num_rows: usize,
}

impl<'a> Tile<'a> {
    #[inline(always)]
    fn row(&self, row: usize) -> &'a [Lanes] {
        let width = self.values.len() / TILE_ROWS;
        &self.values[row * width..][..width]
    }
}

/// Columns of the activations whose products are computed in one go: a term, or a part of it.
#[derive(Clone, Debug)]
pub(crate) struct TermPart {
    /// Range of columns, in whole lanes.
    pub(crate) columns: Range<usize>,
    /// Whether the term begins here. Otherwise, its sums so far are in memory.
    pub(crate) is_first: bool,
    /// Whether the term ends here. Otherwise, its sums are left in memory.
    pub(crate) is_last: bool,
}

/// Results of some tokens for the rows of a tile, and the sums of terms between their parts.
pub(crate) struct TileResults<F> {
    // One for each `TOKENS_MAX` tokens. Tokens and rows that are computed together are neighbours; see `of_rows`.
    results: Vec<[F; TOKENS_MAX * TILE_ROWS]>,
    sums: Vec<[Lanes; TOKENS_MAX * TILE_ROWS]>,
    num_tokens: usize,
}

impl<F: Fold> TileResults<F> {
    pub(crate) fn new(num_tokens: usize) -> TileResults<F> {
        let num_strips = num_tokens.div_ceil(TOKENS_MAX);
        TileResults {
            results: vec![[F::EMPTY; TOKENS_MAX * TILE_ROWS]; num_strips],
            sums: vec![[[0.0; _]; TOKENS_MAX * TILE_ROWS]; num_strips],
            num_tokens,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.results.fill([F::EMPTY; _]);
    }

    /// Returns the results of a token for the rows of the tile.
    #[inline(always)]
    pub(crate) fn of_token(&self, token: usize) -> [F::Value; TILE_ROWS] {
        let strip = token / TOKENS_MAX;
        let (results, token) = (&self.results[strip], token % TOKENS_MAX);
        // Constant numbers of rows: two divisions for each result would take longer than a short product.
        match self.num_tokens - strip * TOKENS_MAX {
            1 => of_rows::<F, 12>(results, token),
            2 => of_rows::<F, 6>(results, token),
            3 => of_rows::<F, 4>(results, token),
            _ => of_rows::<F, 3>(results, token),
        }
    }

    /// Adds the products over a part of a term for all tokens; `x` begins with the first one.
    #[inline(always)]
    pub(crate) fn add_products<S: Simd>(
        &mut self,
        simd: S,
        x: Rows<'_>,
        tile: Tile<'_>,
        part: &TermPart,
    ) {
        for (idx, (results, sums)) in self.results.iter_mut().zip(&mut self.sums).enumerate() {
            let token = idx * TOKENS_MAX;
            let lanes = |t| x.lanes(token + t, &part.columns);
            let strip = Strip { tile, part, results, sums };
            // The number of rows fills the registers.
            match self.num_tokens - token {
                1 => strip.multiply::<S, 1, 12>(simd, array::from_fn(lanes)),
                2 => strip.multiply::<S, 2, 6>(simd, array::from_fn(lanes)),
                3 => strip.multiply::<S, 3, 4>(simd, array::from_fn(lanes)),
                _ => strip.multiply::<S, 4, 3>(simd, array::from_fn(lanes)),
            }
        }
    }
}

/// Returns the results of one of the tokens that are computed together, `ROWS` rows at a time.
#[inline(always)]
fn of_rows<F: Fold, const ROWS: usize>(
    results: &[F; TOKENS_MAX * TILE_ROWS],
    token: usize,
) -> [F::Value; TILE_ROWS] {
    let mut values = [F::Value::default(); TILE_ROWS];
    let blocks = results.as_chunks::<BLOCK_SUMS>().0;
    for (values, block) in values.as_chunks_mut::<ROWS>().0.iter_mut().zip(blocks) {
        for (value, result) in values.iter_mut().zip(&block[token * ROWS..]) {
            *value = result.value();
        }
    }
    values
}

/// A few tokens with all rows of the tile.
struct Strip<'a, F> {
    tile: Tile<'a>,
    part: &'a TermPart,
    results: &'a mut [F; TOKENS_MAX * TILE_ROWS],
    sums: &'a mut [Lanes; TOKENS_MAX * TILE_ROWS],
}

impl<F: Fold> Strip<'_, F> {
    /// Computes `ROWS` rows at a time.
    #[inline(always)]
    fn multiply<S: Simd, const TOKENS: usize, const ROWS: usize>(
        self,
        simd: S,
        x: [&[Lanes]; TOKENS],
    ) {
        const { assert!(TOKENS * ROWS == BLOCK_SUMS && TILE_ROWS.is_multiple_of(ROWS)) }
        let results = self.results.as_chunks_mut::<BLOCK_SUMS>().0;
        let sums = self.sums.as_chunks_mut::<BLOCK_SUMS>().0;
        let blocks = results.iter_mut().zip(sums).take(self.tile.num_rows.div_ceil(ROWS));
        for (idx, (results, sums)) in blocks.enumerate() {
            let w = array::from_fn(|r| self.tile.row(idx * ROWS + r));
            block::<S, F, TOKENS, ROWS>(simd, Operands { x, w }, self.part, results, sums);
        }
    }
}

/// Rows of activations and of weights, all of the same length.
struct Operands<'a, const TOKENS: usize, const ROWS: usize> {
    x: [&'a [Lanes]; TOKENS],
    w: [&'a [Lanes]; ROWS],
}

/// The inner loop: `TOKENS * ROWS` sums in registers.
#[inline(always)]
fn block<S: Simd, F: Fold, const TOKENS: usize, const ROWS: usize>(
    simd: S,
    Operands { x, w }: Operands<'_, TOKENS, ROWS>,
    part: &TermPart,
    results: &mut [F; BLOCK_SUMS],
    sums: &mut [Lanes; BLOCK_SUMS],
) {
    // Equal lengths, known to the compiler: no bounds are checked inside the loop.
    let width = w[0].len();
    let x: [&[Lanes]; TOKENS] = array::from_fn(|t| &x[t][..width]);
    let w: [&[Lanes]; ROWS] = array::from_fn(|r| &w[r][..width]);
    // No closures around vectors: a closure is compiled on its own, without the features, unless it is inlined.
    let mut acc = [[simd.splat(0.0); ROWS]; TOKENS];
    if !part.is_first {
        for t in 0..TOKENS {
            for r in 0..ROWS {
                acc[t][r] = simd.load(&sums[t * ROWS + r]);
            }
        }
    }
    for i in 0..width {
        let mut weights = [simd.splat(0.0); ROWS];
        for r in 0..ROWS {
            weights[r] = simd.load(&w[r][i]);
        }
        for t in 0..TOKENS {
            let x = simd.load(&x[t][i]);
            for r in 0..ROWS {
                acc[t][r] = simd.mul_add(x, weights[r], acc[t][r]);
            }
        }
    }
    if part.is_last {
        add_terms(simd, acc.as_flattened(), results);
        return;
    }
    for t in 0..TOKENS {
        for r in 0..ROWS {
            simd.store(acc[t][r], &mut sums[t * ROWS + r]);
        }
    }
}
