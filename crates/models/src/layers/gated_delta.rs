//! A gated delta net (Yang et al. 2024): a mixer whose memory of a sequence is a matrix for each value
//! head.

use std::sync::Arc;

use jackalope_kernels::{
    self as kernels, ConvKernels, DecayWeights, Elements, Floats, RecurrenceInputs, RecurrenceRule,
    RecurrenceSizes, RecurrenceWeights, SequenceState, Threads,
};
use jackalope_mlx::{Array, Dtype, fast};
use jackalope_spec::{GatedDeltaSizes, GatedDeltaSpec, HeadRows, NormKind};

use super::convolution::{conv_kernels, stock_convolution};
use super::frame::BlockFrame;
use super::heads::Heads;
use super::kernel::{DivisibleKernel, OwnRows, dim, float, pinned};
use super::linear::{HasBias, Linear, LinearKernel};
use super::norm::{Norm, NormKernel, NormSettings};
use super::residual::Residual;
use crate::cache::{LayerCacheShape, StateArrays, StateStep};
use crate::error::LoadError;
use crate::parallel::{Compute, Parallel};
use crate::split::Cut;
use crate::step::{Step, StepSpan};
use crate::weights::{Part, Weights};

/// Added to the squared length of queries and keys, as in mlx-lm.
const LENGTH_EPS: f32 = 1e-6;

/// What a gated delta net is loaded from.
#[derive(Clone, Copy)]
pub(crate) struct GatedDeltaParts<'a, 'w> {
    pub(crate) spec: &'a GatedDeltaSpec,
    pub(crate) layer_idx: usize,
    /// The root of all tensors' names.
    pub(crate) root: &'a Weights<'w>,
    pub(crate) hidden: usize,
    pub(crate) norm_eps: f32,
    pub(crate) parallel: &'a Parallel,
}

/// A gated delta net, or this rank's heads of it.
#[derive(Debug)]
pub(crate) struct GatedDelta {
    /// Queries, keys, values, gates, rates and decays.
    projections: [Linear; 6],
    out_proj: Linear,
    norm: Norm,
    small: SmallWeights,
    /// Arranged for our kernels; `None` if MLX computes.
    weights: Option<Arc<RecurrenceWeights>>,
    heads: Heads,
    /// Sizes of this rank's part.
    sizes: RecurrenceSizes,
    rate_max: f32,
    layer_idx: usize,
    dtype: Dtype,
    parallel: Parallel,
}

/// Small weights in single precision.
#[derive(Debug)]
struct SmallWeights {
    /// Kernels of the convolutions of queries, keys and values, `[channels, conv_width]` each.
    convolutions: [Array; 3],
    a_log: Array,   // [value_heads]
    dt_bias: Array, // [value_heads]
}

impl SmallWeights {
    fn load(
        parts: &GatedDeltaParts<'_, '_>,
        heads: &Heads,
        sizes: RecurrenceSizes,
    ) -> Result<SmallWeights, LoadError> {
        let GatedDeltaParts { spec, root, .. } = *parts;
        let convolution =
            |rows: &HeadRows, cut: &Cut| conv_kernels(root, rows, sizes.conv_width, cut);
        let [queries, keys, values] = &spec.convolutions;
        let (num_heads, own) = (spec.sizes.value_heads, Part::rows(&heads.cut.heads));
        let vector = |name: &String| root.at(name).vector_as(Dtype::F32, num_heads, own);
        Ok(SmallWeights {
            convolutions: [
                convolution(queries, &heads.cut.kv_heads)?,
                convolution(keys, &heads.cut.kv_heads)?,
                convolution(values, &heads.cut.heads)?,
            ],
            a_log: vector(&spec.a_log)?,
            dt_bias: vector(&spec.dt_bias)?,
        })
    }

    /// Arranges the weights for our kernels.
    fn arranged(&self, sizes: RecurrenceSizes, rule: RecurrenceRule) -> RecurrenceWeights {
        let convolutions = self.convolutions.each_ref().map(pinned);
        let [queries, keys, values] = convolutions.each_ref().map(|it| it.values::<f32>());
        let (a_log, dt_bias) = (pinned(&self.a_log), pinned(&self.dt_bias));
        let decay = DecayWeights { a_log: a_log.values(), dt_bias: dt_bias.values() };
        RecurrenceWeights::new(sizes, rule, ConvKernels { queries, keys, values }, decay)
    }
}

