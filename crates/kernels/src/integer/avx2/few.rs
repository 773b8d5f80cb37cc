//! Products of few rows of activations: every weight is loaded once and unpacked in registers.

use std::arch::x86_64::*;
use std::ops::Range;

use jackalope_simd::{Elements, QuantMatrix, QuantMode, Scales};

use super::codes::Codes;
use super::{
    LANES, Ordered, Register, WithCodes, add_terms, for_avx2, no_terms, terms_of, total_on_grid,
};
use crate::integer::rounding::Rounded;
use crate::terms::Results;

/// Number of rows whose results are buffered before they are stored: their weights stay in the
/// cache for all tokens.
const RESULT_ROWS: usize = 32;

/// Maximum number of tokens that are computed together: they share the unpacked weights.
const TOKENS: usize = 2;

/// Number of groups whose sums fill a register.
const GROUPS: usize = 8;

/// Prefetch distance in bytes; see `avx512`.
const PREFETCH_BYTES: usize = 16 << 10;

/// Maximum number of bytes of a load.
const READ_BYTES_MAX: usize = 32;

/// A product restricted to some rows of the weights.
pub(super) struct Job<'a> {
    pub(super) ordered: &'a Ordered,
    pub(super) x: &'a Rounded,
    pub(super) matrix: &'a QuantMatrix<'a>,
    pub(super) rows: Range<usize>,
}

pub(super) struct Multiply<'a, R> {
    pub(super) job: Job<'a>,
    pub(super) out: &'a mut [R],
}

impl<R: Results> WithCodes for Multiply<'_, R> {
    fn run<C: Codes, const LOADS: usize, const SUM_LANES: usize>(self) {
        assert_eq!(self.job.x.group_size * GROUPS, LOADS * SUM_LANES * C::REGISTERS * LANES);
        // SAFETY: `multiply_rows`, where this comes from, has detected the set.
        unsafe { multiply::<C, R, LOADS, SUM_LANES>(&self.job, self.out) }
    }
}

