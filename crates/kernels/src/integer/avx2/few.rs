//! Products of few rows of activations: every weight is loaded once and unpacked in registers.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use jackalope_simd::QuantMatrix;

use super::codes::Codes;
use super::scales::{GROUPS, GroupValues, copy_codes};
use super::{
    GridSums, LANES, Ordered, Register, WithCodes, add_terms, for_avx2, no_terms, terms_of,
    total_on_grid,
};
use crate::integer::rounding::Rounded;
use crate::terms::Results;

/// Number of rows whose results are buffered before they are stored: their weights stay in the
/// cache for all tokens.
const RESULT_ROWS: usize = 32;

/// Maximum number of tokens that are computed together: they share the unpacked weights.
const TOKENS: usize = 4;

/// Prefetch distance in bytes; see `avx512`.
const PREFETCH_BYTES: usize = 16 << 10;

/// Maximum number of bytes that the loads of a unit read: groups of 128 codes of eight bits, or
/// some bytes after smaller ones.
const UNIT_BYTES_MAX: usize = GROUPS * 128;

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

/// Sums of a row with `T` tokens. A unit of a row is [`GROUPS`] groups.
struct Sums<const T: usize> {
    /// Those of the units with an even index and of the others; which is first changes with every
    /// unit.
    plain: [[__m256; 2]; T],
    on_grid: [GridSums; T],
}

/// The scales and biases of a unit.
#[derive(Clone, Copy)]
struct Factors {
    scales: __m256,
    biases: __m256,
}