impl GatedDelta {
    /// Loads this rank's heads.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        parts: &GatedDeltaParts<'_, '_>,
        heads: Heads,
    ) -> Result<GatedDelta, LoadError> {
        let GatedDeltaParts { spec, layer_idx, root, hidden, norm_eps, parallel } = *parts;
        let GatedDeltaSizes { key_dim, value_dim, conv_width, .. } = spec.sizes;
        let (key_heads, value_heads) = (heads.cut.kv_heads.len(), heads.cut.heads.len());
        let sizes = RecurrenceSizes { key_heads, value_heads, key_dim, value_dim, conv_width };
        let column = |rows: &HeadRows, cut| {
            Linear::of_rows(&root.at(&rows.module), hidden, &OwnRows::new(rows, cut), HasBias::No)
        };
        let (keys, values) = (&heads.cut.kv_heads, &heads.cut.heads);
        let projections = [
            column(&spec.queries, keys)?,
            column(&spec.keys, keys)?,
            column(&spec.values, values)?,
            column(&spec.gates, values)?,
            column(&spec.rates, values)?,
            column(&spec.decays, values)?,
        ];
        let out_proj = heads.o_proj(&root.at(&spec.output), hidden, HasBias::No)?;
        let settings = NormSettings { kind: NormKind::default(), eps: norm_eps };
        let norm = Norm::load(&root.at(&spec.norm), value_dim, settings, parallel)?;
        let small = SmallWeights::load(parts, &heads, sizes)?;
        let rate_max = f32::from(spec.rate_max);
        let rule = RecurrenceRule::GatedDelta { rate_max };
        let weights = match parallel.compute() {
            Compute::Kernels(_) => Some(Arc::new(small.arranged(sizes, rule))),
            Compute::Stock => None,
        };
        Ok(GatedDelta {
            projections,
            out_proj,
            norm,
            small,
            weights,
            heads,
            sizes,
            rate_max,
            layer_idx,
            dtype: root.dtype(),
            parallel: parallel.clone(),
        })
    }

    /// Returns this rank's value heads, and its key heads as those that they share.
    pub(crate) fn heads(&self) -> &Heads {
        &self.heads
    }

    /// Returns what the layer keeps of a sequence on this rank.
    pub(crate) fn cache_shape(&self) -> LayerCacheShape {
        LayerCacheShape::State { elements: self.sizes.state_len() }
    }

    /// Adds the net to the stream.
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
            output: self.out_proj.divisible_kernel(),
            norm: self.norm.kernel(),
            weights: Arc::clone(weights),
            spans: step.spans.clone(),
            states: step.caches.iter_mut().map(|it| it.state_step(self.layer_idx)).collect(),
            dtype: self.dtype,
        };
        residual.kernel_block(frame, output, threads, move |x, threads| kernel.product(x, threads))
    }

    /// Computes the heads' results `[tokens, value_heads * value_dim]` with MLX, all of it but the
    /// products in single precision.
    fn stock_heads(&self, x: &Array, step: &mut Step<'_, '_>) -> Array {
        let projected = |linear: &Linear| linear.stock(x).astype(Dtype::F32);
        let [queries, keys, values, gates, rates, decays] =
            self.projections.each_ref().map(projected);
        let inputs = Array::concatenate(&[&queries, &keys, &values], 1); // [tokens, channels]
        let rates = &rates.sigmoid() * self.rate_max;
        let decays = self.stock_decays(&decays);
        let spans = step.spans.iter().zip(step.caches.iter_mut());
        let outs = spans.map(|(span, cache)| {
            let rows = |x: &Array| x.slice_axis(0, dim(span.rows.start), dim(span.rows.end));
            let held = cache.state_arrays(self.layer_idx).unwrap_or_else(|| self.empty_state());
            let scan =
                StockScan { inputs: rows(&inputs), rates: rows(&rates), decays: rows(&decays) };
            let (out, held) = self.stock_scan(&scan, &held);
            cache.set_state_arrays(self.layer_idx, held);
            out
        });
        let outs: Vec<Array> = outs.collect();
        let outs = Array::concatenate(&outs.iter().collect::<Vec<_>>(), 0);
        let normed = self.norm.stock(&outs).reshape(&gates.shape());
        normed.mul(&gates.silu()).astype(self.dtype)
    }

    /// Returns the factors by which the states decay, `[tokens, value_heads]`.
    fn stock_decays(&self, projected: &Array) -> Array {
        let x = projected.add(&self.small.dt_bias);
        let softplus = x.maximum(&Array::scalar(0.0)).add(&(&x.abs().neg().exp() + 1.0).log());
        self.small.a_log.exp().mul(&softplus).neg().exp()
    }

    fn empty_state(&self) -> StateArrays {
        let RecurrenceSizes { key_heads, value_heads, key_dim, value_dim, conv_width } = self.sizes;
        let channels = 2 * key_heads * key_dim + value_heads * value_dim;
        StateArrays {
            inputs: Array::zeros(&[dim(conv_width - 1), dim(channels)], Dtype::F32),
            state: Some(Array::zeros(
                &[dim(value_heads), dim(value_dim), dim(key_dim)],
                Dtype::F32,
            )),
        }
    }

    /// Computes the rows of one sequence: results `[seq, value_heads, value_dim]`, and the state after
    /// them.
    fn stock_scan(&self, scan: &StockScan, held: &StateArrays) -> (Array, StateArrays) {
        let RecurrenceSizes { key_heads, value_heads, key_dim, value_dim, .. } = self.sizes;
        let seq = scan.inputs.dim(0);
        let inputs = Array::concatenate(&[&held.inputs, &scan.inputs], 0);
        let kernels = Array::concatenate(&self.small.convolutions.each_ref(), 0);
        let x = stock_convolution(&inputs, &kernels, seq).silu();
        let (keys_end, values_end) = (dim(2 * key_heads * key_dim), x.dim(1));
        let keys = x.slice_axis(1, 0, keys_end).reshape(&[seq, 2, dim(key_heads), dim(key_dim)]);
        let keys = fast::rms_norm(&keys, None, LENGTH_EPS / key_dim as f32);
        let keys = &keys * (key_dim as f32).powf(-0.5);
        // A key head serves several value heads: [seq, 2, value_heads, 1, key_dim].
        let keys = keys.repeat(dim(value_heads / key_heads), 2).expand_dims(3);
        let values = x.slice_axis(1, keys_end, values_end);
        let values = values.reshape(&[seq, dim(value_heads), dim(value_dim)]);
        let mut state = held.state.clone().expect("a recurrence has a state");
        let results = (0..seq).map(|t| {
            let at = |x: &Array| x.slice_axis(0, t, t + 1).squeeze(0);
            let both = at(&keys);
            let [query, key] = [0, 1].map(|idx| both.slice_axis(0, idx, idx + 1).squeeze(0)); // [heads, 1, key_dim]
            let decayed = state.mul(&at(&scan.decays).reshape(&[-1, 1, 1]));
            let found = decayed.mul(&key).sum(2, false); // [heads, value_dim]
            let rate = at(&scan.rates).expand_dims(1);
            let correction = at(&values).sub(&found).mul(&rate);
            state = decayed.add(&correction.expand_dims(2).mul(&key));
            &state.mul(&query).sum(2, false) * (key_dim as f32).powf(-0.5)
        });
        let results: Vec<Array> = results.collect();
        let results = Array::stack(&results.iter().collect::<Vec<_>>(), 0);
        let inputs = inputs.slice_axis(0, seq, inputs.dim(0)).contiguous();
        (results, StateArrays { inputs, state: Some(state) })
    }
}

