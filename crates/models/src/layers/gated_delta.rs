//! A gated delta net (Yang et al. 2024): a mixer whose state is a matrix for each value head.

use std::sync::Arc;

use jackalope_kernels::{
    self as kernels, Elements, Floats, OutputGates, RecurrenceInputs, RecurrenceRule,
    RecurrenceSizes, RecurrenceWeights, Threads,
};
use jackalope_mlx::{Array, Dtype, dim, fast};
use jackalope_recurrence::{Rule, Scanned, StateArrays, Tokens, scan};
use jackalope_spec::{GatedDeltaSizes, GatedDeltaSpec, HeadRows, KimiDelta, NormKind};

use super::frame::BlockFrame;
use super::recurrent::{
    RecurrenceKernel, RecurrentParts, RecurrentTensors, SmallWeights, StockRows, empty_state,
    stock_sequences,
};
use super::residual::Residual;
use crate::split::Cut;
use crate::step::Step;
use jackalope_cache::{LayerCacheShape, float};
use jackalope_parallel::heads::Heads;
use jackalope_parallel::kernel::{DivisibleKernel, OwnRows};
use jackalope_parallel::linear::{HasBias, Linear, LinearKernel};
use jackalope_parallel::norm::{Norm, NormKernel, NormSettings};
use jackalope_parallel::{Compute, Parallel};
use jackalope_weights::LoadError;

/// Epsilon added to the squared length of queries and keys, as in mlx-lm.
const LENGTH_EPS: f32 = 1e-6;

/// A gated delta net, or this rank's heads of it.
#[derive(Debug)]
pub(crate) struct GatedDelta {
    /// Queries, keys, values, gates, rates and decays, or what gates and decays are computed from.
    projections: [Linear; 6],
    /// Gates and decays from vectors of low rank, if they are computed from such.
    up: [Option<Linear>; 2],
    out_proj: Linear,
    norm: Norm,
    small: SmallWeights,
    /// Arranged for our kernels; `None` if MLX computes.
    weights: Option<Arc<RecurrenceWeights>>,
    heads: Heads,
    /// Sizes of this rank's part.
    sizes: RecurrenceSizes,
    rule: RecurrenceRule,
    /// Whether the gates are logistic functions.
    has_logistic_gates: bool,
    layer_idx: usize,
    dtype: Dtype,
    parallel: Parallel,
}