for_avx2! {
    fn multiply<C: Codes, R: Results, const LOADS: usize, const SUM_LANES: usize>(
        job: &Job<'_>,
        out: &mut [R],
    ) {
        for start in job.rows.clone().step_by(RESULT_ROWS) {
            let rows = start..(start + RESULT_ROWS).min(job.rows.end);
            for (turn, out) in out.chunks_mut(TOKENS).enumerate() {
                let mut results = [[R::Value::default(); RESULT_ROWS]; TOKENS];
                for row in rows.clone() {
                    if turn == 0 {
                        prefetch(job, row);
                    }
                    let idx = row - start;
                    if out.len() == 1 {
                        let [sum] = row_sums::<C, R, LOADS, SUM_LANES, 1>(job, turn * TOKENS, row);
                        results[0][idx] = sum;
                    } else {
                        let sums = row_sums::<C, R, LOADS, SUM_LANES, 2>(job, turn * TOKENS, row);
                        [results[0][idx], results[1][idx]] = sums;
                    }
                }
                for (out, results) in out.iter_mut().zip(&results) {
                    out.store(start - job.rows.start, &results[..rows.len()]);
                }
            }
        }
    }

    /// Prefetches a later row.
    #[inline]
    fn prefetch(job: &Job<'_>, row: usize) {
        let row_bytes = job.matrix.format.words_per_row(job.matrix.input) * 4;
        let from = job.matrix.words.as_ptr().cast::<i8>();
        for byte in (0..row_bytes).step_by(64) {
            _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(row * row_bytes + byte + PREFETCH_BYTES));
        }
    }

    /// Computes the results of `T` tokens with a row.
    fn row_sums<
        C: Codes,
        R: Results,
        const LOADS: usize,
        const SUM_LANES: usize,
        const T: usize,
    >(
        job: &Job<'_>,
        token: usize,
        row: usize,
    ) -> [R::Value; T] {
        let Job { ordered, x, matrix, .. } = job;
        let stride = x.padded_groups * x.group_size / LANES;
        let row_bytes = matrix.format.words_per_row(matrix.input) * 4;
        assert!((token + T) * stride <= ordered.values.len(), "values of the tokens");
        assert!((row + 1) * row_bytes <= matrix.words.len() * 4, "bytes of the row");
        let num_groups = x.num_groups();
        let mut sums = [[_mm256_setzero_ps(); 2]; T];
        let mut grid_sums = [no_terms(); T];
        for first_group in (0..num_groups).step_by(GROUPS) {
            let first_load = first_group / GROUPS * SUM_LANES * LOADS;
            let first_byte = row * row_bytes + first_load * C::LOAD_BYTES;
            let first_register = token * stride + first_group * x.group_size / LANES;
            let values = ordered.values[first_register..].as_ptr();
            let place = Place {
                from: matrix.words.as_ptr().cast::<u8>().wrapping_add(first_byte),
                left: matrix.words.len() * 4 - first_byte,
                values,
                stride,
            };
            let left = num_groups - first_group;
            // SAFETY: the machine has the instruction set; the bytes are those of the matrix from
            // there on, and the padded groups come by sixteens.
            let products = unsafe {
                let last_load = (LOADS * SUM_LANES - 1) * C::LOAD_BYTES;
                if place.left < last_load + C::READ_BYTES {
                    group_sums::<C, LOADS, SUM_LANES, T, false, false>(place)
                } else if GROUPS / 2 < left {
                    group_sums::<C, LOADS, SUM_LANES, T, true, false>(place)
                } else {
                    group_sums::<C, LOADS, SUM_LANES, T, true, true>(place)
                }
            };
            let weights = row * num_groups + first_group;
            // SAFETY: the machine has the instruction set.
            let (scales, biases) = unsafe { load_scales(matrix, weights, left) };
            for t in 0..T {
                let groups = (token + t) * x.padded_groups + first_group;
                let units = load(&x.groups.units[groups..][..GROUPS]);
                let x_sums = load(&x.groups.sums[groups..][..GROUPS]);
                let product = _mm256_cvtepi32_ps(products[t]);
                let factors = _mm256_mul_ps(scales, units);
                if R::IS_DIVISIBLE {
                    let groups = _mm256_fmadd_ps(biases, x_sums, _mm256_mul_ps(product, factors));
                    let terms = terms_of(groups, x.columns.groups_per_term());
                    grid_sums[t] = add_terms(grid_sums[t], terms);
                    continue;
                }
                let sum = &mut sums[t][first_group / GROUPS % 2];
                *sum = _mm256_fmadd_ps(product, factors, *sum);
                *sum = _mm256_fmadd_ps(biases, x_sums, *sum);
            }
        }
        let mut results = [R::Value::default(); T];
        for t in 0..T {
            results[t] = R::choose(total(sums[t]), total_on_grid(grid_sums[t]));
        }
        results
    }

    /// As `super::super::total`.
    #[inline]
    fn total([low, high]: [__m256; 2]) -> f32 {
        let eight = _mm256_add_ps(low, high);
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }

    #[inline]
    fn load(values: &[f32]) -> __m256 {
        assert!(values.len() == GROUPS);
        // SAFETY: eight values.
        unsafe { _mm256_loadu_ps(values.as_ptr()) }
    }
}

