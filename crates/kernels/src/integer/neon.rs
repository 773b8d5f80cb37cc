//! Integer products with `sdot`: sixteen products of signed bytes, added in fours into four lanes.
//! An activation is two signed bytes. Eight-bit codes are stored less 128, which is corrected with
//! the sum of the activations.
//!
//! The codes of some weight rows are unpacked to bytes, which stay in the first-level cache for all
//! tokens.
#![expect(unsafe_code, reason = "calling and loading for a detected instruction set")]
#![expect(
    clippy::needless_range_loop,
    reason = "indices name tokens, rows and groups alike, and iterators' closures would be compiled without the set"
)]

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};
use std::ops::Range;

use jackalope_simd::{E2M1_INTEGERS, QuantMatrix, QuantMode, Scales, bits_from, scale_value};

use super::rounding::{Rounded, SUMS};
use super::{Lanes16, total};
use crate::terms::{ANCHOR, AWAY, GROUPS_PER_TERM_MAX, Results};

/// Number of weight rows that are unpacked together.
const BLOCK_ROWS: usize = 8;

/// Numbers of weight rows and tokens whose sums are in registers together.
const ROWS: usize = 4;
const TOKENS: usize = 2;

/// Number of columns of an instruction.
const LANES: usize = 16;

/// Number of groups whose sums fill a vector.
const GROUPS: usize = 4;

/// Offset that is subtracted from eight-bit codes to make them signed.
const CODE8_OFFSET: i32 = 128;

/// Declares functions compiled for the instruction set.
macro_rules! for_dotprod {
    ($($item:item)*) => {
        $(
            #[target_feature(enable = "neon,dotprod")]
            $item
        )*
    };
}

/// Returns whether the processor has the instruction: every Mac with an Apple processor, and ARM's
/// own processors since 2018.
pub(super) fn is_available() -> bool {
    is_aarch64_feature_detected!("dotprod")
}

/// Rounded activations cut into halves, `q = 256 * high + low`: `[tokens, input / LANES, half]`.
pub(super) struct Halves {
    values: Vec<[i8; LANES]>,
}

impl Halves {
    pub(super) fn new(x: &Rounded) -> Halves {
        let mut values = Vec::with_capacity(x.values.len() / LANES * 2);
        for q in x.values.as_chunks::<LANES>().0 {
            values.push(q.map(|q| ((i32::from(q) - i32::from(q as i8)) >> 8) as i8));
            values.push(q.map(|q| q as i8));
        }
        Halves { values }
    }
}

/// See [`super::Prepared::multiply_rows`].
pub(super) fn multiply_rows<R: Results>(
    halves: &Halves,
    x: &Rounded,
    matrix: &QuantMatrix<'_>,
    rows: Range<usize>,
    out: &mut [R],
) {
    assert!(is_available(), "`is_supported` asks first");
    // SAFETY: just detected.
    unsafe {
        match matrix.format.group_size {
            16 => multiply::<R, 1>(halves, x, matrix, rows, out),
            32 => multiply::<R, 2>(halves, x, matrix, rows, out),
            64 => multiply::<R, 4>(halves, x, matrix, rows, out),
            _ => multiply::<R, 8>(halves, x, matrix, rows, out),
        }
    }
}

/// Unpacked rows.
struct Block {
    /// `[BLOCK_ROWS, input]`.
    codes: Vec<i8>,
    /// `[BLOCK_ROWS, padded_groups]`, zeros beyond the last group.
    scales: Vec<f32>,
    biases: Vec<f32>,
    /// Whether the codes have eight bits, less [`CODE8_OFFSET`].
    is_offset: bool,
}

