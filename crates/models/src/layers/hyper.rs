//! Hyper-connections: blocks that read a sum of several streams and add to all of them; see
//! [`jackalope_spec::HyperConnectionSpec`].
//!
//! The streams of a token follow one another: `[tokens, streams * hidden]`. Every rank computes all of
//! what is here, after the sum over the ranks, so that all have the same streams.
//!
//! ```text
//!   streams ─┬─ norm ─ product ─ weights ─┬───────────┐
//!            ├────────────────────── sum ─┴─ block ─ expand ─▶ streams
//!            └────────────────────────────────────────┘
//! ```

use std::sync::Arc;

use jackalope_kernels::{
    self as kernels, Elements, ElementsMut, StreamWeights, Threads, WeightRule,
};
use jackalope_mlx::{Array, ArrayType, Dtype, dim, fast};
use jackalope_spec::{HyperConnectionSpec, ModelSpec, StreamEndSpec, StreamsSpec};
use jackalope_weights::LoadError;
use jackalope_weights::{Part, Weights};

use super::residual::Residual;
use jackalope_parallel::kernel::{primitive, primitives};
use jackalope_parallel::wide_matrix::{WideMatrix, WideMatrixKernel};
use jackalope_parallel::{Compute, Parallel};

/// What one block does with the streams.
#[derive(Debug)]
pub(crate) struct HyperConnection {
    /// Projection of all streams to the weights before they are bounded,
    /// f32 `[(2 + streams) * streams, streams * hidden]`.
    projection: WideMatrix,
    rule: WeightRule,
    norm_eps: f32,
    hidden: usize,
    parallel: Parallel,
}

/// As [`WeightRule::weights`], with MLX, for products `[tokens, elements]`: weights
/// `[tokens, streams, 1]` for the sum and for the additions, and `[tokens, streams, streams]`.
fn stock_weights(rule: &WeightRule, products: &Array) -> [Array; 3] {
    let (n, tokens) = (dim(rule.num_streams), products.dim(0));
    let part = |idx: i32, len: i32| {
        let own = products.slice_axis(1, idx * n, idx * n + len);
        let base = &rule.base[(idx * n) as usize..(idx * n + len) as usize];
        (&own * rule.scales[idx as usize]).add(&Array::from_slice(base, &[len]))
    };
    let eps = Array::scalar(rule.eps as f32);
    let read = part(0, n).sigmoid().add(&eps).expand_dims(2);
    let add = (&part(1, n).sigmoid() * 2.0).expand_dims(2);
    let mut mix = part(2, n * n).reshape(&[tokens, n, n]).softmax(-1).add(&eps);
    for iteration in 0..rule.iterations {
        if 0 < iteration {
            mix = mix.div(&mix.sum(-1, true).add(&eps));
        }
        mix = mix.div(&mix.sum(-2, true).add(&eps));
    }
    [read, add, mix]
}

