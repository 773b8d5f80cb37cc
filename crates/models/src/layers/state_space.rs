//! The state space of Mamba-2 (Dao and Gu 2024): a mixer whose memory of a sequence is a matrix for
//! each head.
//!
//! ```text
//!   x ─ in_proj ─┬ values, keys, queries ─ convolution ─ recurrence ─┐
//!                ├ time steps ────────────────────────────┘          │
//!                └ gates ─────────────────────────────── × ─ norm ───┴─ out_proj ─▶ sum over ranks
//! ```
//!
//! The norm takes elements of several ranks, so it needs sums over them.

use std::sync::Arc;

use jackalope_kernels::{
    self as kernels, Elements, Floats, RecurrenceInputs, RecurrenceRule, RecurrenceSizes,
    RecurrenceWeights, Threads,
};
use jackalope_mlx::{Array, Dtype, dim};
use jackalope_recurrence::{Rule, Scanned, StateArrays, Tokens, scan};
use jackalope_spec::{HeadRows, StateSpaceSizes, StateSpaceSpec};

use super::frame::BlockFrame;
use super::recurrent::{
    RecurrenceKernel, RecurrentParts, RecurrentTensors, SmallWeights, StockRows, empty_state,
    stock_sequences,
};
use super::residual::{Middle, Residual, TwoParts};
use crate::split::Cut;
use crate::step::Step;
use jackalope_cache::{LayerCacheShape, float};
use jackalope_parallel::group_norm::{GroupNorm, GroupNormKernel};
use jackalope_parallel::heads::Heads;
use jackalope_parallel::kernel::DivisibleKernel;
use jackalope_parallel::linear::{HasBias, Linear, LinearKernel};
use jackalope_parallel::output::BlockOutput;
use jackalope_parallel::{Compute, Parallel};
use jackalope_weights::LoadError;

/// A state space, or this rank's heads of it.
#[derive(Debug)]
pub(crate) struct StateSpace {
    /// Queries, keys, values, gates and time steps.
    projections: [Linear; 5],
    out_proj: Linear,
    norm: Option<GroupNorm>,
    /// Whether the results are normalised before the gates multiply them.
    norm_precedes_gate: bool,
    small: SmallWeights,
    /// Arranged for our kernels; `None` if MLX computes.
    weights: Option<Arc<RecurrenceWeights>>,
    heads: Heads,
    /// Sizes of this rank's part.
    sizes: RecurrenceSizes,
    step_limits: [f32; 2],
    layer_idx: usize,
    dtype: Dtype,
    parallel: Parallel,
}

