//! Products of many rows of activations: a tile of weights is unpacked once and used for all of
//! them.
//!
//! In a tile, a lane is a weight row. Register `(k, r)` holds, for the rows `16 r` to `16 r + 15`,
//! the four codes of the `k`-th word of the order in which `word_place` has the activations, so
//! that a word of activations is broadcast to all lanes, and a group's sums end up in the same
//! lanes as its scales.

use std::arch::x86_64::*;

use super::codes::{Codes, Factors, Packed, prefetch_factors};
use super::{Job, LINE, Line, WithCodes, for_avx512};
use crate::integer::rounding::{InputColumns, Rounded, SUMS};
use crate::terms::avx512::{OnGrid, Sums as _};
use crate::terms::{Results, TERM_LEVELS};

/// Number of rows of activations that are computed together.
pub(super) const TOKENS: usize = 4;

/// Number of registers of weight rows that are computed together.
const REGISTERS: usize = 2;

/// Number of lanes of a register.
const LANES: usize = 16;

/// Number of weight rows of a tile.
const TILE_ROWS: usize = REGISTERS * LANES;

/// Number of words, of four activations or codes each, in a line.
const LINE_WORDS: usize = LINE / 4;

/// Results of a tile.
type TileResults<V> = [[V; TILE_ROWS]; TOKENS];

/// Puts a row's lines `[steps, half, registers]` into the slot of a token, `[words, TOKENS, half]` of four bytes.
pub(super) struct Interleave<'a> {
    pub(super) x: &'a Rounded,
    pub(super) from: &'a [Line],
    pub(super) slot: usize,
    pub(super) to: &'a mut [Line],
}

impl WithCodes for Interleave<'_> {
    fn run<C: Codes, const LANES: usize>(self) {
        let Interleave { x, from, slot, to } = self;
        // What is not written stays zero.
        let num_steps = x.input.div_ceil(LINE * C::REGISTERS);
        for (step, lines) in from.chunks_exact(2 * C::REGISTERS).take(num_steps).enumerate() {
            let (high, low) = lines.split_at(C::REGISTERS);
            for register in 0..C::REGISTERS {
                let halves =
                    [&high[register], &low[register]].map(|line| line.0.as_chunks::<4>().0);
                for step_group in 0..LINE_WORDS / LANES {
                    let group = group_place(x, step * (LINE_WORDS / LANES) + step_group);
                    let first = (group * C::REGISTERS + register) * LANES;
                    for lane in 0..LANES {
                        let place = ((first + lane) * TOKENS + slot) * 2;
                        let to = to[place / LINE_WORDS].0.as_chunks_mut::<4>().0;
                        for (half, words) in halves.iter().enumerate() {
                            to[place % LINE_WORDS + half] = words[step_group * LANES + lane];
                        }
                    }
                }
            }
        }
    }
}

/// Returns the place of a group in memory, among the padded groups of a row. If the columns are
/// divided, groups are in the order of columns. Otherwise, the groups of a partial sum are
/// together, and partial sums come in the order in which they are added up, in which halves added
/// onto halves are neighbours.
#[inline(always)]
fn group_place(x: &Rounded, group: usize) -> usize {
    match x.columns {
        InputColumns::Divided { .. } => group,
        InputColumns::Whole => PLACES[group % SUMS] * (x.padded_groups / SUMS) + group / SUMS,
    }
}

/// The place of each partial sum in that order, and also the partial sum at each place: the index
/// with its four bits reversed.
const PLACES: [usize; SUMS] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// Unpacked weights; each lane belongs to one weight row.
struct Tile {
    /// `[words, REGISTERS]`: groups in the order of [`group_place`], and in each group the
    /// registers of [`Codes`] one after another.
    codes: Vec<__m512i>,
    /// `[padded_groups, REGISTERS]`.
    scales: Vec<__m512>,
    biases: Vec<__m512>,
}

/// The lines of a few tokens, and the index of the first of these tokens.
#[derive(Clone, Copy)]
struct TokenLines<'a> {
    lines: &'a [Line],
    first: usize,
}

