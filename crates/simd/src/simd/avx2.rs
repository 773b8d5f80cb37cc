//! x86-64 with AVX2, FMA and F16C.
#![expect(unsafe_code, reason = "calling the intrinsics of a detected instruction set")]

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{InstructionSet, LANES, Lanes, Simd, code_shifts};

/// Proof that the machine has AVX2, FMA, F16C and BMI2: only [`Avx2::detect`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// Returns the proof if the machine has the features.
    #[inline]
    pub fn detect() -> Option<Avx2> {
        let has_all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi2");
        has_all.then_some(Avx2(()))
    }
}

/// Shift counts as a vector.
#[inline]
#[target_feature(enable = "avx2")]
fn shifts<const BITS: usize>() -> __m256i {
    let [a, b, c, d, e, f, g, h] = const { code_shifts(BITS) }.map(u32::cast_signed);
    _mm256_setr_epi32(a, b, c, d, e, f, g, h)
}

impl Simd for Avx2 {
    type Floats = __m256;
    type Codes = __m256i;

    const INSTRUCTIONS: InstructionSet = InstructionSet::Avx2;

    #[inline(always)]
    fn mul_add_scalar(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn load(self, from: &Lanes) -> __m256 {
        // SAFETY: `self` proves AVX; the reference covers eight f32.
        unsafe { _mm256_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, values: __m256, to: &mut Lanes) {
        // SAFETY: `self` proves AVX; the reference covers eight f32.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), values) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        // SAFETY: `self` proves AVX.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> __m256 {
        // SAFETY: `self` proves AVX2; the reference covers eight halves.
        unsafe {
            let halves = _mm_loadu_si128(from.as_ptr().cast());
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
        }
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> __m256 {
        // SAFETY: `self` proves F16C; the reference covers eight halves.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn prefetch<T>(self, from: &T, offset: usize) {
        let address = std::ptr::from_ref(from).cast::<i8>().wrapping_add(offset);
        // SAFETY: SSE is in the baseline, and a prefetch of memory that does not exist does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address) }
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves AVX.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: `self` proves FMA.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn sum(self, values: __m256) -> f32 {
        // SAFETY: `self` proves AVX.
        unsafe {
            let four =
                _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps::<1>(values));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn sum_four(self, [a, b, c, d]: [__m256; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        // SAFETY: `self` proves AVX; four f32.
        unsafe {
            // Four partial sums of one vector in the lower half, and of another in the upper half.
            let ac =
                _mm256_add_ps(_mm256_blend_ps::<0xf0>(a, c), _mm256_permute2f128_ps::<0x21>(a, c));
            let bd =
                _mm256_add_ps(_mm256_blend_ps::<0xf0>(b, d), _mm256_permute2f128_ps::<0x21>(b, d));
            let crossed = _mm256_shuffle_pd::<0b0101>(_mm256_castps_pd(ac), _mm256_castps_pd(bd));
            let twos =
                _mm256_add_ps(_mm256_blend_ps::<0b1100_1100>(ac, bd), _mm256_castpd_ps(crossed));
            let (ab, cd) = (_mm256_castps256_ps128(twos), _mm256_extractf128_ps::<1>(twos));
            let total = _mm_add_ps(
                _mm_shuffle_ps::<0b10_00_10_00>(ab, cd),
                _mm_shuffle_ps::<0b11_01_11_01>(ab, cd),
            );
            _mm_storeu_ps(sums.as_mut_ptr(), total);
        }
        sums
    }

    #[inline(always)]
    fn codes<const BITS: usize>(self, low: u32, high: u32) -> __m256i {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let low = _mm256_set1_epi32(low.cast_signed());
            let pieces = if BITS <= 4 {
                low
            } else {
                _mm256_blend_epi32::<0xf0>(low, _mm256_set1_epi32(high.cast_signed()))
            };
            let mask = _mm256_set1_epi32((1 << BITS) - 1);
            _mm256_and_si256(_mm256_srlv_epi32(pieces, shifts::<BITS>()), mask)
        }
    }

    #[inline(always)]
    fn to_floats(self, codes: __m256i) -> __m256 {
        // SAFETY: `self` proves AVX.
        unsafe { _mm256_cvtepi32_ps(codes) }
    }

    #[inline(always)]
    fn look_up(self, table: &[f32; 16], codes: __m256i) -> __m256 {
        let ([low, high], _) = table.as_chunks() else { unreachable!("sixteen are twice eight") };
        let (low, high) = (self.load(low), self.load(high));
        // SAFETY: `self` proves AVX2.
        unsafe {
            let low = _mm256_permutevar8x32_ps(low, codes);
            let high = _mm256_permutevar8x32_ps(high, codes);
            // The blend looks at the sign, where the shift puts the code's fourth bit.
            let is_high = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
            _mm256_blendv_ps(low, high, is_high)
        }
    }

    #[inline(always)]
    fn e4m3(self, low: u32, high: u32) -> __m256 {
        let packed = u64::from(high) << 32 | u64::from(low);
        // SAFETY: `self` proves AVX2 and F16C.
        unsafe {
            let codes = _mm_cvtepi8_epi16(_mm_cvtsi64_si128(packed.cast_signed()));
            let max = _mm_set1_epi16(0x7f);
            let is_nan = _mm_cmpeq_epi16(_mm_and_si128(codes, max), max);
            // A half has one more bit of exponent, with a bias that is larger by eight: sign, zero, code.
            let halves = _mm_and_si128(_mm_slli_epi16::<7>(codes), _mm_set1_epi16(!0x4000));
            // All bits set is not a number.
            let values = _mm256_cvtph_ps(_mm_or_si128(halves, is_nan));
            _mm256_mul_ps(values, _mm256_set1_ps(256.0))
        }
    }
}
