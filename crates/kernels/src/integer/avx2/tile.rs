//! Products of many rows of activations: a tile of weights is unpacked once and used for all of
//! them.
//!
//! In a tile, a lane of 32 bits is a weight row: it holds the codes of two columns, so that a pair
//! of activations is broadcast to all lanes, and a group's sums end up in the same lanes as its
//! scales.

use std::arch::x86_64::*;
use std::ops::Range;

use jackalope_simd::{E2M1_INTEGERS, QuantMatrix, QuantMode, Scales, scale_value};

use super::{GridSums, LANES, add_terms, for_avx2, no_terms, on_grid};
use crate::integer::rounding::{Rounded, SUMS};
use crate::terms::{Results, TERM_LEVELS};

/// Number of rows of activations that are computed together.
const TOKENS: usize = 4;

/// Number of registers of weight rows that are computed together.
const REGISTERS: usize = 2;

/// Number of weight rows of a register.
const REGISTER_ROWS: usize = 8;

/// Number of weight rows of a tile.
const TILE_ROWS: usize = REGISTERS * REGISTER_ROWS;

/// Unpacked weights; each lane belongs to one weight row.
struct Tile {
    /// `[input / 2, REGISTERS]`.
    codes: Vec<__m256i>,
    /// `[groups, TILE_ROWS]`.
    scales: Vec<[f32; TILE_ROWS]>,
    biases: Vec<[f32; TILE_ROWS]>,
    /// Scratch memory for the codes of rows, `[TILE_ROWS, input]`.
    rows: Vec<u8>,
    /// Scratch memory for the scales of a row.
    row_scales: Vec<f32>,
}

