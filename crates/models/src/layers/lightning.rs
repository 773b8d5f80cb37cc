//! Lightning attention (Qin et al. 2024): a mixer whose memory of a sequence is a matrix for each head,
//! which decays by a constant.
//!
//! ```text
//!   x ─┬ queries, keys ─ norm ─ rotation ─┐
//!      ├ values ──────────────────────────┴─ recurrence ─ norm ─┐
//!      └ gates ─────────────────────────────────────────────────┴ × ─ dense ─▶ sum over ranks
//! ```
//!
//! The norm of the results may take elements of several ranks, so it needs sums over them.

use std::array;
use std::rc::Rc;
use std::sync::Arc;

use jackalope_kernels::{
    self as kernels, Elements, Floats, RecurrenceInputs, RecurrenceSizes, RecurrenceWeights,
    Threads,
};
use jackalope_mlx::{Array, Dtype, dim};
use jackalope_recurrence::{Rule, Scanned, StateArrays, Tokens, scan};

use super::frame::BlockFrame;
use super::recurrent::{RecurrenceKernel, StockRows, empty_state, stock_sequences};
use super::residual::{Middle, Residual, TwoParts};
use crate::step::Step;
use jackalope_cache::{LayerCacheShape, float};
use jackalope_kernels::RotationTable;
use jackalope_parallel::group_norm::{GroupNorm, GroupNormKernel};
use jackalope_parallel::heads::Heads;
use jackalope_parallel::kernel::DivisibleKernel;
use jackalope_parallel::linear::{Linear, LinearKernel};
use jackalope_parallel::norm::{Norm, NormKernel};
use jackalope_parallel::output::BlockOutput;
use jackalope_parallel::rope::Rope;
use jackalope_parallel::{Compute, Parallel};

/// What lightning attention is made of.
#[derive(Debug)]
pub(crate) struct LightningParts {
    /// To queries, keys, values and gates, `[hidden] -> [heads, head_dim]` each.
    pub(crate) projections: [Linear; 4],
    /// Norms of each query and of each key.
    pub(crate) qk_norms: Option<[Norm; 2]>,
    pub(crate) rope: Rc<Rope>,
    /// Factors by which the states of this rank's heads decay.
    pub(crate) decays: Vec<f32>,
    pub(crate) norm: GroupNorm,
    pub(crate) dense: Linear,
    pub(crate) heads: Heads,
}

/// Lightning attention, or this rank's heads of it.
#[derive(Debug)]
pub(crate) struct Lightning {
    parts: LightningParts,
    /// Sizes of this rank's part.
    sizes: RecurrenceSizes,
    /// Arranged for our kernels; `None` if MLX computes.
    weights: Option<Arc<RecurrenceWeights>>,
    layer_idx: usize,
    dtype: Dtype,
    parallel: Parallel,
}

impl Lightning {
    pub(crate) fn new(
        parts: LightningParts,
        layer_idx: usize,
        dtype: Dtype,
        parallel: &Parallel,
    ) -> Lightning {
        let (heads, width) = (parts.decays.len(), parts.heads.head_dim);
        let sizes = RecurrenceSizes {
            key_heads: heads,
            value_heads: heads,
            key_dim: width,
            value_dim: width,
            conv_width: 1,
        };
        let arrange = || RecurrenceWeights::lightning(sizes, &parts.decays);
        let weights = parallel.compute().arranged(arrange);
        Lightning { parts, sizes, weights, layer_idx, dtype, parallel: parallel.clone() }
    }

    /// Returns this rank's heads.
    pub(crate) fn heads(&self) -> &Heads {
        &self.parts.heads
    }

    /// Returns what the layer keeps of a sequence on this rank.
    pub(crate) fn cache_shape(&self) -> LayerCacheShape {
        LayerCacheShape::State { elements: self.sizes.state_len() }
    }

    /// Adds the block to the stream.
    pub(crate) fn add_to(
        &self,
        residual: Residual,
        frame: &BlockFrame,
        step: &mut Step<'_, '_>,
    ) -> Residual {
        let parts = &self.parts;
        let is_stock = matches!(self.parallel.compute(), Compute::Stock);
        let num_sums = parts.norm.num_sums(is_stock);
        let output = BlockOutput { num_sums, ..parts.dense.block_output() };
        let Compute::Kernels(threads) = self.parallel.compute() else {
            let work = |x: &Array| parts.dense.stock(&self.stock_heads(x, step));
            return residual.stock_block(frame, output, work);
        };
        let weights = self.weights.as_ref().expect("they are arranged for our kernels");
        let results = ResultsKernel {
            projections: parts.projections.each_ref().map(Linear::kernel),
            qk_norms: parts.qk_norms.as_ref().map(|norms| norms.each_ref().map(Norm::kernel)),
            rotations: step.rotations(&parts.rope),
            recurrence: RecurrenceKernel::new(weights, self.layer_idx, step),
            norm: parts.norm.kernel(),
            head_dim: self.sizes.key_dim,
        };
        let (norm, dense) = (parts.norm.kernel(), parts.dense.divisible_kernel());
        let (width, dtype) = (self.sizes.value_heads * self.sizes.value_dim, self.dtype);
        let block = TwoParts {
            widths: vec![width; 2],
            first: move |x: Elements<'_>, threads: &Threads| results.compute(x, threads),
            second: move |middle, threads: &Threads| product(middle, &norm, &dense, dtype, threads),
        };
        residual.kernel_block_of_two(frame, output, threads, block)
    }

