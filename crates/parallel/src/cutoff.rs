//! Sparse activations (Gemma 3n): elements of a gate's row below a cutoff are not active. The cutoff is
//! the mean of the row plus a number of its standard deviations; each rank holds some elements of a row.

use std::array;

use jackalope_kernels::{self as kernels, GRID, SQUARE_SUMS, Threads};
use jackalope_mlx::{Array, Dtype, dim};

use crate::parallel::Parallel;

/// A cutoff of rows.
#[derive(Clone, Copy, Debug)]
pub struct Cutoff {
    /// Number of standard deviations above the mean.
    pub deviations: f32,
    /// Number of elements of a whole row.
    pub width: usize,
}

impl Cutoff {
    /// Number of sums over the ranks of each row: of the elements, and of their squares.
    pub const SUMS: usize = 1 + SQUARE_SUMS;

    /// The same for MLX.
    pub const STOCK_SUMS: usize = 2;

    /// Returns the sums of rows of `width` elements, `[rows, SUMS]`. Elements are rounded to a grid, so
    /// that the sums have the same bits for every division of a row.
    pub fn sums(x: &[f32], width: usize, threads: &Threads) -> Vec<f64> {
        let squares = kernels::square_sums(x, width, threads);
        let rows = x.chunks_exact(width).zip(squares);
        let sums = rows.flat_map(|(row, squares)| {
            let sum: f64 = row.iter().map(|value| (f64::from(*value) / GRID).round() * GRID).sum();
            [sum].into_iter().chain(squares)
        });
        sums.collect()
    }

    /// Replaces each element by what it exceeds the cutoff of its row by, or zero. `sums` are those of
    /// whole rows.
    pub fn apply(self, x: &mut [f32], sums: &[f64]) {
        let rows = sums.as_chunks::<{ Cutoff::SUMS }>().0;
        if x.is_empty() {
            return;
        }
        let own = x.len() / rows.len();
        for (row, [sum, squares @ ..]) in x.chunks_exact_mut(own).zip(rows) {
            let width = self.width as f64;
            let mean = sum / width;
            let variance = (kernels::square_total(squares) / width - mean * mean).max(0.0);
            let cutoff = (mean + variance.sqrt() * f64::from(self.deviations)) as f32;
            row.iter_mut().for_each(|value| *value = (*value - cutoff).max(0.0));
        }
    }

    /// As [`Cutoff::apply`], with MLX.
    pub fn stock(self, x: &Array, parallel: &Parallel) -> Array {
        let wide = x.astype(Dtype::F32);
        let sums = Array::concatenate(&[&wide.sum(-1, true), &wide.square().sum(-1, true)], 1);
        let means = &parallel.all_sum(&sums) * (1.0 / self.width as f32);
        let [mean, squares] = array::from_fn(|idx| means.slice_axis(1, dim(idx), dim(idx) + 1));
        let zero = Array::scalar(0.0);
        let variance = squares.sub(&mean.square()).maximum(&zero);
        let cutoff = mean.add(&(&variance.sqrt() * self.deviations));
        wide.sub(&cutoff).maximum(&zero).astype(x.dtype())
    }
}
