//! Sums of sixteen terms at a time.
#![expect(unsafe_code, reason = "calling the intrinsics of a detected instruction set")]

use std::arch::x86_64::*;

use super::{ANCHOR, AWAY, TERM_LEVELS};

/// The sixteen partial sums of a result of few rows.
pub(crate) trait Sums: Copy {
    /// Type of a result.
    type Value: Copy + Default;

    /// Sixteen empty sums.
    ///
    /// # Safety
    /// The processor supports this module's instruction set; this applies to all functions here.
    unsafe fn none() -> Self;

    /// Adds `product * factor + bias * x_sum` of sixteen groups: to one sum each, or as `terms`.
    ///
    /// # Safety
    /// As for [`Sums::none`].
    unsafe fn add(
        self,
        product: __m512,
        factors: [__m512; 2],
        x_sums: __m512,
        terms: Terms,
    ) -> Self;

    /// Computes the totals of sixteen times sixteen partial sums.
    ///
    /// # Safety
    /// As for [`Sums::none`].
    unsafe fn totals(sums: &[Self; 16]) -> [Self::Value; 16];
}

impl Sums for __m512 {
    type Value = f32;

    #[inline(always)]
    unsafe fn none() -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn add(
        self,
        product: __m512,
        [factors, biases]: [__m512; 2],
        x_sums: __m512,
        _terms: Terms,
    ) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_fmadd_ps(biases, x_sums, _mm512_fmadd_ps(product, factors, self)) }
    }

    #[inline(always)]
    unsafe fn totals(sums: &[__m512; 16]) -> [f32; 16] {
        let mut totals = [0.0; 16];
        // SAFETY: the caller's promise; sixteen values.
        unsafe { _mm512_storeu_ps(totals.as_mut_ptr(), add_partial_sums(sums)) };
        totals
    }
}

/// Masks of the lanes that are added to get the terms of sixteen groups of a divided product.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// All lanes, or none, for terms of at least two, four and eight groups.
    levels: [__mmask16; TERM_LEVELS],
    /// The lanes of the first groups of the terms.
    first: __mmask16,
}

impl Terms {
    pub(crate) fn new(groups_per_term: usize) -> Terms {
        let mut levels = [0; TERM_LEVELS];
        levels[..groups_per_term.ilog2() as usize].fill(__mmask16::MAX);
        let first = (0..16).step_by(groups_per_term).fold(0, |lanes, lane| lanes | 1 << lane);
        Terms { levels, first }
    }

    /// The terms, each in the lane of its first group; zeros in the other lanes.
    ///
    /// # Safety
    /// The processor supports this module's instruction set.
    #[inline(always)]
    unsafe fn of(self, groups: __m512) -> __m512 {
        let [two, four, eight] = self.levels;
        // SAFETY: the caller's promise.
        unsafe {
            let other = _mm512_permute_ps::<0b10_11_00_01>(groups);
            let twos = _mm512_mask_add_ps(groups, two, groups, other);
            let other = _mm512_permute_ps::<0b01_00_11_10>(twos);
            let fours = _mm512_mask_add_ps(twos, four, twos, other);
            let other = _mm512_shuffle_f32x4::<0b10_11_00_01>(fours, fours);
            let eights = _mm512_mask_add_ps(fours, eight, fours, other);
            _mm512_maskz_mov_ps(self.first, eights)
        }
    }
}

/// Sums on the grid; see [`crate::divisible`].
#[derive(Clone, Copy)]
pub(crate) struct OnGrid([__m512d; 2]);

impl OnGrid {
    /// Adds one term to each sum.
    ///
    /// # Safety
    /// The processor supports this module's instruction set.
    #[inline(always)]
    pub(crate) unsafe fn plus(self, terms: __m512) -> OnGrid {
        let OnGrid([low_sums, high_sums]) = self;
        // SAFETY: the caller's promise.
        unsafe {
            let away = _mm512_set1_pd(AWAY);
            let low = _mm512_cvtps_pd(_mm512_castps512_ps256(terms));
            let high = _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(terms));
            OnGrid([_mm512_fmadd_pd(low, away, low_sums), _mm512_fmadd_pd(high, away, high_sums)])
        }
    }

    /// The sums without the anchor that they started from.
    ///
    /// # Safety
    /// The processor supports this module's instruction set.
    #[inline(always)]
    unsafe fn halves(self) -> [__m512d; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let anchor = _mm512_set1_pd(ANCHOR);
            [_mm512_sub_pd(self.0[0], anchor), _mm512_sub_pd(self.0[1], anchor)]
        }
    }

    /// The sixteen sums.
    ///
    /// # Safety
    /// The processor supports this module's instruction set.
    #[inline(always)]
    pub(crate) unsafe fn values(self) -> [f64; 16] {
        let mut values = [0.0; 16];
        // SAFETY: the caller's promise; twice eight values.
        unsafe {
            let [low, high] = self.halves();
            _mm512_storeu_pd(values.as_mut_ptr(), low);
            _mm512_storeu_pd(values.as_mut_ptr().add(8), high);
        }
        values
    }
}

impl Sums for OnGrid {
    type Value = f64;

    #[inline(always)]
    unsafe fn none() -> OnGrid {
        // SAFETY: the caller's promise.
        unsafe { OnGrid([_mm512_set1_pd(ANCHOR); 2]) }
    }

    #[inline(always)]
    unsafe fn add(
        self,
        product: __m512,
        [factors, biases]: [__m512; 2],
        x_sums: __m512,
        terms: Terms,
    ) -> OnGrid {
        // SAFETY: the caller's promise.
        unsafe {
            let groups = _mm512_fmadd_ps(biases, x_sums, _mm512_mul_ps(product, factors));
            self.plus(terms.of(groups))
        }
    }

    #[inline(always)]
    unsafe fn totals(sums: &[OnGrid; 16]) -> [f64; 16] {
        let mut totals = [0.0; 16];
        for idx in 0..16 {
            // SAFETY: the caller's promise.
            unsafe {
                let [low, high] = sums[idx].halves();
                totals[idx] = _mm512_reduce_add_pd(_mm512_add_pd(low, high));
            }
        }
        totals
    }
}

/// Adds the partial sums of each of sixteen results, halves onto halves.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_partial_sums(sums: &[__m512; 16]) -> __m512 {
    let mut fours = [_mm512_setzero_ps(); 4];
    for k in 0..4 {
        let (low, high) = (add_halves(sums[k], sums[4 + k]), add_halves(sums[8 + k], sums[12 + k]));
        // In part `p`, the four sums of row `4 p + k`.
        fours[k] = _mm512_add_ps(
            _mm512_shuffle_f32x4::<0b10_00_10_00>(low, high),
            _mm512_shuffle_f32x4::<0b11_01_11_01>(low, high),
        );
    }
    let (even, odd) = (add_pairs(fours[0], fours[1]), add_pairs(fours[2], fours[3]));
    _mm512_add_ps(
        _mm512_shuffle_ps::<0b10_00_10_00>(even, odd),
        _mm512_shuffle_ps::<0b11_01_11_01>(even, odd),
    )
}

/// Adds the halves of `a` to each other, and those of `b`: eight sums of each.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_halves(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(
        _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
        _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
    )
}

/// Adds lanes of `a` in pairs, and those of `b`: two sums of each in each part of 128 bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_pairs(a: __m512, b: __m512) -> __m512 {
    let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
    let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
    _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
}
