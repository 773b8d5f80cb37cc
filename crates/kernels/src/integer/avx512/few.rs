//! Products of few rows of activations: every weight is loaded once and unpacked in registers.

use std::arch::x86_64::*;
use std::ops::Range;

use super::codes::{Codes, Factors, Packed};
use super::{Job, LINE, Line, for_avx512};
use crate::integer::rounding::{Groups, SUMS};
use crate::terms::Results;
use crate::terms::avx512::{Sums, Terms};

/// Maximum number of tokens, which are computed together and share the unpacked weights.
pub(super) const TOKENS: usize = 4;

/// Number of weight rows whose partial sums are added up together.
const TOTAL_ROWS: usize = 16;

/// Number of rows whose results are buffered before they are stored.
const RESULT_ROWS: usize = 4 * TOTAL_ROWS;

/// Prefetch distance in bytes, into the second-level cache: the first level has too few miss
/// buffers. On Zen 4, 4 KiB gave 22 GB/s, 16 and 32 KiB gave 27, of a maximum of 30.
const PREFETCH_BYTES: usize = 16 << 10;

/// Results `[tokens, rows]`.
type RowResults<V> = [[V; RESULT_ROWS]; TOKENS];

/// Inputs that all rows share, as pointers whose bounds were checked once.
#[derive(Clone, Copy)]
struct Streams<'a> {
    /// `[matrix.out, row_bytes]`.
    words: *const u8,
    num_bytes: usize,
    row_bytes: usize,
    /// `[matrix.out, num_groups]`.
    scales: Factors,
    num_groups: usize,
    /// Number of complete blocks of sixteen groups in a row.
    whole_blocks: usize,
    /// `[tokens, token_lines]`.
    lines: *const Line,
    token_lines: usize,
    /// `[tokens, padded_groups]`.
    groups: &'a Groups,
    padded_groups: usize,
    terms: Terms,
}

impl<'a> Streams<'a> {
    fn new(job: &'a Job<'_>, token_lines: usize, tokens: usize) -> Streams<'a> {
        let Job { lines, x, matrix, rows } = job;
        let num_bytes = matrix.words.len() * 4;
        let row_bytes = matrix.format.words_per_row(matrix.input) * 4;
        let (num_groups, padded_groups) = (x.num_groups(), x.padded_groups);
        assert!(rows.end <= matrix.out && num_bytes == matrix.out * row_bytes, "rows of words");
        let scales = Factors::of(matrix);
        assert_eq!(lines.lines.len(), tokens * token_lines, "lines of few rows");
        let groups = &x.groups;
        let lens = [groups.units.len(), groups.sums.len(), groups.totals.len()];
        assert_eq!(lens, [tokens * padded_groups; 3], "groups of few rows");
        Streams {
            words: matrix.words.as_ptr().cast(),
            num_bytes,
            row_bytes,
            scales,
            num_groups,
            whole_blocks: num_groups / SUMS,
            lines: lines.lines.as_ptr(),
            token_lines,
            groups,
            padded_groups,
            terms: Terms::new(x.columns.groups_per_term()),
        }
    }
}

