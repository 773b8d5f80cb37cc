//! Unpacks codes to registers of bytes, and scales to registers of f32.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use jackalope_simd::{E2M1_OFFSET, Elements, QuantMatrix, QuantMode, Scales};

use super::{LINE, for_avx512};

/// Location of the packed bytes to load.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    pub(super) from: *const u8,
    /// Number of bytes that may be read; later bytes become zero.
    pub(super) len: usize,
    /// Address to prefetch.
    pub(super) ahead: *const u8,
}

/// How a format's codes are unpacked to unsigned bytes.
///
/// The unit is a step: [`Codes::LOADS`] runs of packed bytes, each of which gives [`Codes::SPLIT`]
/// registers of 64 columns. Every group of a step has the same number of 32-bit lanes in each
/// register; the first group has the first lanes.
pub(super) trait Codes {
    /// Number of loads of a step.
    const LOADS: usize = 1;
    /// Number of registers into which a load is split, up to four.
    const SPLIT: usize;
    /// Number of packed bytes of a load, up to 64.
    const LOAD_BYTES: usize;
    /// Number of registers of a step, up to four.
    const REGISTERS: usize = Self::LOADS * Self::SPLIT;
    /// Whether [`Codes::split`] keeps every code in its byte, so that lanes may be permuted before
    /// it.
    const STAYS_IN_BYTES: bool = true;
    /// Whether a single token is computed with two rows at a time: faster if unpacking leaves
    /// enough registers.
    const PAIRS_ROWS: bool = true;
    /// Offset that was added to every code.
    const OFFSET: i32 = 0;

    /// Returns the column of a step that is in a byte of a register.
    fn column(register: usize, byte: usize) -> usize;

    /// # Safety
    /// The machine must have the instruction set, and `packed.len` bytes can be read.
    unsafe fn load(packed: Packed) -> __m512i;

    /// The registers of a load; only the first [`Codes::SPLIT`] count.
    ///
    /// # Safety
    /// The machine must have the instruction set.
    unsafe fn split(load: __m512i) -> [__m512i; 4];
}

for_avx512! {}

/// Returns the `bytes` for [`spread`]: for each byte of a register, the packed byte that it gets.
/// The eight codes of a lane begin at the column `columns[lane]`. Bytes of a lane after those of
/// its codes are not used.
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
    const PAIRS_ROWS: bool = BITS != 8;

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

/// Affine codes of three bits: one register has the first halves of all groups of `GROUP` columns,
/// another the second halves.
pub(super) struct Threes<const GROUP: usize>;

impl<const GROUP: usize> Codes for Threes<GROUP> {
    const SPLIT: usize = 2;
    const LOAD_BYTES: usize = 48;
    const STAYS_IN_BYTES: bool = false;
    const PAIRS_ROWS: bool = false;

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
    const PAIRS_ROWS: bool = BITS != 8;

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

/// Scales and biases of a matrix.
#[derive(Clone, Copy)]
pub(super) struct Factors {
    scales: FactorArray,
    /// Biases; if the format has none, a second copy of the scales.
    biases: FactorArray,
}

/// Scales or biases in memory.
#[derive(Clone, Copy)]
struct FactorArray {
    kind: FactorKind,
    from: *const u8,
}

#[derive(Clone, Copy)]
enum FactorKind {
    F32,
    F16,
    Bf16,
    E8m0,
    E4m3,
}

impl Factors {
    pub(super) fn of(matrix: &QuantMatrix<'_>) -> Factors {
        let len = matrix.out * matrix.format.groups_per_row(matrix.input);
        match (&matrix.scales, &matrix.biases) {
            (Scales::Elements(scales), Some(biases)) => {
                assert!(scales.len() == len && biases.len() == len, "scales and biases");
                Factors { scales: elements_from(scales), biases: elements_from(biases) }
            }
            (Scales::Bytes(bytes), None) => {
                assert_eq!(bytes.len(), len, "scales");
                let is_e4m3 = matrix.format.mode == QuantMode::Nvfp4;
                let kind = if is_e4m3 { FactorKind::E4m3 } else { FactorKind::E8m0 };
                let scales = FactorArray { kind, from: bytes.as_ptr() };
                Factors { scales, biases: scales }
            }
            _ => unreachable!("an affine matrix has float scales and biases, others have bytes"),
        }
    }

