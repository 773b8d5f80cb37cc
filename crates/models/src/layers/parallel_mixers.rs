//! Attention and a state space beside each other (Zuo et al. 2025): both read the same norm, and their
//! sum is added to the stream. Ranks divide them separately, so a rank may have a part of one only.

use jackalope_kernels::{Elements, Threads};
use jackalope_mlx::{Array, Dtype};

use super::attention::Attention;
use super::frame::{BlockFrame, StockInput};
use super::residual::{Middle, Residual, TwoParts};
use super::state_space::StateSpace;
use crate::step::Step;
use jackalope_cache::LayerCacheShape;
use jackalope_parallel::heads::Heads;
use jackalope_parallel::kernel::zeros_after;
use jackalope_parallel::output::{BlockOutput, stock_sum_products, sum_products};
use jackalope_parallel::{Compute, Parallel};

/// Attention and a state space beside each other.
#[derive(Debug)]
pub(crate) struct ParallelMixers {
    attention: Attention,
    space: StateSpace,
    parallel: Parallel,
}

impl ParallelMixers {
    pub(crate) fn new(attention: Attention, space: StateSpace, parallel: &Parallel) -> Self {
        ParallelMixers { attention, space, parallel: parallel.clone() }
    }

    /// Returns this rank's attention heads.
    pub(crate) fn heads(&self) -> &Heads {
        self.attention.heads()
    }

    /// Returns the shape of this layer's cache for one sequence on this rank.
    pub(crate) fn cache_shape(&self) -> LayerCacheShape {
        match (self.attention.cache_shape(), self.space.cache_shape()) {
            (LayerCacheShape::Positions(positions), LayerCacheShape::State { elements }) => {
                LayerCacheShape::PositionsAndState { positions, elements }
            }
            other => panic!("positions and a state, not {other:?}"),
        }
    }

    /// Adds both to the stream.
    pub(crate) fn add_to(
        &self,
        residual: Residual,
        frame: &BlockFrame,
        step: &mut Step<'_, '_>,
    ) -> Residual {
        let (attention, space) = (self.attention.block_output(), self.space.block_output());
        let (has_attention, has_space) = (!attention.is_empty, !space.is_empty);
        assert!(attention.bias.is_none() || space.bias.is_none(), "one bias at most");
        let output = BlockOutput {
            bias: attention.bias.or(space.bias),
            num_sums: space.num_sums,
            is_empty: !has_attention && !has_space,
            ..attention
        };
        let Compute::Kernels(threads) = self.parallel.compute() else {
            let has = [has_attention, has_space];
            return residual.stock_block_of(frame, output, |input| self.stock(input, has, step));
        };
        let num_sums = output.num_sums;
        let space =
            has_space.then(|| (self.space.results_kernel(step), self.space.projection_kernel()));
        let attention = has_attention
            .then(|| (self.attention.projection_kernel(), self.attention.kernel(step)));
        let (results, output_kernel) = space.unzip();
        let (results, mut widths) = results.unzip();
        let (projections, attention) = attention.unzip();
        let (projections, attention_widths) = projections.unzip();
        let num_of_space = widths.as_ref().map_or(0, Vec::len);
        let widths_of_all = [widths.take(), attention_widths].into_iter().flatten().flatten();
        let hidden = output.hidden;
        let block = TwoParts {
            widths: widths_of_all.collect(),
            first: move |x: Elements<'_>, threads: &Threads| {
                let tokens = x.len() / hidden;
                let zeros = || Middle { values: vec![], sums: vec![0.0; tokens * num_sums] };
                let space = results.as_ref().map(|it| it.compute(x, threads));
                let mut middle = space.unwrap_or_else(zeros);
                let projected = projections.as_ref().map(|it| it.project(x, threads).values);
                middle.values.extend(projected.into_iter().flatten());
                middle
            },
            second: move |mut middle: Middle, threads: &Threads| {
                let values = middle.values.split_off(num_of_space);
                let attention = attention
                    .as_ref()
                    .map(|it| it.product(Middle { values, sums: Vec::new() }, threads));
                let space = output_kernel.as_ref().map(|it| it.product(middle, threads));
                sum_products(attention, space).expect("the block is not empty")
            },
        };
        residual.kernel_block_of_two(frame, output, threads, block)
    }

    /// Computes this rank's part of the product `[tokens, hidden]`, without bias, with MLX; `has` says
    /// whether it has a part of the attention, and of the state space.
    fn stock(
        &self,
        input: &StockInput<'_>,
        [has_attention, has_space]: [bool; 2],
        step: &mut Step<'_, '_>,
    ) -> Array {
        let attention = has_attention.then(|| self.attention.stock(input, step));
        let x = &input.normed();
        let output = self.space.block_output();
        let space = if has_space {
            Some(self.space.stock(x, step))
        } else if 0 < output.num_sums {
            let zeros = zeros_after(x, output.num_sums, Dtype::F32);
            Some(zeros_after(&self.parallel.all_sum(&zeros), output.hidden, output.dtype))
        } else {
            None
        };
        stock_sum_products(attention, space).expect("the block is not empty")
    }
}
