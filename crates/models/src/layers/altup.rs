//! Several streams beside one another (Gemma 3n); see [`jackalope_spec::AltUpSpec`].
//!
//! The streams of a token follow one another: `[tokens, streams * hidden]`. Every rank computes all of
//! what is here: it is small, and mostly sums over the streams.
//!
//! ```text
//!   streams ─ predict ─┬ active ─ norm ─┬ attention ─ norm ─ + active ─┐
//!                      │                └ laurel ───────────────────── + ─ · 1/√2 ─ block ─┐
//!                      └ all ──────────────────────────────────────────────── correct ─────┴─▶ streams
//! ```

use jackalope_cache::float;
use jackalope_kernels::{Elements, ElementsMut, Floats, Threads};
use jackalope_mlx::{Array, ArrayType, Dtype, dim};
use jackalope_spec::{AltUpLayer, AltUpSpec};

use super::per_layer::{LayerInput, PerLayerReader, ReaderKernel};
use super::residual::Residual;
use crate::split::Cut;
use jackalope_parallel::kernel::{elements, pinned, primitive, primitives};
use jackalope_parallel::linear::{HasBias, Linear, LinearKernel};
use jackalope_parallel::norm::{Norm, NormKernel, NormSettings};
use jackalope_parallel::{Compute, Parallel};
use jackalope_weights::LoadError;
use jackalope_weights::{Part, Weights};

/// Sizes of the streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamSizes {
    pub(crate) hidden: usize,
    pub(crate) num_streams: usize,
    /// Number of the stream that blocks read.
    pub(crate) active: usize,
}

impl StreamSizes {
    /// Returns the width of all streams of a token.
    pub(crate) fn all(self) -> usize {
        self.num_streams * self.hidden
    }

    /// Returns one stream of each token, `[tokens, hidden]`.
    fn stream(self, x: Elements<'_>, idx: usize) -> Floats {
        let tokens = x.len() / self.all();
        let mut out = Floats::zeros(x.float(), tokens * self.hidden);
        let mut row = vec![0.0; self.hidden];
        for token in 0..tokens {
            x.load(token * self.all() + idx * self.hidden, &mut row);
            out.store(token * self.hidden, &row);
        }
        out
    }

    /// Returns one stream of each token with MLX, `[tokens, hidden]`.
    fn stock_stream(self, x: &Array, idx: usize) -> Array {
        x.slice_axis(1, dim(idx * self.hidden), dim((idx + 1) * self.hidden))
    }
}

/// Loads a product that every rank computes.
fn whole(w: &Weights<'_>, input: usize, output: usize) -> Result<Linear, LoadError> {
    Linear::column(w, input, &Cut::of_all_ranks(output), HasBias::No)
}

/// Returns the mean of the squares of a row.
fn mean_square(row: &[f32]) -> f64 {
    row.iter().map(|value| f64::from(*value) * f64::from(*value)).sum::<f64>() / row.len() as f64
}

/// Multiplies a row so that the mean of its squares is `mean`.
fn set_magnitude(row: &mut [f32], mean: f64) {
    let factor = (mean / mean_square(row)).sqrt() as f32;
    row.iter_mut().for_each(|value| *value *= factor);
}

/// As [`set_magnitude`], with MLX: the magnitude of `x` becomes that of `like`, `[tokens, hidden]`.
fn stock_magnitude(x: &Array, like: &Array) -> Array {
    let [own, wanted] = [x, like].map(|x| x.astype(Dtype::F32).square().sum(-1, true));
    x.mul(&own.div(&wanted).rsqrt().astype(x.dtype()))
}

/// Makes the streams from the embedding, and one from the streams.
#[derive(Debug)]
pub(crate) struct AltUpEnds {
    /// Projections to the additional streams, on ranks that have the first layer.
    projections: Vec<Linear>,
    /// Projections back from the additional streams, on ranks that have the last layer.
    unembeds: Vec<Linear>,
    sizes: StreamSizes,
    parallel: Parallel,
}

impl AltUpEnds {
    /// Loads what this rank needs.
    pub(crate) fn load(
        root: &Weights<'_>,
        spec: &AltUpSpec,
        hidden: usize,
        parallel: &Parallel,
    ) -> Result<AltUpEnds, LoadError> {
        let load = |tensors: &[jackalope_spec::TensorSpec], is_used: bool| {
            let used = tensors.iter().filter(|_| is_used);
            let loaded = used.map(|tensor| whole(&root.at(tensor.module()), hidden, hidden));
            loaded.collect::<Result<Vec<Linear>, LoadError>>()
        };
        let &AltUpSpec { num_streams, active, .. } = spec;
        Ok(AltUpEnds {
            projections: load(&spec.projections, parallel.has_first_layer())?,
            unembeds: load(&spec.unembeds, parallel.has_last_layer())?,
            sizes: StreamSizes { hidden, num_streams, active },
            parallel: parallel.clone(),
        })
    }