impl GatedDelta {
    /// Loads this rank's heads.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        spec: &GatedDeltaSpec,
        parts: &RecurrentParts<'_, '_>,
    ) -> Result<GatedDelta, LoadError> {
        let RecurrentParts { layer_idx, root, hidden, norm_eps, counts, parallel } = *parts;
        let heads = Heads::new(counts, spec.sizes.value_dim, parallel);
        let norm_eps = spec.norm_eps.unwrap_or(norm_eps);
        let joined = spec.joined.as_deref();
        let joined = joined.filter(|joined| root.at(&joined.queries.module).has("weight"));
        let spec = joined.unwrap_or(spec);
        let GatedDeltaSizes { key_dim, value_dim, conv_width, .. } = spec.sizes;
        let (key_heads, value_heads) = (heads.cut.kv_heads.len(), heads.cut.heads.len());
        let sizes = RecurrenceSizes { key_heads, value_heads, key_dim, value_dim, conv_width };
        let column = |rows: &HeadRows, cut: &Cut| parts.projection(rows, cut, HasBias::No);
        let (keys, values) = (&heads.cut.kv_heads, &heads.cut.heads);
        let low_rank = |rows: &HeadRows, down: Option<&HeadRows>| {
            let (Some(down), Some(kimi)) = (down, &spec.kimi) else {
                return Ok::<_, LoadError>((column(rows, values)?, None));
            };
            let (one, own) = (Cut::of_all_ranks(1), OwnRows::new(rows, values));
            let up = Linear::of_rows(&root.at(&rows.module), kimi.rank, &own, HasBias::No)?;
            Ok((column(down, &one)?, Some(up)))
        };
        let kimi = spec.kimi.as_ref();
        let (gates, gates_up) = low_rank(&spec.gates, kimi.and_then(|it| it.gates.as_ref()))?;
        let (decays, decays_up) = low_rank(&spec.decays, kimi.and_then(|it| it.decays.as_ref()))?;
        let projections = [
            column(&spec.queries, keys)?,
            column(&spec.keys, keys)?,
            column(&spec.values, values)?,
            gates,
            column(&spec.rates, values)?,
            decays,
        ];
        let out_proj = heads.o_proj(&root.at(&spec.output), hidden, HasBias::No)?;
        let settings = NormSettings { kind: NormKind::default(), eps: norm_eps };
        let norm = Norm::load(&root.at(&spec.norm), value_dim, settings, parallel)?;
        let tensors = RecurrentTensors {
            convolutions: &spec.convolutions,
            conv_width,
            has_conv_bias: false,
            a_log: &spec.a_log,
            dt_bias: &spec.dt_bias,
            decays_per_head: spec.decays_per_head(),
            skips: None,
        };
        let small = SmallWeights::load(tensors, &heads, root)?;
        let rate_max = f32::from(spec.rate_max);
        let rule = match spec.kimi {
            None => RecurrenceRule::GatedDelta { rate_max },
            Some(KimiDelta { log_decay_min, .. }) => RecurrenceRule::KimiDelta { log_decay_min },
        };
        let weights = parallel.compute().arranged(|| small.arranged(sizes, rule));
        Ok(GatedDelta {
            projections,
            up: [gates_up, decays_up],
            rule,
            has_logistic_gates: spec.has_logistic_gates,
            out_proj,
            norm,
            small,
            weights,
            heads,
            sizes,
            layer_idx,
            dtype: root.dtype(),
            parallel: parallel.clone(),
        })
    }

    /// Returns this rank's value heads, and its key heads as those that they share.
    pub(crate) fn heads(&self) -> &Heads {
        &self.heads
    }

    /// Returns the shape of this layer's cache for one sequence on this rank.
    pub(crate) fn cache_shape(&self) -> LayerCacheShape {
        LayerCacheShape::State { elements: self.sizes.state_len() }
    }

    /// Whether it is Kimi delta attention.
    fn is_kimi(&self) -> bool {
        matches!(self.rule, RecurrenceRule::KimiDelta { .. })
    }

    /// Adds the output of this block to the stream.
    pub(crate) fn add_to(
        &self,
        residual: Residual,
        frame: &BlockFrame,
        step: &mut Step<'_, '_>,
    ) -> Residual {
        let output = self.out_proj.block_output();
        let Compute::Kernels(threads) = self.parallel.compute() else {
            let work = |x: &Array| self.out_proj.stock(&self.stock_heads(x, step));
            return residual.stock_block(frame, output, work);
        };
        let weights = self.weights.as_ref().expect("they are arranged for our kernels");
        let kernel = GatedDeltaKernel {
            projections: self.projections.each_ref().map(Linear::kernel),
            up: self.up.each_ref().map(|up| up.as_ref().map(Linear::kernel)),
            has_logistic_gates: self.has_logistic_gates,
            output: self.out_proj.divisible_kernel(),
            norm: self.norm.kernel(),
            recurrence: RecurrenceKernel::new(weights, self.layer_idx, step),
            dtype: self.dtype,
        };
        residual.kernel_block(frame, output, threads, move |x, threads| kernel.product(x, threads))
    }

    /// Computes the heads' results `[tokens, value_heads * value_dim]` with MLX, all of it but the
    /// products in single precision.
    fn stock_heads(&self, x: &Array, step: &mut Step<'_, '_>) -> Array {
        let [queries, keys, values, gates, rates, decays] =
            self.projections.each_ref().map(|linear| linear.stock(x));
        let expanded = |up: &Option<Linear>, x: Array| match up {
            Some(up) => up.stock(&x),
            None => x,
        };
        let (gates, decays) = (expanded(&self.up[0], gates), expanded(&self.up[1], decays));
        let inputs = Array::concatenate(&[&queries, &keys, &values], 1); // [tokens, channels]
        let [inputs, gates, rates, decays] =
            [inputs, gates, rates, decays].map(|x| x.astype(Dtype::F32));
        let rates = match self.rule {
            RecurrenceRule::GatedDelta { rate_max } => &rates.sigmoid() * rate_max,
            _ => rates.sigmoid(),
        };
        let decays = match self.rule {
            RecurrenceRule::KimiDelta { log_decay_min: Some(min) } => {
                self.small.stock_bounded_decays(&decays, min)
            }
            _ => self.small.stock_log_decays(&self.small.stock_steps(&decays)),
        };
        let empty = || empty_state(self.sizes);
        let scan = |rows| self.stock_scan(rows);
        let projected = [inputs, rates, decays];
        let outs = stock_sequences(step, self.layer_idx, &projected, empty, scan);
        let normed = self.norm.stock(&outs).reshape(&gates.shape());
        let gates = if self.has_logistic_gates { gates.sigmoid() } else { gates.silu() };
        normed.mul(&gates).astype(self.dtype)
    }

    /// Computes the rows of sequences: results `[sequences, seq, value_heads, value_dim]`, and the
    /// states after them.
    fn stock_scan(&self, rows: StockRows) -> (Array, StateArrays) {
        let RecurrenceSizes { key_heads, value_heads, key_dim, value_dim, .. } = self.sizes;
        let StockRows { projected, held } = rows;
        let [inputs, rates, decays] = &projected[..] else { panic!("three projections") };
        let (num_sequences, seq) = (inputs.dim(0), inputs.dim(1));
        let inputs = Array::concatenate(&[&held.inputs, inputs], 1);
        let x = self.small.stock_convolution(&inputs);
        let (keys_end, values_end) = (dim(2 * key_heads * key_dim), x.dim(2));
        let keys = x.slice_axis(2, 0, keys_end);
        let keys = keys.reshape(&[num_sequences, seq, 2, dim(key_heads), dim(key_dim)]);
        let keys = fast::rms_norm(&keys, None, LENGTH_EPS / key_dim as f32);
        // The results' scale is that of the queries.
        let scale = (key_dim as f32).powf(-0.5);
        let keys = keys.mul(&Array::from_slice(&[scale * scale, scale], &[2, 1, 1]));
        let [queries, keys] = [0, 1].map(|idx| keys.slice_axis(2, idx, idx + 1).squeeze(2));
        let values = x.slice_axis(2, keys_end, values_end);
        let values = values.reshape(&[num_sequences, seq, dim(value_heads), dim(value_dim)]);
        let by_element = [num_sequences, seq, dim(value_heads), dim(key_dim)];
        let log_decays = if self.is_kimi() { decays.reshape(&by_element) } else { decays.clone() };
        let tokens = Tokens {
            rule: Rule::Delta,
            queries: &queries,
            keys: &keys,
            values: &values,
            log_decays: &log_decays,
            rates,
        };
        let state = held.state.expect("a recurrence has a state");
        let Scanned { results, state } = scan(&tokens, &state);
        let inputs = inputs.slice_axis(1, seq, inputs.dim(1)).contiguous();
        (results, StateArrays { inputs, state: Some(state) })
    }
}

