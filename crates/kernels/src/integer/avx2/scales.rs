//! Scales and biases of groups, as f32.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use jackalope_simd::{Elements, QuantMatrix, QuantMode, Scales};

/// Number of groups whose scales or sums fill a register.
pub(super) const GROUPS: usize = 8;

/// Location of the scales, or of the biases, of groups.
#[derive(Clone, Copy)]
pub(super) struct GroupValues {
    codes: *const u8,
    kind: Kind,
    code_bytes: usize,
}

/// The format of scales or biases. It is the same in all groups of a matrix, so the processor predicts
/// the branches that depend on it.
#[derive(Clone, Copy)]
enum Kind {
    /// Biases of a matrix that has none.
    Zeros,
    Bf16,
    F16,
    F32,
    E8m0,
    E4m3,
}

impl GroupValues {
    /// The scales of a matrix.
    pub(super) fn scales(matrix: &QuantMatrix<'_>) -> GroupValues {
        match &matrix.scales {
            Scales::Elements(scales) => GroupValues::elements(scales),
            Scales::Bytes(scales) => {
                let is_nvfp4 = matrix.format.mode == QuantMode::Nvfp4;
                let kind = if is_nvfp4 { Kind::E4m3 } else { Kind::E8m0 };
                GroupValues { codes: scales.as_ptr(), kind, code_bytes: 1 }
            }
        }
    }

    /// The biases of a matrix.
    pub(super) fn biases(matrix: &QuantMatrix<'_>) -> GroupValues {
        let none = GroupValues { codes: std::ptr::null(), kind: Kind::Zeros, code_bytes: 0 };
        matrix.biases.as_ref().map_or(none, GroupValues::elements)
    }

    fn elements(elements: &Elements<'_>) -> GroupValues {
        let (codes, kind, code_bytes) = match elements {
            Elements::Bf16(it) => (it.as_ptr().cast(), Kind::Bf16, 2),
            Elements::F16(it) => (it.as_ptr().cast(), Kind::F16, 2),
            Elements::F32(it) => (it.as_ptr().cast(), Kind::F32, 4),
        };
        GroupValues { codes, kind, code_bytes }
    }

    /// Whether a matrix has the scales and biases of this many groups.
    pub(super) fn has(matrix: &QuantMatrix<'_>, num_groups: usize) -> bool {
        let num_scales = match &matrix.scales {
            Scales::Elements(scales) => scales.len(),
            Scales::Bytes(scales) => scales.len(),
        };
        num_groups <= num_scales && matrix.biases.is_none_or(|it| num_groups <= it.len())
    }

    /// Those of the groups after the first `num_groups`.
    #[inline(always)]
    pub(super) fn skip(self, num_groups: usize) -> GroupValues {
        GroupValues { codes: self.codes.wrapping_add(num_groups * self.code_bytes), ..self }
    }

    /// The values of eight groups.
    ///
    /// # Safety
    /// The machine must have the instruction set, and the groups must be there.
    #[inline(always)]
    pub(super) unsafe fn eight(self) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            match self.kind {
                Kind::Bf16 => from_bf16(self.codes),
                Kind::F16 => from_f16(self.codes),
                Kind::F32 => _mm256_loadu_ps(self.codes.cast()),
                Kind::Zeros => _mm256_setzero_ps(),
                Kind::E8m0 => from_e8m0(self.codes),
                Kind::E4m3 => from_e4m3(self.codes),
            }
        }
    }

    /// The values of the first `len` of eight groups, and zeros. With `is_end`, only these groups
    /// are read.
    ///
    /// # Safety
    /// The machine must have the instruction set, and the groups that are read must be there.
    #[inline(always)]
    pub(super) unsafe fn first(self, len: usize, is_end: bool) -> __m256 {
        let mut copy: MaybeUninit<[u8; 4 * GROUPS]> = MaybeUninit::uninit();
        let mut from = self;
        if is_end {
            // SAFETY: the caller's promise.
            from.codes = unsafe { copy_codes(self.codes, len * self.code_bytes, &mut copy) };
        }
        // SAFETY: the caller's promise; the copy has eight codes.
        unsafe {
            let indices = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let is_first = _mm256_cmpgt_epi32(_mm256_set1_epi32(len as i32), indices);
            _mm256_and_ps(from.eight(), _mm256_castsi256_ps(is_first))
        }
    }
}

/// Copies the last bytes of an array into a larger one of zeros.
///
/// # Safety
/// `num_bytes`, `N` at most, must be at `codes`.
#[cold]
pub(super) unsafe fn copy_codes<const N: usize>(
    codes: *const u8,
    num_bytes: usize,
    copy: &mut MaybeUninit<[u8; N]>,
) -> *const u8 {
    let copy = copy.write([0; N]);
    // SAFETY: the caller's promise.
    unsafe { codes.copy_to_nonoverlapping(copy.as_mut_ptr(), num_bytes) };
    copy.as_ptr()
}

/// # Safety
/// The machine must have the instruction set, and eight values must be there.
#[inline(always)]
unsafe fn from_bf16(codes: *const u8) -> __m256 {
    // SAFETY: the caller's promise; eight halves are half a register.
    unsafe {
        let halves = _mm_loadu_si128(codes.cast());
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
    }
}

/// # Safety
/// The machine must have the instruction set, and eight values must be there.
#[inline(always)]
unsafe fn from_f16(codes: *const u8) -> __m256 {
    // SAFETY: the caller's promise; eight halves are half a register.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(codes.cast())) }
}

/// As [`jackalope_simd::e8m0`].
///
/// # Safety
/// The machine must have the instruction set, and eight codes must be there.
#[inline(always)]
unsafe fn from_e8m0(codes: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(codes.cast()));
        let is_zero = _mm256_cmpeq_epi32(codes, _mm256_setzero_si256());
        let least = _mm256_and_si256(is_zero, _mm256_set1_epi32(1 << 22));
        _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32::<23>(codes), least))
    }
}

/// As [`jackalope_simd::e4m3`]: an f16 with the same mantissa has an exponent larger by eight.
///
/// # Safety
/// The machine must have the instruction set, and eight codes must be there.
#[inline(always)]
unsafe fn from_e4m3(codes: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let codes = _mm_cvtepu8_epi16(_mm_loadl_epi64(codes.cast()));
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