    /// Returns the streams `[tokens, streams * hidden]` of the embedding `[tokens, hidden]`.
    pub(crate) fn begin(&self, h: &Array) -> Array {
        let Compute::Kernels(threads) = self.parallel.compute() else {
            let projected = self.projections.iter().map(|it| stock_magnitude(&it.stock(h), h));
            let streams: Vec<Array> = [h.clone()].into_iter().chain(projected).collect();
            return Array::concatenate(&streams.iter().collect::<Vec<_>>(), 1);
        };
        let linears: Vec<LinearKernel> = self.projections.iter().map(Linear::kernel).collect();
        let sizes = self.sizes;
        let out = ArrayType { shape: vec![h.dim(0), dim(sizes.all())], dtype: h.dtype() };
        primitive("streams", &[h], out, threads, move |inputs, mut out, threads| {
            let h = inputs.elements();
            let projected = LinearKernel::products_of(&linears, h, threads);
            let mut row = vec![0.0; sizes.hidden];
            for token in 0..h.len() / sizes.hidden {
                let own = token * sizes.hidden..(token + 1) * sizes.hidden;
                h.load(own.start, &mut row);
                let mean = mean_square(&row);
                out.store(token * sizes.all(), &row);
                for (idx, projected) in projected.iter().enumerate() {
                    row.copy_from_slice(&projected[own.clone()]);
                    set_magnitude(&mut row, mean);
                    out.store(token * sizes.all() + (idx + 1) * sizes.hidden, &row);
                }
            }
        })
    }

    /// Returns the mean of the streams, `[tokens, hidden]`.
    pub(crate) fn end(&self, x: &Array) -> Array {
        let sizes = self.sizes;
        let Compute::Kernels(threads) = self.parallel.compute() else {
            let first = sizes.stock_stream(x, 0);
            let others = self.unembeds.iter().enumerate().map(|(idx, unembed)| {
                stock_magnitude(&unembed.stock(&sizes.stock_stream(x, idx + 1)), &first)
            });
            let sum = others.fold(first.clone(), |sum, stream| sum.add(&stream));
            return &sum * (1.0 / sizes.num_streams as f32);
        };
        let linears: Vec<LinearKernel> = self.unembeds.iter().map(Linear::kernel).collect();
        let out = ArrayType { shape: vec![x.dim(0), dim(sizes.hidden)], dtype: x.dtype() };
        primitive("streams", &[x], out, threads, move |inputs, mut out, threads| {
            let x = inputs.elements();
            let mut sums = sizes.stream(x, 0).elements().to_f32();
            let means: Vec<f64> = sums.chunks_exact(sizes.hidden).map(mean_square).collect();
            for (idx, linear) in linears.iter().enumerate() {
                let stream = sizes.stream(x, idx + 1);
                let linear = std::array::from_ref(linear);
                let [mut product] = LinearKernel::products(linear, stream.elements(), threads);
                for (row, mean) in product.chunks_exact_mut(sizes.hidden).zip(&means) {
                    set_magnitude(row, *mean);
                }
                sums.iter_mut().zip(product).for_each(|(sum, value)| *sum += value);
            }
            let part = 1.0 / sizes.num_streams as f32;
            sums.iter_mut().for_each(|sum| *sum *= part);
            out.store(0, &sums);
        })
    }
}

/// What a layer does with the streams around its blocks.
#[derive(Debug)]
pub(crate) struct AltUp {
    router_norm: Norm,
    router: Linear,
    /// Weights of predictions, `[streams * streams, streams]`.
    prediction: Vec<f32>,
    /// Weights of corrections, `[streams, streams]`.
    correction: Vec<f32>,
    /// Factors of the stream from which inputs are read, `[hidden]`; `None` if they are one.
    output_scale: Option<Array>,
    laurel: [Linear; 2],
    laurel_norm: Norm,
    reader: PerLayerReader,
    sizes: StreamSizes,
    parallel: Parallel,
}

