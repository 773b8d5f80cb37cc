//! Few rows of activations: every weight is loaded once, unpacked in registers and gone.

use std::arch::x86_64::*;
use std::ops::Range;

use super::codes::{Codes, Packed, load_elements, load_scales};
use super::{Job, LINE, Line, for_avx512};
use crate::elements::ElementsMut;
use crate::integer::SUMS;
use crate::integer::rounding::Groups;

/// Rows whose results are kept until they are stored: their weights stay in the cache for all tokens.
const RESULT_ROWS: usize = 64;

/// Weight rows computed together: they share the loads of activations.
const ROWS: usize = 2;

/// Tokens computed together, at most: they share the unpacked weights.
const TOKENS: usize = 2;

/// How far ahead of a load memory is asked for, into the second-level cache: the first level has too few buffers for
/// misses. On Zen 4, 4 KiB ahead gave 22 GB/s, 16 and 32 KiB 27, of 30 that can be read.
const PREFETCH_BYTES: usize = 16 << 10;

/// Results `[TOKENS, rows]`.
type Results = [[f32; RESULT_ROWS]; TOKENS];

/// Some tokens with some rows.
struct Block<'a> {
    job: &'a Job<'a>,
    lines: &'a [Line],
    first_token: usize,
    rows: Range<usize>,
    /// Of all turns in which these rows meet the tokens; each asks for its share of the memory ahead.
    turn: usize,
    num_turns: usize,
}

for_avx512! {
    /// All tokens, a few at a time.
    pub(super) fn multiply<C: Codes, const LANES: usize>(
        job: &Job<'_>,
        token_lines: usize,
        out: &mut [ElementsMut<'_>],
    ) {
        let row_words = job.matrix.words.len() / job.matrix.out;
        prefetch(&job.matrix.words[job.rows.start * row_words..]);
        // Without rows that end within a load, loads need no masks.
        let four_bytes = LANES.min(4) * C::LOADS * C::LOAD_BYTES;
        let is_whole = (row_words * 4).is_multiple_of(four_bytes);
        let num_turns = out.len().div_ceil(TOKENS);
        for start in job.rows.clone().step_by(RESULT_ROWS) {
            let rows = start..(start + RESULT_ROWS).min(job.rows.end);
            for (turn, out) in out.chunks_mut(TOKENS).enumerate() {
                let first_token = turn * TOKENS;
                let lines = &job.lines.lines[first_token * token_lines..];
                let lines = &lines[..out.len() * token_lines];
                let rows = rows.clone();
                let block = Block { job, lines, first_token, rows, turn, num_turns };
                let mut results = [[0.0; RESULT_ROWS]; TOKENS];
                match (out.len(), is_whole) {
                    (1, true) => some_rows::<C, LANES, 1, true>(&block, &mut results),
                    (1, false) => some_rows::<C, LANES, 1, false>(&block, &mut results),
                    (_, true) => some_rows::<C, LANES, 2, true>(&block, &mut results),
                    (_, false) => some_rows::<C, LANES, 2, false>(&block, &mut results),
                }
                for (out, results) in out.iter_mut().zip(&results) {
                    out.store(start - job.rows.start, &results[..block.rows.len()]);
                }
            }
        }
    }

    #[inline]
    fn some_rows<C: Codes, const LANES: usize, const T: usize, const WHOLE: bool>(
        block: &Block<'_>,
        results: &mut Results,
    ) {
        let Block { rows, turn, num_turns, .. } = block;
        let matrix = block.job.matrix;
        let block_bytes = matrix.format.words_per_row(matrix.input) * 4 * RESULT_ROWS;
        for (pair, row) in rows.clone().step_by(ROWS).enumerate() {
            // The last row of an odd number is computed twice.
            let together = [row, (row + 1).min(rows.end - 1)];
            let ahead = match *num_turns {
                1 => PREFETCH_BYTES,
                _ if pair % num_turns == *turn => block_bytes,
                // What is loaded is there.
                _ => 0,
            };
            let sums = row_sums::<C, LANES, T, WHOLE>(block, together, ahead);
            for t in 0..T {
                for r in 0..ROWS {
                    results[t][together[r] - rows.start] = total(sums[t][r]);
                }
            }
        }
    }

    /// Partial sums `[T, ROWS]`.
    // No closures around vectors: a closure is compiled on its own, without the features, unless it is inlined.
    #[inline]
    fn row_sums<C: Codes, const LANES: usize, const T: usize, const WHOLE: bool>(
        Block { job, lines, first_token, .. }: &Block<'_>,
        rows: [usize; ROWS],
        ahead: usize,
    ) -> [[__m512; ROWS]; T] {
        let (x, matrix) = (job.x, job.matrix);
        let row_words = matrix.format.words_per_row(matrix.input);
        let token_lines = lines.len() / T;
        let num_blocks = x.padded_groups / SUMS;
        let num_steps = (row_words * 4).div_ceil(C::LOADS * C::LOAD_BYTES);
        assert!(num_blocks * LANES * C::REGISTERS * 2 <= token_lines, "lines of a token");
        let mut sums = [[_mm512_setzero_ps(); ROWS]; T];
        for block in 0..num_blocks {
            let mut products = [[[_mm512_setzero_si512(); 4]; ROWS]; T];
            for four in 0..LANES.div_ceil(4) {
                if num_steps <= block * LANES + four * 4 {
                    break;
                }
                let mut lanes = [[[_mm512_setzero_si512(); 4]; ROWS]; T];
                for idx in 0..LANES.min(4) {
                    let step = block * LANES + four * 4 + idx;
                    for r in 0..ROWS {
                        let packed = &matrix.words[rows[r] * row_words..][..row_words];
                        let codes = load_step::<C, WHOLE>(packed, step, ahead);
                        for t in 0..T {
                            let line = t * token_lines + step * C::REGISTERS * 2;
                            // SAFETY: a step's lines are within the token's, as asserted above.
                            let x = unsafe { lines.as_ptr().add(line) };
                            // SAFETY: as above.
                            lanes[t][r][idx] = unsafe { dot::<C>(codes, x) };
                        }
                    }
                }
                for t in 0..T {
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
                for t in 0..T {
                    let groups = (first_token + t) * x.padded_groups + first_group;
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

    /// The codes of a row's step, in up to four registers; zeros beyond the row.
    #[inline]
    fn load_step<C: Codes, const WHOLE: bool>(
        packed: &[u32],
        step: usize,
        ahead: usize,
    ) -> [__m512i; 4] {
        let mut codes = [_mm512_setzero_si512(); 4];
        for load in 0..C::LOADS {
            let byte = (step * C::LOADS + load) * C::LOAD_BYTES;
            let from = packed.as_ptr().cast::<u8>().wrapping_add(byte);
            // A row of whole blocks has all of every load.
            let left = (packed.len() * 4).saturating_sub(byte);
            let len = if WHOLE { usize::MAX } else { left };
            // SAFETY: the machine has the set, and as many bytes can be read from there on.
            let registers = unsafe { C::split(C::load(Packed { from, len, ahead })) };
            for split in 0..C::SPLIT {
                codes[load * C::SPLIT + split] = registers[split];
            }
        }
        codes
    }

    /// The products of a step, lane by lane: `256 * high + low`.
    ///
    /// # Safety
    /// The step's lines, the high halves and then the low ones, begin at `x`.
    #[inline]
    unsafe fn dot<C: Codes>(codes: [__m512i; 4], x: *const Line) -> __m512i {
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
