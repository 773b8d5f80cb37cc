//! Blocks that read several streams through a gate of low rank, and add to all of them; see
//! [`jackalope_spec::StreamGate`] and [`jackalope_spec::GatedConnectionSpec`].
//!
//! Every rank computes all of what is here, after the sum over the ranks, so that all have the same
//! streams.
//!
//! ```text
//!   streams ─┬─ norm ─┬───────────────────────── mean ─ block ─┐
//!            │        ├─ down ─ silu ─ up ─ gate ─┘            │
//!            │        └─ add ─ factors ────────────────────────┤
//!            └──────────────────────────────────────────────── + ─▶ streams
//! ```

use jackalope_cache::float;
use jackalope_kernels::{self as kernels, Elements, ElementsMut, Floats, Threads};
use jackalope_mlx::{Array, ArrayType, Dtype, dim};
use jackalope_spec::{GatedConnectionSpec, StreamGate, TensorSpec};
use jackalope_weights::{LoadError, Weights};

use super::hyper::StreamShape;
use super::residual::Residual;
use super::stream_norm::{StreamNorm, StreamNormKernel};
use crate::split::Cut;
use jackalope_parallel::kernel::{primitive, primitives};
use jackalope_parallel::linear::{HasBias, Linear, LinearKernel};
use jackalope_parallel::{Compute, Parallel};

/// Number of elements that a thread gates at once.
const PIECE_ELEMENTS: usize = 512;

/// What is read of several streams.
#[derive(Debug)]
pub(crate) struct LowRankGate {
    norm: StreamNorm,
    down: Linear,
    up: Linear,
    shape: StreamShape,
    dtype: Dtype,
    parallel: Parallel,
}

/// Loads a product that every rank computes.
pub(super) fn whole(root: &Weights<'_>, spec: &TensorSpec) -> Result<Linear, LoadError> {
    let output = Cut::of_all_ranks(spec.shape[0]);
    Linear::column(&root.at(spec.module()), spec.shape[1], &output, HasBias::No)
}

impl LowRankGate {
    /// Loads the gate.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        root: &Weights<'_>,
        spec: &StreamGate,
        shape: StreamShape,
        parallel: &Parallel,
    ) -> Result<LowRankGate, LoadError> {
        Ok(LowRankGate {
            norm: StreamNorm::load(root, &spec.norm, shape)?,
            down: whole(root, &spec.down)?,
            up: whole(root, &spec.up)?,
            shape,
            dtype: root.dtype(),
            parallel: parallel.clone(),
        })
    }

    /// Returns what is read of `streams` `[tokens, streams * hidden]`: `[tokens, hidden]`.
    pub(crate) fn read(&self, streams: &Array) -> Array {
        let Compute::Kernels(threads) = self.parallel.compute() else {
            return self.stock_read(&self.stock_normed(streams));
        };
        let (kernel, out) = (self.kernel(None), self.read_type(streams));
        primitive("stream_gate", &[streams], out, threads, move |inputs, out, threads| {
            kernel.read(inputs.elements(), out, threads);
        })
    }

    fn read_type(&self, streams: &Array) -> ArrayType {
        ArrayType { shape: vec![streams.dim(0), dim(self.shape.hidden)], dtype: streams.dtype() }
    }

    /// Returns the normalised streams in the type of the model, with MLX.
    fn stock_normed(&self, streams: &Array) -> Array {
        self.norm.stock(streams).astype(streams.dtype())
    }

    /// Returns what is read of normalised streams, with MLX.
    fn stock_read(&self, normed: &Array) -> Array {
        let low_rank = (&self.down.stock(normed) * self.factor()).silu();
        let gated = self.up.stock(&low_rank).sigmoid().mul(normed);
        self.shape.stock_streams(&gated).mean(1, false)
    }

    /// Returns the factor of the products.
    fn factor(&self) -> f32 {
        1.0 / self.shape.num_streams as f32
    }

    fn kernel(&self, add: Option<&Linear>) -> GateKernel {
        GateKernel {
            norm: self.norm.kernel(),
            down: [&self.down].into_iter().chain(add).map(Linear::kernel).collect(),
            up: self.up.kernel(),
            shape: self.shape,
            dtype: self.dtype,
            factor: self.factor(),
        }
    }
}

/// The gate for the kernels.
#[derive(Debug)]
struct GateKernel {
    norm: StreamNormKernel,
    /// Projection to low rank, and perhaps another one of the same streams.
    down: Vec<LinearKernel>,
    up: LinearKernel,
    shape: StreamShape,
    dtype: Dtype,
    /// Factor of the products.
    factor: f32,
}

impl GateKernel {
    /// Writes what is read of the streams, and returns the product of the other projection, times the
    /// factor, if there is one.
    fn read(&self, streams: Elements<'_>, out: ElementsMut<'_>, threads: &Threads) -> Vec<f32> {
        let float = float(self.dtype);
        let normed = self.norm.norm(streams, threads);
        let mut rounded = Floats::zeros(float, normed.len());
        rounded.store(0, &normed);
        let mut products = LinearKernel::products_of(&self.down, rounded.elements(), threads);
        products.iter_mut().flatten().for_each(|value| *value *= self.factor);
        let mut products = products.into_iter();
        let low_rank = products.next().expect("a projection to low rank");
        let activated = silu(&low_rank);
        let mut rounded = Floats::zeros(float, activated.len());
        rounded.store(0, &activated);
        let up = std::array::from_ref(&self.up);
        let [gates] = LinearKernel::products(up, rounded.elements(), threads);
        self.mean(&normed, &gates, out, threads);
        products.next().unwrap_or_default()
    }

