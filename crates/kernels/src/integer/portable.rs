//! The reference implementation: plain loops, which the compiler vectorises for its target.

use std::ops::Range;

use jackalope_simd::{
    E2M1_INTEGERS, QuantMatrix, QuantMode, Scales, Simd, bits_from, dispatched, scale_value,
};

use super::rounding::{Rounded, SUMS};
use super::{Lanes16, total};
use crate::terms::{Fold as _, GROUPS_PER_TERM_MAX, GridSum, Results};

/// Number of rows whose results are buffered before they are stored.
const RESULT_ROWS: usize = 16;

dispatched! {
    /// See [`super::Prepared::multiply_rows`].
    pub(super) fn multiply_rows<R: Results>(
        x: &Rounded,
        matrix: &QuantMatrix<'_>,
        rows: Range<usize>,
        out: &mut [R],
    ) = multiply_rows_with
}

#[inline(always)]
fn multiply_rows_with<S: Simd, R: Results>(
    _simd: S,
    x: &Rounded,
    matrix: &QuantMatrix<'_>,
    rows: Range<usize>,
    out: &mut [R],
) {
    let num_groups = x.num_groups();
    let mut codes = vec![0; x.input];
    let mut scales = vec![0.0; num_groups];
    let mut biases = vec![0.0; num_groups];
    let mut results = vec![[R::Value::default(); RESULT_ROWS]; x.tokens];
    for start in rows.clone().step_by(RESULT_ROWS) {
        let end = (start + RESULT_ROWS).min(rows.end);
        for row in start..end {
            unpack_codes(matrix, row, &mut codes);
            load_scales(matrix, row, &mut scales, &mut biases);
            let weights = Row { codes: &codes, scales: &scales, biases: &biases };
            for (token, results) in results.iter_mut().enumerate() {
                results[row - start] = weights.multiply::<S, R>(x, token);
            }
        }
        for (out, results) in out.iter_mut().zip(&results) {
            out.store(start - rows.start, &results[..end - start]);
        }
    }
}

/// A row of weights; biases are zeros where the format has none.
struct Row<'a> {
    codes: &'a [i16],
    scales: &'a [f32],
    biases: &'a [f32],
}

impl Row<'_> {
    #[inline(always)]
    fn multiply<S: Simd, R: Results>(&self, x: &Rounded, token: usize) -> R::Value {
        let values = &x.values[token * x.input..][..x.input];
        let groups = token * x.padded_groups..(token + 1) * x.padded_groups;
        let units = &x.groups.units[groups.clone()];
        let x_sums = &x.groups.sums[groups];
        let mut sums: Lanes16 = [0.0; SUMS];
        let num_groups = x.num_groups();
        let mut on_grid = GridSum::EMPTY;
        let groups_per_term = x.columns.groups_per_term();
        let mut term = [0.0; GROUPS_PER_TERM_MAX];
        let codes = self.codes.chunks_exact(x.group_size);
        for (group, (values, codes)) in values.chunks_exact(x.group_size).zip(codes).enumerate() {
            let product = dot(values, codes) as f32;
            let factor = self.scales[group] * units[group];
            if R::IS_DIVISIBLE {
                let place = group % groups_per_term;
                term[place] =
                    S::mul_add_scalar(self.biases[group], x_sums[group], product * factor);
                if place + 1 == groups_per_term || group + 1 == num_groups {
                    on_grid.add(term_of(&mut term, groups_per_term));
                }
                continue;
            }
            let sum = &mut sums[group % SUMS];
            *sum = S::mul_add_scalar(product, factor, *sum);
            *sum = S::mul_add_scalar(self.biases[group], x_sums[group], *sum);
        }
        R::choose(total(&sums), on_grid.value())
    }
}

/// Adds up the groups of a term, neighbours first, and leaves zeros.
#[inline(always)]
fn term_of(groups: &mut [f32; GROUPS_PER_TERM_MAX], groups_per_term: usize) -> f32 {
    let mut left = groups_per_term;
    while 1 < left {
        left /= 2;
        for idx in 0..left {
            groups[idx] = groups[2 * idx] + groups[2 * idx + 1];
        }
    }
    std::mem::take(groups)[0]
}

/// Returns the dot product of a group, which is exact because there are at most 128 products of 15
/// and 8 bits. Loops over chunks of 16, so that the compiler vectorises the loop.
#[inline(always)]
fn dot(values: &[i16], codes: &[i16]) -> i32 {
    let mut sum = 0;
    for (values, codes) in values.as_chunks::<16>().0.iter().zip(codes.as_chunks::<16>().0) {
        for (value, code) in values.iter().zip(codes) {
            sum += i32::from(*value) * i32::from(*code);
        }
    }
    sum
}

/// Unpacks the codes of a row as integers.
#[inline(always)]
fn unpack_codes(matrix: &QuantMatrix<'_>, row: usize, codes: &mut [i16]) {
    let words_per_row = matrix.format.words_per_row(matrix.input);
    let words = &matrix.words[row * words_per_row..][..words_per_row];
    match (matrix.format.mode, matrix.format.bits) {
        (QuantMode::Affine, 2) => unpack::<2>(words, codes),
        (QuantMode::Affine, 3) => unpack::<3>(words, codes),
        (QuantMode::Affine, 4) => unpack::<4>(words, codes),
        (QuantMode::Affine, 5) => unpack::<5>(words, codes),
        (QuantMode::Affine, 6) => unpack::<6>(words, codes),
        (QuantMode::Affine, _) => unpack::<8>(words, codes),
        _ => {
            for (word, codes) in words.iter().zip(codes.as_chunks_mut::<8>().0) {
                for (idx, code) in codes.iter_mut().enumerate() {
                    *code = i16::from(E2M1_INTEGERS[(word >> (4 * idx)) as usize & 15]);
                }
            }
        }
    }
}

/// Unpacks codes of `BITS` bits, of which thirty-two are `BITS` whole words; a row of 16 codes has
/// half as many words.
#[inline(always)]
fn unpack<const BITS: usize>(words: &[u32], codes: &mut [i16]) {
    let units = words.as_chunks::<BITS>().0.iter().zip(codes.as_chunks_mut::<32>().0);
    for (words, codes) in units {
        for (idx, code) in codes.iter_mut().enumerate() {
            *code = (bits_from(words, idx * BITS) & ((1 << BITS) - 1)) as i16;
        }
    }
}

#[inline(always)]
fn load_scales(matrix: &QuantMatrix<'_>, row: usize, scales: &mut [f32], biases: &mut [f32]) {
    let first_group = row * scales.len();
    match matrix.scales {
        Scales::Elements(from) => from.load(first_group, scales),
        Scales::Bytes(from) => {
            for (scale, code) in scales.iter_mut().zip(&from[first_group..]) {
                *scale = scale_value(matrix.format.mode, *code);
            }
        }
    }
    if let Some(from) = matrix.biases {
        from.load(first_group, biases);
    }
}
