//! The norm of the results of all heads, or of groups of neighbouring ones, of which each rank holds
//! some.

use std::ops::Range;

use jackalope_kernels::{self as kernels, DividedNorm, SQUARE_SUMS, Threads};
use jackalope_mlx::{Array, Dtype, Pinned, dim};
use jackalope_spec::GroupNormSpec;

use super::heads::Heads;
use super::kernel::{elements, pinned};
use crate::parallel::Parallel;
use jackalope_protocol::split::{Cut, HeadCounts, cut_heads};
use jackalope_weights::LoadError;
use jackalope_weights::{Part, Weights};

/// A norm of groups of elements.
#[derive(Debug)]
pub struct GroupNorm {
    /// Weights of this rank's elements.
    weight: Array,
    groups: Groups,
    /// Whether a group is divided among several ranks.
    is_divided: bool,
    eps: f32,
    parallel: Parallel,
}

/// The groups of which a rank holds elements: neighbouring ones, of which the first and the last may
/// also be another rank's.
#[derive(Clone, Debug)]
struct Groups {
    /// Number of groups of the model.
    count: usize,
    /// Number of elements of a whole group.
    width: usize,
    own: Range<usize>,
    /// Length of blocks of which no group, and no rank's part, has a fraction.
    block: usize,
    /// This rank's blocks of each of its groups.
    blocks: Vec<Range<usize>>,
}

impl Groups {
    fn new(count: usize, elements: &Cut) -> Groups {
        let width = elements.full / count;
        if elements.is_empty() {
            return Groups { count, width, own: 0..0, block: width, blocks: Vec::new() };
        }
        let Range { start, end } = elements.own.clone();
        let block = common_divisor(width, common_divisor(start, end));
        let own = start / width..end.div_ceil(width);
        let blocks = own.clone().map(|group| {
            let (first, last) = ((group * width).max(start), ((group + 1) * width).min(end));
            (first - start) / block..(last - start) / block
        });
        let blocks = blocks.collect();
        Groups { count, width, own, block, blocks }
    }

    /// Returns what each block has of what each of the rank's groups has.
    fn of_blocks<T: Copy>(&self, of_groups: &[T]) -> Vec<T> {
        let groups = of_groups.iter().zip(&self.blocks);
        groups.flat_map(|(value, blocks)| std::iter::repeat_n(*value, blocks.len())).collect()
    }
}

/// The greatest common divisor of two numbers, of which one is not zero.
fn common_divisor(one: usize, other: usize) -> usize {
    if other == 0 { one } else { common_divisor(other, one % other) }
}

impl GroupNorm {
    /// Loads this rank's part of a norm of the results of `heads`, which `counts` divides.
    ///
    /// # Errors
    /// Fails if the weight cannot be read.
    pub fn load(
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
        let groups = Groups::new(spec.groups, &elements);
        Ok(GroupNorm { weight, groups, is_divided, eps: spec.eps, parallel: parallel.clone() })
    }

    /// Returns the number of sums over the ranks that MLX needs of each row, or the kernels.
    pub fn num_sums(&self, is_stock: bool) -> usize {
        match (self.is_divided, is_stock) {
            (false, _) => 0,
            (true, true) => self.groups.count,
            (true, false) => self.groups.count * SQUARE_SUMS,
        }
    }

    /// Normalises `x` `[tokens, width]` in single precision, with MLX.
    pub fn stock(&self, x: &Array) -> Array {
        let Groups { count, width, own, block, blocks } = &self.groups;
        let in_blocks = x.reshape(&[x.dim(0), -1, dim(*block)]);
        let squares = in_blocks.square().sum(2, false); // [tokens, own blocks]
        let has_whole_groups = blocks.iter().all(|blocks| blocks.len() == 1);
        let mut sums = if has_whole_groups {
            squares
        } else {
            let of_group =
                |it: &Range<usize>| squares.slice_axis(1, dim(it.start), dim(it.end)).sum(1, true);
            let sums: Vec<Array> = blocks.iter().map(of_group).collect();
            Array::concatenate(&sums.iter().collect::<Vec<_>>(), 1) // [tokens, own groups]
        };
        if self.is_divided {
            let zeros = |groups: usize| Array::zeros(&[x.dim(0), dim(groups)], Dtype::F32);
            let all = [&zeros(own.start), &sums, &zeros(count - own.end)];
            let all = self.parallel.all_sum(&Array::concatenate(&all, 1));
            sums = all.slice_axis(1, dim(own.start), dim(own.end));
        }
        let mean = &sums * (1.0 / *width as f32);
        let mut scale = mean.add(&Array::scalar(self.eps)).rsqrt();
        if !has_whole_groups {
            let numbers: Vec<i32> = (0..own.len()).map(dim).collect();
            let numbers = self.groups.of_blocks(&numbers);
            scale = scale.take(&Array::from_slice(&numbers, &[dim(numbers.len())]), 1);
        }
        let normed = in_blocks.mul(&scale.expand_dims(2)).reshape(&x.shape());
        normed.mul(&self.weight.astype(Dtype::F32))
    }

    /// Returns the norm for use inside a primitive.
    pub fn kernel(&self) -> GroupNormKernel {
        let (weight, groups) = (pinned(&self.weight), self.groups.clone());
        GroupNormKernel { weight, groups, eps: self.eps }
    }
}

/// A norm of groups of elements for the kernels.
#[derive(Clone, Debug)]
pub struct GroupNormKernel {
    weight: Pinned,
    groups: Groups,
    eps: f32,
}

impl GroupNormKernel {
    /// Returns the sums that are added over the ranks, `[tokens, num_sums]`: those of this rank's
    /// elements.
    pub fn sums(&self, x: &[f32], threads: &Threads) -> Vec<f64> {
        let Groups { count, own, block, blocks, .. } = &self.groups;
        let squares = kernels::square_sums(x, *block, threads);
        let rows = squares.chunks_exact(blocks.last().map_or(1, |last| last.end));
        let mut sums = vec![[0.0; SQUARE_SUMS]; rows.len() * count];
        for (all, squares) in sums.chunks_exact_mut(*count).zip(rows) {
            for (all, blocks) in all[own.clone()].iter_mut().zip(blocks) {
                for squares in &squares[blocks.clone()] {
                    all.iter_mut().zip(squares).for_each(|(all, squares)| *all += squares);
                }
            }
        }
        sums.concat()
    }

    /// Normalises `x` `[tokens, width]` in place.
    pub fn apply(&self, x: &mut [f32], sums: &[f64], threads: &Threads) {
        let Groups { count, width, own, .. } = &self.groups;
        let rows = sums.as_chunks::<SQUARE_SUMS>().0.chunks_exact(*count);
        let sums: Vec<[f64; SQUARE_SUMS]> =
            rows.flat_map(|row| self.groups.of_blocks(&row[own.clone()])).collect();
        let norm = DividedNorm { weight: elements(&self.weight), eps: self.eps, width: *width };
        kernels::norm_divided(x, &sums, norm, threads);
    }
}
