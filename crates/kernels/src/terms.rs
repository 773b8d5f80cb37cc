//! The terms of a sum, and how they become a result: a single term, or a sum of terms on a grid; see
//! [`crate::divisible_matmul`].

use jackalope_simd::{ElementsMut, Simd};

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;

/// Terms are rounded to multiples of this number.
pub const GRID: f64 = 1.0 / (1_u64 << 30) as f64;

/// Every f64 near this one is a multiple of [`GRID`], because that is the value of its last bit: a
/// sum that starts here rounds everything added to it.
pub(crate) const ANCHOR: f64 = 1.5 * (1_u64 << 52) as f64 * GRID;

/// Factor for terms. It exceeds one by so little that it only breaks ties, away from zero.
/// Otherwise the sum to which a term is added would break them.
pub(crate) const AWAY: f64 = 1.0 + f64::EPSILON;

/// Maximum number of groups of a term of a divided product.
pub(crate) const GROUPS_PER_TERM_MAX: usize = 8;

/// Number of additions, each of two halves, by which the groups of the longest term become one sum.
#[cfg(target_arch = "x86_64")]
pub(crate) const TERM_LEVELS: usize = GROUPS_PER_TERM_MAX.ilog2() as usize;

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

    /// Splits the destination into the first `mid` results and the others.
    fn split_at(self, mid: usize) -> (Self, Self);

    /// Writes results from `start` on; sums on the grid are added to what is there.
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
        let sums = self[start..start + values.len()].iter_mut();
        sums.zip(values).for_each(|(sum, value)| *sum += value);
    }
}

/// Combines terms into a result.
pub(crate) trait Fold: Copy {
    /// Type of a result.
    type Value: Copy + Default;

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

/// Adds up the lanes of each vector of `terms` ([`Simd::sum`]), and adds the sum to its result.
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