for_avx2! {
    /// Computes all tokens with some weight rows.
    pub(super) fn multiply<R: Results>(
        x: &Rounded,
        matrix: &QuantMatrix<'_>,
        rows: Range<usize>,
        out: &mut [R],
    ) {
        let num_groups = x.num_groups();
        let mut tile = Tile {
            codes: vec![_mm256_setzero_si256(); x.input / 2 * REGISTERS],
            scales: vec![[0.0; TILE_ROWS]; num_groups],
            biases: vec![[0.0; TILE_ROWS]; num_groups],
            rows: vec![0; TILE_ROWS * x.input],
            row_scales: vec![0.0; num_groups],
        };
        for start in rows.clone().step_by(TILE_ROWS) {
            let num_rows = TILE_ROWS.min(rows.end - start);
            fill(matrix, start, num_rows, &mut tile);
            for (idx, out) in out.chunks_mut(TOKENS).enumerate() {
                let token = idx * TOKENS;
                let mut results = [[R::Value::default(); TILE_ROWS]; TOKENS];
                match out.len() {
                    1 => multiply_tile::<R, 1>(x, &tile, token, &mut results),
                    2 => multiply_tile::<R, 2>(x, &tile, token, &mut results),
                    3 => multiply_tile::<R, 3>(x, &tile, token, &mut results),
                    _ => multiply_tile::<R, 4>(x, &tile, token, &mut results),
                }
                for (out, results) in out.iter_mut().zip(&results) {
                    out.store(start - rows.start, &results[..num_rows]);
                }
            }
        }
    }

    /// The inner loops: `T` tokens with all rows of the tile.
    fn multiply_tile<R: Results, const T: usize>(
        x: &Rounded,
        tile: &Tile,
        token: usize,
        results: &mut [[R::Value; TILE_ROWS]; TOKENS],
    ) {
        let group_pairs = x.group_size / 2;
        let num_pairs = x.num_groups() * group_pairs;
        assert!((token + T) * x.input <= x.values.len(), "values of the tokens");
        assert!(num_pairs * 2 == x.input, "whole groups");
        assert!(num_pairs * REGISTERS <= tile.codes.len(), "codes of the tile");
        let values = x.values[token * x.input..].as_ptr();
        let mut sums = [[[_mm256_setzero_ps(); REGISTERS]; T]; SUMS];
        let mut grid_sums = [[no_terms(); REGISTERS]; T];
        let groups_per_term = x.columns.groups_per_term();
        // Sums of one, two and four groups, each of which waits for the other half of its term.
        let mut waiting = [[[_mm256_setzero_ps(); REGISTERS]; T]; TERM_LEVELS];
        for group in 0..x.num_groups() {
            let mut products = [[_mm256_setzero_si256(); REGISTERS]; T];
            for pair in group * group_pairs..(group + 1) * group_pairs {
                // SAFETY: `pair` is below `num_pairs`, for which both were checked to be long enough.
                let codes: [__m256i; REGISTERS] = unsafe {
                    let codes = tile.codes.as_ptr().add(pair * REGISTERS);
                    [*codes, *codes.add(1)]
                };
                for t in 0..T {
                    // SAFETY: as above.
                    let values = unsafe {
                        values.add(t * x.input + pair * 2).cast::<i32>().read_unaligned()
                    };
                    let values = _mm256_set1_epi32(values);
                    for r in 0..REGISTERS {
                        let product = _mm256_madd_epi16(codes[r], values);
                        products[t][r] = _mm256_add_epi32(products[t][r], product);
                    }
                }
            }
            let sums = &mut sums[group % SUMS];
            let term_place = group % groups_per_term;
            let num_waiting = term_place.trailing_ones() as usize;
            for t in 0..T {
                let at = (token + t) * x.padded_groups + group;
                let unit = _mm256_set1_ps(x.groups.units[at]);
                let x_sum = _mm256_set1_ps(x.groups.sums[at]);
                for r in 0..REGISTERS {
                    let factor = _mm256_mul_ps(load(&tile.scales[group], r), unit);
                    let product = _mm256_cvtepi32_ps(products[t][r]);
                    let bias = load(&tile.biases[group], r);
                    if R::IS_DIVISIBLE {
                        let product = _mm256_mul_ps(product, factor);
                        let mut terms = _mm256_fmadd_ps(bias, x_sum, product);
                        for level in 0..num_waiting {
                            terms = _mm256_add_ps(waiting[level][t][r], terms);
                        }
                        if term_place + 1 == groups_per_term {
                            grid_sums[t][r] = add_terms(grid_sums[t][r], terms);
                        } else {
                            waiting[num_waiting][t][r] = terms;
                        }
                        continue;
                    }
                    let sum = _mm256_fmadd_ps(product, factor, sums[t][r]);
                    sums[t][r] = _mm256_fmadd_ps(bias, x_sum, sum);
                }
            }
        }
        add_last_terms(x.num_groups() % groups_per_term, &waiting, &mut grid_sums);
        for t in 0..T {
            for r in 0..REGISTERS {
                let (plain, on_grid) = (total(&sums, t, r), on_grid(grid_sums[t][r]));
                let results = &mut results[t][r * REGISTER_ROWS..][..REGISTER_ROWS];
                for row in 0..REGISTER_ROWS {
                    results[row] = R::choose(plain[row], on_grid[row]);
                }
            }
        }
    }

    /// Adds the terms of the last groups, which are too few for a whole term: the others are zeros.
    #[inline]
    fn add_last_terms<const T: usize>(
        last_groups: usize,
        waiting: &[[[__m256; REGISTERS]; T]; TERM_LEVELS],
        grid_sums: &mut [[GridSums; REGISTERS]; T],
    ) {
        if last_groups == 0 {
            return;
        }
        for t in 0..T {
            for r in 0..REGISTERS {
                let mut terms = _mm256_setzero_ps();
                for level in 0..TERM_LEVELS {
                    if (last_groups >> level) & 1 == 1 {
                        terms = _mm256_add_ps(waiting[level][t][r], terms);
                    }
                }
                grid_sums[t][r] = add_terms(grid_sums[t][r], terms);
            }
        }
    }

    /// Adds the sixteen partial sums, halves onto halves.
    #[inline]
    fn total<const T: usize>(
        sums: &[[[__m256; REGISTERS]; T]; SUMS],
        t: usize,
        r: usize,
    ) -> [f32; REGISTER_ROWS] {
        let mut lanes = [_mm256_setzero_ps(); SUMS];
        for lane in 0..SUMS {
            lanes[lane] = sums[lane][t][r];
        }
        let mut half = SUMS / 2;
        while half > 0 {
            for lane in 0..half {
                lanes[lane] = _mm256_add_ps(lanes[lane], lanes[lane + half]);
            }
            half /= 2;
        }
        let mut totals = [0.0; REGISTER_ROWS];
        // SAFETY: eight results.
        unsafe { _mm256_storeu_ps(totals.as_mut_ptr(), lanes[0]) };
        totals
    }

    #[inline]
    fn load(rows: &[f32; TILE_ROWS], register: usize) -> __m256 {
        let rows = &rows[register * REGISTER_ROWS..][..REGISTER_ROWS];
        // SAFETY: eight values.
        unsafe { _mm256_loadu_ps(rows.as_ptr()) }
    }

    /// Unpacks the rows from `first_row` on; lanes beyond `num_rows` keep what they had.
    fn fill(matrix: &QuantMatrix<'_>, first_row: usize, num_rows: usize, tile: &mut Tile) {
        let input = matrix.input;
        for row in 0..num_rows {
            unpack_row(matrix, first_row + row, &mut tile.rows[row * input..][..input]);
            let first_group = (first_row + row) * tile.row_scales.len();
            match matrix.scales {
                Scales::Elements(from) => from.load(first_group, &mut tile.row_scales),
                Scales::Bytes(from) => {
                    for (scale, code) in tile.row_scales.iter_mut().zip(&from[first_group..]) {
                        *scale = scale_value(matrix.format.mode, *code);
                    }
                }
            }
            for (to, scale) in tile.scales.iter_mut().zip(&tile.row_scales) {
                to[row] = *scale;
            }
            if let Some(from) = matrix.biases {
                from.load(first_group, &mut tile.row_scales);
                for (to, bias) in tile.biases.iter_mut().zip(&tile.row_scales) {
                    to[row] = *bias;
                }
            }
        }
        let is_signed = matrix.format.mode != QuantMode::Affine;
        for register in 0..REGISTERS {
            let rows = &tile.rows[register * REGISTER_ROWS * input..][..REGISTER_ROWS * input];
            for column in (0..input).step_by(LANES) {
                let mut lanes = [_mm256_setzero_si256(); REGISTER_ROWS];
                for row in 0..REGISTER_ROWS {
                    let codes = &rows[row * input + column..][..LANES];
                    // SAFETY: sixteen bytes.
                    let codes = unsafe { _mm_loadu_si128(codes.as_ptr().cast()) };
                    lanes[row] = if is_signed {
                        _mm256_cvtepi8_epi16(codes)
                    } else {
                        _mm256_cvtepu8_epi16(codes)
                    };
                }
                transpose(&mut lanes);
                for pair in 0..REGISTER_ROWS {
                    tile.codes[(column / 2 + pair) * REGISTERS + register] = lanes[pair];
                }
            }
        }
    }

    /// Transposes eight registers of eight lanes of 32 bits.
    #[inline]
    fn transpose(rows: &mut [__m256i; REGISTER_ROWS]) {
        let mut fours = [_mm256_setzero_si256(); REGISTER_ROWS];
        for four in 0..2 {
            let (a, b) = (rows[4 * four], rows[4 * four + 1]);
            let (c, d) = (rows[4 * four + 2], rows[4 * four + 3]);
            let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            // Half `h` of register `l`: lane `4 h + l` of the four rows.
            fours[4 * four] = _mm256_unpacklo_epi64(ab_low, cd_low);
            fours[4 * four + 1] = _mm256_unpackhi_epi64(ab_low, cd_low);
            fours[4 * four + 2] = _mm256_unpacklo_epi64(ab_high, cd_high);
            fours[4 * four + 3] = _mm256_unpackhi_epi64(ab_high, cd_high);
        }
        for lane in 0..4 {
            rows[lane] = _mm256_permute2x128_si256::<0x20>(fours[lane], fours[4 + lane]);
            rows[4 + lane] = _mm256_permute2x128_si256::<0x31>(fours[lane], fours[4 + lane]);
        }
    }

    /// Unpacks the codes of a row, one per byte; E2M1 codes become signed and doubled.
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

    /// Unpacks codes of four bits, sixteen bytes of them at a time; the last eight bytes may be
    /// left over and are unpacked code by code.
    #[inline]
    fn unpack_nibbles<const E2M1_CODES: bool>(words: &[u32], codes: &mut [u8]) {
        let low = _mm_set1_epi8(15);
        // SAFETY: the table is a register.
        let table = unsafe { _mm_loadu_si128(E2M1_INTEGERS.as_ptr().cast()) };
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
                *code = if E2M1_CODES { E2M1_INTEGERS[nibble].cast_unsigned() } else { nibble as u8 };
            }
        }
    }

    /// Unpacks codes of `BITS` bits: thirty-two are `BITS` whole words, and eight are `BITS` bytes.
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

    /// Prefetches later memory; see `avx512`.
    #[inline]
    fn prefetch(words: &[u32]) {
        const AHEAD_BYTES: usize = 4096;
        _mm_prefetch::<_MM_HINT_T1>(words.as_ptr().cast::<i8>().wrapping_add(AHEAD_BYTES));
    }
}
