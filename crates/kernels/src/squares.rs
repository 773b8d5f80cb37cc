//! The root-mean-square norm of rows of which each machine holds only some elements.
//!
//! The sum of a row's squares must have the same bits for every division of the row. A square of an
//! f32 is exact in f64; it is cut at 2^-10 into two terms, of which the second is rounded to a
//! multiple of 2^-46. Sums of such terms are exact in any order.
//!
//! ```text
//!   coarse terms: multiples of 2^-10, exact up to sums of 2^43
//!   fine terms:   multiples of 2^-46, at most 2^-11 each, exact for up to 2^16 elements
//! ```

use crate::elements::Elements;
use crate::threads::Threads;

/// Number of f64 in which the sum of a row's squares is held; the sums of several machines are added
/// one by one.
pub const SQUARE_SUMS: usize = 2;

/// Number of elements below which the calling thread computes alone.
const PIECE_ELEMENTS: usize = 1 << 13;

/// Adding and subtracting this rounds to a multiple of 2^-10.
const COARSE: f64 = 1.5 * (1_u64 << 42) as f64;

/// Adding and subtracting this rounds to a multiple of 2^-46.
const FINE: f64 = 1.5 * (1_u64 << 6) as f64;

/// The norm of rows that are divided among machines.
#[derive(Clone, Copy, Debug)]
pub struct DividedNorm<'a> {
    /// Weights of this machine's elements.
    pub weight: Elements<'a>,
    /// Added to the mean of the squares.
    pub eps: f32,
    /// Number of elements of a whole row.
    pub width: usize,
}

/// Returns the sums of the squares of each row of `width` elements, [`SQUARE_SUMS`] numbers per row.
///
/// # Panics
/// Panics if `x` does not consist of whole rows.
#[track_caller]
pub fn square_sums(x: &[f32], width: usize, threads: &Threads) -> Vec<[f64; SQUARE_SUMS]> {
    let _span = threads.span("rms_norm", 0);
    assert!(0 < width && x.len().is_multiple_of(width), "whole rows of {width}");
    let mut sums = vec![[0.0; SQUARE_SUMS]; x.len() / width];
    let rows = PIECE_ELEMENTS.div_ceil(width);
    let pieces = x.chunks(rows * width).zip(sums.chunks_mut(rows)).collect();
    threads.for_each(pieces, |(x, sums): (&[f32], &mut [[f64; SQUARE_SUMS]])| {
        for (row, sum) in x.chunks_exact(width).zip(sums) {
            *sum = sum_of(row);
        }
    });
    sums
}

fn sum_of(row: &[f32]) -> [f64; SQUARE_SUMS] {
    let mut sums = [0.0; SQUARE_SUMS];
    for value in row {
        let square = f64::from(*value) * f64::from(*value);
        let coarse = (square + COARSE) - COARSE;
        let fine = ((square - coarse) + FINE) - FINE;
        sums[0] += coarse;
        sums[1] += fine;
    }
    sums
}

/// Normalises each row of `x` in place: `x / sqrt(mean(x²) + eps) * weight`, where `sums` are the
/// sums of the squares of the whole rows.
///
/// # Panics
/// Panics if a length does not fit.
#[track_caller]
pub fn norm_divided(
    x: &mut [f32],
    sums: &[[f64; SQUARE_SUMS]],
    norm: DividedNorm<'_>,
    threads: &Threads,
) {
    let _span = threads.span("rms_norm", 0);
    let DividedNorm { weight, eps, width } = norm;
    let weight = weight.to_f32();
    assert_eq!(x.len(), sums.len() * weight.len(), "a sum and whole weights for each row");
    if x.is_empty() {
        return;
    }
    let rows = PIECE_ELEMENTS.div_ceil(weight.len());
    let pieces = x.chunks_mut(rows * weight.len()).zip(sums.chunks(rows)).collect();
    threads.for_each(pieces, |(x, sums): (&mut [f32], &[[f64; SQUARE_SUMS]])| {
        for (row, [coarse, fine]) in x.chunks_exact_mut(weight.len()).zip(sums) {
            let mean = ((coarse + fine) / width as f64) as f32;
            let scale = 1.0 / (mean + eps).sqrt();
            for (value, weight) in row.iter_mut().zip(&weight) {
                *value = *value * scale * weight;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_squares_has_the_same_bits_for_every_division() {
        let value = |idx: u32| {
            let unit = (idx.wrapping_mul(2_654_435_761) >> 8) as f32 / 16_777_216.0 - 0.5;
            unit * 10.0_f32.powi(i32::try_from(idx % 9).unwrap_or(0) - 4)
        };
        let row: Vec<f32> = (0..6000).map(value).collect();
        let whole = sum_of(&row);
        for cut in [1, 7, 100, 2999, 5999] {
            let (left, right) = row.split_at(cut);
            let parts = [sum_of(right), sum_of(left)];
            assert_eq!([parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]], whole, "{cut}");
        }
        let plain: f64 = row.iter().map(|value| f64::from(*value).powi(2)).sum();
        assert!((whole[0] + whole[1] - plain).abs() <= plain * 1e-12, "{whole:?}, {plain}");
    }

    #[test]
    fn the_squares_of_small_numbers_count() {
        let row = [1e-4_f32; 4096];
        let [coarse, fine] = sum_of(&row);
        assert!((coarse + fine - 4096.0 * 1e-8).abs() < 1e-10);
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for value in [f32::NAN, f32::INFINITY] {
            let sums = [sum_of(&[1.0, value])];
            let mut x = [1.0, value];
            let norm = DividedNorm { weight: Elements::F32(&[1.0, 1.0]), eps: 1e-5, width: 2 };
            norm_divided(&mut x, &sums, norm, &Threads::new(1));
            assert!(x[1].is_nan());
        }
    }
}
