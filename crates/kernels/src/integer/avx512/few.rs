//! Few rows of activations: every weight is loaded once, unpacked in registers and gone.

use std::arch::x86_64::*;
use std::ops::Range;

use super::codes::{Codes, PREFETCH_BYTES, Packed, load_elements, load_scales};
use super::{Job, LINE, Line, for_avx512};
use crate::elements::ElementsMut;
use crate::integer::SUMS;
use crate::integer::rounding::Groups;

/// Rows whose results are kept until they are stored: their weights stay in the cache for all tokens.
const RESULT_ROWS: usize = 64;

for_avx512! {
    /// All tokens, one or two at a time.
    pub(super) fn multiply<C: Codes, const LANES: usize>(
        job: &Job<'_>,
        token_lines: usize,
        out: &mut [ElementsMut<'_>],
    ) {
        let row_words = job.matrix.words.len() / job.matrix.out;
        prefetch(&job.matrix.words[job.rows.start * row_words..]);
        for start in job.rows.clone().step_by(RESULT_ROWS) {
            let rows = start..(start + RESULT_ROWS).min(job.rows.end);
            let mut token = 0;
            for out in out.chunks_mut(2) {
                let lines = &job.lines.lines[token * token_lines..][..out.len() * token_lines];
                let mut results = [[0.0; RESULT_ROWS]; 2];
                // Without rows that end within a load, loads need no masks.
                let four_bytes = LANES.min(4) * C::LOADS * C::LOAD_BYTES;
 let is_whole = (row_words * 4).is_multiple_of(four_bytes);
                match out {
                    // One row at a time is one stream of memory; two share the loads of two tokens.
                    [_] if is_whole => some_rows::<C, LANES, 1, 1, true>(
                        job,
                        (lines, token),
                        &rows,
                        &mut results,
                    ),
                    [_] => some_rows::<C, LANES, 1, 1, false>(
                        job,
                        (lines, token),
                        &rows,
                        &mut results,
                    ),
                    _ if is_whole => some_rows::<C, LANES, 2, 2, true>(
                        job,
                        (lines, token),
                        &rows,
                        &mut results,
                    ),
                    _ => some_rows::<C, LANES, 2, 2, false>(
                        job,
                        (lines, token),
                        &rows,
                        &mut results,
                    ),
                }
                for (out, results) in out.iter_mut().zip(&results) {
                    out.store(start - job.rows.start, &results[..rows.len()]);
                }
                token += out.len();
            }
        }
    }

    /// Results `[TOKENS, rows]`.
    #[inline]
    fn some_rows<C: Codes, const LANES: usize, const TOKENS: usize, const ROWS: usize, const WHOLE: bool>(
        job: &Job<'_>,
        (lines, token): (&[Line], usize),
        rows: &Range<usize>,
        results: &mut [[f32; RESULT_ROWS]; 2],
    ) {
        for row in rows.clone().step_by(ROWS) {
            // The last row of an odd number is computed twice.
            let mut together = [row; ROWS];
            for (offset, row) in together.iter_mut().enumerate() {
                *row = (*row + offset).min(rows.end - 1);
            }
            let sums = row_sums::<C, LANES, TOKENS, ROWS, WHOLE>(job, lines, token, together);
            for t in 0..TOKENS {
                for r in 0..ROWS {
                    results[t][together[r] - rows.start] = total(sums[t][r]);
                }
            }
        }
    }

    /// Partial sums `[TOKENS, ROWS]`.
    // No closures around vectors: a closure is compiled on its own, without the features, unless it is inlined.
    #[inline]
    fn row_sums<C: Codes, const LANES: usize, const TOKENS: usize, const ROWS: usize, const WHOLE: bool>(
        job: &Job<'_>,
        lines: &[Line],
        token: usize,
        rows: [usize; ROWS],
    ) -> [[__m512; ROWS]; TOKENS] {
        let (x, matrix) = (job.x, job.matrix);
        let row_words = matrix.format.words_per_row(matrix.input);
        let token_lines = lines.len() / TOKENS;
        let num_blocks = x.padded_groups / SUMS;
        let num_steps = (row_words * 4).div_ceil(C::LOADS * C::LOAD_BYTES);
        assert!(num_blocks * LANES * C::REGISTERS * 2 <= token_lines, "lines of a token");
        let mut sums = [[_mm512_setzero_ps(); ROWS]; TOKENS];
        for block in 0..num_blocks {
            let mut products = [[[_mm512_setzero_si512(); 4]; ROWS]; TOKENS];
            for four in 0..LANES.div_ceil(4) {
                if num_steps <= block * LANES + four * 4 {
                    break;
                }
                let mut lanes = [[[_mm512_setzero_si512(); 4]; ROWS]; TOKENS];
                for idx in 0..LANES.min(4) {
                    let step = block * LANES + four * 4 + idx;
                    for r in 0..ROWS {
                        let packed = &matrix.words[rows[r] * row_words..][..row_words];
                        let codes = load_step::<C, WHOLE>(packed, step);
                        for t in 0..TOKENS {
                            let line = t * token_lines + step * C::REGISTERS * 2;
                            // SAFETY: a step's lines are within the token's, as asserted above.
                            let x = unsafe { lines.as_ptr().add(line) };
                            // SAFETY: as above.
                            lanes[t][r][idx] = unsafe { dot::<C>(codes, x) };
                        }
                    }
                }
                for t in 0..TOKENS {
                    for r in 0..ROWS {
                        products[t][r][four] = add_steps::<LANES>(lanes[t][r]);
                    }
                }
            }
            let first_group = block * SUMS;
            for r in 0..ROWS {
                let num_groups = x.num_groups();
                let (start, left) = (rows[r] * num_groups + first_group, num_groups - first_group);
                let scales = load_scales(&matrix.scales, matrix.format.mode, start, left);
                let biases = match &matrix.biases {
                    Some(biases) => load_elements(biases, start, left),
                    None => _mm512_setzero_ps(),
                };
                for t in 0..TOKENS {
                    let groups = (token + t) * x.padded_groups + first_group;
                    let product = add_groups::<LANES>(products[t][r]);
                    let weights = [scales, biases];
                    sums[t][r] = add_products::<C>(&x.groups, groups, product, weights, sums[t][r]);
                }
            }
        }
        sums
    }

    /// Asks for the first rows, which no row before them asks for.
    #[inline]
    fn prefetch(words: &[u32]) {
        for words in words.chunks(LINE / 4).take(PREFETCH_BYTES / LINE) {
            _mm_prefetch::<_MM_HINT_T1>(words.as_ptr().cast());
        }
    }

    /// The products of sixteen groups, from the group `first` of all tokens on, to their sums.
    #[inline]
    fn add_products<C: Codes>(
        x: &Groups,
        first: usize,
        product: __m512i,
        [scales, biases]: [__m512; 2],
        sums: __m512,
    ) -> __m512 {
        let mut product = product;
        if C::OFFSET != 0 {
            let totals = load_i32s(&x.totals[first..][..SUMS]);
            let offset = _mm512_mullo_epi32(totals, _mm512_set1_epi32(C::OFFSET));
            product = _mm512_sub_epi32(product, offset);
        }
        let factors = _mm512_mul_ps(scales, load_f32s(&x.units[first..][..SUMS]));
        let sums = _mm512_fmadd_ps(_mm512_cvtepi32_ps(product), factors, sums);
        _mm512_fmadd_ps(biases, load_f32s(&x.sums[first..][..SUMS]), sums)
    }

    /// The codes of a row's step, in up to two registers; zeros beyond the row.
    #[inline]
    fn load_step<C: Codes, const WHOLE: bool>(packed: &[u32], step: usize) -> [__m512i; 2] {
        let mut codes = [_mm512_setzero_si512(); 2];
        for load in 0..C::LOADS {
            let byte = (step * C::LOADS + load) * C::LOAD_BYTES;
            let from = packed.as_ptr().cast::<u8>().wrapping_add(byte);
            // A row of whole blocks has all of every load.
            let left = (packed.len() * 4).saturating_sub(byte);
            let len = if WHOLE { usize::MAX } else { left };
            // SAFETY: the machine has the set, and as many bytes can be read from there on.
            let registers = unsafe { C::split(C::load(Packed { from, len, ahead: PREFETCH_BYTES })) };
            if C::SPLIT == 2 {
                codes = registers;
            } else {
                codes[load] = registers[0];
            }
        }
        codes
    }

    /// The products of a step, lane by lane: `256 * high + low`.
    ///
    /// # Safety
    /// The step's lines, the high halves and then the low ones, begin at `x`.
    #[inline]
    unsafe fn dot<C: Codes>(codes: [__m512i; 2], x: *const Line) -> __m512i {
        let mut sum = _mm512_setzero_si512();
        for r in 0..C::REGISTERS {
            // SAFETY: the caller's promise.
            sum = _mm512_dpbusd_epi32(sum, codes[r], unsafe { load_line(x.add(r)) });
        }
        sum = _mm512_slli_epi32::<8>(sum);
        for r in 0..C::REGISTERS {
            // SAFETY: the caller's promise.
            let low = unsafe { load_line(x.add(C::REGISTERS + r)) };
            sum = _mm512_dpbusd_epi32(sum, codes[r], low);
        }
        sum
    }

    /// Adds the lanes of up to four steps: within parts of 128 bits, or by pairs if a group has only two lanes.
    #[inline]
    fn add_steps<const LANES: usize>([a, b, c, d]: [__m512i; 4]) -> __m512i {
        if LANES == 2 {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            return _mm512_add_epi32(
                _mm512_permutex2var_epi32(a, even, b),
                _mm512_permutex2var_epi32(a, odd, b),
            );
        }
        let (ab, cd) = (add_pairs(a, b), add_pairs(c, d));
        _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
    }

    /// The sums of sixteen groups in order, from what [`add_steps`] made of their steps, four by four.
    #[inline]
    fn add_groups<const LANES: usize>(fours: [__m512i; 4]) -> __m512i {
        if LANES == 2 {
            return fours[0];
        }
        if LANES == 4 {
            // Group `p` of step `s` is in lane `s` of part `p`.
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            return _mm512_permutexvar_epi32(order, fours[0]);
        }
        let low = add_parts(fours[0], fours[1]);
        if LANES == 8 {
            // The parts are steps 0 to 3, first groups and second groups, then steps 4 to 7.
            let order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
            return _mm512_permutexvar_epi32(order, low);
        }
        add_parts(low, add_parts(fours[2], fours[3]))
    }

    /// In each part of 128 bits: `a0 + a2, b0 + b2, a1 + a3, b1 + b3`.
    #[inline]
    fn add_pairs(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b))
    }

    /// Parts of 128 bits: `a0 + a1, a2 + a3, b0 + b1, b2 + b3`.
    #[inline]
    fn add_parts(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi32(
            _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
        )
    }

    /// As `super::super::total`.
    #[inline]
    fn total(sums: __m512) -> f32 {
        let high = _mm512_extractf32x8_ps::<1>(sums);
        let eight = _mm256_add_ps(_mm512_castps512_ps256(sums), high);
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }

    /// # Safety
    /// The pointer is to a line.
    #[inline]
    unsafe fn load_line(line: *const Line) -> __m512i {
        const { assert!(size_of::<Line>() == LINE) };
        // SAFETY: a line is an aligned register.
        unsafe { _mm512_load_si512(line.cast()) }
    }

    #[inline]
    fn load_f32s(values: &[f32]) -> __m512 {
        assert!(values.len() == SUMS);
        // SAFETY: sixteen values.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }

    #[inline]
    fn load_i32s(values: &[i32]) -> __m512i {
        assert!(values.len() == SUMS);
        // SAFETY: sixteen values.
        unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
    }
}