for_avx512! {
    /// Computes all tokens with the rows of the job.
    pub(super) fn multiply<C: Codes, O: Results, const LANES: usize>(
        job: &Job<'_>,
        token_lines: usize,
        out: &mut [O],
    ) {
        let streams = Streams::new(job, token_lines, out.len());
        // Number of cache lines of all steps.
        let num_lines = streams.padded_groups / SUMS * LANES * C::REGISTERS * 2;
        assert!(num_lines <= token_lines, "lines of a token");
        prefetch(&job.matrix.words[job.rows.start * (streams.row_bytes / 4)..]);
        for start in job.rows.clone().step_by(RESULT_ROWS) {
            let rows = start..(start + RESULT_ROWS).min(job.rows.end);
            let mut results = [[O::Value::default(); RESULT_ROWS]; TOKENS];
            // Rows share the loads of activations, unless there are tokens enough to fill the registers.
            match out.len() {
                1 if C::PAIRS_ROWS => {
                    some_rows::<C, O::Lanes16, LANES, 1, 2>(&streams, rows.clone(), &mut results);
                }
                1 => some_rows::<C, O::Lanes16, LANES, 1, 1>(&streams, rows.clone(), &mut results),
                2 => some_rows::<C, O::Lanes16, LANES, 2, 2>(&streams, rows.clone(), &mut results),
                3 => some_rows::<C, O::Lanes16, LANES, 3, 1>(&streams, rows.clone(), &mut results),
                TOKENS => some_rows::<C, O::Lanes16, LANES, TOKENS, 1>(&streams, rows.clone(), &mut results),
                _ => unreachable!("more are for tiles"),
            }
            for (out, results) in out.iter_mut().zip(&results) {
                out.store(start - job.rows.start, &results[..rows.len()]);
            }
        }
    }

    /// Computes `T` tokens with `rows`, `R` of them at a time.
    #[inline]
    fn some_rows<C: Codes, S: Sums, const LANES: usize, const T: usize, const R: usize>(
        streams: &Streams<'_>,
        rows: Range<usize>,
        results: &mut RowResults<S::Value>,
    ) {
        for start in rows.clone().step_by(TOTAL_ROWS) {
            let num_rows = TOTAL_ROWS.min(rows.end - start);
            // SAFETY: the machine has the instruction set.
            let none = unsafe { S::none() };
            let mut sums = [[none; TOTAL_ROWS]; T];
            for first in (0..num_rows).step_by(R) {
                let row = start + first;
                if num_rows - first >= R {
                    let row_sums = row_sums::<C, S, LANES, T, R>(streams, row);
                    for t in 0..T {
                        for r in 0..R {
                            sums[t][first + r] = row_sums[t][r];
                        }
                    }
                    continue;
                }
                for r in 0..num_rows - first {
                    let mut row_sums = [[none; 1]; T];
                    for block in 0..streams.padded_groups / SUMS {
                        // SAFETY: a row of the matrix, and a block of it.
                        unsafe { add_last::<C, S, LANES, T, 1>(streams, row + r, block, &mut row_sums) };
                    }
                    for t in 0..T {
                        sums[t][first + r] = row_sums[t][0];
                    }
                }
            }
            for t in 0..T {
                let results = &mut results[t][start - rows.start..][..TOTAL_ROWS];
                // SAFETY: the machine has the instruction set.
                results.copy_from_slice(&unsafe { S::totals(&sums[t]) });
            }
        }
    }

    /// Partial sums `[T, R]` of the rows from `row` on.
    // Closures around vectors would be compiled on their own, without the features; large functions with the features
    // are not always inlined. What is small is always inlined, below, and so has the features of these here.
    #[inline]
    fn row_sums<C: Codes, S: Sums, const LANES: usize, const T: usize, const R: usize>(
        streams: &Streams<'_>,
        row: usize,
    ) -> [[S; R]; T] {
        // SAFETY: the machine has the instruction set.
        let mut sums = [[unsafe { S::none() }; R]; T];
        let block_bytes = LANES * C::LOADS * C::LOAD_BYTES;
        // Whole blocks, if a line can be read from each of their loads on.
        let last = (row + R - 1) * streams.row_bytes;
        let bytes = streams.whole_blocks * block_bytes + (LINE - C::LOAD_BYTES);
        let num_whole = if last + bytes <= streams.num_bytes { streams.whole_blocks } else { 0 };
        for block in 0..num_whole {
            // SAFETY: rows of the matrix, and as many whole blocks.
            unsafe { add_block::<C, S, LANES, T, R, true>(streams, row, block, &mut sums) };
        }
        for block in num_whole..streams.padded_groups / SUMS {
            // Arguments that are passed by reference are in memory; `sums` must stay in registers.
            let mut last_sums = sums;
            // SAFETY: rows of the matrix, and a block of them.
            unsafe { add_last::<C, S, LANES, T, R>(streams, row, block, &mut last_sums) };
            sums = last_sums;
        }
        sums
    }

    /// [`add_block`] for the last block; inlining it would slow down the others.
    ///
    /// # Safety
    /// The rows and the block must be in the matrix.
    #[inline(never)]
    unsafe fn add_last<C: Codes, S: Sums, const LANES: usize, const T: usize, const R: usize>(
        streams: &Streams<'_>,
        row: usize,
        block: usize,
        sums: &mut [[S; R]; T],
    ) {
        // SAFETY: the caller's promise.
        unsafe { add_block::<C, S, LANES, T, R, false>(streams, row, block, sums) };
    }

    /// Prefetches the first rows, which have no row before them that does so.
    #[inline]
    fn prefetch(words: &[u32]) {
        for words in words.chunks(LINE / 4).take(PREFETCH_BYTES / LINE) {
            _mm_prefetch::<_MM_HINT_T1>(words.as_ptr().cast());
        }
    }
}

/// Adds a block of up to [`SUMS`] groups to the sums.
///
/// # Safety
/// The rows and the block are in the matrix; if `WHOLE`, sixteen groups are, and a line can be read from each load on.
#[inline(always)]
unsafe fn add_block<
    C: Codes,
    S: Sums,
    const LANES: usize,
    const T: usize,
    const R: usize,
    const WHOLE: bool,
