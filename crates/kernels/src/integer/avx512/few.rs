//! Few rows of activations: every weight is loaded once, unpacked in registers and gone.

use std::arch::x86_64::*;
use std::array;

use super::codes::{Codes, load_elements, load_scales};
use super::{Job, LINE, Line, for_avx512};
use crate::elements::ElementsMut;

/// Weight rows computed together.
const ROWS: usize = 2;

/// Rows whose results are kept until they are stored.
const RESULT_ROWS: usize = 64;

for_avx512! {
    /// All tokens, one or two at a time.
    pub(super) fn multiply<C: Codes, const LANES: usize>(
        job: &Job<'_>,
        token_lines: usize,
        out: &mut [ElementsMut<'_>],
    ) {
        let mut token = 0;
        for out in out.chunks_mut(2) {
            let lines = &job.lines.lines[token * token_lines..][..out.len() * token_lines];
            match out {
                [_, _] => some_tokens::<C, LANES, 2>(job, lines, token, out),
                _ => some_tokens::<C, LANES, 1>(job, lines, token, out),
            }
            token += out.len();
        }
    }

    #[inline]
    fn some_tokens<C: Codes, const LANES: usize, const TOKENS: usize>(
        job: &Job<'_>,
        lines: &[Line],
        token: usize,
        out: &mut [ElementsMut<'_>],
    ) {
        let mut results = [[0.0; RESULT_ROWS]; TOKENS];
        for start in job.rows.clone().step_by(RESULT_ROWS) {
            let end = (start + RESULT_ROWS).min(job.rows.end);
            for row in (start..end).step_by(ROWS) {
                // The last row of an odd number is computed twice.
                let rows = array::from_fn(|offset| (row + offset).min(end - 1));
                let values = row_pair::<C, LANES, TOKENS>(job, lines, token, rows);
                for (results, values) in results.iter_mut().zip(values) {
                    let values = &values[..ROWS.min(end - row)];
                    results[row - start..][..values.len()].copy_from_slice(values);
                }
            }
            for (out, results) in out.iter_mut().zip(&results) {
                out.store(start - job.rows.start, &results[..end - start]);
            }
        }
    }

    /// Results `[TOKENS, ROWS]`.
    #[inline]
    fn row_pair<C: Codes, const LANES: usize, const TOKENS: usize>(
        job: &Job<'_>,
        lines: &[Line],
        token: usize,
        rows: [usize; ROWS],
    ) -> [[f32; ROWS]; TOKENS] {
        let (x, matrix) = (job.x, job.matrix);
        let num_groups = x.num_groups();
        let row_bytes = matrix.format.words_per_row(matrix.input) * 4;
        let token_lines = lines.len() / TOKENS;
        let block_lines = LANES * C::REGISTERS * 2;
        let block_bytes = LANES * C::LOADS * C::LOAD_BYTES;
        let packed = rows.map(|row| {
            &matrix.words[row * row_bytes / 4..][..row_bytes / 4]
        });
        let mut sums = [[_mm512_setzero_ps(); ROWS]; TOKENS];
        for block in 0..x.padded_groups / 16 {
            let mut lanes = [[[_mm512_setzero_si512(); LANES]; ROWS]; TOKENS];
            let first_byte = block * block_bytes;
            // SAFETY: the loads read no more than `len` bytes from within the row on.
            let (from, len) = (
                packed.map(|packed| packed.as_ptr().cast::<u8>().wrapping_add(first_byte)),
                row_bytes - first_byte,
            );
            let x_lines: [&[Line]; TOKENS] =
                array::from_fn(|t| &lines[t * token_lines + block * block_lines..][..block_lines]);
            for step in 0..LANES {
                for r in 0..ROWS {
                    // SAFETY: `load_step` reads within the row.
                    let codes = unsafe { load_step::<C>(from[r], len, step) };
                    for t in 0..TOKENS {
                        let x = &x_lines[t][step * C::REGISTERS * 2..][..C::REGISTERS * 2];
                        lanes[t][r][step] = dot::<C>(codes, x);
                    }
                }
            }
            let first_group = block * 16;
            for r in 0..ROWS {
                let start = rows[r] * num_groups + first_group;
                let left = num_groups - first_group;
                let scales = load_scales(&matrix.scales, matrix.format.mode, start, left);
                let biases = match &matrix.biases {
                    Some(biases) => load_elements(biases, start, left),
                    None => _mm512_setzero_ps(),
                };
                for t in 0..TOKENS {
                    let group = (token + t) * x.padded_groups + first_group;
                    let mut products = sum_groups::<LANES>(&lanes[t][r]);
                    if C::OFFSET != 0 {
                        let totals = load_i32s(&x.groups.totals[group..][..16]);
                        let offset = _mm512_mullo_epi32(totals, _mm512_set1_epi32(C::OFFSET));
                        products = _mm512_sub_epi32(products, offset);
                    }
                    let factors = _mm512_mul_ps(scales, load_f32s(&x.groups.units[group..][..16]));
                    let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), factors, sums[t][r]);
                    let x_sums = load_f32s(&x.groups.sums[group..][..16]);
                    sums[t][r] = _mm512_fmadd_ps(biases, x_sums, sum);
                }
            }
        }
        let mut results = [[0.0; ROWS]; TOKENS];
        for t in 0..TOKENS {
            for r in 0..ROWS {
                results[t][r] = total(sums[t][r]);
            }
        }
        results
    }

    /// The codes of a step, in up to two registers.
    ///
    /// # Safety
    /// `len` bytes can be read from `from` on.
    #[inline]
    unsafe fn load_step<C: Codes>(from: *const u8, len: usize, step: usize) -> [__m512i; 2] {
        let first = step * C::LOADS * C::LOAD_BYTES;
        let mut codes = [_mm512_setzero_si512(); 2];
        for load in 0..C::LOADS {
            let byte = first + load * C::LOAD_BYTES;
            // SAFETY: the machine has the set, and the bytes that are left can be read.
            let registers =
                unsafe { C::split(C::load(from.wrapping_add(byte), len.saturating_sub(byte))) };
            if C::SPLIT == 2 {
                codes = registers;
            } else {
                codes[load] = registers[0];
            }
        }
        codes
    }

    /// The products of a step, lane by lane: `256 * high + low`.
    #[inline]
    fn dot<C: Codes>(codes: [__m512i; 2], x: &[Line]) -> __m512i {
        let mut sum = _mm512_setzero_si512();
        for r in 0..C::REGISTERS {
            sum = _mm512_dpbusd_epi32(sum, codes[r], load_line(&x[r]));
        }
        sum = _mm512_slli_epi32::<8>(sum);
        for r in 0..C::REGISTERS {
            sum = _mm512_dpbusd_epi32(sum, codes[r], load_line(&x[C::REGISTERS + r]));
        }
        sum
    }

    /// The sums of sixteen groups, each of which has `LANES` lanes, in order.
    #[inline]
    fn sum_groups<const LANES: usize>(lanes: &[__m512i; LANES]) -> __m512i {
        if LANES == 2 {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            return _mm512_add_epi32(
                _mm512_permutex2var_epi32(lanes[0], even, lanes[1]),
                _mm512_permutex2var_epi32(lanes[0], odd, lanes[1]),
            );
        }
        // Each of these has, in its 128-bit part `p`, the sums of part `p` of four registers.
        let mut fours = [_mm512_setzero_si512(); 4];
        for four in 0..LANES / 4 {
            let [a, b, c, d] = array::from_fn(|idx| lanes[4 * four + idx]);
            let (ab, cd) = (add_pairs(a, b), add_pairs(c, d));
            fours[four] =
                _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
        }
        if LANES == 4 {
            // Group `p` of step `s` is in lane `s` of part `p`.
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            return _mm512_permutexvar_epi32(order, fours[0]);
        }
        let eights = [add_parts(fours[0], fours[1]), add_parts(fours[2], fours[3])];
        if LANES == 8 {
            // The parts are steps 0 to 3, first groups and second groups, then steps 4 to 7.
            let order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
            return _mm512_permutexvar_epi32(order, eights[0]);
        }
        add_parts(eights[0], eights[1])
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

    #[inline]
    fn load_line(line: &Line) -> __m512i {
        const { assert!(size_of::<Line>() == LINE) };
        // SAFETY: a line is an aligned register.
        unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
    }

    #[inline]
    fn load_f32s(values: &[f32]) -> __m512 {
        assert!(values.len() == 16);
        // SAFETY: sixteen values.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }

    #[inline]
    fn load_i32s(values: &[i32]) -> __m512i {
        assert!(values.len() == 16);
        // SAFETY: sixteen values.
        unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
    }
}