for_avx2! {
    fn multiply<C: Codes, R: Results, const LOADS: usize, const SUM_LANES: usize>(
        job: &Job<'_>,
        out: &mut [R],
    ) {
        let Job { ordered, x, matrix, rows } = job;
        let units = Units::of::<C, LOADS, SUM_LANES>(job);
        assert!(rows.end * units.row_bytes <= matrix.words.len() * 4, "bytes of the rows");
        assert!(GroupValues::has(matrix, rows.end * x.num_groups()), "scales and biases of the rows");
        assert!(out.len() * units.stride <= ordered.values.len(), "values of the tokens");
        assert!(out.len() * x.padded_groups <= x.groups.units.len(), "units of the tokens");
        assert!(out.len() * x.padded_groups <= x.groups.sums.len(), "sums of the tokens");
        for start in rows.clone().step_by(RESULT_ROWS) {
            let block = start..(start + RESULT_ROWS).min(rows.end);
            let mut token = 0;
            while token < out.len() {
                let (units, block) = (&units, block.clone());
                let out = &mut out[token..];
                token += match out.len() {
                    1 => multiply_block::<C, R, LOADS, SUM_LANES, 1>(job, units, token, block, out),
                    2 | 3 => multiply_block::<C, R, LOADS, SUM_LANES, 2>(job, units, token, block, out),
                    _ => multiply_block::<C, R, LOADS, SUM_LANES, TOKENS>(job, units, token, block, out),
                };
            }
        }
    }

    /// Computes and stores the results of the `T` tokens from `token` on with the rows of a block,
    /// and returns `T`.
    fn multiply_block<
        C: Codes,
        R: Results,
        const LOADS: usize,
        const SUM_LANES: usize,
        const T: usize,
    >(
        job: &Job<'_>,
        units: &Units,
        token: usize,
        block: Range<usize>,
        out: &mut [R],
    ) -> usize {
        let mut results = [[R::Value::default(); RESULT_ROWS]; T];
        for (idx, row) in block.clone().enumerate() {
            // SAFETY: `multiply` has checked that everything is there.
            let sums = unsafe { row_sums::<C, R, LOADS, SUM_LANES, T>(job, units, token, row) };
            for t in 0..T {
                results[t][idx] =
                    R::choose(total(sums.plain[t]), total_on_grid(sums.on_grid[t]));
            }
        }
        for t in 0..T {
            out[t].store(block.start - job.rows.start, &results[t][..block.len()]);
        }
        T
    }

    /// Computes the sums of `T` tokens with a row.
    ///
    /// # Safety
    /// `job` must have the row and the tokens.
    #[inline]
    unsafe fn row_sums<
        C: Codes,
        R: Results,
        const LOADS: usize,
        const SUM_LANES: usize,
        const T: usize,
    >(
        job: &Job<'_>,
        units: &Units,
        token: usize,
        row: usize,
    ) -> Sums<T> {
        let x = job.x;
        let unit_bytes = LOADS * SUM_LANES * C::LOAD_BYTES;
        let mut unit = Unit::first(job, units, token, row);
        let mut sums = Sums { plain: [[_mm256_setzero_ps(); 2]; T], on_grid: [no_terms(); T] };
        let groups_per_term = x.columns.groups_per_term();
        let is_copied = units.copied_from <= row;
        let whole_units = if is_copied { units.last } else { units.whole };
        for _ in 0..whole_units {
            prefetch(unit.codes, unit_bytes);
            // SAFETY: the groups and what their loads read are there.
            unsafe {
                let products = group_sums::<C, LOADS, SUM_LANES, T, false>(unit);
                let factors =
                    Factors { scales: unit.scales.eight(), biases: unit.biases.eight() };
                add_unit::<R, T>(unit, products, factors, groups_per_term, &mut sums);
            }
            unit = unit.next(unit_bytes, x.group_size);
        }
        let groups_left = x.num_groups() - whole_units * GROUPS;
        if groups_left == 0 {
            return sums;
        }
        prefetch(unit.codes, unit_bytes);
        let mut copy: MaybeUninit<[u8; UNIT_BYTES_MAX]> = MaybeUninit::uninit();
        if is_copied {
            let num_bytes = groups_left * unit_bytes / GROUPS;
            // SAFETY: the bytes are those of the last groups of the row.
            unit.codes = unsafe { copy_codes(unit.codes, num_bytes, &mut copy) };
        }
        // SAFETY: padded activations are there, zeros, by which bytes after the row are multiplied.
        unsafe {
            let products = if groups_left <= GROUPS / 2 {
                group_sums::<C, LOADS, SUM_LANES, T, true>(unit)
            } else {
                group_sums::<C, LOADS, SUM_LANES, T, false>(unit)
            };
            let first = |it: GroupValues| it.first(groups_left, is_copied);
            let factors = Factors { scales: first(unit.scales), biases: first(unit.biases) };
            add_unit::<R, T>(unit, products, factors, groups_per_term, &mut sums);
        }
        sums
    }

    /// Adds a unit to the sums, given its integer `products`.
    ///
    /// # Safety
    /// Everything must be where `unit` says.
    #[inline]
    unsafe fn add_unit<R: Results, const T: usize>(
        unit: Unit,
        products: [__m256i; T],
        factors: Factors,
        groups_per_term: usize,
        sums: &mut Sums<T>,
    ) {
        let Factors { scales, biases } = factors;
        for t in 0..T {
            let first_group = t * unit.padded_groups;
            // SAFETY: the caller's promise.
            let (units, x_sums) = unsafe {
                (
                    _mm256_loadu_ps(unit.x_units.wrapping_add(first_group)),
                    _mm256_loadu_ps(unit.x_sums.wrapping_add(first_group)),
                )
            };
            let product = _mm256_cvtepi32_ps(products[t]);
            let factors = _mm256_mul_ps(scales, units);
            if R::IS_DIVISIBLE {
                let groups = _mm256_fmadd_ps(biases, x_sums, _mm256_mul_ps(product, factors));
                sums.on_grid[t] = add_terms(sums.on_grid[t], terms_of(groups, groups_per_term));
                continue;
            }
            let [sum, next] = sums.plain[t];
            let sum = _mm256_fmadd_ps(product, factors, sum);
            sums.plain[t] = [next, _mm256_fmadd_ps(biases, x_sums, sum)];
        }
    }

    /// Prefetches a later unit.
    #[inline]
    fn prefetch(codes: *const u8, unit_bytes: usize) {
        for byte in (0..unit_bytes).step_by(64) {
            _mm_prefetch::<_MM_HINT_T1>(codes.cast::<i8>().wrapping_add(byte + PREFETCH_BYTES));
        }
    }

    /// As `super::super::total`.
    #[inline]
    fn total([low, high]: [__m256; 2]) -> f32 {
        let eight = _mm256_add_ps(low, high);
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// What is the same in all rows of a product.
struct Units {
    row_bytes: usize,
    /// Number of whole units of a row.
    whole: usize,
    /// Number of units before the last one of a row, which is whole or not.
    last: usize,
    /// The first row whose last unit is copied: its loads would read beyond the matrix.
    copied_from: usize,
    scales: GroupValues,
    biases: GroupValues,
    /// Number of registers of a token.
    stride: usize,
}

impl Units {
    fn of<C: Codes, const LOADS: usize, const SUM_LANES: usize>(job: &Job<'_>) -> Units {
        let Job { x, matrix, .. } = job;
        let row_bytes = matrix.format.words_per_row(matrix.input) * 4;
        let unit_bytes = LOADS * SUM_LANES * C::LOAD_BYTES;
        let last = x.num_groups().div_ceil(GROUPS) - 1;
        let read_bytes = (last + 1) * unit_bytes + C::READ_BYTES - C::LOAD_BYTES;
        let bytes_after = (matrix.words.len() * 4).checked_sub(read_bytes);
        Units {
            row_bytes,
            whole: x.num_groups() / GROUPS,
            last,
            copied_from: bytes_after.map_or(0, |bytes| bytes / row_bytes + 1),
            scales: GroupValues::scales(matrix),
            biases: GroupValues::biases(matrix),
            stride: x.padded_groups * x.group_size / LANES,
        }
    }
}

/// Location of a unit of a row, and of all that is multiplied with it.
#[derive(Clone, Copy)]
struct Unit {
    /// Packed codes. Those of the next row may follow; they are multiplied with zeros.
    codes: *const u8,
    scales: GroupValues,
    biases: GroupValues,
    /// Ordered activations of the first token; those of the next tokens are `stride` apart.
    values: *const Register,
    stride: usize,
    /// Units and sums of the groups of the first token's activations; those of the next tokens are
    /// `padded_groups` apart.
    x_units: *const f32,
    x_sums: *const f32,
    padded_groups: usize,
}

impl Unit {
    /// The first unit of a row, with the tokens from `token` on.
    #[inline(always)]
    fn first(job: &Job<'_>, units: &Units, token: usize, row: usize) -> Unit {
        let Job { ordered, x, matrix, .. } = job;
        let first_group = token * x.padded_groups;
        let row_group = row * x.num_groups();
        Unit {
            codes: matrix.words.as_ptr().cast::<u8>().wrapping_add(row * units.row_bytes),
            scales: units.scales.skip(row_group),
            biases: units.biases.skip(row_group),
            values: ordered.values.as_ptr().wrapping_add(token * units.stride),
            stride: units.stride,
            x_units: x.groups.units.as_ptr().wrapping_add(first_group),
            x_sums: x.groups.sums.as_ptr().wrapping_add(first_group),
            padded_groups: x.padded_groups,
        }
    }

    /// The unit after this one, which has `bytes` of codes and groups of `group_size` columns.
    #[inline(always)]
    fn next(self, bytes: usize, group_size: usize) -> Unit {
        Unit {
            codes: self.codes.wrapping_add(bytes),
            scales: self.scales.skip(GROUPS),
            biases: self.biases.skip(GROUPS),
            values: self.values.wrapping_add(GROUPS * group_size / LANES),
            x_units: self.x_units.wrapping_add(GROUPS),
            x_sums: self.x_sums.wrapping_add(GROUPS),
            ..self
        }
    }
}

/// The integer sums of the groups of a unit in order, for each token; with `IS_HALF` those of the
/// first four groups, and zeros.
///
/// # Safety
/// The machine must have the instruction set, and everything must be where `unit` says.
#[inline(always)]
unsafe fn group_sums<
    C: Codes,
    const LOADS: usize,
    const SUM_LANES: usize,
    const T: usize,
    const IS_HALF: bool,
>(
    unit: Unit,
) -> [__m256i; T] {
    // SAFETY: the caller's promise.
    unsafe {
        // Zeros are written only where nothing else is: they would take a tenth of the time.
        let mut lanes = [[MaybeUninit::uninit(); SUM_LANES]; T];
        let len = if IS_HALF { SUM_LANES / 2 } else { SUM_LANES };
        for sum in 0..len {
            // Apart from `lanes`, so that they are in registers whether or not this loop is unrolled.
            let mut products = [_mm256_setzero_si256(); T];
            for load in sum * LOADS..(sum + 1) * LOADS {
                let codes = C::load(unit.codes.wrapping_add(load * C::LOAD_BYTES));
                let values = unit.values.wrapping_add(load * C::REGISTERS);
                for r in 0..C::REGISTERS {
                    for t in 0..T {
                        let values = values.wrapping_add(t * unit.stride + r);
                        let product = _mm256_madd_epi16(codes[r], _mm256_load_si256(values.cast()));
                        products[t] = _mm256_add_epi32(products[t], product);
                    }
                }
            }
            for t in 0..T {
                lanes[t][sum] = MaybeUninit::new(products[t]);
            }
        }
        let mut sums = [_mm256_setzero_si256(); T];
        for t in 0..T {
            for sum in len..SUM_LANES {
                lanes[t][sum] = MaybeUninit::new(_mm256_setzero_si256());
            }
            sums[t] = in_order(&lanes[t]);
        }
        sums
    }
}

/// The sums of eight groups in order, each of `SUM_LANES` lanes in as many registers: two, four or
/// eight.
///
/// # Safety
/// The machine must have the instruction set, and the registers must be initialised.
#[inline(always)]
unsafe fn in_order<const SUM_LANES: usize>(lanes: &[MaybeUninit<__m256i>; SUM_LANES]) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = (lanes[0].assume_init(), lanes[1].assume_init());
        if SUM_LANES == 2 {
            return _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_hadd_epi32(a, b));
        }
        // Each half of these has a half of the sums of four registers.
        let (c, d) = (lanes[2].assume_init(), lanes[3].assume_init());
        let low = add_lanes(add_pairs(a, b), add_pairs(c, d));
        if SUM_LANES == 4 {
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            return _mm256_permutevar8x32_epi32(low, order);
        }
        let (e, f) = (lanes[4].assume_init(), lanes[5].assume_init());
        let (g, h) = (lanes[6].assume_init(), lanes[7].assume_init());
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