    /// Computes the heads' results `[tokens, heads * head_dim]` with MLX; the recurrence and what
    /// follows it in single precision.
    fn stock_heads(&self, x: &Array, step: &mut Step<'_, '_>) -> Array {
        let parts = &self.parts;
        let head_dim = self.sizes.key_dim;
        let [queries, keys, values, gates] =
            parts.projections.each_ref().map(|linear| linear.stock(x));
        let positions = step.positions();
        let mut placed = [queries, keys].map(|x| x.reshape(&[x.dim(0), -1, dim(head_dim)]));
        if let Some(norms) = &parts.qk_norms {
            placed = array::from_fn(|idx| norms[idx].stock(&placed[idx]));
        }
        let placed = placed.map(|x| {
            let rotated = parts.rope.stock(&x.expand_dims(2), &positions);
            rotated.reshape(&values.shape()).astype(Dtype::F32)
        });
        let [queries, keys] = placed;
        let projected = [&queries * query_scale(head_dim), keys, values.astype(Dtype::F32)];
        let empty = || empty_state(self.sizes);
        let scan = |rows| self.stock_scan(rows);
        let out = stock_sequences(step, self.layer_idx, &projected, empty, scan);
        let normed = parts.norm.stock(&out.reshape(&gates.shape()));
        normed.mul(&gates.astype(Dtype::F32).sigmoid()).astype(self.dtype)
    }

    /// Computes the rows of sequences: results `[sequences, seq, heads, head_dim]`, and the states
    /// after them.
    fn stock_scan(&self, rows: StockRows) -> (Array, StateArrays) {
        let RecurrenceSizes { value_heads: heads, key_dim: width, .. } = self.sizes;
        let StockRows { projected, held } = rows;
        let (num_sequences, seq) = (projected[0].dim(0), projected[0].dim(1));
        let shape = [num_sequences, seq, dim(heads), dim(width)];
        let [queries, keys, values] = array::from_fn(|idx| projected[idx].reshape(&shape));
        let log_decays: Vec<f32> = self.parts.decays.iter().map(|decay| decay.ln()).collect();
        let of_tokens = [num_sequences, seq, dim(heads)];
        let log_decays = Array::from_slice(&log_decays, &[1, 1, dim(heads)]);
        let tokens = Tokens {
            rule: Rule::Add,
            queries: &queries,
            keys: &keys,
            values: &values,
            log_decays: &log_decays.broadcast_to(&of_tokens),
            rates: &Array::full(&of_tokens, 1.0, Dtype::F32),
        };
        let state = held.state.expect("a recurrence has a state");
        let Scanned { results, state } = scan(&tokens, &state);
        (results, StateArrays { inputs: held.inputs, state: Some(state) })
    }
}

/// Returns the factor of queries of `head_dim` elements.
fn query_scale(head_dim: usize) -> f32 {
    (head_dim as f32).powf(-0.5)
}

/// The first part of the primitive: the heads' results, and the sums of their squares.
struct ResultsKernel {
    projections: [LinearKernel; 4],
    qk_norms: Option<[NormKernel; 2]>,
    rotations: Arc<RotationTable>,
    recurrence: RecurrenceKernel,
    norm: GroupNormKernel,
    head_dim: usize,
}

impl ResultsKernel {
    fn compute(&self, x: Elements<'_>, threads: &Threads) -> Middle {
        let [mut queries, mut keys, values, gates] =
            LinearKernel::products(&self.projections, x, threads);
        let norms = self.qk_norms.as_ref().map(|norms| norms.each_ref().map(NormKernel::view));
        let rotation = self.rotations.rotation(self.head_dim);
        kernels::place_heads(&mut queries, norms.map(|norms| norms[0]), rotation, threads);
        kernels::place_heads(&mut keys, norms.map(|norms| norms[1]), rotation, threads);
        queries.iter_mut().for_each(|query| *query *= query_scale(self.head_dim));
        let inputs = RecurrenceInputs {
            queries: &queries,
            keys: &keys,
            values: &values,
            decays: &[],
            rates: &[],
        };
        let results = self.recurrence.results(&inputs, threads);
        let sums = self.norm.sums(&results, threads);
        Middle { values: vec![results, gates], sums }
    }
}

/// Computes this rank's part of the product `[tokens, hidden]`, without bias, from results and gates.
fn product(
    middle: Middle,
    norm: &GroupNormKernel,
    dense: &DivisibleKernel,
    dtype: Dtype,
    threads: &Threads,
) -> Vec<f64> {
    let [mut results, gates] =
        <[Vec<f32>; 2]>::try_from(middle.values).expect("results and their gates");
    norm.apply(&mut results, &middle.sums, threads);
    let mut gated = Floats::zeros(float(dtype), results.len());
    kernels::sigmoid_gate(Elements::F32(&results), &gates, gated.elements_mut(), threads);
    dense.multiply(gated.elements(), threads)
}
