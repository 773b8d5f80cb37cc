//! Products whose columns can be divided among machines without changing the result.
//!
//! The sum of a result is cut into *terms*: up to eight neighbouring groups of packed weights, or
//! chunks of columns if the product is computed in f32. A term is an f32 that depends only on its own
//! columns. It is rounded to a multiple of [`GRID`]. Such multiples add up exactly in f64, so the sum has the same
//! bits in any order and for any distribution over machines.
//!
//! ```text
//!   any of the terms sum to less than 2^20:  exact, so the parts add up to the whole
//!   larger sums:                             rounded as f64; parts may differ by 2^-52 of the sum
//!   infinite, or not a number:               as in IEEE 754
//! ```
//!
//! Rounding changes each term by at most half of [`GRID`], 2^-31, whereas the elements of residual
//! streams are about one and are rounded to 2^-9 (bf16) or 2^-12 (f16) of themselves.

use crate::elements::{Elements, ElementsMut};
#[cfg(target_arch = "x86_64")]
use crate::integer::avx512;
use crate::integer::{self, GROUPS_PER_TERM_MAX, InputColumns, Prepared};
use crate::matmul::{Matrix, RowProducts, for_pieces, multiply_in_f32};
use crate::panel::{Activations, Columns};
use crate::simd::Simd;
use crate::threads::Threads;

/// Terms are rounded to multiples of this.
pub const GRID: f64 = 1.0 / (1_u64 << 30) as f64;

/// Every f64 near this one is a multiple of [`GRID`], because that is the value of its last bit: a
/// sum that starts here rounds everything added to it.
pub(crate) const ANCHOR: f64 = 1.5 * (1_u64 << 52) as f64 * GRID;

/// Factor for terms. It exceeds one by so little that it only breaks ties, away from zero.
/// Otherwise the sum to which a term is added would break them.
pub(crate) const AWAY: f64 = 1.0 + f64::EPSILON;

/// Destination for the results of a row of activations.
pub(crate) trait Results: Sized + Send {
    /// Type of a result.
    type Value: Copy + Default;

    /// How terms are combined into a result if products are computed in f32.
    type Fold: Fold<Value = Self::Value>;

    /// Sums of sixteen terms at a time.
    #[cfg(target_arch = "x86_64")]
    type Lanes16: avx512::Sums<Value = Self::Value>;

    /// Whether results are partial sums on the grid.
    const IS_DIVISIBLE: bool;

    /// Returns `on_grid` if results are on the grid, otherwise `plain`.
    fn choose(plain: f32, on_grid: f64) -> Self::Value;

    /// Two views: the first `mid` results and the others.
    fn split_at(self, mid: usize) -> (Self, Self);

    /// Writes results from `start` on.
    fn store(&mut self, start: usize, values: &[Self::Value]);
}

impl Results for ElementsMut<'_> {
    type Value = f32;
    type Fold = Only;
    #[cfg(target_arch = "x86_64")]
    type Lanes16 = std::arch::x86_64::__m512;

    const IS_DIVISIBLE: bool = false;

    #[inline(always)]
    fn choose(plain: f32, _on_grid: f64) -> f32 {
        plain
    }

    fn split_at(self, mid: usize) -> (Self, Self) {
        ElementsMut::split_at(self, mid)
    }

    #[inline(always)]
    fn store(&mut self, start: usize, values: &[f32]) {
        ElementsMut::store(self, start, values);
    }
}

impl Results for &mut [f64] {
    type Value = f64;
    type Fold = GridSum;
    #[cfg(target_arch = "x86_64")]
    type Lanes16 = avx512::OnGrid;

    const IS_DIVISIBLE: bool = true;

    #[inline(always)]
    fn choose(_plain: f32, on_grid: f64) -> f64 {
        on_grid
    }

    fn split_at(self, mid: usize) -> (Self, Self) {
        self.split_at_mut(mid)
    }

    #[inline(always)]
    fn store(&mut self, start: usize, values: &[f64]) {
        self[start..start + values.len()].copy_from_slice(values);
    }
}

/// Combines terms into a result.
pub(crate) trait Fold: Copy {
    /// Type of a result.
    type Value;

    /// The state without any term.
    const EMPTY: Self;

    fn add(&mut self, term: f32);

    fn value(self) -> Self::Value;
}

/// A result that consists of a single term.
#[derive(Clone, Copy)]
pub(crate) struct Only(f32);

impl Fold for Only {
    type Value = f32;

    const EMPTY: Only = Only(0.0);

