//! Unpacks codes to registers of 16-bit integers.

use std::arch::x86_64::*;

use jackalope_simd::E2M1_INTEGERS;

use super::LANES;

/// Layout of a format's unpacked codes: column `REGISTERS * l + r` of a load is in lane `l` of
/// register `r`.
pub(super) trait Codes {
    /// Number of registers of a load, up to eight.
    const REGISTERS: usize;
    /// Number of packed bytes of a load.
    const LOAD_BYTES: usize;
    /// Number of bytes that a load reads; those after the packed bytes are not used.
    const READ_BYTES: usize = Self::LOAD_BYTES;

    /// # Safety
    /// The machine must have the instruction set, and [`Codes::READ_BYTES`] can be read.
    unsafe fn load(from: *const u8) -> [__m256i; 8];
}

/// Affine codes of two, four or eight bits: register `r` has field `r` of every 16 bits.
pub(super) struct Fields<const BITS: usize>;

impl<const BITS: usize> Codes for Fields<BITS> {
    const REGISTERS: usize = 16 / BITS;
    const LOAD_BYTES: usize = 32;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> [__m256i; 8] {
        // SAFETY: the caller's promise.
        unsafe {
            let mask = _mm256_set1_epi16((1 << BITS) - 1);
            let mut registers = [_mm256_loadu_si256(from.cast()); 8];
            for r in 0..Self::REGISTERS {
                let shift = _mm_cvtsi32_si128((r * BITS) as i32);
                let shifted = _mm256_srl_epi16(registers[r], shift);
                // The last field has nothing above it.
                let is_last = r + 1 == Self::REGISTERS;
                registers[r] = if is_last { shifted } else { _mm256_and_si256(shifted, mask) };
            }
            registers
        }
    }
}

/// E2M1 codes, doubled.
pub(super) struct SignedNibbles;

impl Codes for SignedNibbles {
    const REGISTERS: usize = 4;
    const LOAD_BYTES: usize = 32;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> [__m256i; 8] {
        // SAFETY: the caller's promise; the table is half a register.
        unsafe {
            let low = _mm256_set1_epi8(15);
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(E2M1_INTEGERS.as_ptr().cast()));
            let packed = _mm256_loadu_si256(from.cast());
            let odd = _mm256_and_si256(_mm256_srli_epi16::<4>(packed), low);
            let odd = _mm256_shuffle_epi8(table, odd);
            let even = _mm256_shuffle_epi8(table, _mm256_and_si256(packed, low));
            let mut registers = [even; 8];
            registers[0] = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(even));
            registers[1] = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(odd));
            registers[2] = _mm256_srai_epi16::<8>(even);
            registers[3] = _mm256_srai_epi16::<8>(odd);
            registers
        }
    }
}

/// Affine codes of three, five or six bits: each is brought into 16 bits with the byte behind it, and shifted there.
pub(super) struct Spread<const BITS: usize>;

impl<const BITS: usize> Codes for Spread<BITS> {
    const REGISTERS: usize = 1;
    const LOAD_BYTES: usize = 2 * BITS;
    const READ_BYTES: usize = 16;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> [__m256i; 8] {
        let (bytes, factors) = const {
            let (mut bytes, mut factors) = ([0_u8; 2 * LANES], [0_u16; LANES]);
            let mut lane = 0;
            while lane < LANES {
                bytes[2 * lane] = (lane * BITS / 8) as u8;
                bytes[2 * lane + 1] = (lane * BITS / 8 + 1) as u8;
                // Shifts the code to the highest bits.
                factors[lane] = 1 << (16 - BITS - lane * BITS % 8);
                lane += 1;
            }
            (&{ bytes }, &{ factors })
        };
        // SAFETY: the caller's promise; the arrays are as large as a register.
        unsafe {
            let bytes = _mm256_loadu_si256(bytes.as_ptr().cast());
            let factors = _mm256_loadu_si256(factors.as_ptr().cast());
            let packed = _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast()));
            let lanes = _mm256_mullo_epi16(_mm256_shuffle_epi8(packed, bytes), factors);
            [_mm256_srl_epi16(lanes, _mm_cvtsi32_si128(16 - BITS as i32)); 8]
        }
    }
}