impl HyperConnection {
    /// Loads what a block does with `num_streams` streams.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        root: &Weights<'_>,
        spec: &HyperConnectionSpec,
        streams: StreamShape,
        parallel: &Parallel,
    ) -> Result<HyperConnection, LoadError> {
        let StreamShape { num_streams, hidden, norm_eps, .. } = streams;
        let w = root.at(&spec.module);
        let num_elements = (2 + num_streams) * num_streams;
        let floats = |name, shape: &[usize]| w.floats_as(Dtype::F32, name, shape, Part::Whole);
        let scales = floats("scale", &[3])?.to_vec::<f32>()?;
        let rule = WeightRule {
            num_streams,
            iterations: spec.iterations,
            eps: f64::from(spec.eps),
            scales: scales.try_into().expect("as many as were asked for"),
            base: floats("base", &[num_elements])?.to_vec::<f32>()?,
        };
        let projection = WideMatrix::load(&w, "fn", [num_elements, num_streams * hidden])?;
        Ok(HyperConnection { projection, rule, norm_eps, hidden, parallel: parallel.clone() })
    }

    /// Returns the streams after a block, which `block` adds to the stream that it gets.
    pub(crate) fn around(
        &self,
        streams: &Array,
        block: impl FnOnce(Residual) -> Residual,
    ) -> Array {
        let [streams, _] = self.update(streams, None, block);
        streams
    }

    /// As [`HyperConnection::around`], for a block that reads the streams with `weights`, f32
    /// `[tokens, streams]`. Returns the streams, and the weights for the block that follows.
    pub(crate) fn around_with_weights(
        &self,
        streams: &Array,
        weights: &Array,
        block: impl FnOnce(Residual) -> Residual,
    ) -> [Array; 2] {
        self.update(streams, Some(weights), block)
    }

    fn update(
        &self,
        streams: &Array,
        read: Option<&Array>,
        block: impl FnOnce(Residual) -> Residual,
    ) -> [Array; 2] {
        let Compute::Kernels(threads) = self.parallel.compute() else {
            return self.stock_update(streams, read, block);
        };
        let [x, weights, next] = self.collapse(streams, read, threads);
        let result = block(Residual::alone(x, &self.parallel)).finish();
        [self.expand(streams, &weights, &result), next]
    }

    /// Returns what the block reads, `[tokens, hidden]`; the weights with which its result is added, f32
    /// `[tokens, streams + streams * streams]`; and those that it computes for a sum of the streams, f32
    /// `[tokens, streams]`, which are its own unless it gets some to `read` with.
    fn collapse(
        &self,
        streams: &Array,
        read: Option<&Array>,
        threads: &Arc<Threads>,
    ) -> [Array; 3] {
        let (rule, hidden, eps) = (self.rule.clone(), self.hidden, self.norm_eps);
        let projection = self.projection.kernel();
        let rows = |width, dtype| ArrayType { shape: vec![streams.dim(0), dim(width)], dtype };
        let widths = [rule.num_expanding(), rule.num_streams];
        let [expanding, next] = widths.map(|width| rows(width, Dtype::F32));
        let out = [rows(hidden, streams.dtype()), expanding, next];
        let has_weights = read.is_some();
        let inputs: Vec<&Array> = [streams].into_iter().chain(read).collect();
        let results = primitives("streams", &inputs, &out, threads, move |inputs, out, threads| {
            let streams = inputs.elements().to_f32();
            let others: &[f32] = if has_weights { inputs.next().values() } else { &[] };
            let products = projected(&streams, &projection, eps, threads);
            let x = out.next_elements();
            let [expanding, next] = [(); 2].map(|()| out.next_values());
            let tokens = streams
                .chunks_exact(projection.input)
                .zip(products.chunks_exact(projection.output))
                .zip(x.chunks(hidden))
                .zip(expanding.chunks_exact_mut(rule.num_expanding()))
                .zip(next.chunks_exact_mut(rule.num_streams))
                .enumerate();
            threads.for_each(
                tokens.collect(),
                |(token, ((((streams, product), mut x), expanding), next))| {
                    let StreamWeights { read, add, mix } = rule.weights(product);
                    let own = others.get(token * rule.num_streams..(token + 1) * rule.num_streams);
                    x.store(0, &weighted_sum(own.unwrap_or(&read), streams, hidden));
                    expanding[..add.len()].copy_from_slice(&add);
                    expanding[add.len()..].copy_from_slice(&mix);
                    next.copy_from_slice(&read);
                },
            );
        });
        results.try_into().expect("as many as were asked for")
    }

    /// Returns the streams after a block with this `result` `[tokens, hidden]`.
    fn expand(&self, streams: &Array, weights: &Array, result: &Array) -> Array {
        let Compute::Kernels(threads) = self.parallel.compute() else { panic!("for our kernels") };
        let (n, hidden, num_weights) =
            (self.rule.num_streams, self.hidden, self.rule.num_expanding());
        let inputs = [streams, weights, result];
        primitive("streams", &inputs, streams.array_type(), threads, move |inputs, out, threads| {
            let streams = inputs.elements().to_f32();
            let weights = inputs.next().values::<f32>();
            let result = inputs.elements().to_f32();
            let tokens = streams
                .chunks_exact(n * hidden)
                .zip(weights.chunks_exact(num_weights))
                .zip(result.chunks_exact(hidden))
                .zip(out.chunks(n * hidden));
            threads.for_each(tokens.collect(), |(((streams, weights), result), mut out)| {
                let (add, mix) = weights.split_at(n);
                for (to, add) in add.iter().enumerate() {
                    let mut sum: Vec<f32> = result.iter().map(|value| add * value).collect();
                    for (from, stream) in streams.chunks_exact(hidden).enumerate() {
                        let weight = mix[from * n + to];
                        sum.iter_mut().zip(stream).for_each(|(sum, value)| *sum += weight * value);
                    }
                    out.store(to * hidden, &sum);
                }
            });
        })
    }

    /// As [`HyperConnection::update`], with MLX.
    fn stock_update(
        &self,
        streams: &Array,
        read: Option<&Array>,
        block: impl FnOnce(Residual) -> Residual,
    ) -> [Array; 2] {
        let (n, tokens) = (dim(self.rule.num_streams), streams.dim(0));
        let wide = streams.astype(Dtype::F32);
        let products = fast::rms_norm(&wide, None, self.norm_eps);
        let [next, add, mix] = stock_weights(&self.rule, &self.projection.stock(&products));
        let x = stock_weighted_sum(&read.map_or(next.clone(), |it| it.expand_dims(2)), streams);
        let wide = wide.reshape(&[tokens, n, dim(self.hidden)]);
        let result = block(Residual::alone(x, &self.parallel)).finish();
        let added = add.mul(&result.astype(Dtype::F32).expand_dims(1));
        let mixed = mix.transpose(&[0, 2, 1]).matmul(&wide).add(&added);
        [mixed.reshape(&streams.shape()).astype(streams.dtype()), next.squeeze(2)]
    }
}

