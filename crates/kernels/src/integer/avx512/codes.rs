//! Packed codes to registers of bytes, and scales to registers of f32.

use std::arch::asm;
use std::arch::x86_64::*;

use super::{LINE, for_avx512};
use crate::elements::Elements;
use crate::integer::E2M1_OFFSET;
use crate::quant::{QuantMode, Scales};

/// Which bytes to load.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    pub(super) from: *const u8,
    /// How many may be read; what is beyond is zero.
    pub(super) len: usize,
    /// How far ahead memory is asked for.
    pub(super) ahead: usize,
}

/// How a format's codes become unsigned bytes.
///
/// The unit is a step: [`Codes::LOADS`] runs of packed bytes, each of which gives [`Codes::SPLIT`] registers of 64
/// columns. Every group of a step has the same number of 32-bit lanes in each register, the first group the first lanes.
pub(super) trait Codes {
    /// Loads of a step.
    const LOADS: usize = 1;
    /// Registers that a load is split into, up to four.
    const SPLIT: usize;
    /// Packed bytes of a load, up to 64.
    const LOAD_BYTES: usize;
    /// Registers of a step, up to four.
    const REGISTERS: usize = Self::LOADS * Self::SPLIT;
    /// Whether [`Codes::split`] leaves every code in its byte, so that lanes may change places before it.
    const STAYS_IN_BYTES: bool = true;
    /// What was added to every code.
    const OFFSET: i32 = 0;

    /// Which column of a step is in a byte of a register.
    fn column(register: usize, byte: usize) -> usize;

    /// # Safety
    /// The machine has the set, and `packed.len` bytes can be read.
    unsafe fn load(packed: Packed) -> __m512i;

    /// The registers of a load; only the first [`Codes::SPLIT`] count.
    ///
    /// # Safety
    /// The machine has the set.
    unsafe fn split(load: __m512i) -> [__m512i; 4];
}

for_avx512! {}

/// The bytes for [`spread`], where the eight codes of a lane begin in the column `columns[lane]`. Bytes beyond the last
/// are not used.
const fn spread_bytes(bits: usize, columns: [usize; 8]) -> [u8; LINE] {
    let mut bytes = [0; LINE];
    let mut idx = 0;
    while idx < LINE {
        bytes[idx] = ((columns[idx / 8] / 8 * bits + idx % 8) % LINE) as u8;
        idx += 1;
    }
    bytes
}

/// Affine codes of two or four bits: register `r` has field `r` of every byte.
pub(super) struct Fields<const BITS: usize>;

impl<const BITS: usize> Codes for Fields<BITS> {
    const SPLIT: usize = 8 / BITS;
    const LOAD_BYTES: usize = LINE;

    #[inline(always)]
    fn column(register: usize, byte: usize) -> usize {
        byte * Self::SPLIT + register
    }

    #[inline(always)]
    unsafe fn load(packed: Packed) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { load_bytes::<LINE>(packed) }
    }

    #[inline(always)]
    unsafe fn split(load: __m512i) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe { split_fields::<BITS>(load) }
    }
}

/// E2M1 codes.
pub(super) struct SignedNibbles;

impl Codes for SignedNibbles {
    const SPLIT: usize = 2;
    const LOAD_BYTES: usize = LINE;
    const OFFSET: i32 = E2M1_OFFSET;

    #[inline(always)]
    fn column(register: usize, byte: usize) -> usize {
        byte * 2 + register
    }

    #[inline(always)]
    unsafe fn load(packed: Packed) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { load_bytes::<LINE>(packed) }
    }

    #[inline(always)]
    unsafe fn split(load: __m512i) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe { look_up_nibbles(load) }
    }
}

/// Affine codes of three bits: each half of each group of `GROUP` in a register of its own.
pub(super) struct Threes<const GROUP: usize>;

impl<const GROUP: usize> Codes for Threes<GROUP> {
    const SPLIT: usize = 2;
    const LOAD_BYTES: usize = 48;
    const STAYS_IN_BYTES: bool = false;

    #[inline(always)]
    fn column(register: usize, byte: usize) -> usize {
        let half = GROUP / 2;
        byte / half * GROUP + register * half + byte % half
    }

    #[inline(always)]
    unsafe fn load(packed: Packed) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { load_bytes::<48>(packed) }
    }

    #[inline(always)]
    unsafe fn split(load: __m512i) -> [__m512i; 4] {
        let (first, second) = const {
            // Eight codes never reach from one half of a group into the other.
            let (mut first, mut second) = ([0; 8], [0; 8]);
            let mut lane = 0;
            while lane < 8 {
                first[lane] = lane * 8 / (GROUP / 2) * GROUP + lane * 8 % (GROUP / 2);
                second[lane] = first[lane] + GROUP / 2;
                lane += 1;
            }
            (&{ spread_bytes(3, first) }, &{ spread_bytes(3, second) })
        };
        // SAFETY: the caller's promise.
        let (first, second) = unsafe { (spread::<3>(load, first), spread::<3>(load, second)) };
        [first, second, first, second]
    }
}

