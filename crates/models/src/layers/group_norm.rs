//! The norm of the results of all heads, or of groups of neighbouring ones, of which each rank holds
//! some.

use std::ops::Range;

use jackalope_kernels::{self as kernels, DividedNorm, SQUARE_SUMS, Threads};
use jackalope_mlx::{Array, Dtype, Pinned};
use jackalope_spec::GroupNormSpec;

use super::heads::Heads;
use super::kernel::{dim, elements, pinned};
use crate::error::LoadError;
use crate::parallel::Parallel;
use crate::split::{HeadCounts, cut_heads};
use crate::weights::{Part, Weights};

/// A norm of groups of elements.
#[derive(Debug)]
pub(super) struct GroupNorm {
    /// Weights of this rank's elements.
    weight: Array,
    groups: Groups,
    /// Whether a group is divided among several ranks.
    is_divided: bool,
    eps: f32,
    parallel: Parallel,
}

/// The groups that a rank holds, or a part of one.
#[derive(Clone, Debug)]
struct Groups {
    /// Number of groups of the model.
    count: usize,
    /// Number of elements of a whole group.
    width: usize,
    own: Range<usize>,
}

impl GroupNorm {
    /// Loads this rank's part of a norm of the results of `heads`, which `counts` divides.
    ///
    /// # Errors
    /// Fails if the weight cannot be read.
    pub(super) fn load(
        spec: &GroupNormSpec,
        heads: &Heads,
        counts: HeadCounts,
        root: &Weights<'_>,
        parallel: &Parallel,
    ) -> Result<GroupNorm, LoadError> {
        let elements = heads.queries();
        let width = elements.full / spec.groups;
        let weight = root.at(&spec.module);
        let weight = weight.floats("weight", &[elements.full], Part::rows(&elements))?;
        let cuts = cut_heads(counts, parallel.shares()).into_iter();
        let mut ends = cuts.flat_map(|cut| {
            let own = cut.heads.scaled(heads.head_dim).own;
            if own.is_empty() { [0, 0] } else { [own.start, own.end] }
        });
        let is_divided = ends.any(|end| !end.is_multiple_of(width));
        let own = elements.own.start / width..elements.own.end.div_ceil(width);
        let own = if elements.is_empty() { 0..0 } else { own };
        let groups = Groups { count: spec.groups, width, own };
        Ok(GroupNorm { weight, groups, is_divided, eps: spec.eps, parallel: parallel.clone() })
    }

    /// Returns the number of sums over the ranks that MLX needs of each row, or the kernels.
    pub(super) fn num_sums(&self, is_stock: bool) -> usize {
        match (self.is_divided, is_stock) {
            (false, _) => 0,
            (true, true) => self.groups.count,
            (true, false) => self.groups.count * SQUARE_SUMS,
        }
    }

    /// Normalises `x` `[tokens, width]` in single precision, with MLX.
    pub(super) fn stock(&self, x: &Array) -> Array {
        let Groups { count, width, own } = &self.groups;
        let grouped = x.reshape(&[x.dim(0), dim(own.len()), -1]);
        let mut sums = grouped.square().sum(2, false); // [tokens, own groups]
        if self.is_divided {
            let zeros = |groups: usize| Array::zeros(&[x.dim(0), dim(groups)], Dtype::F32);
            let all = [&zeros(own.start), &sums, &zeros(count - own.end)];
            let all = self.parallel.all_sum(&Array::concatenate(&all, 1));
            sums = all.slice_axis(1, dim(own.start), dim(own.end));
        }
        let mean = &sums * (1.0 / *width as f32);
        let scale = mean.add(&Array::scalar(self.eps)).rsqrt();
        let normed = grouped.mul(&scale.expand_dims(2)).reshape(&x.shape());
        normed.mul(&self.weight.astype(Dtype::F32))
    }

    /// Returns the norm for use inside a primitive.
    pub(super) fn kernel(&self) -> GroupNormKernel {
        let (weight, groups) = (pinned(&self.weight), self.groups.clone());
        GroupNormKernel { weight, groups, eps: self.eps }
    }
}

/// A norm of groups of elements for the kernels.
#[derive(Clone, Debug)]
pub(super) struct GroupNormKernel {
    weight: Pinned,
    groups: Groups,
    eps: f32,
}

impl GroupNormKernel {
    /// Returns the sums that are added over the ranks, `[tokens, num_sums]`: those of this rank's
    /// elements.
    pub(super) fn sums(&self, x: &[f32], threads: &Threads) -> Vec<f64> {
        let Groups { count, own, .. } = &self.groups;
        let width = elements(&self.weight).len() / own.len();
        let squares = kernels::square_sums(x, width, threads);
        let rows = squares.chunks_exact(own.len());
        let mut sums = vec![[0.0; SQUARE_SUMS]; rows.len() * count];
        for (all, squares) in sums.chunks_exact_mut(*count).zip(rows) {
            all[own.clone()].copy_from_slice(squares);
        }
        sums.concat()
    }

    /// Normalises `x` `[tokens, width]` in place.
    pub(super) fn apply(&self, x: &mut [f32], sums: &[f64], threads: &Threads) {
        let Groups { count, width, own } = &self.groups;
        let rows = sums.as_chunks::<SQUARE_SUMS>().0.chunks_exact(*count);
        let sums: Vec<[f64; SQUARE_SUMS]> =
            rows.flat_map(|row| row[own.clone()].iter().copied()).collect();
        let norm = DividedNorm { weight: elements(&self.weight), eps: self.eps, width: *width };
        kernels::norm_divided(x, &sums, norm, threads);
    }
}