/// Returns the sum of the streams of a token with these weights.
fn weighted_sum(weights: &[f32], streams: &[f32], hidden: usize) -> Vec<f32> {
    let mut sum = vec![0.0; hidden];
    for (weight, stream) in weights.iter().zip(streams.chunks_exact(hidden)) {
        sum.iter_mut().zip(stream).for_each(|(sum, value)| *sum += weight * value);
    }
    sum
}

/// Returns the sum of streams `[tokens, streams * hidden]` with weights `[tokens, streams, 1]`, with MLX.
fn stock_weighted_sum(weights: &Array, streams: &Array) -> Array {
    let wide = streams.astype(Dtype::F32).reshape(&[streams.dim(0), weights.dim(1), -1]);
    wide.mul(weights).sum(1, false).astype(streams.dtype())
}

/// Returns the sum `[tokens, hidden]` of streams `[tokens, streams * hidden]` with weights f32
/// `[tokens, streams]`.
pub(super) fn sum_with_weights(weights: &Array, streams: &Array, parallel: &Parallel) -> Array {
    let Compute::Kernels(threads) = parallel.compute() else {
        return stock_weighted_sum(&weights.expand_dims(2), streams);
    };
    let n = weights.dim(1) as usize;
    let hidden = streams.dim(1) as usize / n;
    let out = ArrayType { shape: vec![streams.dim(0), dim(hidden)], dtype: streams.dtype() };
    primitive("streams", &[streams, weights], out, threads, move |inputs, out, threads| {
        let streams = inputs.elements().to_f32();
        let weights = inputs.next().values::<f32>();
        let tokens =
            streams.chunks_exact(n * hidden).zip(weights.chunks_exact(n)).zip(out.chunks(hidden));
        threads.for_each(tokens.collect(), |((streams, weights), mut out)| {
            out.store(0, &weighted_sum(weights, streams, hidden));
        });
    })
}

/// A sum of the streams whose weights depend on the token; see [`jackalope_spec::StreamEndSpec`].
#[derive(Debug)]
pub(crate) struct StreamSum {
    projection: WideMatrix, // f32 [streams, streams * hidden]
    /// Factor of the products.
    scale: f32,
    base: Vec<f32>, // [streams]
    eps: f32,
    shape: StreamShape,
    parallel: Parallel,
}

impl StreamSum {
    /// Loads the weights of the sum.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(super) fn load(
        root: &Weights<'_>,
        spec: &StreamEndSpec,
        shape: StreamShape,
        parallel: &Parallel,
    ) -> Result<StreamSum, LoadError> {
        let StreamShape { num_streams, hidden, .. } = shape;
        let w = root.at(&spec.module);
        let floats = |name, len: usize| w.floats_as(Dtype::F32, name, &[len], Part::Whole);
        Ok(StreamSum {
            projection: WideMatrix::load(&w, "fn", [num_streams, num_streams * hidden])?,
            scale: floats("scale", 1)?.item::<f32>()?,
            base: floats("base", num_streams)?.to_vec::<f32>()?,
            eps: spec.eps,
            shape,
            parallel: parallel.clone(),
        })
    }

    /// Returns the sum `[tokens, hidden]` of streams `[tokens, streams * hidden]`.
    pub(super) fn of(&self, streams: &Array) -> Array {
        let StreamShape { num_streams, hidden, norm_eps, .. } = self.shape;
        let Compute::Kernels(threads) = self.parallel.compute() else {
            let wide = streams.astype(Dtype::F32);
            let products = self.projection.stock(&fast::rms_norm(&wide, None, norm_eps));
            let base = Array::from_slice(&self.base, &[dim(num_streams)]);
            let weights = (&products * self.scale).add(&base).sigmoid();
            let weights = weights.add(&Array::scalar(self.eps)).expand_dims(2);
            let wide = wide.reshape(&[streams.dim(0), dim(num_streams), dim(hidden)]);
            return wide.mul(&weights).sum(1, false).astype(streams.dtype());
        };
        let (projection, scale, eps) = (self.projection.kernel(), self.scale, self.eps);
        let base = self.base.clone();
        let out = ArrayType { shape: vec![streams.dim(0), dim(hidden)], dtype: streams.dtype() };
        primitive("streams", &[streams], out, threads, move |inputs, out, threads| {
            let streams = inputs.elements().to_f32();
            let products = projected(&streams, &projection, norm_eps, threads);
            let tokens = streams
                .chunks_exact(projection.input)
                .zip(products.chunks_exact(projection.output))
                .zip(out.chunks(hidden));
            threads.for_each(tokens.collect(), |((streams, product), mut out)| {
                let mut sum = vec![0.0; hidden];
                let parts = product.iter().zip(&base).zip(streams.chunks_exact(hidden));
                for ((product, base), stream) in parts {
                    let placed = f64::from(*product) * f64::from(scale) + f64::from(*base);
                    let weight = (1.0 / (1.0 + (-placed).exp()) + f64::from(eps)) as f32;
                    sum.iter_mut().zip(stream).for_each(|(sum, value)| *sum += weight * value);
                }
                out.store(0, &sum);
            });
        })
    }
}

