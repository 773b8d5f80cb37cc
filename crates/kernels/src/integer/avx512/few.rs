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

/// Where sixteen groups of some rows are.
struct Place {
    rows: [usize; ROWS],
    first_group: usize,
    ahead: usize,
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
                match out.len() {
                    1 => some_rows::<C, LANES, 1>(&block, &mut results),
                    _ => some_rows::<C, LANES, 2>(&block, &mut results),
                }
                for (out, results) in out.iter_mut().zip(&results) {
                    out.store(start - job.rows.start, &results[..block.rows.len()]);
                }
            }
        }
    }

    #[inline]
    fn some_rows<C: Codes, const LANES: usize, const T: usize>(
        block: &Block<'_>,
        results: &mut Results,
    ) {
        let Block { rows, turn, num_turns, .. } = block;
        let matrix = block.job.matrix;
        let block_bytes = matrix.format.words_per_row(matrix.input) * 4 * RESULT_ROWS;
        let mut asking_turn = 0;
        for row in rows.clone().step_by(ROWS) {
            // The last row of an odd number is computed twice.
            let together = [row, (row + 1).min(rows.end - 1)];
            let ahead = match *num_turns {
                1 => PREFETCH_BYTES,
                _ if asking_turn == *turn => block_bytes,
                // What is loaded is there.
                _ => 0,
            };
            asking_turn = if asking_turn + 1 == *num_turns { 0 } else { asking_turn + 1 };
            let sums = row_sums::<C, LANES, T>(block, together, ahead);
            for t in 0..T {
                for r in 0..ROWS {
                    results[t][together[r] - rows.start] = total(sums[t][r]);
                }
            }
        }
    }

    /// Partial sums `[T, ROWS]`.
    // Closures around vectors would be compiled on their own, without the features; large functions with the features
    // are not always inlined. What is small is always inlined, below, and so has the features of these here.
    #[inline]
    fn row_sums<C: Codes, const LANES: usize, const T: usize>(
        block: &Block<'_>,
        rows: [usize; ROWS],
        ahead: usize,
    ) -> [[__m512; ROWS]; T] {
        let mut sums = [[_mm512_setzero_ps(); ROWS]; T];
        for first_group in (0..block.job.x.padded_groups).step_by(SUMS) {
            add_groups::<C, LANES, T>(block, Place { rows, first_group, ahead }, &mut sums);
        }
        sums
    }

    /// Adds up to [`SUMS`] groups to the sums.
    #[inline]
    fn add_groups<C: Codes, const LANES: usize, const T: usize>(
        Block { job, lines, first_token, .. }: &Block<'_>,
        Place { rows, first_group, ahead }: Place,
        sums: &mut [[__m512; ROWS]; T],
    ) {
        let (x, matrix) = (job.x, job.matrix);
        let row_bytes = matrix.format.words_per_row(matrix.input) * 4;
        let first_step = first_group / SUMS * LANES;
        let first_byte = first_step * C::LOADS * C::LOAD_BYTES;
        let row_left = row_bytes - first_byte;
        let token_lines = lines.len() / T;
        assert!((first_step + LANES) * C::REGISTERS * 2 <= token_lines, "lines of a token");
        let (from, num_bytes) = (matrix.words.as_ptr().cast::<u8>(), matrix.words.len() * 4);
        let mut packed = [Packed { from, len: 0, ahead }; ROWS];
        for r in 0..ROWS {
            assert!(rows[r] < matrix.out, "a row of the matrix");
            let byte = rows[r] * row_bytes + first_byte;
            packed[r].from = from.wrapping_add(byte);
            // The next row's codes meet zeros.
            packed[r].len = num_bytes - byte;
        }
        let matrix_left = packed[ROWS - 1].len;
        let x_lines = lines[first_step * C::REGISTERS * 2..].as_ptr();
        let mut fours = [[[_mm512_setzero_si512(); ROWS]; T]; 4];
        for four in 0..LANES.div_ceil(4) {
            let bytes = |num_fours| num_fours * LANES.min(4) * C::LOADS * C::LOAD_BYTES;
            // SAFETY: lines of all `LANES` steps are there, as asserted above, and so many bytes: in the last of the
            // rows, so in all.
            unsafe {
                if row_left <= bytes(four) {
                    break;
                }
                if matrix_left >= bytes(four + 1) + LINE {
                    fours[four] = four_steps::<C, LANES, T, true>(packed, four * 4, (x_lines, token_lines));
                } else {
                    fours[four] = four_steps::<C, LANES, T, false>(packed, four * 4, (x_lines, token_lines));
                }
            }
        }
        let num_groups = x.num_groups();
        let left = num_groups - first_group;
        for r in 0..ROWS {
            let start = rows[r] * num_groups + first_group;
            let scales = load_scales(&matrix.scales, matrix.format.mode, start, left);
            let biases = match &matrix.biases {
                Some(biases) => load_elements(biases, start, left),
                None => _mm512_setzero_ps(),
            };
            for t in 0..T {
                let groups = (first_token + t) * x.padded_groups + first_group;
                let fours = [fours[0][t][r], fours[1][t][r], fours[2][t][r], fours[3][t][r]];
                // SAFETY: the machine has the set.
                sums[t][r] = unsafe {
                    let product = in_order::<LANES>(fours);
                    add_products::<C>(&x.groups, groups, product, [scales, biases], sums[t][r])
                };
            }
        }
    }

    /// Asks for the first rows, which no row before them asks for.
    #[inline]
    fn prefetch(words: &[u32]) {
        for words in words.chunks(LINE / 4).take(PREFETCH_BYTES / LINE) {
            _mm_prefetch::<_MM_HINT_T1>(words.as_ptr().cast());
        }
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
}

