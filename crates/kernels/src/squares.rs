//! The root-mean-square norm of rows of which each machine holds only some elements.
//!
//! The sum of a row's squares must have the same bits for every division of the row. A square of an
//! f32 is exact in f64; it is cut into three terms, multiples of powers of two of which the last one is
//! rounded. Sums of such terms are exact in any order. Each is scaled to multiples of
//! [`crate::GRID`] below 2^17, which also travel between machines exactly.
//!
//! ```text
//!   multiples of 2^6:    exact up to sums of 2^53
//!   multiples of 2^-20:  at most 2^5 each,   exact for up to 2^16 elements
//!   multiples of 2^-46:  at most 2^-21 each, exact for up to 2^16 elements
//! ```

use jackalope_simd::{Elements, Threads};

use crate::terms::GRID;

/// Number of f64 in which the sum of a row's squares is held. Sums of several machines are added
/// element by element.
pub const SQUARE_SUMS: usize = 3;

/// Number of elements below which the calling thread computes alone.
const PIECE_ELEMENTS: usize = 1 << 13;

/// Spacing of each of the three terms: a term is a multiple of its spacing.
const SPACINGS: [f64; SQUARE_SUMS] = [64.0, 1.0 / (1_u64 << 20) as f64, 1.0 / (1_u64 << 46) as f64];

/// Adding and then subtracting `ROUND * spacing` rounds a number to a multiple of `spacing`.
const ROUND: f64 = 1.5 * (1_u64 << 52) as f64;

/// Factor that makes each of the three terms a multiple of [`GRID`].
const SCALES: [f64; SQUARE_SUMS] = [GRID / SPACINGS[0], GRID / SPACINGS[1], GRID / SPACINGS[2]];

/// The norm of rows that are divided among machines.
#[derive(Clone, Copy, Debug)]
pub struct DividedNorm<'a> {
    /// Weights of this machine's elements of one row, or of several consecutive rows: the weights
    /// of further rows begin again with the first.
    pub weight: Elements<'a>,
    /// Epsilon added to the mean of the squares.
    pub eps: f32,
    /// Number of elements of a whole row, those of other machines included.
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
        let mut rest = f64::from(*value) * f64::from(*value);
        for (sum, (spacing, scale)) in sums.iter_mut().zip(SPACINGS.iter().zip(SCALES)) {
            let term = (rest + ROUND * spacing) - ROUND * spacing;
            rest -= term;
            *sum += term * scale;
        }
    }
    sums
}

/// Returns the sum of squares that [`square_sums`] has divided into `sums`. These may also be added
/// up over several machines.
pub fn square_total(sums: &[f64; SQUARE_SUMS]) -> f64 {
    let terms = sums.iter().zip(SCALES).map(|(sum, scale)| sum / scale);
    terms.rev().sum()
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
    if x.is_empty() {
        return;
    }
    let own = x.len() / sums.len().max(1);
    assert_eq!(x.len(), sums.len() * own, "a sum for each row");
    assert!(0 < own && weight.len().is_multiple_of(own), "whole weights for each row");
    let weights: Vec<&[f32]> = weight.chunks_exact(own).collect();
    // A piece begins with the first weights.
    let rows = PIECE_ELEMENTS.div_ceil(weight.len()) * weights.len();
    let pieces = x.chunks_mut(rows * own).zip(sums.chunks(rows)).collect();
    threads.for_each(pieces, |(x, sums): (&mut [f32], &[[f64; SQUARE_SUMS]])| {
        let rows = x.chunks_exact_mut(own).zip(sums).zip(weights.iter().cycle());
        for ((row, sums), weight) in rows {
            let mean = (square_total(sums) / width as f64) as f32;
            let scale = 1.0 / (mean + eps).sqrt();
            for (value, weight) in row.iter_mut().zip(*weight) {
                *value = *value * scale * weight;
            }
        }
    });
}
