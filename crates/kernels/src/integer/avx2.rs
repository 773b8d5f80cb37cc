//! Whole-number products with `vpmaddwd`: sixteen products of 16 bits, added by twos into eight lanes, never saturated.
//!
//! The codes of some weight rows are unpacked to bytes, which stay in the first-level cache for all tokens.
#![expect(unsafe_code, reason = "calling and loading for a detected instruction set")]
#![expect(
    clippy::needless_range_loop,
    reason = "indices name tokens, rows and groups alike, and iterators' closures would be compiled without the set"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::rounding::Rounded;
use super::{E2M1, SUMS};
use crate::elements::ElementsMut;
use crate::quant::{QuantMatrix, QuantMode, Scales};
use crate::simd::Avx2;
use crate::unpack::scale_value;

/// Weight rows that are unpacked together.
const BLOCK_ROWS: usize = 16;

/// Weight rows and tokens whose sums are in registers together.
const ROWS: usize = 4;
const TOKENS: usize = 2;

/// Columns of a multiplication.
const LANES: usize = 16;

/// Declares functions compiled for the set.
macro_rules! for_avx2 {
    ($($item:item)*) => {
        $(
            #[target_feature(enable = "avx2,fma,f16c,bmi2")]
            $item
        )*
    };
}

/// See [`super::Prepared::multiply_rows`].
pub(super) fn multiply_rows(
    x: &Rounded,
    matrix: &QuantMatrix<'_>,
    rows: Range<usize>,
    out: &mut [ElementsMut<'_>],
) {
    let Avx2 { .. } = Avx2::detect().expect("`Threads` asserts its set");
    let is_signed = matrix.format.mode != QuantMode::Affine;
    // SAFETY: just detected.
    unsafe {
        match (is_signed, matrix.format.group_size) {
            (false, 32) => multiply::<2, false>(x, matrix, rows, out),
            (false, 64) => multiply::<4, false>(x, matrix, rows, out),
            (false, _) => multiply::<8, false>(x, matrix, rows, out),
            (true, 16) => multiply::<1, true>(x, matrix, rows, out),
            (true, _) => multiply::<2, true>(x, matrix, rows, out),
        }
    }
}

/// Unpacked rows.
struct Block {
    /// `[BLOCK_ROWS, input]`.
    codes: Vec<u8>,
    /// `[BLOCK_ROWS, padded_groups]`, zeros beyond the last group.
    scales: Vec<f32>,
    biases: Vec<f32>,
}

/// Sums `[TOKENS, ROWS]`.
type Sums = [[f32; ROWS]; TOKENS];

for_avx2! {
    /// A group has `STEPS` times [`LANES`] columns.
    fn multiply<const STEPS: usize, const SIGNED: bool>(
        x: &Rounded,
        matrix: &QuantMatrix<'_>,
        rows: Range<usize>,
        out: &mut [ElementsMut<'_>],
    ) {
        let mut block = Block {
            codes: vec![0; BLOCK_ROWS * x.input],
            scales: vec![0.0; BLOCK_ROWS * x.padded_groups],
            biases: vec![0.0; BLOCK_ROWS * x.padded_groups],
        };
        for start in rows.clone().step_by(BLOCK_ROWS) {
            let num_rows = BLOCK_ROWS.min(rows.end - start);
            for row in 0..num_rows {
                unpack_row(matrix, start + row, &mut block.codes[row * x.input..][..x.input]);
                load_scales(x, matrix, (start, row), &mut block);
            }
            for (pair, out) in out.chunks_mut(TOKENS).enumerate() {
                let mut results = [[0.0; BLOCK_ROWS]; TOKENS];
                for row in (0..num_rows).step_by(ROWS) {
                    // Rows beyond the last are computed from what is there and not stored.
                    let token = pair * TOKENS;
                    let sums = match out.len() {
                        1 => some_rows::<STEPS, SIGNED, 1>(x, &block, token, row),
                        _ => some_rows::<STEPS, SIGNED, TOKENS>(x, &block, token, row),
                    };
                    for t in 0..TOKENS {
                        results[t][row..][..ROWS].copy_from_slice(&sums[t]);
                    }
                }
                for (out, results) in out.iter_mut().zip(&results) {
                    out.store(start - rows.start, &results[..num_rows]);
                }
            }
        }
    }

    /// `T` tokens with [`ROWS`] rows of the block.
    #[inline]
    fn some_rows<const STEPS: usize, const SIGNED: bool, const T: usize>(
        x: &Rounded,
        block: &Block,
        token: usize,
        row: usize,
    ) -> Sums {
        const HALF: usize = SUMS / 2;
        let num_groups = x.num_groups();
        assert!(num_groups * STEPS * LANES == x.input, "whole groups");
        assert!((token + T) * x.input <= x.values.len(), "values of the tokens");
        assert!((row + ROWS) * x.input <= block.codes.len(), "codes of the rows");
        // SAFETY: within what was asserted.
        let (codes, values) = unsafe {
            (block.codes.as_ptr().add(row * x.input), x.values.as_ptr().add(token * x.input))
        };
        let mut sums = [[[_mm256_setzero_ps(); 2]; ROWS]; T];
        for first in (0..num_groups).step_by(HALF) {
            let mut lanes = [[[_mm256_setzero_si256(); HALF]; ROWS]; T];
            for group in first..(first + HALF).min(num_groups) {
                let mut products = [[_mm256_setzero_si256(); ROWS]; T];
                for step in 0..STEPS {
                    let column = (group * STEPS + step) * LANES;
                    let mut weights = [_mm256_setzero_si256(); ROWS];
                    for r in 0..ROWS {
                        // SAFETY: sixteen columns of a row that was asserted to be there.
                        let bytes =
                            unsafe { _mm_loadu_si128(codes.add(r * x.input + column).cast()) };
                        weights[r] = if SIGNED {
                            _mm256_cvtepi8_epi16(bytes)
                        } else {
                            _mm256_cvtepu8_epi16(bytes)
                        };
                    }
                    for t in 0..T {
                        // SAFETY: sixteen columns of a token that was asserted to be there.
                        let values =
                            unsafe { _mm256_loadu_si256(values.add(t * x.input + column).cast()) };
                        for r in 0..ROWS {
                            let product = _mm256_madd_epi16(weights[r], values);
                            products[t][r] = _mm256_add_epi32(products[t][r], product);
                        }
                    }
                }
                for t in 0..T {
                    for r in 0..ROWS {
                        lanes[t][r][group - first] = products[t][r];
                    }
                }
            }
            for t in 0..T {
                let groups = (token + t) * x.padded_groups + first;
                let units = load(&x.groups.units[groups..][..HALF]);
                let x_sums = load(&x.groups.sums[groups..][..HALF]);
                for r in 0..ROWS {
                    let weights = (row + r) * x.padded_groups + first;
                    let product = _mm256_cvtepi32_ps(sum_groups(&lanes[t][r]));
                    let factors =
                        _mm256_mul_ps(load(&block.scales[weights..][..HALF]), units);
                    let sum = &mut sums[t][r][first / HALF % 2];
                    *sum = _mm256_fmadd_ps(product, factors, *sum);
                    if !SIGNED {
                        let biases = load(&block.biases[weights..][..HALF]);
                        *sum = _mm256_fmadd_ps(biases, x_sums, *sum);
                    }
                }
            }
        }
        let mut results = [[0.0; ROWS]; TOKENS];
        for t in 0..T {
            for r in 0..ROWS {
                results[t][r] = total(sums[t][r]);
            }
        }
        results
    }

    /// The sums of eight groups, whose eight lanes each are a register, in order.
    #[inline]
    fn sum_groups(lanes: &[__m256i; 8]) -> __m256i {
        let [a, b, c, d, e, f, g, h] = *lanes;
        // Each half of these has a half of the sums of four groups.
        let low = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
        let high = _mm256_hadd_epi32(_mm256_hadd_epi32(e, f), _mm256_hadd_epi32(g, h));
        _mm256_add_epi32(
            _mm256_permute2x128_si256::<0x20>(low, high),
            _mm256_permute2x128_si256::<0x31>(low, high),
        )
    }

    /// As `super::total`.
    #[inline]
    fn total([low, high]: [__m256; 2]) -> f32 {
        let eight = _mm256_add_ps(low, high);
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }

    #[inline]
    fn load(values: &[f32]) -> __m256 {
        assert!(values.len() == 8);
        // SAFETY: eight values.
        unsafe { _mm256_loadu_ps(values.as_ptr()) }
    }

    /// The codes of a row, one a byte; those of E2M1 signed and doubled.
    fn unpack_row(matrix: &QuantMatrix<'_>, row: usize, codes: &mut [u8]) {
        let row_words = matrix.format.words_per_row(matrix.input);
        let words = &matrix.words[row * row_words..][..row_words];
        match (matrix.format.mode, matrix.format.bits) {
            (QuantMode::Affine, 4) => unpack_nibbles::<false>(words, codes),
            (QuantMode::Affine, 2) => unpack_bits::<2>(words, codes),
            (QuantMode::Affine, 3) => unpack_bits::<3>(words, codes),
            (QuantMode::Affine, 5) => unpack_bits::<5>(words, codes),
            (QuantMode::Affine, 6) => unpack_bits::<6>(words, codes),
            (QuantMode::Affine, _) => unpack_bits::<8>(words, codes),
            _ => unpack_nibbles::<true>(words, codes),
        }
    }

    /// Sixteen bytes at a time; a last half of that by itself.
    #[inline]
    fn unpack_nibbles<const E2M1_CODES: bool>(words: &[u32], codes: &mut [u8]) {
        let low = _mm_set1_epi8(15);
        // SAFETY: the table is a register.
        let table = unsafe { _mm_loadu_si128(E2M1.as_ptr().cast()) };
        let (units, rest) = words.as_chunks::<4>();
        let (codes, rest_codes) = codes.as_chunks_mut::<32>();
        for (unit, codes) in units.iter().zip(codes) {
            prefetch(unit);
            // SAFETY: four words are a register, and the codes are two.
            unsafe {
                let packed = _mm_loadu_si128(unit.as_ptr().cast());
                let mut even = _mm_and_si128(packed, low);
                let mut odd = _mm_and_si128(_mm_srli_epi16::<4>(packed), low);
                if E2M1_CODES {
                    even = _mm_shuffle_epi8(table, even);
                    odd = _mm_shuffle_epi8(table, odd);
                }
                let to = codes.as_mut_ptr();
                _mm_storeu_si128(to.cast(), _mm_unpacklo_epi8(even, odd));
                _mm_storeu_si128(to.add(16).cast(), _mm_unpackhi_epi8(even, odd));
            }
        }
        for (word, codes) in rest.iter().zip(rest_codes.as_chunks_mut::<8>().0) {
            for (idx, code) in codes.iter_mut().enumerate() {
                let nibble = (word >> (4 * idx)) as usize & 15;
                *code = if E2M1_CODES { E2M1[nibble].cast_unsigned() } else { nibble as u8 };
            }
        }
    }

    /// Thirty-two codes are `BITS` whole words; eight are `BITS` bytes.
    #[inline]
    fn unpack_bits<const BITS: usize>(words: &[u32], codes: &mut [u8]) {
        let mask = u64::MAX / 255 * ((1 << BITS) - 1);
        for (words, codes) in words.as_chunks::<BITS>().0.iter().zip(codes.as_chunks_mut::<32>().0) {
            prefetch(words);
            for (eight, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                // Eight codes begin so early in a word that two words have all of them.
                let bit = eight * 8 * BITS;
                let high = words.get(bit / 32 + 1).map_or(0, |word| u64::from(*word));
                let packed = (high << 32 | u64::from(words[bit / 32])) >> (bit % 32);
                *codes = _pdep_u64(packed, mask).to_le_bytes();
            }
        }
    }

    /// Asks for memory further on; see `avx512`.
    #[inline]
    fn prefetch(words: &[u32]) {
        const AHEAD_BYTES: usize = 4096;
        _mm_prefetch::<_MM_HINT_T1>(words.as_ptr().cast::<i8>().wrapping_add(AHEAD_BYTES));
    }
}

/// Scales and biases of the `row`-th row of the block.
fn load_scales(
    x: &Rounded,
    matrix: &QuantMatrix<'_>,
    (start, row): (usize, usize),
    block: &mut Block,
) {
    let num_groups = x.num_groups();
    let first_group = (start + row) * num_groups;
    let scales = &mut block.scales[row * x.padded_groups..][..num_groups];
    match matrix.scales {
        Scales::Elements(from) => from.load(first_group, scales),
        Scales::Bytes(from) => {
            for (scale, code) in scales.iter_mut().zip(&from[first_group..]) {
                *scale = scale_value(matrix.format.mode, *code);
            }
        }
    }
    if let Some(from) = matrix.biases {
        from.load(first_group, &mut block.biases[row * x.padded_groups..][..num_groups]);
    }
}
