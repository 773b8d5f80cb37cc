//! Products of few rows of activations with a matrix of eight-bit floats (mxfp8), which is streamed
//! from memory without unpacking.
//!
//! The order of operations is that of [`crate::dot`], so a row has the same bits here as among many
//! rows.
#![expect(clippy::needless_range_loop, reason = "indices name tokens and rows in several arrays")]

use std::ops::Range;

use jackalope_simd::{LANES, QuantMatrix, Scales, Simd, dispatched, e8m0};

use crate::panel::Activations;
use crate::terms::{Fold, Results, add_terms};

/// Maximum number of rows of activations for which weights are streamed, for all rows together,
/// instead of being unpacked into tiles.
pub(crate) const FEW_TOKENS: usize = 4;

/// Number of rows whose results are buffered before they are stored.
const RESULT_ROWS: usize = 32;

/// Number of vectors of a group.
const GROUP_VECTORS: usize = 32 / LANES;

/// Prefetch distance in bytes: data must reach the second-level cache in time.
const PREFETCH_BYTES: usize = 16 << 10;

dispatched! {
    /// Results of up to [`FEW_TOKENS`] tokens for the weight rows `rows`; `out` has one view of `rows.len()` elements
    /// per token.
    pub(crate) fn multiply_few<R: Results>(
        x: &Activations,
        matrix: &QuantMatrix<'_>,
        rows: Range<usize>,
        out: &mut [R],
    ) = multiply_few_with
}

#[inline(always)]
fn multiply_few_with<S: Simd, R: Results>(
    simd: S,
    x: &Activations,
    matrix: &QuantMatrix<'_>,
    rows: Range<usize>,
    out: &mut [R],
) {
    assert_eq!(x.columns.range, 0..matrix.input, "all columns");
    let mut results = [[R::Value::default(); RESULT_ROWS]; FEW_TOKENS];
    for start in rows.clone().step_by(RESULT_ROWS) {
        let strip_rows = start..(start + RESULT_ROWS).min(rows.end);
        match out.len() {
            1 => strip::<S, R::Fold, 1, 6>(simd, x, matrix, &strip_rows, &mut results),
            2 => strip::<S, R::Fold, 2, 4>(simd, x, matrix, &strip_rows, &mut results),
            3 => strip::<S, R::Fold, 3, 3>(simd, x, matrix, &strip_rows, &mut results),
            _ => strip::<S, R::Fold, FEW_TOKENS, 2>(simd, x, matrix, &strip_rows, &mut results),
        }
        for (out, results) in out.iter_mut().zip(&results) {
            out.store(start - rows.start, &results[..strip_rows.len()]);
        }
    }
}

/// Computes `T` tokens with all rows of the strip, `ROWS` at a time.
#[inline(always)]
fn strip<S: Simd, F: Fold, const T: usize, const ROWS: usize>(
    simd: S,
    x: &Activations,
    matrix: &QuantMatrix<'_>,
    rows: &Range<usize>,
    results: &mut [[F::Value; RESULT_ROWS]; FEW_TOKENS],
) {
    for first_row in rows.clone().step_by(ROWS) {
        // The last row is computed again where rows are missing.
        let mut together = [first_row; ROWS];
        for (offset, row) in together.iter_mut().enumerate() {
            *row = (*row + offset).min(rows.end - 1);
        }
        let folds = block::<S, F, T, ROWS>(simd, x, matrix, together);
        for t in 0..T {
            for r in 0..ROWS {
                results[t][together[r] - rows.start] = folds[t][r].value();
            }
        }
    }
}

/// The inner loop: `T * ROWS` sums in registers, until a term is complete.
#[inline(always)]
fn block<S: Simd, F: Fold, const T: usize, const ROWS: usize>(
    simd: S,
    x: &Activations,
    matrix: &QuantMatrix<'_>,
    rows: [usize; ROWS],
) -> [[F; ROWS]; T] {
    let Scales::Bytes(scales) = matrix.scales else {
        unreachable!("checked at the entry of every kernel")
    };
    // As in `dot`, no closures around vectors.
    let num_groups = matrix.format.groups_per_row(matrix.input);
    let mut words: [&[[[u32; 2]; GROUP_VECTORS]]; ROWS] = [&[]; ROWS];
    let mut row_scales: [&[u8]; ROWS] = [&[]; ROWS];
    for r in 0..ROWS {
        let row_words = matrix.format.words_per_row(matrix.input);
        let row = &matrix.words[rows[r] * row_words..][..row_words];
        words[r] = &row.as_chunks().0.as_chunks().0[..num_groups];
        row_scales[r] = &scales[rows[r] * num_groups..][..num_groups];
    }
    let mut values: [&[[[f32; LANES]; GROUP_VECTORS]]; T] = [&[]; T];
    for t in 0..T {
        values[t] = &x.row(t).as_chunks().0[..num_groups];
    }
    let chunk_groups = matrix.format.groups_per_row(x.columns.chunk);
    let mut groups_left = chunk_groups.min(num_groups);
    let mut folds = [[F::EMPTY; ROWS]; T];
    let mut sums = [[simd.splat(0.0); ROWS]; T];
    for group in 0..num_groups {
        let mut group_scales = [simd.splat(0.0); ROWS];
        for r in 0..ROWS {
            simd.prefetch(&words[r][group], PREFETCH_BYTES);
            group_scales[r] = simd.splat(e8m0(row_scales[r][group]));
        }
        for vector in 0..GROUP_VECTORS {
            for r in 0..ROWS {
                let [low, high] = words[r][group][vector];
                let weights = simd.mul(simd.e4m3(low, high), group_scales[r]);
                for t in 0..T {
                    let x = simd.load(&values[t][group][vector]);
                    sums[t][r] = simd.mul_add(x, weights, sums[t][r]);
                }
            }
        }
        groups_left -= 1;
        if groups_left == 0 {
            groups_left = chunk_groups.min(num_groups - group - 1);
            add_terms(simd, sums.as_flattened(), folds.as_flattened_mut());
            sums = [[simd.splat(0.0); ROWS]; T];
        }
    }
    folds
}
