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

use jackalope_kernels::{self as kernels, Elements, ElementsMut, Threads};
use jackalope_mlx::{Array, ArrayType, Dtype, dim, fast};
use jackalope_spec::HyperConnectionSpec;
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

/// How the weights of a token are computed from its product.
#[derive(Clone, Debug)]
struct WeightRule {
    num_streams: usize,
    iterations: usize,
    eps: f64,
    /// Factors of the elements for the sum, for the additions and for the matrix.
    scales: [f32; 3],
    /// What is added to each element.
    base: Vec<f32>,
}

/// The weights of a token.
#[derive(Debug)]
struct TokenWeights {
    /// Of the streams in the sum that the block reads.
    read: Vec<f32>,
    /// Of the block's result in each stream.
    add: Vec<f32>,
    /// Of the streams, row by row, in each stream, column by column.
    mix: Vec<f32>,
}

impl WeightRule {
    /// Returns the number of weights with which streams are expanded.
    fn num_expanding(&self) -> usize {
        (1 + self.num_streams) * self.num_streams
    }

    /// Returns the weights of a token. They are computed in f64, because libraries differ in the last
    /// bits of these functions, and rounded once.
    fn weights(&self, product: &[f32]) -> TokenWeights {
        let n = self.num_streams;
        let placed = product.iter().zip(&self.base).enumerate().map(|(idx, (value, base))| {
            f64::from(*value) * f64::from(self.scales[(idx / n).min(2)]) + f64::from(*base)
        });
        let placed: Vec<f64> = placed.collect();
        let logistic = |x: &f64| 1.0 / (1.0 + (-x).exp());
        let mut mix = Vec::with_capacity(n * n);
        for row in placed[2 * n..].chunks_exact(n) {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let powers: Vec<f64> = row.iter().map(|value| (value - max).exp()).collect();
            let sum: f64 = powers.iter().sum();
            mix.extend(powers.iter().map(|power| power / sum + self.eps));
        }
        for iteration in 0..self.iterations {
            if 0 < iteration {
                for row in mix.chunks_exact_mut(n) {
                    let sum = row.iter().sum::<f64>() + self.eps;
                    row.iter_mut().for_each(|value| *value /= sum);
                }
            }
            for column in 0..n {
                let sum = mix[column..].iter().step_by(n).sum::<f64>() + self.eps;
                mix[column..].iter_mut().step_by(n).for_each(|value| *value /= sum);
            }
        }
        let rounded = |value: f64| value as f32;
        TokenWeights {
            read: placed[..n].iter().map(|it| rounded(logistic(it) + self.eps)).collect(),
            add: placed[n..2 * n].iter().map(|it| rounded(2.0 * logistic(it))).collect(),
            mix: mix.into_iter().map(rounded).collect(),
        }
    }

    /// As [`WeightRule::weights`], with MLX, for products `[tokens, elements]`: weights
    /// `[tokens, streams, 1]` for the sum and for the additions, and `[tokens, streams, streams]`.
    fn stock(&self, products: &Array) -> [Array; 3] {
        let (n, tokens) = (dim(self.num_streams), products.dim(0));
        let part = |idx: i32, len: i32| {
            let own = products.slice_axis(1, idx * n, idx * n + len);
            let base = &self.base[(idx * n) as usize..(idx * n + len) as usize];
            (&own * self.scales[idx as usize]).add(&Array::from_slice(base, &[len]))
        };
        let eps = Array::scalar(self.eps as f32);
        let read = part(0, n).sigmoid().add(&eps).expand_dims(2);
        let add = (&part(1, n).sigmoid() * 2.0).expand_dims(2);
        let mut mix = part(2, n * n).reshape(&[tokens, n, n]).softmax(-1).add(&eps);
        for iteration in 0..self.iterations {
            if 0 < iteration {
                mix = mix.div(&mix.sum(-1, true).add(&eps));
            }
            mix = mix.div(&mix.sum(-2, true).add(&eps));
        }
        [read, add, mix]
    }
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
        let StreamShape { num_streams, hidden, norm_eps } = streams;
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
        let Compute::Kernels(_) = self.parallel.compute() else {
            return self.stock_around(streams, block);
        };
        let (x, weights) = self.collapse(streams);
        let result = block(Residual::alone(x, &self.parallel)).finish();
        self.expand(streams, &weights, &result)
    }

    /// Returns what the block reads, `[tokens, hidden]`, and the weights with which its result is added,
    /// f32 `[tokens, streams + streams * streams]`.
    fn collapse(&self, streams: &Array) -> (Array, Array) {
        let Compute::Kernels(threads) = self.parallel.compute() else { panic!("for our kernels") };
        let (rule, hidden, eps) = (self.rule.clone(), self.hidden, self.norm_eps);
        let projection = self.projection.kernel();
        let rows = |width, dtype| ArrayType { shape: vec![streams.dim(0), dim(width)], dtype };
        let out = [rows(hidden, streams.dtype()), rows(rule.num_expanding(), Dtype::F32)];
        let mut results =
            primitives("streams", &[streams], &out, threads, move |inputs, out, threads| {
                let streams = inputs.elements().to_f32();
                let products = projected(&streams, &projection, eps, threads);
                let (x, expanding) = (out.next(), out.next_values());
                let tokens = streams
                    .chunks_exact(projection.input)
                    .zip(products.chunks_exact(projection.output))
                    .zip(x.chunks(hidden))
                    .zip(expanding.chunks_exact_mut(rule.num_expanding()));
                threads.for_each(tokens.collect(), |(((streams, product), mut x), expanding)| {
                    let TokenWeights { read, add, mix } = rule.weights(product);
                    let mut sum = vec![0.0; hidden];
                    for (weight, stream) in read.iter().zip(streams.chunks_exact(hidden)) {
                        sum.iter_mut().zip(stream).for_each(|(sum, value)| *sum += weight * value);
                    }
                    x.store(0, &sum);
                    expanding[..add.len()].copy_from_slice(&add);
                    expanding[add.len()..].copy_from_slice(&mix);
                });
            });
        let weights = results.remove(1);
        (results.remove(0), weights)
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

    /// As [`HyperConnection::around`], with MLX.
    fn stock_around(&self, streams: &Array, block: impl FnOnce(Residual) -> Residual) -> Array {
        let (n, tokens) = (dim(self.rule.num_streams), streams.dim(0));
        let wide = streams.astype(Dtype::F32);
        let products = fast::rms_norm(&wide, None, self.norm_eps);
        let [read, add, mix] = self.rule.stock(&self.projection.stock(&products));
        let wide = wide.reshape(&[tokens, n, dim(self.hidden)]);
        let x = wide.mul(&read).sum(1, false).astype(streams.dtype());
        let result = block(Residual::alone(x, &self.parallel)).finish();
        let added = add.mul(&result.astype(Dtype::F32).expand_dims(1));
        let mixed = mix.transpose(&[0, 2, 1]).matmul(&wide).add(&added);
        mixed.reshape(&streams.shape()).astype(streams.dtype())
    }
}

/// Shape of the streams, and the epsilon with which they are normalised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamShape {
    pub(crate) num_streams: usize,
    pub(crate) hidden: usize,
    pub(crate) norm_eps: f32,
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
            let TokenWeights { mix, add, read } = rule.weights(&product(&rule, num_streams));
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
            let found = rule.stock(&both).map(|it| it.to_vec::<f32>().unwrap());
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
