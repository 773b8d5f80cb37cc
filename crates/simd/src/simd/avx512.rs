//! x86-64 with AVX-512: vectors of sixteen lanes, and its integer dot products.
#![expect(unsafe_code, reason = "calling the intrinsics of a detected instruction set")]

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Avx2, InstructionSet, Simd, Wide};

/// Proof that the machine has AVX-512 F, BW, DQ, VL and VNNI, and what [`Avx2`] proves: only
/// [`Avx512::detect`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Avx512 {
    avx2: Avx2,
}

impl Avx512 {
    /// Returns the proof if the machine has the features.
    #[inline]
    pub fn detect() -> Option<Avx512> {
        let avx2 = Avx2::detect()?;
        let has_all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        has_all.then_some(Avx512 { avx2 })
    }
}

impl Wide for Avx512 {
    type Narrow = Avx2;
    type Floats = __m512;

    const INSTRUCTIONS: InstructionSet = InstructionSet::Avx512;
    const LANES: usize = 16;

    #[inline(always)]
    fn load_f32(self, from: &[f32]) -> __m512 {
        let from: &[f32; 16] = from.first_chunk().expect("a whole vector");
        // SAFETY: `self` proves AVX-512 F; the reference covers sixteen f32.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16]) -> __m512 {
        let from: &[bf16; 16] = from.first_chunk().expect("a whole vector");
        // SAFETY: `self` proves AVX-512 F; the reference covers sixteen halves.
        unsafe {
            let halves = _mm256_loadu_si256(from.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16]) -> __m512 {
        let from: &[f16; 16] = from.first_chunk().expect("a whole vector");
        // SAFETY: `self` proves AVX-512 F; the reference covers sixteen halves.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn store(self, values: __m512, to: &mut [f32]) {
        let to: &mut [f32; 16] = to.first_chunk_mut().expect("a whole vector");
        // SAFETY: `self` proves AVX-512 F; the reference covers sixteen f32.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), values) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: `self` proves AVX-512 F.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512 F.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn load_bf16_pair(self, from: &[bf16]) -> [__m512; 2] {
        let from: &[bf16; 32] = from.first_chunk().expect("two whole vectors");
        // SAFETY: `self` proves AVX-512 F; the reference covers thirty-two halves.
        unsafe {
            let halves = _mm512_loadu_si512(from.as_ptr().cast());
            let even = _mm512_slli_epi32::<16>(halves);
            let odd = _mm512_and_si512(halves, _mm512_set1_epi32(!0xffff));
            [_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd)]
        }
    }

    #[inline(always)]
    fn split_pair(self, [first, second]: [__m512; 2]) -> [__m512; 2] {
        // SAFETY: `self` proves AVX-512 F.
        unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
            [
                _mm512_permutex2var_ps(first, even, second),
                _mm512_permutex2var_ps(first, odd, second),
            ]
        }
    }

    #[inline(always)]
    fn join_pair(self, [even, odd]: [__m512; 2]) -> [__m512; 2] {
        // SAFETY: `self` proves AVX-512 F.
        unsafe {
            let first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
            [_mm512_permutex2var_ps(even, first, odd), _mm512_permutex2var_ps(even, second, odd)]
        }
    }

    #[inline(always)]
    fn prefetch_soon<T>(self, from: &T) {
        self.avx2.prefetch(from, 0);
    }
}