impl StateSpace {
    /// Loads this rank's heads.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        spec: &StateSpaceSpec,
        parts: &RecurrentParts<'_, '_>,
    ) -> Result<StateSpace, LoadError> {
        let RecurrentParts { layer_idx, root, hidden, counts, parallel, .. } = *parts;
        let StateSpaceSizes { head_dim, state_dim, conv_width, .. } = spec.sizes;
        let heads = Heads::new(counts, head_dim, parallel);
        let (groups, values) = (&heads.cut.kv_heads, &heads.cut.heads);
        let sizes = RecurrenceSizes {
            key_heads: groups.len(),
            value_heads: values.len(),
            key_dim: state_dim,
            value_dim: head_dim,
            conv_width,
        };
        let bias = HasBias::when(spec.has_projection_bias);
        let column = |rows: &HeadRows, cut: &Cut| parts.projection(rows, cut, bias);
        let projections = [
            column(&spec.queries, groups)?,
            column(&spec.keys, groups)?,
            column(&spec.values, values)?,
            column(&spec.gates, values)?,
            column(&spec.steps, values)?,
        ];
        let output_bias = HasBias::when(spec.has_output_bias);
        let out_proj = heads.o_proj(&root.at(&spec.output), hidden, output_bias)?;
        let norm = spec.norm.as_ref();
        let norm_precedes_gate = norm.is_some_and(|norm| norm.precedes_gate);
        let norm = norm.map(|norm| GroupNorm::load(norm, &heads, counts, root, parallel));
        let tensors = RecurrentTensors {
            convolutions: &spec.convolutions,
            conv_width,
            has_conv_bias: spec.has_conv_bias,
            a_log: &spec.a_log,
            dt_bias: &spec.dt_bias,
            decays_per_head: 1,
            skips: Some(&spec.skips),
        };
        let small = SmallWeights::load(tensors, &heads, root)?;
        let [step_min, step_max] = spec.step_limits;
        let rule = RecurrenceRule::StateSpace { step_min, step_max };
        let weights = parallel.compute().arranged(|| small.arranged(sizes, rule));
        Ok(StateSpace {
            projections,
            out_proj,
            norm: norm.transpose()?,
            norm_precedes_gate,
            small,
            weights,
            heads,
            sizes,
            step_limits: spec.step_limits,
            layer_idx,
            dtype: root.dtype(),
            parallel: parallel.clone(),
        })
    }

    /// Returns this rank's heads, and its groups as those that they share.
    pub(crate) fn heads(&self) -> &Heads {
        &self.heads
    }

    /// Returns the shape of this layer's cache for one sequence on this rank.
    pub(crate) fn cache_shape(&self) -> LayerCacheShape {
        LayerCacheShape::State { elements: self.sizes.state_len() }
    }

    /// Adds the state space to the stream.
    pub(crate) fn add_to(
        &self,
        residual: Residual,
        frame: &BlockFrame,
        step: &mut Step<'_, '_>,
    ) -> Residual {
        let output = self.block_output();
        let Compute::Kernels(threads) = self.parallel.compute() else {
            return residual.stock_block(frame, output, |x: &Array| self.stock(x, step));
        };
        let ((results, widths), projection) = (self.results_kernel(step), self.projection_kernel());
        let block = TwoParts {
            widths,
            first: move |x: Elements<'_>, threads: &Threads| results.compute(x, threads),
            second: move |middle, threads: &Threads| projection.product(middle, threads),
        };
        residual.kernel_block_of_two(frame, output, threads, block)
    }

    /// Returns what the block adds to the stream.
    pub(super) fn block_output(&self) -> BlockOutput<'_> {
        let is_stock = matches!(self.parallel.compute(), Compute::Stock);
        let num_sums = self.norm.as_ref().map_or(0, |norm| norm.num_sums(is_stock));
        BlockOutput { num_sums, ..self.out_proj.block_output() }
    }

    /// Computes this rank's part of the product `[tokens, hidden]`, without bias, with MLX.
    pub(super) fn stock(&self, x: &Array, step: &mut Step<'_, '_>) -> Array {
        self.out_proj.stock(&self.stock_heads(x, step))
    }

    /// Returns the first part of the primitive, and the widths of the values that it returns.
    pub(super) fn results_kernel(&self, step: &mut Step<'_, '_>) -> (ResultsKernel, Vec<usize>) {
        let weights = self.weights.as_ref().expect("they are arranged for our kernels");
        let width = self.sizes.value_heads * self.sizes.value_dim;
        let widths = if self.norm_precedes_gate { vec![width; 2] } else { vec![width] };
        let kernel = ResultsKernel {
            projections: self.projections.each_ref().map(Linear::kernel),
            recurrence: RecurrenceKernel::new(weights, self.layer_idx, step),
            norm: self.norm.as_ref().map(GroupNorm::kernel),
            norm_precedes_gate: self.norm_precedes_gate,
        };
        (kernel, widths)
    }

    /// Returns the second part of the primitive.
    pub(super) fn projection_kernel(&self) -> OutputKernel {
        OutputKernel {
            norm: self.norm.as_ref().map(GroupNorm::kernel),
            output: self.out_proj.divisible_kernel(),
            dtype: self.dtype,
        }
    }

    /// Computes the heads' results `[tokens, heads * head_dim]` with MLX, all of it but the products in
    /// single precision.
    fn stock_heads(&self, x: &Array, step: &mut Step<'_, '_>) -> Array {
        let projected = |linear: &Linear| linear.stock(x);
        let [queries, keys, values, gates, steps] = self.projections.each_ref().map(projected);
        let inputs = Array::concatenate(&[&queries, &keys, &values], 1); // [tokens, channels]
        let [inputs, gates, steps] = [inputs, gates, steps].map(|x| x.astype(Dtype::F32));
        let [min, max] = self.step_limits.map(Array::scalar);
        let steps = self.small.stock_steps(&steps).maximum(&min).minimum(&max);
        let decays = self.small.stock_log_decays(&steps);
        let empty = || empty_state(self.sizes);
        let scan = |rows| self.stock_scan(rows);
        let projected = [inputs, steps, decays];
        let out = stock_sequences(step, self.layer_idx, &projected, empty, scan);
        let out = out.reshape(&gates.shape());
        let normed = |x: &Array| self.norm.as_ref().map_or(x.clone(), |norm| norm.stock(x));
        let out = if self.norm_precedes_gate {
            normed(&out).mul(&gates.silu())
        } else {
            normed(&out.mul(&gates.silu()))
        };
        out.astype(self.dtype)
    }

    /// Computes the rows of sequences: results `[sequences, seq, heads, head_dim]`, and the states
    /// after them.
    fn stock_scan(&self, rows: StockRows) -> (Array, StateArrays) {
        let RecurrenceSizes { key_heads, value_heads, key_dim, value_dim, .. } = self.sizes;
        let StockRows { projected, held } = rows;
        let [inputs, steps, decays] = &projected[..] else { panic!("three projections") };
        let (num_sequences, seq) = (inputs.dim(0), inputs.dim(1));
        let inputs = Array::concatenate(&[&held.inputs, inputs], 1);
        let x = self.small.stock_convolution(&inputs);
        let (keys_end, values_end) = (dim(2 * key_heads * key_dim), x.dim(2));
        let keys = x.slice_axis(2, 0, keys_end);
        let keys = keys.reshape(&[num_sequences, seq, 2, dim(key_heads), dim(key_dim)]);
        let [queries, keys] = [0, 1].map(|idx| keys.slice_axis(2, idx, idx + 1).squeeze(2));
        let values = x.slice_axis(2, keys_end, values_end);
        let values = values.reshape(&[num_sequences, seq, dim(value_heads), dim(value_dim)]);
        let tokens = Tokens {
            rule: Rule::Add,
            queries: &queries,
            keys: &keys,
            values: &values,
            log_decays: decays,
            rates: steps,
        };
        let state = held.state.expect("a recurrence has a state");
        let Scanned { results, state } = scan(&tokens, &state);
        let skips = self.small.skips.as_ref().expect("a state space has them").expand_dims(1);
        let results = results.add(&values.mul(&skips));
        let inputs = inputs.slice_axis(1, seq, inputs.dim(1)).contiguous();
        (results, StateArrays { inputs, state: Some(state) })
    }
}