/// Affine codes of five, six or eight bits, in the order of columns.
pub(super) struct Wide<const BITS: usize, const LOADS: usize>;

impl<const BITS: usize, const LOADS: usize> Codes for Wide<BITS, LOADS> {
    const LOADS: usize = LOADS;
    const SPLIT: usize = 1;
    const LOAD_BYTES: usize = 8 * BITS;
    const STAYS_IN_BYTES: bool = BITS == 8;

    #[inline(always)]
    fn column(register: usize, byte: usize) -> usize {
        register * LINE + byte
    }

    #[inline(always)]
    unsafe fn load(packed: Packed) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            match BITS {
                5 => load_bytes::<40>(packed),
                6 => load_bytes::<48>(packed),
                8 => load_bytes::<LINE>(packed),
                _ => unreachable!("no such width"),
            }
        }
    }

    #[inline(always)]
    unsafe fn split(load: __m512i) -> [__m512i; 4] {
        let bytes = const { &{ spread_bytes(BITS, [0, 8, 16, 24, 32, 40, 48, 56]) } };
        // SAFETY: the caller's promise.
        let codes = if BITS == 8 { load } else { unsafe { spread::<BITS>(load, bytes) } };
        [codes; 4]
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

/// # Safety
/// `packed.len` bytes can be read.
#[inline(always)]
pub(super) unsafe fn load_bytes<const BYTES: usize>(packed: Packed) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let Packed { from, len, ahead } = packed;
        _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(ahead).cast());
        // Bytes beyond those of the load are not used, and a mask would cost more than they do.
        if len >= LINE {
            return _mm512_loadu_si512(from.cast());
        }
        let mask = if len >= BYTES { u64::MAX >> (LINE - BYTES) } else { (1 << len) - 1 };
        _mm512_maskz_loadu_epi8(mask, from.cast())
    }
}

/// Fields of `BITS` bits, 64 to a register: the first has the lowest field of every byte.
///
/// # Safety
/// The machine has the set.
#[inline(always)]
unsafe fn split_fields<const BITS: usize>(load: __m512i) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let mask = _mm512_set1_epi8((1 << BITS) - 1);
        let mut registers = [_mm512_and_si512(load, mask); 4];
        if BITS == 4 {
            registers[1] = _mm512_and_si512(_mm512_srli_epi16::<4>(load), mask);
        } else {
            registers[1] = _mm512_and_si512(_mm512_srli_epi16::<2>(load), mask);
            registers[2] = _mm512_and_si512(_mm512_srli_epi16::<4>(load), mask);
            registers[3] = _mm512_and_si512(_mm512_srli_epi16::<6>(load), mask);
        }
        registers
    }
}

/// E2M1 codes as twice their value plus [`E2M1_OFFSET`].
///
/// # Safety
/// The machine has the set.
#[inline(always)]
unsafe fn look_up_nibbles(load: __m512i) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
        let table = _mm512_broadcast_i32x4(table);
        let [even, odd, ..] = split_fields::<4>(load);
        let (even, odd) = (_mm512_shuffle_epi8(table, even), _mm512_shuffle_epi8(table, odd));
        [even, odd, even, odd]
    }
}

/// 64 codes of `BITS` bits, of which eight are `BITS` bytes: `bytes` puts these into a 64-bit lane, where they are
/// shifted.
///
/// # Safety
/// The machine has the set.
#[inline(always)]
unsafe fn spread<const BITS: usize>(packed: __m512i, bytes: &'static [u8; LINE]) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let shifts = const {
            let mut shifts = [0_u8; LINE];
            let mut idx = 0;
            while idx < LINE {
                shifts[idx] = (idx % 8 * BITS) as u8;
                idx += 1;
            }
            &{ shifts }
        };
        let (bytes, shifts) =
            (_mm512_loadu_si512(bytes.as_ptr().cast()), _mm512_loadu_si512(shifts.as_ptr().cast()));
        let mask = _mm512_set1_epi8(((1_u32 << BITS) - 1) as i8);
        _mm512_and_si512(multishift(shifts, permute(bytes, packed)), mask)
    }
}

for_avx512! {
    /// `_mm512_permutexvar_epi8`, for a machine with VBMI in a function that is compiled for those without, too.
    #[inline]
    fn permute(bytes: __m512i, from: __m512i) -> __m512i {
        let to;
        // SAFETY: only formats that `is_supported` says the machine can unpack get here.
        unsafe {
            asm!(
                "vpermb {to}, {bytes}, {from}",
                to = lateout(zmm_reg) to, bytes = in(zmm_reg) bytes, from = in(zmm_reg) from,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        to
    }

    /// `_mm512_multishift_epi64_epi8`; see [`permute`].
    #[inline]
    fn multishift(shifts: __m512i, from: __m512i) -> __m512i {
        let to;
        // SAFETY: as in `permute`.
        unsafe {
            asm!(
                "vpmultishiftqb {to}, {shifts}, {from}",
                to = lateout(zmm_reg) to, shifts = in(zmm_reg) shifts, from = in(zmm_reg) from,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        to
    }
}