/// Shape of the streams, and how they are normalised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamShape {
    pub(crate) num_streams: usize,
    pub(crate) hidden: usize,
    /// Added to the mean square.
    pub(crate) norm_eps: f32,
    /// Whether one is added to the weights of norms.
    pub(crate) adds_one: bool,
}

impl StreamShape {
    /// Returns the shape of a model's streams.
    pub(crate) fn of(model: &ModelSpec) -> StreamShape {
        let ModelSpec { hidden_size: hidden, norm_eps, norm_kind, ref streams, .. } = *model;
        let num_streams = streams.as_ref().map_or(1, StreamsSpec::num_streams);
        StreamShape { num_streams, hidden, norm_eps, adds_one: norm_kind.adds_one }
    }

    /// Returns the width of all streams of a token.
    pub(super) fn all(self) -> usize {
        self.num_streams * self.hidden
    }

    /// Returns `[tokens, streams, hidden]` for `x` `[tokens, streams * hidden]`.
    pub(super) fn stock_streams(self, x: &Array) -> Array {
        x.reshape(&[x.dim(0), dim(self.num_streams), dim(self.hidden)])
    }
}

/// Returns the products of the normalised streams of each token, `[tokens, elements]`.
fn projected(
    streams: &[f32],
    projection: &WideMatrixKernel,
    eps: f32,
    threads: &Threads,
) -> Vec<f32> {
    let norm = kernels::NormParameters { is_centred: false, weight: None, bias: None, eps };
    let mut normed = vec![0.0; streams.len()];
    let out = ElementsMut::F32(&mut normed);
    kernels::normalize(Elements::F32(streams), norm, projection.input, out, threads);
    projection.product(&normed, threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(num_streams: usize, iterations: usize) -> WeightRule {
        let base = (0..(2 + num_streams) * num_streams).map(|idx| (idx % 5) as f32 / 2.0 - 1.0);
        let scales = [0.5, 1.5, 1.0];
        WeightRule { num_streams, iterations, eps: 1e-6, scales, base: base.collect() }
    }

    fn product(rule: &WeightRule, seed: usize) -> Vec<f32> {
        (0..rule.base.len()).map(|idx| ((idx * 37 + seed * 11) % 17) as f32 / 8.0 - 1.0).collect()
    }

    #[test]
    fn a_mixing_matrix_is_nearly_doubly_stochastic() {
        for num_streams in [1, 2, 3, 4] {
            let rule = rule(num_streams, 20);
            let StreamWeights { mix, add, read } = rule.weights(&product(&rule, num_streams));
            assert!(add.iter().all(|it| (0.0..=2.0).contains(it)), "{add:?}");
            assert!(read.iter().all(|it| (0.0..=1.001).contains(it)), "{read:?}");
            for idx in 0..num_streams {
                let row: f32 = mix[idx * num_streams..][..num_streams].iter().sum();
                let column: f32 = mix[idx..].iter().step_by(num_streams).sum();
                assert!((row - 1.0).abs() < 1e-3, "row {idx} of {mix:?}");
                assert!((column - 1.0).abs() < 1e-5, "column {idx} of {mix:?}");
            }
        }
    }

    #[test]
    fn operations_of_mlx_compute_the_same_weights() {
        for (num_streams, iterations) in [(1, 1), (2, 1), (3, 6), (4, 20)] {
            let rule = rule(num_streams, iterations);
            let products = [0, 1].map(|seed| product(&rule, seed));
            let both = Array::from_slice(&products.concat(), &[2, dim(rule.base.len())]);
            let found = stock_weights(&rule, &both).map(|it| it.to_vec::<f32>().unwrap());
            let [first, second] = products.map(|product| rule.weights(&product));
            let expected = [
                [first.read, second.read].concat(),
                [first.add, second.add].concat(),
                [first.mix, second.mix].concat(),
            ];
            for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                assert!(
                    (found - expected).abs() < 1e-5,
                    "{num_streams} streams: {found} {expected}"
                );
            }
        }
    }
}
