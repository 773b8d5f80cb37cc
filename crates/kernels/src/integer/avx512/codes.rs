//! Packed codes to registers of bytes, and scales to registers of f32.

use std::arch::x86_64::*;

use super::{LINE, for_avx512};
use crate::elements::Elements;
use crate::integer::E2M1_OFFSET;
use crate::quant::{QuantMode, Scales};

/// How far ahead of a load memory is asked for.
///
/// On Zen 4, asking for the second-level cache and exactly 4096 bytes ahead gave 22 GB/s, the first-level cache 12
/// (its few miss buffers wait for memory), and 2 or 8 KiB ahead 13.
pub(super) const PREFETCH_BYTES: usize = 4096;

/// Which bytes to load.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    pub(super) from: *const u8,
    /// How many may be read at most; what is beyond is zero.
    pub(super) len: usize,
    /// How far ahead memory is asked for.
    pub(super) ahead: usize,
}

/// How a format's codes become unsigned bytes.
///
/// The unit is a step: [`Codes::LOADS`] runs of packed bytes, each of which gives [`Codes::SPLIT`] registers.
pub(super) trait Codes {
    /// Loads of a step.
    const LOADS: usize;
    /// Registers that a load is split into. With two, the first has the even columns and the second the odd ones.
    const SPLIT: usize;
    /// Packed bytes of a load.
    const LOAD_BYTES: usize;
    /// Registers of a step, one or two, of 64 columns each.
    const REGISTERS: usize = Self::LOADS * Self::SPLIT;
    /// What was added to every code.
    const OFFSET: i32;

    /// # Safety
    /// The machine has the set, and `min(packed.len, LOAD_BYTES)` bytes can be read.
    unsafe fn load(packed: Packed) -> __m512i;

    /// The registers of a load; the second counts only if `SPLIT` is two.
    ///
    /// # Safety
    /// The machine has the set.
    unsafe fn split(load: __m512i) -> [__m512i; 2];
}

for_avx512! {
    /// # Safety
    /// `min(packed.len, BYTES)` bytes can be read.
    #[inline]
    pub(super) unsafe fn load_bytes<const BYTES: usize>(packed: Packed) -> __m512i {
        let Packed { from, len, ahead } = packed;
        _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(ahead).cast());
        if BYTES == LINE && len >= LINE {
            // SAFETY: the caller's promise.
            return unsafe { _mm512_loadu_si512(from.cast()) };
        }
        let mask = if len >= BYTES { u64::MAX >> (LINE - BYTES) } else { (1 << len) - 1 };
        // SAFETY: the caller's promise, for the bytes of the mask.
        unsafe { _mm512_maskz_loadu_epi8(mask, from.cast()) }
    }

    #[inline]
    fn split_nibbles(load: __m512i) -> [__m512i; 2] {
        let low = _mm512_set1_epi8(15);
        [_mm512_and_si512(load, low), _mm512_and_si512(_mm512_srli_epi16::<4>(load), low)]
    }

    /// E2M1 codes as twice their value plus [`E2M1_OFFSET`].
    #[inline]
    fn look_up_nibbles(load: __m512i) -> [__m512i; 2] {
        let table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
        let table = _mm512_broadcast_i32x4(table);
        let [even, odd] = split_nibbles(load);
        [_mm512_shuffle_epi8(table, even), _mm512_shuffle_epi8(table, odd)]
    }

    /// 64 codes of `BITS` bits: eight codes are `BITS` bytes, which go to one 64-bit lane and are shifted there.
    #[inline]
    fn spread<const BITS: usize>(packed: __m512i) -> __m512i {
        let bytes = const {
            let mut bytes = [0_u8; LINE];
            let mut idx = 0;
            while idx < LINE {
                // Bytes beyond the last are not used.
                let byte = idx / 8 * BITS + idx % 8;
                bytes[idx] = if byte < LINE { byte as u8 } else { 0 };
                idx += 1;
            }
            bytes
        };
        let shifts = const {
            let mut shifts = [0_u8; LINE];
            let mut idx = 0;
            while idx < LINE {
                shifts[idx] = (idx % 8 * BITS) as u8;
                idx += 1;
            }
            shifts
        };
        // SAFETY: the arrays are as large as a register.
        let (bytes, shifts) = unsafe {
            (_mm512_loadu_si512(bytes.as_ptr().cast()), _mm512_loadu_si512(shifts.as_ptr().cast()))
        };
        let lanes = _mm512_permutexvar_epi8(bytes, packed);
        let mask = _mm512_set1_epi8(((1_u32 << BITS) - 1) as i8);
        _mm512_and_si512(_mm512_multishift_epi64_epi8(shifts, lanes), mask)
    }
}

/// Affine codes of four bits.
pub(super) struct Nibbles;

impl Codes for Nibbles {
    const LOADS: usize = 1;
    const SPLIT: usize = 2;
    const LOAD_BYTES: usize = LINE;
    const OFFSET: i32 = 0;