/// What a layer's blocks read.
#[derive(Debug)]
pub(crate) struct Predicted {
    /// All streams as predicted.
    pub(crate) streams: Array, // [tokens, streams * hidden]
    /// The one that the blocks read.
    pub(crate) active: Array, // [tokens, hidden]
    /// What is added to it beside attention.
    pub(crate) laurel: Array, // [tokens, hidden]
}

/// What the streams of a layer are loaded with.
#[derive(Debug)]
pub(crate) struct AltUpParts<'a> {
    pub(crate) spec: &'a AltUpSpec,
    pub(crate) layer: &'a AltUpLayer,
    pub(crate) reader: PerLayerReader,
    pub(crate) hidden: usize,
    pub(crate) settings: NormSettings,
}

impl AltUp {
    /// Loads a layer's part.
    pub(crate) fn load(
        root: &Weights<'_>,
        parts: AltUpParts<'_>,
        parallel: &Parallel,
    ) -> Result<AltUp, LoadError> {
        let AltUpParts { spec, layer, reader, hidden, settings } = parts;
        let &AltUpSpec { num_streams, active, coef_clip, .. } = spec;
        let norm = |module: &String| Norm::load(&root.at(module), hidden, settings, parallel);
        let coefficients = |module: &String, rows: usize| -> Result<Vec<f32>, LoadError> {
            let shape = [rows, num_streams];
            let values = root.at(module).floats_as(Dtype::F32, "weight", &shape, Part::Whole)?;
            let values = values.to_vec::<f32>()?;
            let clip = coef_clip.unwrap_or(f32::INFINITY);
            Ok(values.into_iter().map(|value| value.clamp(-clip, clip)).collect())
        };
        let scale = root.at(&layer.output_scale).vector_as(Dtype::F32, hidden, Part::Whole)?;
        let [left, right] = &layer.laurel;
        Ok(AltUp {
            router_norm: norm(&layer.router_norm)?,
            router: whole(&root.at(&layer.router), hidden, num_streams)?,
            prediction: coefficients(&layer.prediction, num_streams * num_streams)?,
            correction: coefficients(&layer.correction, num_streams)?,
            output_scale: layer.scales_output.then_some(scale),
            laurel: [
                whole(&root.at(left), hidden, layer.laurel_rank)?,
                whole(&root.at(right), layer.laurel_rank, hidden)?,
            ],
            laurel_norm: norm(&layer.laurel_norm)?,
            reader,
            sizes: StreamSizes { hidden, num_streams, active },
            parallel: parallel.clone(),
        })
    }

    /// Predicts the streams `x`. `norm` is that of what the mixer reads.
    pub(crate) fn predict(&self, x: &Array, norm: &Norm) -> Predicted {
        let Compute::Kernels(threads) = self.parallel.compute() else {
            return self.stock_predict(x, norm);
        };
        let kernel = PredictKernel {
            router: self.router_kernel(),
            coefficients: self.prediction.clone(),
            norm: norm.kernel(),
            laurel: self.laurel.each_ref().map(Linear::kernel),
            laurel_norm: self.laurel_norm.kernel(),
            sizes: self.sizes,
        };
        let stream = ArrayType { shape: vec![x.dim(0), dim(self.sizes.hidden)], dtype: x.dtype() };
        let out = [x.array_type(), stream.clone(), stream];
        let mut results =
            primitives("predict", &[x], &out, threads, move |inputs, out, threads| {
                let [mut streams, mut active, mut laurel] = [(); 3].map(|()| out.next_elements());
                let predicted = kernel.streams(inputs.elements(), threads);
                streams.store(0, &predicted);
                let own = kernel.sizes.stream(streams.as_elements(), kernel.sizes.active);
                active.copy_from(own.elements());
                laurel.store(0, &kernel.laurel(own.elements(), threads));
            });
        let laurel = results.pop().expect("three results");
        let active = results.pop().expect("three results");
        Predicted { streams: results.pop().expect("three results"), active, laurel }
    }

    /// Wraps a single stream so that blocks can add to it.
    pub(crate) fn stream(&self, h: Array) -> Residual {
        Residual::new(h, &self.parallel)
    }

    fn router_kernel(&self) -> StreamRouter {
        StreamRouter {
            norm: self.router_norm.kernel(),
            linear: self.router.kernel(),
            hidden: self.sizes.hidden,
        }
    }

    fn stock_modalities(&self, x: &Array) -> Array {
        let scaled = &self.router_norm.stock(x) * (1.0 / self.sizes.hidden as f32);
        self.router.stock(&scaled).astype(Dtype::F32).tanh()
    }