/// Scales and biases of the eight groups from `start` on; zeros after the first `left` groups.
///
/// # Safety
/// The machine must have the instruction set.
#[inline(always)]
unsafe fn load_scales(matrix: &QuantMatrix<'_>, start: usize, left: usize) -> (__m256, __m256) {
    let len = left.min(GROUPS);
    // SAFETY: the caller's promise; an array of eight values is a register.
    unsafe {
        let scales = match &matrix.scales {
            Scales::Elements(scales) => load_elements(scales, start, len),
            Scales::Bytes(codes) => {
                let mut eight = [0; GROUPS];
                match codes.get(start..start + GROUPS) {
                    Some(codes) => eight.copy_from_slice(codes),
                    None => eight[..len].copy_from_slice(&codes[start..start + len]),
                }
                let codes = _mm_cvtsi64_si128(i64::from_le_bytes(eight));
                let is_e4m3 = matrix.format.mode == QuantMode::Nvfp4;
                first(if is_e4m3 { from_e4m3(codes) } else { from_e8m0(codes) }, len)
            }
        };
        match &matrix.biases {
            Some(biases) => (scales, load_elements(biases, start, len)),
            None => (scales, _mm256_setzero_ps()),
        }
    }
}

/// # Safety
/// The machine must have the instruction set.
#[inline(always)]
unsafe fn load_elements(elements: &Elements<'_>, start: usize, len: usize) -> __m256 {
    // SAFETY: the caller's promise; eight halves, or an array of eight values.
    unsafe {
        match elements {
            // Those of the next row may follow.
            Elements::Bf16(values) if start + GROUPS <= values.len() => {
                let values = &values[start..start + GROUPS];
                let halves = _mm_loadu_si128(values.as_ptr().cast());
                let wide = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves));
                first(_mm256_castsi256_ps(wide), len)
            }
            Elements::F16(values) if start + GROUPS <= values.len() => {
                let values = &values[start..start + GROUPS];
                first(_mm256_cvtph_ps(_mm_loadu_si128(values.as_ptr().cast())), len)
            }
            _ => {
                let mut values = [0.0; GROUPS];
                elements.load(start, &mut values[..len]);
                _mm256_loadu_ps(values.as_ptr())
            }
        }
    }
}

/// The first `len` lanes, and zeros.
///
/// # Safety
/// The machine must have the instruction set.
#[inline(always)]
unsafe fn first(lanes: __m256, len: usize) -> __m256 {
    if len == GROUPS {
        return lanes;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let indices = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let is_first = _mm256_cmpgt_epi32(_mm256_set1_epi32(len as i32), indices);
        _mm256_and_ps(lanes, _mm256_castsi256_ps(is_first))
    }
}

/// As [`jackalope_simd::e8m0`], of eight bytes.
///
/// # Safety
/// The machine must have the instruction set.
#[inline(always)]
unsafe fn from_e8m0(codes: __m128i) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let codes = _mm256_cvtepu8_epi32(codes);
        let is_zero = _mm256_cmpeq_epi32(codes, _mm256_setzero_si256());
        let least = _mm256_and_si256(is_zero, _mm256_set1_epi32(1 << 22));
        _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32::<23>(codes), least))
    }
}

/// As [`jackalope_simd::e4m3`], of eight bytes: an f16 with the same mantissa has an exponent larger by eight.
///
/// # Safety
/// The machine must have the instruction set.
#[inline(always)]
unsafe fn from_e4m3(codes: __m128i) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let codes = _mm_cvtepu8_epi16(codes);
        let magnitudes = _mm_and_si128(codes, _mm_set1_epi16(0x7f));
        let halves = _mm256_cvtph_ps(_mm_slli_epi16::<7>(magnitudes));
        let values = _mm256_mul_ps(halves, _mm256_set1_ps(256.0));
        let is_nan = _mm_cmpeq_epi16(magnitudes, _mm_set1_epi16(0x7f));
        let is_nan = _mm256_castsi256_ps(_mm256_cvtepi16_epi32(is_nan));
        let values = _mm256_blendv_ps(values, _mm256_set1_ps(f32::NAN), is_nan);
        let signs = _mm256_slli_epi32::<24>(_mm256_cvtepu16_epi32(_mm_andnot_si128(
            _mm_set1_epi16(0x7f),
            codes,
        )));
        _mm256_or_ps(values, _mm256_castsi256_ps(signs))
    }
}