/// The first part of the primitive: the heads' results, and the sums of their squares.
pub(super) struct ResultsKernel {
    projections: [LinearKernel; 5],
    recurrence: RecurrenceKernel,
    norm: Option<GroupNormKernel>,
    norm_precedes_gate: bool,
}

impl ResultsKernel {
    pub(super) fn compute(&self, x: Elements<'_>, threads: &Threads) -> Middle {
        let [queries, keys, values, gates, steps] =
            LinearKernel::products(&self.projections, x, threads);
        let inputs = RecurrenceInputs {
            queries: &queries,
            keys: &keys,
            values: &values,
            decays: &steps,
            rates: &[],
        };
        let mut results = self.recurrence.results(&inputs, threads);
        if !self.norm_precedes_gate {
            kernels::silu_gate(&mut results, &gates, threads);
        }
        let sums = self.norm.as_ref().map(|norm| norm.sums(&results, threads));
        let values = if self.norm_precedes_gate { vec![results, gates] } else { vec![results] };
        Middle { values, sums: sums.unwrap_or_default() }
    }
}

/// The second part of the primitive: the norm and the output projection.
pub(super) struct OutputKernel {
    norm: Option<GroupNormKernel>,
    output: DivisibleKernel,
    dtype: Dtype,
}

impl OutputKernel {
    /// Computes this rank's part of the product `[tokens, hidden]`, without bias.
    pub(super) fn product(&self, middle: Middle, threads: &Threads) -> Vec<f64> {
        let Middle { values, sums } = middle;
        let mut values = values.into_iter();
        let mut results = values.next().expect("the heads' results");
        if let Some(norm) = &self.norm {
            norm.apply(&mut results, &sums, threads);
        }
        if let Some(gates) = values.next() {
            kernels::silu_gate(&mut results, &gates, threads);
        }
        let mut rounded = Floats::zeros(float(self.dtype), results.len());
        rounded.store(0, &results);
        self.output.multiply(rounded.elements(), threads)
    }
}