    fn stock_predict(&self, x: &Array, norm: &Norm) -> Predicted {
        let StreamSizes { hidden, num_streams, active } = self.sizes;
        let (tokens, n) = (x.dim(0), dim(num_streams));
        let modalities = self.stock_modalities(&self.sizes.stock_stream(x, active));
        let weights = Array::from_slice(&self.prediction, &[n * n, n]);
        let coefficients = modalities.matmul(&weights.transpose(&[1, 0])).reshape(&[tokens, n, n]);
        let wide = x.astype(Dtype::F32).reshape(&[tokens, n, dim(hidden)]);
        let streams = coefficients.matmul(&wide).add(&wide).reshape(&x.shape()).astype(x.dtype());
        let own = self.sizes.stock_stream(&streams, active);
        let normed = norm.stock(&own);
        let [left, right] = &self.laurel;
        let laurel = normed.add(&self.laurel_norm.stock(&right.stock(&left.stock(&normed))));
        Predicted { streams, active: own, laurel }
    }

    /// Returns the predicted streams, corrected by `h`, the active stream after the blocks,
    /// `[tokens, hidden]`, with the layer's own input added.
    pub(crate) fn correct(&self, predicted: &Array, h: &Array, input: LayerInput<'_>) -> Array {
        let Compute::Kernels(threads) = self.parallel.compute() else {
            return self.stock_correct(predicted, h, input);
        };
        let kernel = CorrectKernel {
            router: self.router_kernel(),
            coefficients: self.correction.clone(),
            output_scale: self.output_scale.as_ref().map(|scale| elements(&pinned(scale)).to_f32()),
            reader: self.reader.kernel(input),
            dtype: predicted.dtype(),
            sizes: self.sizes,
        };
        let (inputs, out) = ([predicted, h, input.rows], predicted.array_type());
        primitive("correct", &inputs, out, threads, move |inputs, mut out, threads| {
            let [predicted, h, rows] = [(); 3].map(|()| inputs.elements());
            out.store(0, &kernel.correct(predicted, h, rows, threads));
        })
    }

    fn stock_correct(&self, predicted: &Array, h: &Array, input: LayerInput<'_>) -> Array {
        let StreamSizes { num_streams, active, .. } = self.sizes;
        let (dtype, n) = (h.dtype(), dim(num_streams));
        let weights = Array::from_slice(&self.correction, &[n, n]);
        let coefficients = self.stock_modalities(h).matmul(&weights.transpose(&[1, 0]));
        let coefficients = coefficients.add(&Array::scalar(1.0));
        let innovation = h.sub(&self.sizes.stock_stream(predicted, active)).astype(Dtype::F32);
        let mut streams: Vec<Array> = (0..num_streams)
            .map(|idx| {
                let factor = coefficients.slice_axis(1, dim(idx), dim(idx) + 1);
                let stream = self.sizes.stock_stream(predicted, idx).astype(Dtype::F32);
                innovation.mul(&factor).add(&stream).astype(dtype)
            })
            .collect();
        let read = match &self.output_scale {
            Some(scale) => streams[active].mul(&scale.astype(dtype)),
            None => streams[active].clone(),
        };
        let added = self.reader.stock_addition(&read, input);
        for stream in &mut streams[1..] {
            *stream = stream.add(&added);
        }
        Array::concatenate(&streams.iter().collect::<Vec<_>>(), 1)
    }
}

/// Computes how much each stream counts.
struct StreamRouter {
    norm: NormKernel,
    linear: LinearKernel,
    hidden: usize,
}

impl StreamRouter {
    /// Returns the hyperbolic tangents of the router's product with `x` `[tokens, hidden]`,
    /// `[tokens, streams]`.
    fn modalities(&self, x: Elements<'_>, threads: &Threads) -> Vec<f32> {
        let mut normed = Floats::zeros(x.float(), x.len());
        self.norm.norm(x, normed.elements_mut(), threads);
        let linear = std::array::from_ref(&self.linear);
        let [products] = LinearKernel::products(linear, normed.elements(), threads);
        let scale = 1.0 / self.hidden as f64;
        products.iter().map(|value| (f64::from(*value) * scale).tanh() as f32).collect()
    }
}

/// Returns the product of a row with a matrix `[rows, row.len()]`.
fn product(matrix: &[f32], row: &[f32]) -> Vec<f32> {
    let rows = matrix.chunks_exact(row.len());
    rows.map(|weights| weights.iter().zip(row).map(|(a, b)| a * b).sum()).collect()
}