for_dotprod! {
    /// Computes all tokens with some weight rows. A group has `STEPS` times [`LANES`] columns.
    fn multiply<R: Results, const STEPS: usize>(
        halves: &Halves,
        x: &Rounded,
        matrix: &QuantMatrix<'_>,
        rows: Range<usize>,
        out: &mut [R],
    ) {
        let mut block = Block {
            codes: vec![0; BLOCK_ROWS * x.input],
            scales: vec![0.0; BLOCK_ROWS * x.padded_groups],
            biases: vec![0.0; BLOCK_ROWS * x.padded_groups],
            is_offset: matrix.format.mode == QuantMode::Affine && matrix.format.bits == 8,
        };
        for start in rows.clone().step_by(BLOCK_ROWS) {
            let num_rows = BLOCK_ROWS.min(rows.end - start);
            for row in 0..num_rows {
                unpack_row(matrix, start + row, &mut block.codes[row * x.input..][..x.input]);
                load_scales(x, matrix, start, row, &mut block);
            }
            for (pair, out) in out.chunks_mut(TOKENS).enumerate() {
                let mut results = [[R::Value::default(); BLOCK_ROWS]; TOKENS];
                for row in (0..num_rows).step_by(ROWS) {
                    // Rows after the last one are computed from arbitrary data and not stored.
                    let token = pair * TOKENS;
                    let sums = match out.len() {
                        1 => some_rows::<R, STEPS, 1>(halves, x, &block, token, row),
                        _ => some_rows::<R, STEPS, TOKENS>(halves, x, &block, token, row),
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

    /// Computes `T` tokens with [`ROWS`] rows of the block.
    #[inline]
    fn some_rows<R: Results, const STEPS: usize, const T: usize>(
        halves: &Halves,
        x: &Rounded,
        block: &Block,
        token: usize,
        row: usize,
    ) -> [[R::Value; ROWS]; TOKENS] {
        let num_groups = x.num_groups();
        assert!(num_groups * STEPS * LANES == x.input, "whole groups");
        assert!((token + T) * x.input / LANES * 2 <= halves.values.len(), "halves of the tokens");
        assert!((row + ROWS) * x.input <= block.codes.len(), "codes of the rows");
        // SAFETY: within what was asserted.
        let (codes, values) = unsafe {
            let values = halves.values.as_ptr().add(token * x.input / LANES * 2);
            (block.codes.as_ptr().add(row * x.input), values.cast::<i8>())
        };
        let mut sums = [[[vdupq_n_f32(0.0); SUMS / GROUPS]; ROWS]; T];
        let mut grid_sums = [[[vdupq_n_f64(ANCHOR); 2]; ROWS]; T];
        let groups_per_term = x.columns.groups_per_term();
        // The first half of terms of eight groups.
        let mut half_terms = [[vdupq_n_f32(0.0); ROWS]; T];
        // After the last group there are zeros.
        let end = num_groups.next_multiple_of(groups_per_term);
        for first in (0..end).step_by(GROUPS) {
            let range = first..(first + GROUPS).min(num_groups);
            // SAFETY: groups of the rows and tokens that were asserted to be there.
            let products = unsafe { group_products::<STEPS, T>(codes, values, x.input, range) };
            for t in 0..T {
                let groups = (token + t) * x.padded_groups + first;
                let units = load(&x.groups.units[groups..]);
                let x_sums = load(&x.groups.sums[groups..]);
                let totals = load_totals(&x.groups.totals[groups..]);
                for r in 0..ROWS {
                    let weights = (row + r) * x.padded_groups + first;
                    let mut product = sum_groups(&products[t][r]);
                    if block.is_offset {
                        product = vmlaq_n_s32(product, totals, CODE8_OFFSET);
                    }
                    let factors = vmulq_f32(load(&block.scales[weights..]), units);
                    let (product, biases) = (vcvtq_f32_s32(product), load(&block.biases[weights..]));
                    if R::IS_DIVISIBLE {
                        let groups = vfmaq_f32(vmulq_f32(product, factors), biases, x_sums);
                        if groups_per_term == GROUPS_PER_TERM_MAX && first % groups_per_term == 0 {
                            half_terms[t][r] = groups;
                            continue;
                        }
                        let terms = terms_of(half_terms[t][r], groups, groups_per_term);
                        grid_sums[t][r] = add_terms(grid_sums[t][r], terms);
                        continue;
                    }
                    let sum = &mut sums[t][r][first / GROUPS % (SUMS / GROUPS)];
                    *sum = vfmaq_f32(*sum, product, factors);
                    *sum = vfmaq_f32(*sum, biases, x_sums);
                }
            }
        }
        let mut results = [[R::Value::default(); ROWS]; TOKENS];
        for t in 0..T {
            for r in 0..ROWS {
                results[t][r] = R::choose(total_of(&sums[t][r]), total_on_grid(grid_sums[t][r]));
            }
        }
        results
    }

    /// The products of up to four groups of `T` tokens with [`ROWS`] rows; zeros beyond the last group.
    ///
    /// # Safety
    /// Codes and values, of rows of `input` columns, have these groups.
    #[inline]
    unsafe fn group_products<const STEPS: usize, const T: usize>(
        codes: *const i8,
        values: *const i8,
        input: usize,
        groups: Range<usize>,
    ) -> [[[int32x4_t; GROUPS]; ROWS]; T] {
        let mut products = [[[vdupq_n_s32(0); GROUPS]; ROWS]; T];
        let first = groups.start;
        for group in groups {
            let (mut high, mut low) = ([[vdupq_n_s32(0); ROWS]; T], [[vdupq_n_s32(0); ROWS]; T]);
            for step in 0..STEPS {
                let column = (group * STEPS + step) * LANES;
                let mut weights = [vdupq_n_s8(0); ROWS];
                for r in 0..ROWS {
                    // SAFETY: sixteen columns of a row that was asserted to be there.
                    weights[r] = unsafe { vld1q_s8(codes.add(r * input + column)) };
                }
                for t in 0..T {
                    // SAFETY: sixteen columns, both halves, of a token that was asserted to be there.
                    let (h, l) = unsafe {
                        let values = values.add((t * input + column) * 2);
                        (vld1q_s8(values), vld1q_s8(values.add(LANES)))
                    };
                    for r in 0..ROWS {
                        high[t][r] = dot(high[t][r], weights[r], h);
                        low[t][r] = dot(low[t][r], weights[r], l);
                    }
                }
            }
            for t in 0..T {
                for r in 0..ROWS {
                    let product = vaddq_s32(vshlq_n_s32::<8>(high[t][r]), low[t][r]);
                    products[t][r][group - first] = product;
                }
            }
        }
        products
    }

    /// `acc + a · b` by fours; the intrinsic is not stable.
    #[inline]
    fn dot(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        let mut sum = acc;
        // SAFETY: the set is enabled; registers alone are touched.
        unsafe {
            asm!(
                "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
                sum = inout(vreg) sum,
                a = in(vreg) a,
                b = in(vreg) b,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sum
    }

    /// The sums of four groups, in order; each argument has four lanes of one group.
    #[inline]
    fn sum_groups([a, b, c, d]: &[int32x4_t; GROUPS]) -> int32x4_t {
        vpaddq_s32(vpaddq_s32(*a, *b), vpaddq_s32(*c, *d))
    }

    #[inline]
    fn total_of(sums: &[float32x4_t; SUMS / GROUPS]) -> f32 {
        let mut lanes: Lanes16 = [0.0; SUMS];
        for (sum, lanes) in sums.iter().zip(lanes.as_chunks_mut::<GROUPS>().0) {
            // SAFETY: four lanes.
            unsafe { vst1q_f32(lanes.as_mut_ptr(), *sum) };
        }
        total(&lanes)
    }

    /// The terms of four groups in the first lanes, with zeros in the others. A term of eight
    /// groups begins with the four groups in `before`.
    #[inline]
    fn terms_of(
        before: float32x4_t,
        groups: float32x4_t,
        groups_per_term: usize,
    ) -> float32x4_t {
        let zeros = vdupq_n_f32(0.0);
        match groups_per_term {
            1 => groups,
            2 => vpaddq_f32(groups, zeros),
            4 => vpaddq_f32(vpaddq_f32(groups, zeros), zeros),
            _ => vpaddq_f32(vpaddq_f32(vpaddq_f32(before, groups), zeros), zeros),
        }
    }

    /// Adds four terms to four sums on the grid; see [`crate::divisible`].
    #[inline]
    fn add_terms([low, high]: [float64x2_t; 2], terms: float32x4_t) -> [float64x2_t; 2] {
        let away = vdupq_n_f64(AWAY);
        let (low_terms, high_terms) = (vcvt_f64_f32(vget_low_f32(terms)), vcvt_high_f64_f32(terms));
        [vfmaq_f64(low, low_terms, away), vfmaq_f64(high, high_terms, away)]
    }

    /// The total of the four sums.
    #[inline]
    fn total_on_grid([low, high]: [float64x2_t; 2]) -> f64 {
        let anchor = vdupq_n_f64(ANCHOR);
        vaddvq_f64(vaddq_f64(vsubq_f64(low, anchor), vsubq_f64(high, anchor)))
    }

    #[inline]
    fn load(values: &[f32]) -> float32x4_t {
        assert!(values.len() >= GROUPS, "groups are padded");
        // SAFETY: four values.
        unsafe { vld1q_f32(values.as_ptr()) }
    }

    #[inline]
    fn load_totals(values: &[i32]) -> int32x4_t {
        assert!(values.len() >= GROUPS, "groups are padded");
        // SAFETY: four values.
        unsafe { vld1q_s32(values.as_ptr()) }
    }

    /// Unpacks the codes of a row, one per byte; E2M1 codes are doubled, codes of eight bits are
    /// less [`CODE8_OFFSET`].
    fn unpack_row(matrix: &QuantMatrix<'_>, row: usize, codes: &mut [i8]) {
        let row_words = matrix.format.words_per_row(matrix.input);
        let words = &matrix.words[row * row_words..][..row_words];
        match (matrix.format.mode, matrix.format.bits) {
            (QuantMode::Affine, 4) => unpack_nibbles::<false>(words, codes),
            (QuantMode::Affine, 8) => {
                for (word, codes) in words.iter().zip(codes.as_chunks_mut::<4>().0) {
                    *codes = (word ^ 0x8080_8080).to_le_bytes().map(u8::cast_signed);
                }
            }
            (QuantMode::Affine, 2) => unpack_bits::<2>(words, codes),
            (QuantMode::Affine, 3) => unpack_bits::<3>(words, codes),
            (QuantMode::Affine, 5) => unpack_bits::<5>(words, codes),
            (QuantMode::Affine, _) => unpack_bits::<6>(words, codes),
            _ => unpack_nibbles::<true>(words, codes),
        }
    }

    /// Unpacks codes of four bits, sixteen bytes of them at a time; the last eight bytes may be
    /// left over and are unpacked code by code.
    #[inline]
    fn unpack_nibbles<const E2M1_CODES: bool>(words: &[u32], codes: &mut [i8]) {
        let (units, rest) = words.as_chunks::<4>();
        let (unit_codes, rest_codes) = codes.as_chunks_mut::<32>();
        // SAFETY: sixteen values are a register.
        let table = unsafe { vld1q_s8(E2M1_INTEGERS.as_ptr()) };
        for (unit, codes) in units.iter().zip(unit_codes) {
            // SAFETY: four words are a register, and the codes are two.
            unsafe {
                let packed = vreinterpretq_u8_u32(vld1q_u32(unit.as_ptr()));
                let even = vandq_u8(packed, vdupq_n_u8(15));
                let odd = vshrq_n_u8::<4>(packed);
                let (mut low, mut high) = (
                    vreinterpretq_s8_u8(vzip1q_u8(even, odd)),
                    vreinterpretq_s8_u8(vzip2q_u8(even, odd)),
                );
                if E2M1_CODES {
                    low = vqtbl1q_s8(table, vreinterpretq_u8_s8(low));
                    high = vqtbl1q_s8(table, vreinterpretq_u8_s8(high));
                }
                vst1q_s8(codes.as_mut_ptr(), low);
                vst1q_s8(codes.as_mut_ptr().add(LANES), high);
            }
        }
        for (word, codes) in rest.iter().zip(rest_codes.as_chunks_mut::<8>().0) {
            for (idx, code) in codes.iter_mut().enumerate() {
                let bits = (word >> (4 * idx)) & 15;
                *code = if E2M1_CODES { E2M1_INTEGERS[bits as usize] } else { bits as i8 };
            }
        }
    }

    /// Unpacks codes of `BITS` bits, of which thirty-two are `BITS` whole words.
    #[inline]
    fn unpack_bits<const BITS: usize>(words: &[u32], codes: &mut [i8]) {
        let units = words.as_chunks::<BITS>().0.iter().zip(codes.as_chunks_mut::<32>().0);
        for (words, codes) in units {
            for (idx, code) in codes.iter_mut().enumerate() {
                *code = (bits_from(words, idx * BITS) & ((1 << BITS) - 1)) as i8;
            }
        }
    }

    /// Loads scales and biases of row `start + row` of the matrix into row `row` of the block.
    fn load_scales(
        x: &Rounded,
        matrix: &QuantMatrix<'_>,
        start: usize,
        row: usize,
        block: &mut Block,
    ) {
        let num_groups = x.num_groups();
        let first_group = (start + row) * num_groups;
        let to = row * x.padded_groups..row * x.padded_groups + num_groups;
        let scales = &mut block.scales[to.clone()];
        match matrix.scales {
            Scales::Elements(from) => from.load(first_group, scales),
            Scales::Bytes(from) => {
                for (scale, code) in scales.iter_mut().zip(&from[first_group..]) {
                    *scale = scale_value(matrix.format.mode, *code);
                }
            }
        }
        if let Some(from) = matrix.biases {
            from.load(first_group, &mut block.biases[to]);
        }
    }
}
