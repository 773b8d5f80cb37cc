//! What a block adds to the residual stream.

use std::cell::OnceCell;

use jackalope_mlx::{Array, Dtype, Pinned};

use super::kernel::pinned;
use super::norm::Norm;

/// The product that a block adds to the stream.
#[derive(Clone, Copy, Debug)]
pub struct BlockOutput<'a> {
    /// Width of the product.
    pub hidden: usize,
    /// Norms of both halves of the product, which is twice as wide as the stream; the sum of the
    /// results takes its place.
    pub halves: Option<&'a [Norm; 2]>,
    /// Vector that is added to the sum over the ranks, `[hidden]`.
    pub bias: Option<&'a Bias>,
    /// Number of sums over the ranks of each row in the middle of the block.
    pub num_sums: usize,
    /// Whether this rank holds nothing of the block.
    pub is_empty: bool,
    /// Type in which MLX computes the product.
    pub dtype: Dtype,
}

/// Returns the sum of two parts of a product, of which either may be missing. Both are on the grid of
/// exact sums, so that the sum over the ranks has the same bits for every split.
pub fn sum_products(a: Option<Vec<f64>>, b: Option<Vec<f64>>) -> Option<Vec<f64>> {
    match (a, b) {
        (Some(mut sums), Some(others)) => {
            sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
            Some(sums)
        }
        (a, b) => a.or(b),
    }
}

/// Returns the sum of two parts of a product with MLX's operations, of which either may be missing.
pub fn stock_sum_products(a: Option<Array>, b: Option<Array>) -> Option<Array> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.add(&b)),
        (a, b) => a.or(b),
    }
}

/// A vector that is added to every row of a product.
#[derive(Debug)]
pub struct Bias {
    array: Array, // [output]
    pinned: OnceCell<Pinned>,
}

impl Bias {
    /// Creates the vector from an array `[output]`.
    pub fn new(array: Array) -> Bias {
        Bias { array, pinned: OnceCell::new() }
    }

    /// Returns the vector `[output]`.
    pub fn array(&self) -> &Array {
        &self.array
    }

    /// Returns the vector for use inside a primitive.
    pub fn pinned(&self) -> Pinned {
        self.pinned.get_or_init(|| pinned(&self.array)).clone()
    }
}
