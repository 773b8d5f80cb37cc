//! Products of few rows of activations with a plain matrix, which is streamed from memory without
//! unpacking.
//!
//! The order of operations is that of [`crate::dot`], so a row has the same bits here as among many
//! rows.
#![expect(clippy::needless_range_loop, reason = "indices name tokens and rows in several arrays")]

use std::ops::Range;

use jackalope_simd::{DenseMatrix, Elements, LANES, Lanes, Simd, VectorElement, dispatched};

use crate::panel::Activations;
use crate::terms::{Fold, Results, add_terms};

/// Maximum number of rows of activations for which weights are streamed instead of being unpacked
/// into tiles.
pub(crate) const FEW_TOKENS: usize = 16;

/// Number of rows of activations that are computed together.
const TOKENS: usize = 4;

/// Number of rows whose results are buffered before they are stored.
const RESULT_ROWS: usize = 32;

dispatched! {
    /// Results of up to [`FEW_TOKENS`] tokens for the weight rows `rows`; `out` has one view of `rows.len()` elements
    /// per token.
    pub(crate) fn multiply_few<R: Results>(
        x: &Activations,
        matrix: &DenseMatrix<'_>,
        rows: Range<usize>,
        out: &mut [R],
    ) = multiply_few_with
}

#[inline(always)]
fn multiply_few_with<S: Simd, R: Results>(
    simd: S,
    x: &Activations,
    matrix: &DenseMatrix<'_>,
    rows: Range<usize>,
    out: &mut [R],
) {
    assert_eq!(x.columns.range, 0..matrix.input, "all columns");
    match matrix.values {
        Elements::F32(values) => multiply_elements(simd, x, values, rows, out),
        Elements::F16(values) => multiply_elements(simd, x, values, rows, out),
        Elements::Bf16(values) => multiply_elements(simd, x, values, rows, out),
    }
}

/// Rows of activations, from a token on.
#[derive(Clone, Copy)]
struct TokenRows<'a> {
    x: &'a Activations,
    first: usize,
}

#[inline(always)]
fn multiply_elements<S: Simd, E: VectorElement, R: Results>(
    simd: S,
    x: &Activations,
    values: &[E],
    rows: Range<usize>,
    out: &mut [R],
) {
    let input = x.columns.range.len();
    let mut results = [[R::Value::default(); RESULT_ROWS]; TOKENS];
    for start in rows.clone().step_by(RESULT_ROWS) {
        let end = (start + RESULT_ROWS).min(rows.end);
        let weights = &values[start * input..end * input];
        // From the second iteration on, the rows are in a cache.
        for (turn, out) in out.chunks_mut(TOKENS).enumerate() {
            let x = TokenRows { x, first: turn * TOKENS };
            match out.len() {
                1 => strip::<S, E, R::Fold, 1, 4>(simd, x, weights, &mut results),
                2 => strip::<S, E, R::Fold, 2, 4>(simd, x, weights, &mut results),
                3 => strip::<S, E, R::Fold, 3, 3>(simd, x, weights, &mut results),
                _ => strip::<S, E, R::Fold, 4, 2>(simd, x, weights, &mut results),
            }
            for (out, results) in out.iter_mut().zip(&results) {
                out.store(start - rows.start, &results[..end - start]);
            }
        }
    }
}

/// Computes all rows of `weights`, `ROWS` at a time.
#[inline(always)]
fn strip<S: Simd, E: VectorElement, F: Fold, const T: usize, const ROWS: usize>(
    simd: S,
    x: TokenRows<'_>,
    weights: &[E],
    results: &mut [[F::Value; RESULT_ROWS]; TOKENS],
) {
    let input = x.x.columns.range.len();
    let num_rows = weights.len() / input;
    let whole = num_rows - num_rows % ROWS;
    for row in (0..whole).step_by(ROWS) {
        block::<S, E, F, T, ROWS>(simd, x, &weights[row * input..], row, results);
    }
    for row in whole..num_rows {
        block::<S, E, F, T, 1>(simd, x, &weights[row * input..], row, results);
    }
}

/// Computes `T * ROWS` results, for the first rows of `weights`, which are those from `row` on.
#[inline(always)]
fn block<S: Simd, E: VectorElement, F: Fold, const T: usize, const ROWS: usize>(
    simd: S,
    x: TokenRows<'_>,
    weights: &[E],
    row: usize,
    results: &mut [[F::Value; RESULT_ROWS]; TOKENS],
) {
    let TokenRows { x, first } = x;
    let input = x.columns.range.len();
    let mut rows: [&[Lanes]; T] = [&[]; T];
    for t in 0..T {
        rows[t] = x.row(first + t);
    }
    let mut folds = [[F::EMPTY; ROWS]; T];
    for columns in x.columns.chunks() {
        let mut w: [&[E]; ROWS] = [&[]; ROWS];
        for r in 0..ROWS {
            w[r] = &weights[r * input..][columns.clone()];
        }
        let num_lanes = columns.len().div_ceil(LANES);
        let term = term::<S, E, T, ROWS>(simd, rows, w, input);
        add_terms(simd, term.as_flattened(), folds.as_flattened_mut());
        for t in 0..T {
            rows[t] = &rows[t][num_lanes..];
        }
    }
    for t in 0..T {
        for r in 0..ROWS {
            results[t][row + r] = folds[t][r].value();
        }
    }
}

/// The inner loop over the columns of a term, with `T * ROWS` sums in registers, whose lanes are not added yet. The
/// rows of the matrix are `input` elements apart.
#[inline(always)]
fn term<S: Simd, E: VectorElement, const T: usize, const ROWS: usize>(
    simd: S,
    x: [&[Lanes]; T],
    weights: [&[E]; ROWS],
    input: usize,
) -> [[S::Floats; ROWS]; T] {
    // As in `dot`, no closures around vectors.
    let (width, rest) = (weights[0].len() / LANES, weights[0].len() % LANES);
    let mut w: [&[[E; LANES]]; ROWS] = [&[]; ROWS];
    let mut last = [[E::ZERO; LANES]; ROWS];
    for r in 0..ROWS {
        w[r] = &weights[r].as_chunks().0[..width];
        last[r][..rest].copy_from_slice(&weights[r][width * LANES..][..rest]);
    }
    let mut rows: [&[Lanes]; T] = [&[]; T];
    for t in 0..T {
        rows[t] = &x[t][..width + usize::from(rest != 0)];
    }
    let mut sums = [[simd.splat(0.0); ROWS]; T];
    for i in 0..width {
        let mut weights = [simd.splat(0.0); ROWS];
        for r in 0..ROWS {
            if (i * size_of::<[E; LANES]>()).is_multiple_of(64) {
                // Prefetches the same columns of the next rows.
                simd.prefetch(&w[r][i], ROWS * input * size_of::<E>());
            }
            weights[r] = E::load(simd, &w[r][i]);
        }
        for t in 0..T {
            let x = simd.load(&rows[t][i]);
            for r in 0..ROWS {
                sums[t][r] = simd.mul_add(x, weights[r], sums[t][r]);
            }
        }
    }
    if rest != 0 {
        for t in 0..T {
            for r in 0..ROWS {
                let weights = E::load(simd, &last[r]);
                sums[t][r] = simd.mul_add(simd.load(&rows[t][width]), weights, sums[t][r]);
            }
        }
    }
    sums
}