/// The state of the primitive's closure: everything except the weights' arrays.
struct GatedDeltaKernel {
    projections: [LinearKernel; 6],
    up: [Option<LinearKernel>; 2],
    has_logistic_gates: bool,
    output: DivisibleKernel,
    norm: NormKernel,
    recurrence: RecurrenceKernel,
    dtype: Dtype,
}

impl GatedDeltaKernel {
    /// Computes this rank's part of the product `[tokens, hidden]`.
    fn product(&self, x: Elements<'_>, threads: &Threads) -> Vec<f64> {
        let [queries, keys, values, gates, rates, decays] =
            LinearKernel::products(&self.projections, x, threads);
        let expanded = |up: &Option<LinearKernel>, x: Vec<f32>| match up {
            Some(up) => self.expand(up, &x, threads),
            None => x,
        };
        let (gates, decays) = (expanded(&self.up[0], gates), expanded(&self.up[1], decays));
        let inputs = RecurrenceInputs {
            queries: &queries,
            keys: &keys,
            values: &values,
            decays: &decays,
            rates: &rates,
        };
        let out = self.recurrence.results(&inputs, threads);
        let mut normed = Floats::zeros(float(self.dtype), out.len());
        let norm = self.norm.view();
        let gates = if self.has_logistic_gates {
            OutputGates::Sigmoid(&gates)
        } else {
            OutputGates::Silu(&gates)
        };
        kernels::gated_norm(&out, norm, gates, normed.elements_mut(), threads);
        self.output.multiply(normed.elements(), threads)
    }

    /// Computes a projection from vectors of low rank, which are rounded to the type of the model.
    fn expand(&self, up: &LinearKernel, low_rank: &[f32], threads: &Threads) -> Vec<f32> {
        let mut rounded = Floats::zeros(float(self.dtype), low_rank.len());
        rounded.store(0, low_rank);
        let up = std::array::from_ref(up);
        let [product] = LinearKernel::products(up, rounded.elements(), threads);
        product
    }
}