/// Predicts the streams, for the kernels.
struct PredictKernel {
    router: StreamRouter,
    coefficients: Vec<f32>,
    norm: NormKernel,
    laurel: [LinearKernel; 2],
    laurel_norm: NormKernel,
    sizes: StreamSizes,
}

impl PredictKernel {
    /// Returns the predicted streams, f32 `[tokens, streams * hidden]`.
    fn streams(&self, x: Elements<'_>, threads: &Threads) -> Vec<f32> {
        let StreamSizes { hidden, num_streams, active } = self.sizes;
        let modalities = self.router.modalities(self.sizes.stream(x, active).elements(), threads);
        let found = x.to_f32();
        let mut predicted = found.clone();
        let rows = found.chunks_exact(self.sizes.all());
        let rows = rows.zip(predicted.chunks_exact_mut(self.sizes.all()));
        for ((found, predicted), modality) in rows.zip(modalities.chunks_exact(num_streams)) {
            // Row j has the weights of all streams in the prediction of stream j.
            let weights = product(&self.coefficients, modality);
            let weights = weights.chunks_exact(num_streams);
            for (weights, out) in weights.zip(predicted.chunks_exact_mut(hidden)) {
                for (weight, stream) in weights.iter().zip(found.chunks_exact(hidden)) {
                    out.iter_mut().zip(stream).for_each(|(out, value)| *out += weight * value);
                }
            }
        }
        predicted
    }

    /// Returns the learned residual of the active stream, f32 `[tokens, hidden]`.
    fn laurel(&self, x: Elements<'_>, threads: &Threads) -> Vec<f32> {
        let mut normed = Floats::zeros(x.float(), x.len());
        self.norm.norm(x, normed.elements_mut(), threads);
        let [left, right] = self.laurel.each_ref().map(std::slice::from_ref);
        let inner = LinearKernel::products_of(left, normed.elements(), threads).remove(0);
        let mut rounded = Floats::zeros(x.float(), inner.len());
        rounded.store(0, &inner);
        let outer = LinearKernel::products_of(right, rounded.elements(), threads).remove(0);
        let mut added = vec![0.0; outer.len()];
        self.laurel_norm.norm(Elements::F32(&outer), ElementsMut::F32(&mut added), threads);
        added.iter_mut().zip(normed.elements().to_f32()).for_each(|(sum, value)| *sum += value);
        added
    }
}

/// Corrects the streams, for the kernels.
struct CorrectKernel {
    router: StreamRouter,
    coefficients: Vec<f32>,
    output_scale: Option<Vec<f32>>,
    reader: ReaderKernel,
    dtype: Dtype,
    sizes: StreamSizes,
}

impl CorrectKernel {
    /// Returns the streams, f32 `[tokens, streams * hidden]`, from the predicted streams, the
    /// active one after the blocks, and the inputs of all layers.
    fn correct(
        &self,
        predicted: Elements<'_>,
        h: Elements<'_>,
        rows: Elements<'_>,
        threads: &Threads,
    ) -> Vec<f32> {
        let StreamSizes { hidden, num_streams, active } = self.sizes;
        let modalities = self.router.modalities(h, threads);
        let mut streams = predicted.to_f32();
        let mut read = Floats::zeros(float(self.dtype), h.len());
        let mut innovation = vec![0.0; hidden];
        let tokens = streams.chunks_exact_mut(self.sizes.all());
        let tokens = tokens.zip(modalities.chunks_exact(num_streams)).enumerate();
        for (token, (streams, modality)) in tokens {
            h.load(token * hidden, &mut innovation);
            let own = &streams[active * hidden..][..hidden];
            innovation.iter_mut().zip(own).for_each(|(value, own)| *value -= own);
            let factors = product(&self.coefficients, modality);
            for (stream, factor) in streams.chunks_exact_mut(hidden).zip(factors) {
                let terms = innovation.iter().map(|value| value * (factor + 1.0));
                stream.iter_mut().zip(terms).for_each(|(value, term)| *value += term);
            }
            let mut own = streams[active * hidden..][..hidden].to_vec();
            if let Some(scale) = &self.output_scale {
                own.iter_mut().zip(scale).for_each(|(value, scale)| *value *= scale);
            }
            read.store(token * hidden, &own);
        }
        let added = self.reader.addition(read.elements(), rows, threads);
        let tokens = streams.chunks_exact_mut(self.sizes.all());
        for (streams, added) in tokens.zip(added.chunks_exact(hidden)) {
            for stream in streams.chunks_exact_mut(hidden).skip(1) {
                stream.iter_mut().zip(added).for_each(|(value, added)| *value += added);
            }
        }
        streams
    }
}
