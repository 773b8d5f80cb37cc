//! A gated short convolution (Liquid AI 2025, "LFM2 Technical Report"): a mixer whose state
//! consists of the last inputs of a convolution.

use std::sync::Arc;

use jackalope_kernels::{
    self as kernels, Elements, Floats, ShortConvInputs, ShortConvWeights, Threads,
};
use jackalope_mlx::{Array, Dtype};
use jackalope_recurrence::{StateArrays, convolution, taps};
use jackalope_spec::ShortConvSpec;

use super::frame::BlockFrame;
use super::recurrent::{RecurrentParts, StepStates, StockRows, stock_sequences};
use super::residual::Residual;
use crate::step::Step;
use jackalope_cache::{LayerCacheShape, float};
use jackalope_parallel::convolution::conv_kernels;
use jackalope_parallel::heads::Heads;
use jackalope_parallel::kernel::{DivisibleKernel, pinned};
use jackalope_parallel::linear::{HasBias, Linear, LinearKernel};
use jackalope_parallel::{Compute, Parallel};
use jackalope_weights::LoadError;
use jackalope_weights::Part;

/// A gated short convolution, or this rank's channels of it.
#[derive(Debug)]
pub(crate) struct ShortConv {
    /// The factor before the convolution, the factor after it, and what is convolved.
    projections: [Linear; 3],
    out_proj: Linear,
    kernels: Array,      // f32 [channels, conv_width]
    taps: Array,         // f32 [conv_width, channels], for MLX's operations
    bias: Option<Array>, // f32 [channels]
    /// Arranged for our kernels; `None` if MLX computes.
    weights: Option<Arc<ShortConvWeights>>,
    /// Units of channels.
    heads: Heads,
    layer_idx: usize,
    dtype: Dtype,
    parallel: Parallel,
}

impl ShortConv {
    /// Loads this rank's channels.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        spec: &ShortConvSpec,
        parts: &RecurrentParts<'_, '_>,
    ) -> Result<ShortConv, LoadError> {
        let RecurrentParts { layer_idx, root, hidden, counts, parallel, .. } = *parts;
        let heads = Heads::new(counts, spec.unit_channels, parallel);
        let has_bias = HasBias::when(spec.has_bias);
        let cut = &heads.cut.heads;
        let projections = spec.inputs.each_ref().map(|it| parts.projection(it, cut, has_bias));
        let [before, after, values] = projections;
        let kernels = conv_kernels(root, &spec.convolution, spec.conv_width, cut)?;
        let bias = spec.has_bias.then(|| {
            let (channels, own) = (spec.convolution.num_rows, heads.queries());
            let module = root.at(&spec.convolution.module);
            module.floats_as(Dtype::F32, "bias", &[channels], Part::rows(&own))
        });
        let bias = bias.transpose()?;
        let weights = parallel.compute().arranged(|| {
            let (kernels, bias) = (pinned(&kernels), bias.as_ref().map(pinned));
            let bias = bias.as_ref().map(|bias| bias.values::<f32>());
            ShortConvWeights::new(kernels.values::<f32>(), spec.conv_width, bias)
        });
        Ok(ShortConv {
            projections: [before?, after?, values?],
            out_proj: heads.o_proj(&root.at(&spec.output), hidden, has_bias)?,
            taps: taps(&kernels),
            kernels,
            bias,
            weights,
            heads,
            layer_idx,
            dtype: root.dtype(),
            parallel: parallel.clone(),
        })
    }

    /// Returns this rank's units of channels.
    pub(crate) fn heads(&self) -> &Heads {
        &self.heads
    }

    /// Returns the shape of this layer's cache for one sequence on this rank.
    pub(crate) fn cache_shape(&self) -> LayerCacheShape {
        let [channels, width] = [0, 1].map(|axis| self.kernels.dim(axis) as usize);
        LayerCacheShape::State { elements: (width - 1) * channels }
    }

    /// Adds the block to the stream.
    pub(crate) fn add_to(
        &self,
        residual: Residual,
        frame: &BlockFrame,
        step: &mut Step<'_, '_>,
    ) -> Residual {
        let output = self.out_proj.block_output();
        let Compute::Kernels(threads) = self.parallel.compute() else {
            let work = |x: &Array| self.out_proj.stock(&self.stock_channels(x, step));
            return residual.stock_block(frame, output, work);
        };
        let weights = self.weights.as_ref().expect("they are arranged for our kernels");
        let kernel = ShortConvKernel {
            projections: self.projections.each_ref().map(Linear::kernel),
            output: self.out_proj.divisible_kernel(),
            weights: Arc::clone(weights),
            states: StepStates::new(self.layer_idx, step),
            dtype: self.dtype,
        };
        residual.kernel_block(frame, output, threads, move |x, threads| kernel.product(x, threads))
    }

    /// Computes the gated convolution `[tokens, channels]` with MLX, all of it but the products in
    /// single precision.
    fn stock_channels(&self, x: &Array, step: &mut Step<'_, '_>) -> Array {
        let projected = |linear: &Linear| linear.stock(x).astype(Dtype::F32);
        let [before, after, values] = self.projections.each_ref().map(projected);
        let inputs = before.mul(&values);
        let (past, channels) = (self.kernels.dim(1) - 1, inputs.dim(1));
        let empty = || {
            let inputs = Array::zeros(&[1, past, channels], Dtype::F32);
            StateArrays { inputs, state: None }
        };
        let scan = |StockRows { projected, held }: StockRows| {
            let seq = projected[0].dim(1);
            let joined = Array::concatenate(&[&held.inputs, &projected[0]], 1);
            let inputs = joined.slice_axis(1, seq, joined.dim(1)).contiguous();
            let out = convolution(&joined, &self.taps);
            (out, StateArrays { inputs, state: None })
        };
        let outs = stock_sequences(step, self.layer_idx, &[inputs], empty, scan);
        let outs = self.bias.as_ref().map_or(outs.clone(), |bias| outs.add(bias));
        outs.mul(&after).astype(self.dtype)
    }
}

/// The state of the primitive's closure: everything except the weights' arrays.
struct ShortConvKernel {
    projections: [LinearKernel; 3],
    output: DivisibleKernel,
    weights: Arc<ShortConvWeights>,
    states: StepStates,
    dtype: Dtype,
}

impl ShortConvKernel {
    /// Computes this rank's part of the product `[tokens, hidden]`.
    fn product(&self, x: Elements<'_>, threads: &Threads) -> Vec<f64> {
        let [before, after, values] = LinearKernel::products(&self.projections, x, threads);
        let inputs = ShortConvInputs { before: &before, values: &values, after: &after };
        let mut out = Floats::zeros(float(self.dtype), after.len());
        self.states.update(self.weights.state_len(), |states| {
            let out = out.elements_mut();
            kernels::short_convolution(&inputs, states, &self.weights, out, threads);
        });
        self.output.multiply(out.elements(), threads)
    }
}
