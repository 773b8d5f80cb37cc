//! Scales and biases of a row of weights, as f32.

use std::arch::x86_64::*;
use std::ops::Range;

use half::{bf16, f16};
use jackalope_simd::{Elements, QuantMatrix, QuantMode, Scales};

use super::for_avx2;

/// Number of groups whose scales or sums fill a register.
pub(super) const GROUPS: usize = 8;

/// Scales and biases of a row, `[padded_groups]`, with zeros for the padding of groups.
pub(super) struct RowScales {
    pub(super) scales: Vec<f32>,
    pub(super) biases: Vec<f32>,
}

impl RowScales {
    /// Those of a row that has zeros only.
    pub(super) fn new(padded_groups: usize) -> RowScales {
        RowScales { scales: vec![0.0; padded_groups], biases: vec![0.0; padded_groups] }
    }
}

for_avx2! {
    /// Loads the scales and biases of a row of `num_groups` groups.
    #[inline]
    pub(super) fn load_scales(
        matrix: &QuantMatrix<'_>,
        row: usize,
        num_groups: usize,
        RowScales { scales, biases }: &mut RowScales,
    ) {
        let groups = row * num_groups..(row + 1) * num_groups;
        match &matrix.scales {
            Scales::Elements(from) => load_elements(from, groups.clone(), scales),
            Scales::Bytes(from) if matrix.format.mode == QuantMode::Nvfp4 => {
                load::<E4m3>(from, groups.clone(), scales);
            }
            Scales::Bytes(from) => load::<E8m0>(from, groups.clone(), scales),
        }
        if let Some(from) = &matrix.biases {
            load_elements(from, groups, biases);
        }
    }

    #[inline]
    fn load_elements(from: &Elements<'_>, groups: Range<usize>, to: &mut [f32]) {
        match from {
            Elements::Bf16(from) => load::<bf16>(from, groups, to),
            Elements::F16(from) => load::<f16>(from, groups, to),
            Elements::F32(from) => load::<f32>(from, groups, to),
        }
    }

    /// Loads the scales of `groups`; zeros follow them.
    #[inline]
    fn load<S: Scale>(from: &[S::Code], groups: Range<usize>, to: &mut [f32]) {
        let (whole, rest) = from[groups.clone()].as_chunks::<GROUPS>();
        let to = to.as_chunks_mut::<GROUPS>().0;
        for (to, codes) in to.iter_mut().zip(whole) {
            // SAFETY: the machine has the instruction set for which this is compiled; `to` has
            // eight values.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), S::convert(*codes)) };
        }
        if rest.is_empty() {
            return;
        }
        let codes = match from[groups.end - rest.len()..].first_chunk() {
            // Those of the next row are among them.
            Some(codes) => *codes,
            None => {
                let mut codes = [S::Code::default(); GROUPS];
                codes[..rest.len()].copy_from_slice(rest);
                codes
            }
        };
        let to = &mut to[whole.len()];
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), first(S::convert(codes), rest.len())) };
    }
}

/// A format of scales.
trait Scale {
    type Code: Copy + Default;

    /// # Safety
    /// The machine must have the instruction set.
    unsafe fn convert(codes: [Self::Code; GROUPS]) -> __m256;
}

impl Scale for bf16 {
    type Code = bf16;

    #[inline(always)]
    unsafe fn convert(codes: [bf16; GROUPS]) -> __m256 {
        // SAFETY: the caller's promise; eight halves are half a register.
        unsafe {
            let halves = _mm_loadu_si128(codes.as_ptr().cast());
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
        }
    }
}

impl Scale for f16 {
    type Code = f16;

    #[inline(always)]
    unsafe fn convert(codes: [f16; GROUPS]) -> __m256 {
        // SAFETY: the caller's promise; eight halves are half a register.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(codes.as_ptr().cast())) }
    }
}

impl Scale for f32 {
    type Code = f32;

    #[inline(always)]
    unsafe fn convert(codes: [f32; GROUPS]) -> __m256 {
        // SAFETY: the caller's promise; eight values are a register.
        unsafe { _mm256_loadu_ps(codes.as_ptr()) }
    }
}

/// As [`jackalope_simd::e8m0`].
struct E8m0;

impl Scale for E8m0 {
    type Code = u8;

    #[inline(always)]
    unsafe fn convert(codes: [u8; GROUPS]) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            let codes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(codes)));
            let is_zero = _mm256_cmpeq_epi32(codes, _mm256_setzero_si256());
            let least = _mm256_and_si256(is_zero, _mm256_set1_epi32(1 << 22));
            _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32::<23>(codes), least))
        }
    }
}

/// As [`jackalope_simd::e4m3`]: an f16 with the same mantissa has an exponent larger by eight.
struct E4m3;

impl Scale for E4m3 {
    type Code = u8;

    #[inline(always)]
    unsafe fn convert(codes: [u8; GROUPS]) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            let codes = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(i64::from_le_bytes(codes)));
            let magnitudes = _mm_and_si128(codes, _mm_set1_epi16(0x7f));
            let halves = _mm256_cvtph_ps(_mm_slli_epi16::<7>(magnitudes));
            let values = _mm256_mul_ps(halves, _mm256_set1_ps(256.0));
            let is_nan = _mm_cmpeq_epi16(magnitudes, _mm_set1_epi16(0x7f));
            let is_nan = _mm256_castsi256_ps(_mm256_cvtepi16_epi32(is_nan));
            let values = _mm256_blendv_ps(values, _mm256_set1_ps(f32::NAN), is_nan);
            let signs = _mm256_slli_epi32::<24>(_mm256_cvtepu16_epi32(_mm_andnot_si128(
                _mm_set1_epi16(0x7f),
                codes,
            )));
            _mm256_or_ps(values, _mm256_castsi256_ps(signs))
        }
    }
}

/// The first `len` lanes, and zeros.
///
/// # Safety
/// The machine must have the instruction set.
#[inline(always)]
unsafe fn first(lanes: __m256, len: usize) -> __m256 {
    if len == GROUPS {
        return lanes;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let indices = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let is_first = _mm256_cmpgt_epi32(_mm256_set1_epi32(len as i32), indices);
        _mm256_and_ps(lanes, _mm256_castsi256_ps(is_first))
    }
}