    #[inline(always)]
    unsafe fn load(packed: Packed) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { load_bytes::<LINE>(packed) }
    }

    #[inline(always)]
    unsafe fn split(load: __m512i) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { split_nibbles(load) }
    }
}

/// E2M1 codes.
pub(super) struct SignedNibbles;

impl Codes for SignedNibbles {
    const LOADS: usize = 1;
    const SPLIT: usize = 2;
    const LOAD_BYTES: usize = LINE;
    const OFFSET: i32 = E2M1_OFFSET;

    #[inline(always)]
    unsafe fn load(packed: Packed) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { load_bytes::<LINE>(packed) }
    }

    #[inline(always)]
    unsafe fn split(load: __m512i) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { look_up_nibbles(load) }
    }
}

/// Affine codes of any width, in the order of columns.
pub(super) struct Wide<const BITS: usize, const LOADS: usize>;

impl<const BITS: usize, const LOADS: usize> Codes for Wide<BITS, LOADS> {
    const LOADS: usize = LOADS;
    const SPLIT: usize = 1;
    const LOAD_BYTES: usize = 8 * BITS;
    const OFFSET: i32 = 0;

    #[inline(always)]
    unsafe fn load(packed: Packed) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            match BITS {
                2 => spread::<2>(load_bytes::<16>(packed)),
                3 => spread::<3>(load_bytes::<24>(packed)),
                5 => spread::<5>(load_bytes::<40>(packed)),
                6 => spread::<6>(load_bytes::<48>(packed)),
                8 => load_bytes::<LINE>(packed),
                _ => unreachable!("no such width"),
            }
        }
    }

    #[inline(always)]
    unsafe fn split(load: __m512i) -> [__m512i; 2] {
        [load, load]
    }
}

for_avx512! {
    /// The scales from `start` on, up to sixteen, as f32; zeros from `len` on.
    #[inline]
    pub(super) fn load_scales(
        scales: &Scales<'_>,
        mode: QuantMode,
        start: usize,
        len: usize,
    ) -> __m512 {
        match scales {
            Scales::Elements(elements) => load_elements(elements, start, len),
            Scales::Bytes(bytes) => {
                let len = len.min(16);
                let bytes = &bytes[start..start + len];
                // SAFETY: as many bytes as the mask has bits.
                let bytes = unsafe { _mm_maskz_loadu_epi8(first(len), bytes.as_ptr().cast()) };
                let codes = _mm512_cvtepu8_epi32(bytes);
                // Zero lanes must stay zero, though the code zero of E8M0 is a power of two.
                let values = if mode == QuantMode::Nvfp4 { e4m3(codes) } else { e8m0(codes) };
                _mm512_maskz_mov_ps(first(len), values)
            }
        }
    }

    /// Elements from `start` on, up to sixteen, as f32; zeros from `len` on.
    #[inline]
    pub(super) fn load_elements(elements: &Elements<'_>, start: usize, len: usize) -> __m512 {
        let len = len.min(16);
        let mask = first(len);
        // SAFETY: the slices have as many elements as the mask has bits.
        unsafe {
            match elements {
                Elements::F32(values) => {
                    _mm512_maskz_loadu_ps(mask, values[start..start + len].as_ptr())
                }
                Elements::F16(values) => {
                    let values = values[start..start + len].as_ptr().cast();
                    _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, values))
                }
                Elements::Bf16(values) => {
                    let values = values[start..start + len].as_ptr().cast();
                    let halves = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, values));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
                }
            }
        }
    }

    /// A mask of the first `len` lanes, up to sixteen.
    #[inline]
    fn first(len: usize) -> u16 {
        ((1_u32 << len) - 1) as u16
    }

    /// See `unpack::e8m0`.
    #[inline]
    fn e8m0(codes: __m512i) -> __m512 {
        let is_zero = _mm512_testn_epi32_mask(codes, codes);
        let values = _mm512_slli_epi32::<23>(codes);
        _mm512_castsi512_ps(_mm512_mask_mov_epi32(values, is_zero, _mm512_set1_epi32(1 << 22)))
    }

    /// See `simd::e4m3`.
    #[inline]
    fn e4m3(codes: __m512i) -> __m512 {
        let magnitude = _mm512_and_si512(codes, _mm512_set1_epi32(0x7f));
        let normal =
            _mm512_add_epi32(_mm512_slli_epi32::<20>(magnitude), _mm512_set1_epi32(120 << 23));
        let subnormal = _mm512_mul_ps(_mm512_cvtepi32_ps(magnitude), _mm512_set1_ps(1.0 / 512.0));
        let is_subnormal = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(8));
        let value = _mm512_mask_mov_epi32(normal, is_subnormal, _mm512_castps_si512(subnormal));
        let is_nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
        let value = _mm512_mask_mov_epi32(value, is_nan, _mm512_set1_epi32(-1));
        let sign = _mm512_slli_epi32::<24>(_mm512_sub_epi32(codes, magnitude));
        _mm512_castsi512_ps(_mm512_or_si512(value, sign))
    }
}
