//! Norms of queries and keys, before they are rotated.

use std::array;

use jackalope_kernels::{
    self as kernels, DividedNorm, Elements, ElementsMut, SQUARE_SUMS, Threads,
};
use jackalope_mlx::{Array, Dtype, Pinned, dim, fast};

use super::heads::Heads;
use super::kernel::{elements, pinned, zeros_after};
use super::norm::{Norm, NormKernel};
use crate::parallel::Parallel;
use jackalope_protocol::split::Cut;
use jackalope_weights::LoadError;
use jackalope_weights::{Part, Weights};

/// Sums of a row over the ranks for a norm of all heads: those of the squares of queries and keys.
const ALL_HEADS_SUMS: usize = 2 * SQUARE_SUMS;

/// Norms of queries and keys.
#[derive(Debug)]
pub enum HeadNorms {
    /// Each head is normalised separately: norms of queries and keys.
    PerHead([Norm; 2]),
    /// As `PerHead`, after the rotation.
    Rotated([Norm; 2]),
    /// All heads together are normalised.
    AllHeads(AllHeadsNorm),
}

/// Norms of all query heads and of all key heads together, of which each rank holds some.
#[derive(Debug)]
pub struct AllHeadsNorm {
    /// Weights of this rank's heads, of queries and of keys.
    weights: [Array; 2],
    /// Number of elements of all heads, of queries and of keys.
    widths: [usize; 2],
    eps: f32,
    /// Whether this rank counts its keys: another one may hold the same.
    counts_keys: bool,
    parallel: Parallel,
}

impl AllHeadsNorm {
    /// Loads this rank's part of the norms below `w`.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub fn load(
        w: &Weights<'_>,
        heads: &Heads,
        eps: f32,
        parallel: &Parallel,
    ) -> Result<AllHeadsNorm, LoadError> {
        let (queries, keys) = (heads.queries(), heads.keys());
        let load =
            |name: &str, cut: &Cut| w.at(name).floats("weight", &[cut.full], Part::rows(cut));
        Ok(AllHeadsNorm {
            weights: [load("q_norm", &queries)?, load("k_norm", &keys)?],
            widths: [queries.full, keys.full],
            eps,
            counts_keys: heads.counts_keys,
            parallel: parallel.clone(),
        })
    }

    fn stock(&self, x: &[Array; 2]) -> [Array; 2] {
        let flat = x.each_ref().map(|x| x.flatten(1, 3)); // [tokens, heads * head_dim]
        let normed = if self.parallel.size() == 1 {
            array::from_fn(|idx| fast::rms_norm(&flat[idx], Some(&self.weights[idx]), self.eps))
        } else {
            self.stock_divided(&flat)
        };
        array::from_fn(|idx| normed[idx].reshape(&x[idx].shape()))
    }

    fn stock_divided(&self, x: &[Array; 2]) -> [Array; 2] {
        let wide = x.each_ref().map(|x| x.astype(Dtype::F32));
        let [queries, keys] = wide.each_ref().map(|x| x.square().sum(-1, true));
        let keys = if self.counts_keys { keys } else { zeros_after(&queries, 1, Dtype::F32) };
        let sums = self.parallel.all_sum(&Array::concatenate(&[&queries, &keys], 1));
        array::from_fn(|idx| {
            let sum = sums.slice_axis(1, dim(idx), dim(idx) + 1);
            let mean = sum.div(&Array::scalar(self.widths[idx] as f32));
            let scale = mean.add(&Array::scalar(self.eps)).rsqrt();
            let weight = self.weights[idx].astype(Dtype::F32);
            wide[idx].mul(&scale).mul(&weight).astype(x[idx].dtype())
        })
    }
}

impl HeadNorms {
    /// Returns the number of sums over the ranks that MLX needs of each row, or the kernels.
    pub fn num_sums(&self, is_stock: bool) -> usize {
        match self {
            HeadNorms::PerHead(_) | HeadNorms::Rotated(_) => 0,
            HeadNorms::AllHeads(_) if is_stock => 2,
            HeadNorms::AllHeads(_) => ALL_HEADS_SUMS,
        }
    }

    /// Normalises queries and keys `[tokens, heads, 1, head_dim]` with MLX.
    pub fn stock(&self, x: [Array; 2]) -> [Array; 2] {
        match self {
            HeadNorms::Rotated(_) => x,
            HeadNorms::PerHead(norms) => array::from_fn(|idx| norms[idx].stock(&x[idx])),
            HeadNorms::AllHeads(norm) => norm.stock(&x),
        }
    }