>(
    streams: &Streams<'_>,
    row: usize,
    block: usize,
    sums: &mut [[S; R]; T],
) {
    // SAFETY: the caller's promise, and lines and groups of all blocks are there.
    unsafe {
        let Streams { words, row_bytes, num_groups, .. } = *streams;
        let first_byte = block * LANES * C::LOADS * C::LOAD_BYTES;
        let first_row = words.wrapping_add(row * row_bytes);
        // In the order of memory, independent of the order of loads.
        let ahead = first_row.wrapping_add(first_byte * R + PREFETCH_BYTES);
        let mut packed = [Packed { from: words, len: 0, ahead }; R];
        for r in 0..R {
            packed[r].from = first_row.wrapping_add(r * row_bytes + first_byte);
            // The next row's codes are multiplied with zeros.
            packed[r].len = streams.num_bytes - ((row + r) * row_bytes + first_byte);
            packed[r].ahead = ahead.wrapping_add(r * C::LOAD_BYTES);
        }
        let lines = streams.lines.add(block * LANES * C::REGISTERS * 2);
        let first_group = block * SUMS;
        let len = if WHOLE { SUMS } else { SUMS.min(num_groups - first_group) };
        // These contain branches, so they come first: values computed before a branch would be
        // spilled to memory.
        let mut scales = [[_mm512_setzero_ps(); 2]; R];
        for r in 0..R {
            let start = (row + r) * num_groups + first_group;
            scales[r] = streams.scales.load::<C, WHOLE>(start, len);
        }
        let mut fours = [[[_mm512_setzero_si512(); R]; T]; 4];
        for four in 0..LANES.div_ceil(4) {
            let token_lines = streams.token_lines;
            let bytes = |num_fours| num_fours * LANES.min(4) * C::LOADS * C::LOAD_BYTES;
            if !WHOLE && row_bytes - first_byte <= bytes(four) {
                break;
            }
            fours[four] = if WHOLE || packed[R - 1].len >= bytes(four + 1) + LINE {
                four_steps::<C, LANES, T, R, true>(packed, four * 4, lines, token_lines)
            } else {
                four_steps::<C, LANES, T, R, false>(packed, four * 4, lines, token_lines)
            };
        }
        for r in 0..R {
            for t in 0..T {
                let fours = [fours[0][t][r], fours[1][t][r], fours[2][t][r], fours[3][t][r]];
                let product = in_order::<LANES>(fours);
                let first = t * streams.padded_groups + first_group;
                sums[t][r] = add_products::<C, S>(streams, first, product, scales[r], sums[t][r]);
            }
        }
    }
}

/// The sums of up to four steps' groups, `[T, R]`.
///
/// # Safety
/// Lines of the steps are there for `T` tokens, `token_lines` apart, and if `WHOLE` their bytes and another line.
#[inline(always)]
unsafe fn four_steps<
    C: Codes,
    const LANES: usize,
    const T: usize,
    const R: usize,
    const WHOLE: bool,
>(
    packed: [Packed; R],
    first_step: usize,
    lines: *const Line,
    token_lines: usize,
) -> [[__m512i; R]; T] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut evens = [[_mm512_setzero_si512(); R]; T];
        let mut pairs = [[[_mm512_setzero_si512(); 2]; R]; T];
        // Rows share the lines of a step, and tokens its codes, while these are in registers.
        for idx in 0..LANES.min(4) {
            let step = first_step + idx;
            for r in 0..R {
                let codes = load_step::<C, R, WHOLE>(packed[r], step);
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
        let mut four = [[_mm512_setzero_si512(); R]; T];
        for t in 0..T {
            for r in 0..R {
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
unsafe fn load_step<C: Codes, const R: usize, const WHOLE: bool>(
    packed: Packed,
    step: usize,
) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let Packed { from, len, ahead } = packed;
        let mut codes = [_mm512_setzero_si512(); 4];
        for load in 0..C::LOADS {
            let byte = (step * C::LOADS + load) * C::LOAD_BYTES;
            let len = if WHOLE { usize::MAX } else { len.saturating_sub(byte) };
            let ahead = ahead.wrapping_add(byte * R);
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
/// The machine must have the instruction set.
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

/// Adds the lanes of four steps in each part of 128 bits, after [`add_steps`].
///
/// # Safety
/// The machine must have the instruction set.
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

/// The sums of sixteen groups in order, after [`add_four`].
///
/// # Safety
/// The machine must have the instruction set.
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

/// Adds the products of sixteen groups to their sums. `first` is the index of the first group among
/// the groups of all tokens.
///
/// # Safety
/// The machine must have the instruction set, and `streams.groups` sixteen groups from `first` on.
#[inline(always)]
unsafe fn add_products<C: Codes, S: Sums>(
    streams: &Streams<'_>,
    first: usize,
    product: __m512i,
    [scales, biases]: [__m512; 2],
    sums: S,
) -> S {
    let x = streams.groups;
    // SAFETY: the caller's promise.
    unsafe {
        let mut product = product;
        if C::OFFSET != 0 {
            let totals = _mm512_loadu_si512(x.totals.as_ptr().add(first).cast());
            let offset = _mm512_mullo_epi32(totals, _mm512_set1_epi32(C::OFFSET));
            product = _mm512_sub_epi32(product, offset);
        }
        let factors = _mm512_mul_ps(scales, _mm512_loadu_ps(x.units.as_ptr().add(first)));
        let x_sums = _mm512_loadu_ps(x.sums.as_ptr().add(first));
        sums.add(_mm512_cvtepi32_ps(product), [factors, biases], x_sums, streams.terms)
    }
}

/// # Safety
/// The machine must have the instruction set, and `line` must point to a readable and aligned
/// [`Line`].
#[inline(always)]
unsafe fn load_line(line: *const Line) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        const { assert!(size_of::<Line>() == LINE) };
        _mm512_load_si512(line.cast())
    }
}

/// Parts of 128 bits: `a0 + a1, a2 + a3, b0 + b1, b2 + b3`.
///
/// # Safety
/// The machine must have the instruction set.
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