for_avx512! {
    /// Computes all tokens with the rows of the job.
    pub(super) fn multiply<C: Codes, R: Results, const GROUP_LANES: usize>(
        job: &Job<'_>,
        token_lines: usize,
        out: &mut [R],
    ) {
        let x = job.x;
        let row_words = job.matrix.format.words_per_row(job.matrix.input);
        let factors = Factors::of(job.matrix);
        let mut tile = Tile {
            codes: vec![_mm512_setzero_si512(); token_lines * LINE_WORDS / 2 * REGISTERS],
            scales: vec![_mm512_setzero_ps(); x.padded_groups * REGISTERS],
            biases: vec![_mm512_setzero_ps(); x.padded_groups * REGISTERS],
        };
        for start in job.rows.clone().step_by(TILE_ROWS) {
            let num_rows = TILE_ROWS.min(job.rows.end - start);
            fill::<C, GROUP_LANES>(job, start, num_rows, &mut tile);
            // While the first tokens are computed, the next rows are prefetched.
            let next = (start + TILE_ROWS).min(job.rows.end)..(start + 2 * TILE_ROWS).min(job.rows.end);
            prefetch_factors(factors, next.start * x.num_groups()..next.end * x.num_groups());
            let mut ahead = &job.matrix.words[next.start * row_words..next.end * row_words];
            for (tile_idx, out) in out.chunks_mut(TOKENS).enumerate() {
                let lines = &job.lines.lines[tile_idx * TOKENS * token_lines..];
                let lines = TokenLines { lines, first: tile_idx * TOKENS };
                let results = match out.len() {
                    1 => multiply_tile::<C, R, 1>(job, &tile, lines, ahead),
                    2 => multiply_tile::<C, R, 2>(job, &tile, lines, ahead),
                    3 => multiply_tile::<C, R, 3>(job, &tile, lines, ahead),
                    _ => multiply_tile::<C, R, 4>(job, &tile, lines, ahead),
                };
                ahead = &[];
                for (out, results) in out.iter_mut().zip(&results) {
                    out.store(start - job.rows.start, &results[..num_rows]);
                }
            }
        }
    }

    /// The inner loops: computes `T` tokens with all rows of the tile, and prefetches `ahead`.
    #[inline]
    fn multiply_tile<C: Codes, R: Results, const T: usize>(
        job: &Job<'_>,
        tile: &Tile,
        lines: TokenLines<'_>,
        ahead: &[u32],
    ) -> TileResults<R::Value> {
        let x = job.x;
        let num_words = x.padded_groups * (x.group_size / 4);
        assert!(num_words * TOKENS * 2 <= lines.lines.len() * LINE_WORDS, "lines of a tile");
        assert!(num_words * REGISTERS <= tile.codes.len(), "codes of a tile");
        let mut results = [[R::Value::default(); TILE_ROWS]; TOKENS];
        if R::IS_DIVISIBLE {
            // SAFETY: both were checked to be long enough for all groups.
            let sums = unsafe { divided_sums::<C, T>(job, tile, lines, ahead) };
            for t in 0..T {
                for row in 0..TILE_ROWS {
                    results[t][row] = R::choose(0.0, sums[t][row]);
                }
            }
        } else {
            // SAFETY: as above.
            let sums = unsafe { whole_sums::<C, T>(job, tile, lines, ahead) };
            for t in 0..T {
                for row in 0..TILE_ROWS {
                    results[t][row] = R::choose(sums[t][row], 0.0);
                }
            }
        }
        results
    }

    /// Computes the results of products that are not divided. One partial sum is in registers at a
    /// time; few are in memory until they are added up.
    ///
    /// # Safety
    /// The tile and the lines must have all groups.
    #[inline]
    unsafe fn whole_sums<C: Codes, const T: usize>(
        job: &Job<'_>,
        tile: &Tile,
        lines: TokenLines<'_>,
        ahead: &[u32],
    ) -> TileResults<f32> {
        const LEVELS: usize = SUMS.ilog2() as usize;
        let num_groups = job.x.num_groups();
        let ahead_lines = ahead.len().div_ceil(LINE_WORDS * num_groups);
        let mut ahead = ahead.as_ptr();
        let none = _mm512_setzero_ps();
        let mut waiting = [[[none; REGISTERS]; T]; LEVELS];
        let mut sums = [[none; REGISTERS]; T];
        for idx in 0..SUMS {
            sums = [[none; REGISTERS]; T];
            for group in (PLACES[idx]..num_groups).step_by(SUMS) {
                for _ in 0..ahead_lines {
                    _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
                    ahead = ahead.wrapping_add(LINE_WORDS);
                }
                // SAFETY: the caller's promise.
                unsafe { add_group::<C, T>(job, tile, lines, group, &mut sums) };
            }
            for level in 0..LEVELS {
                if (idx >> level) & 1 == 0 {
                    waiting[level] = sums;
                    break;
                }
                for t in 0..T {
                    for r in 0..REGISTERS {
                        sums[t][r] = _mm512_add_ps(waiting[level][t][r], sums[t][r]);
                    }
                }
            }
        }
        let mut results = [[0.0; TILE_ROWS]; TOKENS];
        for t in 0..T {
            for r in 0..REGISTERS {
                let results = &mut results[t][r * LANES..][..LANES];
                // SAFETY: sixteen values.
                unsafe { _mm512_storeu_ps(results.as_mut_ptr(), sums[t][r]) };
            }
        }
        results
    }

    /// Adds up the groups of a term, and the terms on the grid; see [`crate::divisible`].
    ///
    /// # Safety
    /// The tile and the lines have all groups.
    #[inline]
    unsafe fn divided_sums<C: Codes, const T: usize>(
        job: &Job<'_>,
        tile: &Tile,
        lines: TokenLines<'_>,
        ahead: &[u32],
    ) -> TileResults<f64> {
        let num_groups = job.x.num_groups();
        let groups_per_term = job.x.columns.groups_per_term();
        let ahead_lines = ahead.len().div_ceil(LINE_WORDS * num_groups);
        let mut ahead = ahead.as_ptr();
        // SAFETY: the machine has the instruction set.
        let mut grid_sums = [[unsafe { OnGrid::none() }; REGISTERS]; T];
        // Sums of one, two and four groups, each of which waits for the other half of its term.
        let mut waiting = [[[_mm512_setzero_ps(); REGISTERS]; T]; TERM_LEVELS];
        // A last term that is not full ends with groups of zeros.
        for group in 0..num_groups.next_multiple_of(groups_per_term) {
            for _ in 0..ahead_lines {
                _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
                ahead = ahead.wrapping_add(LINE_WORDS);
            }
            let mut sums = [[_mm512_setzero_ps(); REGISTERS]; T];
            // SAFETY: the caller's promise; there are whole sixteens of groups.
            unsafe { add_group::<C, T>(job, tile, lines, group, &mut sums) };
            let term_place = group % groups_per_term;
            let num_waiting = term_place.trailing_ones() as usize;
            for level in 0..num_waiting {
                for t in 0..T {
                    for r in 0..REGISTERS {
                        sums[t][r] = _mm512_add_ps(waiting[level][t][r], sums[t][r]);
                    }
                }
            }
            if term_place + 1 < groups_per_term {
                waiting[num_waiting] = sums;
                continue;
            }
            for t in 0..T {
                for r in 0..REGISTERS {
                    // SAFETY: the machine has the instruction set.
                    grid_sums[t][r] = unsafe { grid_sums[t][r].plus(sums[t][r]) };
                }
            }
        }
        let mut results = [[0.0; TILE_ROWS]; TOKENS];
        for t in 0..T {
            for r in 0..REGISTERS {
                let results = &mut results[t][r * LANES..][..LANES];
                // SAFETY: the machine has the instruction set.
                results.copy_from_slice(&unsafe { grid_sums[t][r].values() });
            }
        }
        results
    }

    /// Adds a group of all rows of the tile for `T` tokens.
    ///
    /// # Safety
    /// The tile and the lines have the group.
    #[inline]
    unsafe fn add_group<C: Codes, const T: usize>(
        job: &Job<'_>,
        tile: &Tile,
        lines: TokenLines<'_>,
        group: usize,
        sums: &mut [[__m512; REGISTERS]; T],
    ) {
        let x = job.x;
        let group_words = x.group_size / 4;
        let mut high = [[_mm512_setzero_si512(); REGISTERS]; T];
        let mut low = [[_mm512_setzero_si512(); REGISTERS]; T];
        let first_word = group_place(x, group) * group_words;
        for word in first_word..first_word + group_words {
            // SAFETY: the caller's promise.
            let (codes, x) = unsafe {
                let x = lines.lines.as_ptr().cast::<i32>().add(word * TOKENS * 2);
                (tile.codes.as_ptr().add(word * REGISTERS), x)
            };
            // SAFETY: as above.
            let codes: [__m512i; REGISTERS] = unsafe { [*codes, *codes.add(1)] };
            for t in 0..T {
                // SAFETY: as above.
                let (x_high, x_low) = unsafe {
                    (_mm512_set1_epi32(*x.add(2 * t)), _mm512_set1_epi32(*x.add(2 * t + 1)))
                };
                for r in 0..REGISTERS {
                    high[t][r] = _mm512_dpbusd_epi32(high[t][r], codes[r], x_high);
                    low[t][r] = _mm512_dpbusd_epi32(low[t][r], codes[r], x_low);
                }
            }
        }
        for t in 0..T {
            let at = (lines.first + t) * x.padded_groups + group;
            let unit = _mm512_set1_ps(x.groups.units[at]);
            let x_sum = _mm512_set1_ps(x.groups.sums[at]);
            for r in 0..REGISTERS {
                let mut product = _mm512_add_epi32(_mm512_slli_epi32::<8>(high[t][r]), low[t][r]);
                if C::OFFSET != 0 {
                    let offset = _mm512_set1_epi32(C::OFFSET * x.groups.totals[at]);
                    product = _mm512_sub_epi32(product, offset);
                }
                let factor = _mm512_mul_ps(tile.scales[group * REGISTERS + r], unit);
                let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(product), factor, sums[t][r]);
                sums[t][r] = _mm512_fmadd_ps(tile.biases[group * REGISTERS + r], x_sum, sum);
            }
        }
    }

    /// Unpacks the rows from `first_row` on; rows beyond `num_rows` repeat the last one.
    fn fill<C: Codes, const GROUP_LANES: usize>(
        job: &Job<'_>,
        first_row: usize,
        num_rows: usize,
        tile: &mut Tile,
    ) {
        let last_row = first_row + num_rows - 1;
        assert!(last_row < job.matrix.out, "rows of the matrix");
        for r in 0..REGISTERS {
            let mut rows = [0; LANES];
            for lane in 0..LANES {
                rows[lane] = (first_row + r * LANES + lane).min(last_row);
            }
            // SAFETY: these are rows of the matrix.
            unsafe {
                fill_codes::<C, GROUP_LANES>(job, rows, r, tile);
                fill_scales::<C>(job, rows, r, tile);
            }
        }
    }

    /// # Safety
    /// These are rows of the matrix.
    #[inline]
    unsafe fn fill_codes<C: Codes, const GROUP_LANES: usize>(
        job: &Job<'_>,
        rows: [usize; LANES],
        r: usize,
        tile: &mut Tile,
    ) {
        let (x, matrix) = (job.x, job.matrix);
        let row_bytes = matrix.format.words_per_row(matrix.input) * 4;
        let (words, num_bytes) = (matrix.words.as_ptr().cast::<u8>(), matrix.words.len() * 4);
        let (step_groups, group_words) = (LINE_WORDS / GROUP_LANES, GROUP_LANES * C::REGISTERS);
        assert!(x.padded_groups * group_words * REGISTERS <= tile.codes.len(), "codes of a tile");
        let step_bytes = C::LOADS * C::LOAD_BYTES;
        for first_byte in (0..row_bytes).step_by(C::LOAD_BYTES) {
            let mut lanes = [_mm512_setzero_si512(); LANES];
            let is_whole = rows[LANES - 1] * row_bytes + first_byte + LINE <= num_bytes;
            for lane in 0..LANES {
                let byte = rows[lane] * row_bytes + first_byte;
                let from = words.wrapping_add(byte);
                let len = if is_whole { usize::MAX } else { num_bytes - byte };
                // Prefetches the next sixteen rows. The codes of the next row are in no group.
                let packed = Packed { from, len, ahead: from.wrapping_add(row_bytes * LANES) };
                // SAFETY: the machine has the instruction set, and the rest of the matrix can be read.
                lanes[lane] = unsafe { C::load(packed) };
            }
            let step = first_byte / step_bytes;
            let first_register = first_byte % step_bytes / C::LOAD_BYTES * C::SPLIT;
            if C::STAYS_IN_BYTES {
                transpose(&mut lanes);
            }
            let mut split = [[_mm512_setzero_si512(); 4]; LANES];
            for lane in 0..LANES {
                // SAFETY: the machine has the instruction set.
                split[lane] = unsafe { C::split(lanes[lane]) };
            }
            for register in 0..C::SPLIT {
                let mut words = [_mm512_setzero_si512(); LANES];
                for lane in 0..LANES {
                    words[lane] = split[lane][register];
                }
                if !C::STAYS_IN_BYTES {
                    transpose(&mut words);
                }
                let register = first_register + register;
                for step_group in 0..step_groups {
                    let group = group_place(x, step * step_groups + step_group);
                    let place = group * group_words + register * GROUP_LANES;
                    for word in 0..GROUP_LANES {
                        // SAFETY: a step that has begun is in the padded groups, whose codes were checked to be
                        // there.
                        unsafe {
                            *tile.codes.as_mut_ptr().add((place + word) * REGISTERS + r) =
                                words[step_group * GROUP_LANES + word];
                        }
                    }
                }
            }
        }
    }

    /// # Safety
    /// These are rows of the matrix.
    #[inline]
    unsafe fn fill_scales<C: Codes>(
        job: &Job<'_>,
        rows: [usize; LANES],
        r: usize,
        tile: &mut Tile,
    ) {
        let num_groups = job.x.num_groups();
        let factors = Factors::of(job.matrix);
        for first_group in (0..num_groups).step_by(16) {
            let len = SUMS.min(num_groups - first_group);
            let mut scales = [_mm512_setzero_si512(); LANES];
            let mut biases = [_mm512_setzero_si512(); LANES];
            for (lane, row) in rows.iter().enumerate() {
                let start = row * num_groups + first_group;
                // SAFETY: the machine has the instruction set, and `len` groups of the row are left.
                let [scale, bias] = unsafe {
                    if len == SUMS {
                        factors.load::<C, true>(start, len)
                    } else {
                        factors.load::<C, false>(start, len)
                    }
                };
                scales[lane] = _mm512_castps_si512(scale);
                biases[lane] = _mm512_castps_si512(bias);
            }
            transpose(&mut scales);
            transpose(&mut biases);
            for group in 0..16 {
                let place = (first_group + group) * REGISTERS + r;
                tile.scales[place] = _mm512_castsi512_ps(scales[group]);
                tile.biases[place] = _mm512_castsi512_ps(biases[group]);
            }
        }
    }

    /// Transposes sixteen registers of sixteen words.
    #[inline]
    fn transpose(rows: &mut [__m512i; LANES]) {
        let mut fours = [_mm512_setzero_si512(); LANES];
        for four in 0..4 {
            let (a, b) = (rows[4 * four], rows[4 * four + 1]);
            let (c, d) = (rows[4 * four + 2], rows[4 * four + 3]);
            let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            // Part `p` of register `w`: word `4 p + w` of the four rows.
            fours[4 * four] = _mm512_unpacklo_epi64(ab_low, cd_low);
            fours[4 * four + 1] = _mm512_unpackhi_epi64(ab_low, cd_low);
            fours[4 * four + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
            fours[4 * four + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
        }
        for word in 0..4 {
            let (a, b, c, d) = (fours[word], fours[4 + word], fours[8 + word], fours[12 + word]);
            let ab_even = _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b);
            let ab_odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b);
            let cd_even = _mm512_shuffle_i32x4::<0b10_00_10_00>(c, d);
            let cd_odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(c, d);
            rows[word] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_even, cd_even);
            rows[4 + word] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_odd, cd_odd);
            rows[8 + word] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_even, cd_even);
            rows[12 + word] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_odd, cd_odd);
        }
    }
}