    /// Writes the mean of the gated streams.
    fn mean(&self, normed: &[f32], gates: &[f32], out: ElementsMut<'_>, threads: &Threads) {
        let hidden = self.shape.hidden;
        let tokens = out.chunks(hidden).into_iter().enumerate();
        let pieces = tokens.flat_map(|(token, row)| {
            let pieces = row.chunks(PIECE_ELEMENTS).into_iter().enumerate();
            pieces.map(move |(piece, out)| (token, piece * PIECE_ELEMENTS, out))
        });
        threads.for_each(pieces.collect(), |(token, column, mut out)| {
            let mut sum = vec![0.0; out.len()];
            for stream in 0..self.shape.num_streams {
                let first = token * self.shape.all() + stream * hidden + column;
                let own = first..first + sum.len();
                let mut gates = gates[own.clone()].to_vec();
                kernels::sigmoid(&mut gates);
                let gated = gates.iter().zip(&normed[own]);
                sum.iter_mut().zip(gated).for_each(|(sum, (gate, value))| *sum += gate * value);
            }
            sum.iter_mut().for_each(|sum| *sum *= self.factor);
            out.store(0, &sum);
        });
    }
}

/// Returns `x * sigmoid(x)`.
pub(super) fn silu(values: &[f32]) -> Vec<f32> {
    let mut gates = values.to_vec();
    kernels::sigmoid(&mut gates);
    gates.iter().zip(values).map(|(gate, value)| gate * value).collect()
}

/// What one block does with the streams.
#[derive(Debug)]
pub(crate) struct GatedConnection {
    gate: LowRankGate,
    /// Projection to the factors of the block's result, `[streams]`.
    add: Linear,
}

impl GatedConnection {
    /// Loads what a block does with the streams.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        root: &Weights<'_>,
        spec: &GatedConnectionSpec,
        shape: StreamShape,
        parallel: &Parallel,
    ) -> Result<GatedConnection, LoadError> {
        let gate = LowRankGate::load(root, &spec.gate, shape, parallel)?;
        Ok(GatedConnection { gate, add: whole(root, &spec.add)? })
    }

    /// Returns the streams after a block, which `block` adds to the stream that it gets.
    pub(crate) fn around(
        &self,
        streams: &Array,
        block: impl FnOnce(Residual) -> Residual,
    ) -> Array {
        let Compute::Kernels(threads) = self.gate.parallel.compute() else {
            return self.stock_around(streams, block);
        };
        let num_streams = dim(self.gate.shape.num_streams);
        let factors = ArrayType { shape: vec![streams.dim(0), num_streams], dtype: Dtype::F32 };
        let out = [self.gate.read_type(streams), factors];
        let kernel = self.gate.kernel(Some(&self.add));
        let mut read =
            primitives("stream_gate", &[streams], &out, threads, move |inputs, out, threads| {
                let x = out.next_elements();
                let mut factors = kernel.read(inputs.elements(), x, threads);
                kernels::sigmoid(&mut factors);
                factors.iter_mut().for_each(|factor| *factor *= 2.0);
                out.next_values().copy_from_slice(&factors);
            });
        let (factors, x) = (read.remove(1), read.remove(0));
        let result = block(Residual::alone(x, &self.gate.parallel)).finish();
        self.add_to(streams, &factors, &result)
    }

    /// Adds `result` `[tokens, hidden]` to the streams, times the factors `[tokens, streams]`.
    fn add_to(&self, streams: &Array, factors: &Array, result: &Array) -> Array {
        let Compute::Kernels(threads) = self.gate.parallel.compute() else {
            panic!("for our kernels")
        };
        let StreamShape { num_streams, hidden, .. } = self.gate.shape;
        let inputs = [streams, factors, result];
        primitive("streams", &inputs, streams.array_type(), threads, move |inputs, out, threads| {
            let streams = inputs.elements();
            let factors = inputs.next().values::<f32>();
            let result = inputs.elements();
            let rows = out.chunks(hidden).into_iter().enumerate().collect();
            threads.for_each(rows, |(row, mut out): (usize, ElementsMut<'_>)| {
                let (mut sum, mut added) = (vec![0.0; hidden], vec![0.0; hidden]);
                streams.load(row * hidden, &mut sum);
                result.load(row / num_streams * hidden, &mut added);
                sum.iter_mut().zip(added).for_each(|(sum, value)| *sum += factors[row] * value);
                out.store(0, &sum);
            });
        })
    }

    /// As [`GatedConnection::around`], with MLX.
    fn stock_around(&self, streams: &Array, block: impl FnOnce(Residual) -> Residual) -> Array {
        let gate = &self.gate;
        let normed = gate.stock_normed(streams);
        let factors = &(&self.add.stock(&normed) * gate.factor()).sigmoid() * 2.0;
        let x = gate.stock_read(&normed);
        let result = block(Residual::alone(x, &gate.parallel)).finish();
        let added = factors.expand_dims(2).mul(&result.expand_dims(1));
        streams.add(&added.reshape(&streams.shape()))
    }
}