    #[inline(always)]
    fn add(&mut self, term: f32) {
        self.0 = term;
    }

    #[inline(always)]
    fn value(self) -> f32 {
        self.0
    }
}

/// A sum of terms on the grid.
#[derive(Clone, Copy)]
pub(crate) struct GridSum(f64);

impl Fold for GridSum {
    type Value = f64;

    const EMPTY: GridSum = GridSum(ANCHOR);

    #[inline(always)]
    fn add(&mut self, term: f32) {
        self.0 += f64::from(term) * AWAY;
    }

    #[inline(always)]
    fn value(self) -> f64 {
        self.0 - ANCHOR
    }
}

/// Adds the lanes of each vector ([`Simd::sum`]), and the sums to one result each.
#[inline(always)]
pub(crate) fn add_terms<S: Simd, F: Fold>(simd: S, terms: &[S::Floats], results: &mut [F]) {
    let (fours, last) = terms.as_chunks::<4>();
    let (four_results, last_results) = results.as_chunks_mut::<4>();
    for (terms, results) in fours.iter().zip(four_results) {
        for (result, term) in results.iter_mut().zip(simd.sum_four(*terms)) {
            result.add(term);
        }
    }
    for (term, result) in last.iter().zip(last_results) {
        result.add(simd.sum(*term));
    }
}

/// `out[tokens, matrix.out] = x[tokens, matrix.input] · matrixᵀ` for a part of the columns of a
/// product. The sum of the parts' results in f64, in any order, has the same bits as the result for
/// all columns (see the module).
///
/// Every part begins at a multiple of `chunk` columns. `chunk` is the same for all parts, and a
/// multiple of the group size if the weights are packed. It is the number of columns of a term if the
/// product is computed in f32; otherwise, terms divide it.
///
/// Activations are rounded as by [`crate::matmul_each`], except that a value that cannot be rounded
/// affects only its group.
///
/// # Panics
/// If a length does not fit, or the format is not one of MLX's.
#[track_caller]
pub fn divisible_matmul(
    x: Elements<'_>,
    matrix: &Matrix<'_>,
    chunk: usize,
    out: &mut [f64],
    threads: &Threads,
) {
    let is_quantized = matrix.format().is_some();
    let name = if is_quantized { "quantized_matmul" } else { "matmul" };
    let _span = threads.span(name, matrix.bytes());
    matrix.assert_valid();
    let group_size = matrix.format().map_or(1, |format| format.group_size as usize);
    assert!(0 < chunk && chunk.is_multiple_of(group_size), "terms of whole groups");
    let (num_rows, input) = (matrix.num_rows(), matrix.input());
    if input == 0 || num_rows == 0 {
        return out.fill(0.0);
    }
    let tokens = x.len() / input;
    assert_eq!(x.len(), tokens * input, "activations: whole rows of {input}");
    assert_eq!(out.len(), tokens * num_rows, "results of {tokens} tokens for {num_rows} rows");
    if tokens == 0 {
        return;
    }
    match matrix {
        Matrix::Quantized(w) if integer::is_supported(x.float(), w, threads.instructions()) => {
            let groups_per_term = groups_per_term(chunk / group_size);
            let columns = InputColumns::Divided { groups_per_term };
            let prepared = Prepared::new(x, w, columns, threads);
            let views = out.chunks_exact_mut(num_rows).collect();
            let product = RowProducts { matrix: *matrix, out: views };
            for_pieces(vec![product], threads, |_, rows, out| prepared.multiply_rows(w, rows, out));
            for (token, group) in prepared.unrounded_groups() {
                let first = group * group_size;
                let x = x.part(token * input + first..token * input + first + group_size);
                let columns = Columns { range: first..first + group_size, chunk: group_size };
                let mut terms = vec![0.0; num_rows];
                let product = RowProducts { matrix: *matrix, out: vec![&mut terms[..]] };
                multiply_in_f32(&Activations::new(x, columns, threads), vec![product], threads);
                let sums = &mut out[token * num_rows..][..num_rows];
                sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
            }
        }
        _ => {
            let views = out.chunks_exact_mut(num_rows).collect();
            let product = RowProducts { matrix: *matrix, out: views };
            let x = Activations::new(x, Columns { range: 0..input, chunk }, threads);
            multiply_in_f32(&x, vec![product], threads);
        }
    }
}

/// Number of groups of a term whose chunk has `chunk_groups` groups: a power of two that divides it.
fn groups_per_term(chunk_groups: usize) -> usize {
    (1 << chunk_groups.trailing_zeros()).min(GROUPS_PER_TERM_MAX)
}