    /// `len` scales and biases from `start` on, up to sixteen, and all of them if `WHOLE`; else zeros follow.
    ///
    /// # Safety
    /// The machine must have the instruction set, and `len` factors must follow `start`.
    #[inline(always)]
    pub(super) unsafe fn load<C: Codes, const WHOLE: bool>(
        self,
        start: usize,
        len: usize,
    ) -> [__m512; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let mask = if WHOLE { u16::MAX } else { ((1_u32 << len) - 1) as u16 };
            let Factors { scales, biases } = self;
            if C::OFFSET != 0 {
                return [load_bytes_as_floats(scales, start, mask), _mm512_setzero_ps()];
            }
            [load_floats(scales, start, mask), load_floats(biases, start, mask)]
        }
    }
}

for_avx512! {
    /// Prefetches scales and biases.
    #[inline]
    pub(super) fn prefetch_factors(factors: Factors, range: Range<usize>) {
        for FactorArray { kind, from } in [factors.scales, factors.biases] {
            let bytes = match kind {
                FactorKind::F32 => 4,
                FactorKind::F16 | FactorKind::Bf16 => 2,
                FactorKind::E8m0 | FactorKind::E4m3 => 1,
            };
            for byte in (range.start * bytes..range.end * bytes).step_by(LINE) {
                _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(byte).cast());
            }
        }
    }
}

fn elements_from(elements: &Elements<'_>) -> FactorArray {
    let (kind, from) = match elements {
        Elements::F32(values) => (FactorKind::F32, values.as_ptr().cast()),
        Elements::F16(values) => (FactorKind::F16, values.as_ptr().cast()),
        Elements::Bf16(values) => (FactorKind::Bf16, values.as_ptr().cast()),
    };
    FactorArray { kind, from }
}

for_avx512! {
    /// Loads scales of the four-bit floats.
    ///
    /// # Safety
    /// The values selected by the mask must exist.
    #[inline]
    unsafe fn load_bytes_as_floats(
        FactorArray { kind, from }: FactorArray,
        start: usize,
        mask: u16,
    ) -> __m512 {
        // SAFETY: the caller's promise.
        let codes = unsafe { _mm_maskz_loadu_epi8(mask, from.add(start).cast()) };
        match kind {
            FactorKind::E4m3 => e4m3(codes),
            // Zero lanes must stay zero, though the code zero is a power of two.
            _ => _mm512_maskz_mov_ps(mask, e8m0(_mm512_cvtepu8_epi32(codes))),
        }
    }

    /// Loads affine scales or biases.
    ///
    /// # Safety
    /// The values selected by the mask must exist.
    #[inline]
    unsafe fn load_floats(
        FactorArray { kind, from }: FactorArray,
        start: usize,
        mask: u16,
    ) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            match kind {
                FactorKind::F32 => _mm512_maskz_loadu_ps(mask, from.cast::<f32>().add(start)),
                FactorKind::F16 => {
                    let halves = from.cast::<i16>().add(start);
                    _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, halves))
                }
                _ => {
                    let halves = from.cast::<i16>().add(start);
                    let halves = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, halves));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
                }
            }
        }
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
    fn e4m3(codes: __m128i) -> __m512 {
        // Moves sign, exponent and fraction to their places in f16, whose exponents are worth `2^8`
        // less.
        let bits = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(codes));
        let bits = _mm256_and_si256(bits, _mm256_set1_epi16(0xbf80_u16.cast_signed()));
        let magnitude = _mm256_and_si256(bits, _mm256_set1_epi16(0x3f80));
        let is_nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x3f80));
        let bits = _mm256_mask_mov_epi16(bits, is_nan, _mm256_set1_epi16(0x7e00));
        _mm512_mul_ps(_mm512_cvtph_ps(bits), _mm512_set1_ps(256.0))
    }
}

/// # Safety
/// `packed.len` bytes can be read.
#[inline(always)]
pub(super) unsafe fn load_bytes<const BYTES: usize>(packed: Packed) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let Packed { from, len, ahead } = packed;
        _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
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
/// The machine must have the instruction set.
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
/// The machine must have the instruction set.
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
/// The machine must have the instruction set.
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
    /// `_mm512_permutexvar_epi8` for machines with VBMI, in functions that are compiled for
    /// machines without VBMI too.
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