/// The rows of one sequence, for MLX.
struct StockScan {
    /// Queries, keys and values before the convolution, `[seq, channels]`.
    inputs: Array,
    rates: Array,  // [seq, value_heads]
    decays: Array, // [seq, value_heads]
}

/// The state of the primitive's closure: everything except the weights' arrays.
struct GatedDeltaKernel {
    projections: [LinearKernel; 6],
    output: DivisibleKernel,
    norm: NormKernel,
    weights: Arc<RecurrenceWeights>,
    spans: Vec<StepSpan>,
    states: Vec<StateStep>,
    dtype: Dtype,
}

impl GatedDeltaKernel {
    /// Computes this rank's part of the product `[tokens, hidden]`.
    fn product(&self, x: Elements<'_>, threads: &Threads) -> Vec<f64> {
        let [queries, keys, values, gates, rates, decays] =
            LinearKernel::products(&self.projections, x, threads);
        let len = self.weights.sizes().state_len();
        let mut states: Vec<Vec<f32>> = self.states.iter().map(|step| step.take(len)).collect();
        let sequences = self.spans.iter().zip(&mut states);
        let sequences =
            sequences.map(|(span, state)| SequenceState { num_rows: span.rows.len(), state });
        let inputs = RecurrenceInputs {
            queries: &queries,
            keys: &keys,
            values: &values,
            decays: &decays,
            rates: &rates,
        };
        let out = kernels::recurrence(&inputs, sequences.collect(), &self.weights, threads);
        for (step, state) in self.states.iter().zip(states) {
            step.put(state);
        }
        let mut normed = Floats::zeros(float(self.dtype), out.len());
        let norm = self.norm.view();
        kernels::gated_norm(&out, norm, &gates, normed.elements_mut(), threads);
        self.output.multiply(normed.elements(), threads)
    }
}