/// Location of eight groups of a weight row, and of the activations for them.
#[derive(Clone, Copy)]
struct Place {
    /// Packed codes. Those of the next row may follow; they are multiplied with zeros.
    from: *const u8,
    left: usize,
    /// Ordered activations of the first token; the next ones are `stride` apart.
    values: *const Register,
    stride: usize,
}

/// The integer sums of eight groups in order, for each token; with `IS_HALF` of the first four, and zeros.
///
/// # Safety
/// The machine must have the instruction set, and everything is where `place` says; if `WHOLE`, what all loads read.
#[inline(always)]
unsafe fn group_sums<
    C: Codes,
    const LOADS: usize,
    const SUM_LANES: usize,
    const T: usize,
    const WHOLE: bool,
    const IS_HALF: bool,
>(
    place: Place,
) -> [__m256i; T] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut lanes = [[_mm256_setzero_si256(); 8]; T];
        for sum in 0..if IS_HALF { SUM_LANES / 2 } else { SUM_LANES } {
            // Apart from `lanes`, so that they are in registers whether or not this loop is unrolled.
            let mut products = [_mm256_setzero_si256(); T];
            for load in sum * LOADS..(sum + 1) * LOADS {
                let codes = load_codes::<C, WHOLE>(place, load * C::LOAD_BYTES);
                let values = place.values.add(load * C::REGISTERS);
                for r in 0..C::REGISTERS {
                    for t in 0..T {
                        let values = _mm256_load_si256(values.add(t * place.stride + r).cast());
                        let product = _mm256_madd_epi16(codes[r], values);
                        products[t] = _mm256_add_epi32(products[t], product);
                    }
                }
            }
            for t in 0..T {
                lanes[t][sum] = products[t];
            }
        }
        let mut sums = [_mm256_setzero_si256(); T];
        for t in 0..T {
            sums[t] = in_order::<SUM_LANES>(lanes[t]);
        }
        sums
    }
}

/// # Safety
/// The machine must have the instruction set, and `place.left` bytes can be read; if `WHOLE`, those
/// of the load are among them.
#[inline(always)]
unsafe fn load_codes<C: Codes, const WHOLE: bool>(place: Place, byte: usize) -> [__m256i; 8] {
    // SAFETY: the caller's promise; the copy has room for every load.
    unsafe {
        let from = place.from.wrapping_add(byte);
        if WHOLE || byte + C::READ_BYTES <= place.left {
            return C::load(from);
        }
        let mut copy = [0_u8; READ_BYTES_MAX];
        let left = place.left.saturating_sub(byte).min(READ_BYTES_MAX);
        std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), left);
        C::load(copy.as_ptr())
    }
}

/// The sums of eight groups in order, each of `SUM_LANES` lanes in as many registers.
///
/// # Safety
/// The machine must have the instruction set.
#[inline(always)]
unsafe fn in_order<const SUM_LANES: usize>([a, b, c, d, e, f, g, h]: [__m256i; 8]) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        if SUM_LANES == 2 {
            return _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_hadd_epi32(a, b));
        }
        // Each half of these has a half of the sums of four registers.
        let low = add_lanes(add_pairs(a, b), add_pairs(c, d));
        if SUM_LANES == 4 {
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            return _mm256_permutevar8x32_epi32(low, order);
        }
        let high = add_lanes(add_pairs(e, f), add_pairs(g, h));
        _mm256_add_epi32(
            _mm256_permute2x128_si256::<0x20>(low, high),
            _mm256_permute2x128_si256::<0x31>(low, high),
        )
    }
}

/// In each half: `a0 + a2, b0 + b2, a1 + a3, b1 + b3`.
///
/// # Safety
/// The machine must have the instruction set.
#[inline(always)]
unsafe fn add_pairs(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)) }
}

/// From two results of [`add_pairs`], in each half: the sums of `a`, `b`, `c` and `d`.
///
/// # Safety
/// The machine must have the instruction set.
#[inline(always)]
unsafe fn add_lanes(ab: __m256i, cd: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd)) }
}