/// The sums of up to four steps' groups, `[T, ROWS]`.
///
/// # Safety
/// Lines of the steps are there for `T` tokens, `token_lines` apart, and if `WHOLE` their bytes and another line.
#[inline(always)]
unsafe fn four_steps<C: Codes, const LANES: usize, const T: usize, const WHOLE: bool>(
    packed: [Packed; ROWS],
    first_step: usize,
    (lines, token_lines): (*const Line, usize),
) -> [[__m512i; ROWS]; T] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut evens = [[_mm512_setzero_si512(); ROWS]; T];
        let mut pairs = [[[_mm512_setzero_si512(); 2]; ROWS]; T];
        // Rows share the lines of a step, and tokens its codes, while these are in registers.
        for idx in 0..LANES.min(4) {
            let step = first_step + idx;
            for r in 0..ROWS {
                let codes = load_step::<C, WHOLE>(packed[r], step);
                for t in 0..T {
                    let x = lines.add(t * token_lines + step * C::REGISTERS * 2);
                    let lanes = dot::<C>(codes, x);
                    if idx % 2 == 0 {
                        evens[t][r] = lanes;
                    } else {
                        pairs[t][r][idx / 2] = add_steps::<LANES>(evens[t][r], lanes);
                    }
                }
            }
        }
        let mut four = [[_mm512_setzero_si512(); ROWS]; T];
        for t in 0..T {
            for r in 0..ROWS {
                four[t][r] = add_four::<LANES>(pairs[t][r]);
            }
        }
        four
    }
}

/// The codes of a step from the first one's bytes on, in up to four registers; zeros beyond the row.
///
/// # Safety
/// `packed.len` bytes can be read; if `WHOLE`, the step's and another line are among them.
#[inline(always)]
unsafe fn load_step<C: Codes, const WHOLE: bool>(packed: Packed, step: usize) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let Packed { from, len, ahead } = packed;
        let mut codes = [_mm512_setzero_si512(); 4];
        for load in 0..C::LOADS {
            let byte = (step * C::LOADS + load) * C::LOAD_BYTES;
            let len = if WHOLE { usize::MAX } else { len.saturating_sub(byte) };
            let registers = C::split(C::load(Packed { from: from.wrapping_add(byte), len, ahead }));
            for split in 0..C::SPLIT {
                codes[load * C::SPLIT + split] = registers[split];
            }
        }
        codes
    }
}

/// The products of a step, lane by lane: `256 * high + low`.
///
/// # Safety
/// The step's lines, the high halves and then the low ones, begin at `x`.
#[inline(always)]
unsafe fn dot<C: Codes>(codes: [__m512i; 4], x: *const Line) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sum = _mm512_setzero_si512();
        for r in 0..C::REGISTERS {
            sum = _mm512_dpbusd_epi32(sum, codes[r], load_line(x.add(r)));
        }
        sum = _mm512_slli_epi32::<8>(sum);
        for r in 0..C::REGISTERS {
            let low = load_line(x.add(C::REGISTERS + r));
            sum = _mm512_dpbusd_epi32(sum, codes[r], low);
        }
        sum
    }
}

/// Adds lanes of two steps: all if a group has only two, else `a0 + a2, b0 + b2, a1 + a3, b1 + b3` in each part of
/// 128 bits.
///
/// # Safety
/// The machine has the set.
#[inline(always)]
unsafe fn add_steps<const LANES: usize>(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        if LANES == 2 {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            return _mm512_add_epi32(
                _mm512_permutex2var_epi32(a, even, b),
                _mm512_permutex2var_epi32(a, odd, b),
            );
        }
        _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b))
    }
}

/// Adds the lanes of four steps in each part of 128 bits, from what [`add_steps`] made of them.
///
/// # Safety
/// The machine has the set.
#[inline(always)]
unsafe fn add_four<const LANES: usize>([ab, cd]: [__m512i; 2]) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        if LANES == 2 {
            return ab;
        }
        _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
    }
}

/// The sums of sixteen groups in order, from what [`add_four`] made of their steps.
///
/// # Safety
/// The machine has the set.
#[inline(always)]
unsafe fn in_order<const LANES: usize>(fours: [__m512i; 4]) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
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
}

/// The products of sixteen groups, from the group `first` of all tokens on, to their sums.
///
/// # Safety
/// The machine has the set.
#[inline(always)]
unsafe fn add_products<C: Codes>(
    x: &Groups,
    first: usize,
    product: __m512i,
    [scales, biases]: [__m512; 2],
    sums: __m512,
) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
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
}

/// # Safety
/// The pointer is to a line.
#[inline(always)]
unsafe fn load_line(line: *const Line) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        const { assert!(size_of::<Line>() == LINE) };
        _mm512_load_si512(line.cast())
    }
}

/// # Safety
/// The machine has the set.
#[inline(always)]
unsafe fn load_f32s(values: &[f32]) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        assert!(values.len() == SUMS);
        _mm512_loadu_ps(values.as_ptr())
    }
}

/// # Safety
/// The machine has the set.
#[inline(always)]
unsafe fn load_i32s(values: &[i32]) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        assert!(values.len() == SUMS);
        _mm512_loadu_si512(values.as_ptr().cast())
    }
}

/// Parts of 128 bits: `a0 + a1, a2 + a3, b0 + b1, b2 + b3`.
///
/// # Safety
/// The machine has the set.
#[inline(always)]
unsafe fn add_parts(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        _mm512_add_epi32(
            _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
        )
    }
}