    /// Normalises queries `[tokens, heads, 1, head_dim]` alone with MLX.
    ///
    /// # Panics
    /// Panics if they are normalised together.
    pub fn stock_queries(&self, q: &Array) -> Array {
        match self {
            HeadNorms::Rotated(_) => q.clone(),
            HeadNorms::PerHead([norm, _]) => norm.stock(q),
            HeadNorms::AllHeads(_) => panic!("no family shares keys and normalises all heads"),
        }
    }

    /// Returns the norms that are applied after the rotation.
    pub fn rotated(&self) -> Option<&[Norm; 2]> {
        match self {
            HeadNorms::Rotated(norms) => Some(norms),
            HeadNorms::PerHead(_) | HeadNorms::AllHeads(_) => None,
        }
    }

    /// Returns the norms for use inside a primitive.
    pub fn kernel(&self) -> HeadNormsKernel {
        match self {
            HeadNorms::PerHead(norms) => {
                HeadNormsKernel::PerHead(norms.each_ref().map(Norm::kernel))
            }
            HeadNorms::Rotated(norms) => {
                HeadNormsKernel::Rotated(norms.each_ref().map(Norm::kernel))
            }
            HeadNorms::AllHeads(norm) => HeadNormsKernel::AllHeads {
                weights: norm.weights.each_ref().map(pinned),
                widths: norm.widths,
                eps: norm.eps,
                counts_keys: norm.counts_keys,
            },
        }
    }
}

/// Norms of queries and keys for the kernels.
#[derive(Clone, Debug)]
pub enum HeadNormsKernel {
    /// Of each head, before the rotation: of queries, of keys.
    PerHead([NormKernel; 2]),
    /// Of each head, after the rotation.
    Rotated([NormKernel; 2]),
    /// Over the heads of all ranks.
    AllHeads {
        /// Weights of this rank's heads.
        weights: [Pinned; 2],
        /// Width of all heads of all ranks.
        widths: [usize; 2],
        /// Epsilon added to the mean of the squares.
        eps: f32,
        /// Whether this rank's keys count in the sum over the ranks.
        counts_keys: bool,
    },
}

impl HeadNormsKernel {
    /// Returns the sums that are added over the ranks, `[tokens, num_sums]`. Queries and keys are
    /// those of this rank's heads.
    pub fn sums(&self, [q, k]: [&[f32]; 2], threads: &Threads) -> Vec<f64> {
        let HeadNormsKernel::AllHeads { weights: [q_weight, k_weight], counts_keys, .. } = self
        else {
            return Vec::new();
        };
        let queries = kernels::square_sums(q, elements(q_weight).len(), threads);
        let mut keys = kernels::square_sums(k, elements(k_weight).len(), threads);
        if !counts_keys {
            keys.fill([0.0; SQUARE_SUMS]);
        }
        queries.into_iter().zip(keys).flat_map(|(q, k)| q.into_iter().chain(k)).collect()
    }

    /// Applies the norms that follow the rotation.
    pub fn apply_rotated(&self, x: [&mut Vec<f32>; 2], threads: &Threads) {
        let HeadNormsKernel::Rotated(norms) = self else { return };
        for (norm, x) in norms.iter().zip(x) {
            let mut normed = vec![0.0; x.len()];
            norm.norm(Elements::F32(x), ElementsMut::F32(&mut normed), threads);
            *x = normed;
        }
    }

    /// Returns the norms that are applied to each head, of queries and of keys; `None` if `x` was
    /// normalised here.
    pub fn apply(
        &self,
        x: [&mut [f32]; 2],
        sums: &[f64],
        threads: &Threads,
    ) -> Option<&[NormKernel; 2]> {
        let (weights, widths, eps) = match self {
            HeadNormsKernel::PerHead(norms) => return Some(norms),
            HeadNormsKernel::Rotated(_) => return None,
            HeadNormsKernel::AllHeads { weights, widths, eps, .. } => (weights, widths, eps),
        };
        let rows = sums.as_chunks::<ALL_HEADS_SUMS>().0;
        for (idx, x) in x.into_iter().enumerate() {
            let own =
                |row: &[f64; ALL_HEADS_SUMS]| array::from_fn(|part| row[idx * SQUARE_SUMS + part]);
            let sums: Vec<[f64; SQUARE_SUMS]> = rows.iter().map(own).collect();
            let weight = elements(&weights[idx]);
            let norm = DividedNorm { weight, eps: *eps, width: widths[idx] };
            kernels::norm_divided(x, &sums, norm, threads);
        }
        None
    }
}
