//! The feed-forward block.

use jackalope_cache::float;
use jackalope_kernels::{self as kernels, Elements, Floats, Threads};
use jackalope_mlx::{Array, Dtype};

use super::frame::BlockFrame;
use super::residual::{Middle, Residual, TwoParts};
use crate::split::{Cut, cut_dimension};
use jackalope_parallel::activation::{self, BlockActivation};
use jackalope_parallel::cutoff::Cutoff;
use jackalope_parallel::kernel::DivisibleKernel;
use jackalope_parallel::linear::{HasBias, Linear, LinearKernel, RowInput};
use jackalope_parallel::output::BlockOutput;
use jackalope_parallel::{Compute, Parallel};
use jackalope_weights::LoadError;
use jackalope_weights::Weights;

/// The inner dimension of a feed-forward block, its biases and its activation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MlpBlock {
    /// Inner dimension.
    pub(crate) inner: usize,
    /// Number of inner elements in an indivisible unit.
    pub(crate) unit: usize,
    /// Whether its products have biases.
    pub(crate) has_bias: bool,
    pub(crate) activation: BlockActivation,
    /// See [`jackalope_spec::MlpSpec::cutoff`].
    pub(crate) cutoff: Option<f32>,
}

/// The tensors of a feed-forward block.
pub(crate) struct MlpWeights<'a> {
    /// `None` if there is no gate.
    pub(crate) gate_proj: Option<Weights<'a>>,
    pub(crate) up_proj: Weights<'a>,
    pub(crate) down_proj: Weights<'a>,
}

/// Computes `down(activation(gate(x)) * up(x))` (Shazeer 2020), or `down(activation(up(x)))`.
#[derive(Debug)]
pub(crate) struct Mlp {
    gate_proj: Option<Linear>,
    up_proj: Linear,
    down_proj: Linear,
    activation: BlockActivation,
    cutoff: Option<f32>,
    dtype: Dtype,
    parallel: Parallel,
    /// This rank's part of the inner dimension.
    pub(crate) inner: Cut,
}

impl Mlp {
    pub(crate) fn load(
        w: &MlpWeights<'_>,
        hidden: usize,
        block: MlpBlock,
        parallel: &Parallel,
    ) -> Result<Mlp, LoadError> {
        let MlpBlock { inner, unit, has_bias, activation, cutoff } = block;
        let bias = HasBias::when(has_bias);
        let inner = cut_dimension(inner, unit, parallel.shares()).swap_remove(parallel.rank());
        let input = RowInput { cut: &inner, terms: parallel.terms(unit) };
        let gate_proj = match &w.gate_proj {
            Some(gate) => Some(Linear::column(gate, hidden, &inner, bias)?),
            None => None,
        };
        Ok(Mlp {
            gate_proj,
            up_proj: Linear::column(&w.up_proj, hidden, &inner, bias)?,
            down_proj: Linear::row(&w.down_proj, input, hidden, bias)?,
            activation,
            cutoff,
            dtype: w.down_proj.dtype(),
            parallel: parallel.clone(),
            inner,
        })
    }

    /// Adds the block to the stream.
    pub(crate) fn add_to(&self, residual: Residual, frame: &BlockFrame) -> Residual {
        if let Some(cutoff) = self.cutoff {
            return self.add_sparse(cutoff, residual, frame);
        }
        let output = self.block_output();
        match self.parallel.compute() {
            Compute::Kernels(threads) => {
                let kernel = self.kernel();
                let work = move |x: Elements<'_>, threads: &Threads| kernel.product(x, threads);
                residual.kernel_block(frame, output, threads, work)
            }
            Compute::Stock => residual.stock_row_block(frame, output, |x| self.stock(x)),
        }
    }

    /// Adds a block of which few elements are active. The cutoff depends on the results of all ranks.
    fn add_sparse(&self, cutoff: f32, residual: Residual, frame: &BlockFrame) -> Residual {
        let output = self.block_output();
        let cutoff = Cutoff { deviations: cutoff, width: self.inner.full };
        let Compute::Kernels(threads) = self.parallel.compute() else {
            let output = BlockOutput { num_sums: Cutoff::STOCK_SUMS, ..output };
            return residual.stock_block(frame, output, |x| {
                let gate = self.gate_proj.as_ref().expect("a gate").stock(x);
                let gate = cutoff.stock(&gate, &self.parallel);
                let gate = activation::stock(self.activation.function(), &gate);
                self.down_proj.stock(&gate.mul(&self.up_proj.stock(x)))
            });
        };
        let output = BlockOutput { num_sums: Cutoff::SUMS, ..output };
        let MlpKernel { inward, down, activation, dtype } = self.kernel();
        let InwardKernel::Gated(linears) = inward else { panic!("a gate has a cutoff") };
        let (width, function) = (self.inner.len(), activation.function());
        let parts = TwoParts {
            widths: vec![width, width],
            first: move |x: Elements<'_>, threads: &Threads| {
                let values = LinearKernel::products(&linears, x, threads);
                let sums = Cutoff::sums(&values[0], width, threads);
                Middle { values: values.into(), sums }
            },
            second: move |middle: Middle, threads: &Threads| {
                let Middle { mut values, sums } = middle;
                cutoff.apply(&mut values[0], &sums);
                let mut inner = Floats::zeros(float(dtype), values[0].len());
                kernels::gated(function, &values[0], &values[1], inner.elements_mut(), threads);
                down.multiply(inner.elements(), threads)
            },
        };
        residual.kernel_block_of_two(frame, output, threads, parts)
    }

    /// Returns what the block adds to the stream.
    pub(super) fn block_output(&self) -> BlockOutput<'_> {
        self.down_proj.block_output()
    }

    /// Computes this rank's part of the product `[tokens, hidden]`, without bias, with MLX.
    pub(super) fn stock(&self, x: &Array) -> Array {
        let up = self.up_proj.stock(x);
        let inner = match &self.gate_proj {
            Some(gate) => self.activation.stock_gated(&gate.stock(x), &up),
            None => activation::stock(self.activation.function(), &up),
        };
        self.down_proj.stock(&inner)
    }

    /// Returns the block for use inside a primitive.
    pub(super) fn kernel(&self) -> MlpKernel {
        let up = self.up_proj.kernel();
        let inward = match &self.gate_proj {
            Some(gate) => InwardKernel::Gated([gate.kernel(), up]),
            None => InwardKernel::Ungated([up]),
        };
        let down = self.down_proj.divisible_kernel();
        MlpKernel { inward, down, activation: self.activation, dtype: self.dtype }
    }
}

/// A feed-forward block for the kernels.
#[derive(Debug)]
pub(super) struct MlpKernel {
    inward: InwardKernel,
    down: DivisibleKernel,
    activation: BlockActivation,
    dtype: Dtype,
}

/// The projections to the inner dimension.
#[derive(Debug)]
enum InwardKernel {
    /// The gate, and what it is multiplied by.
    Gated([LinearKernel; 2]),
    Ungated([LinearKernel; 1]),
}

impl MlpKernel {
    /// Computes this rank's part of the product `[tokens, hidden]`, without bias.
    pub(super) fn product(&self, x: Elements<'_>, threads: &Threads) -> Vec<f64> {
        self.weighted_product(x, None, threads)
    }

    /// As [`MlpKernel::product`]; each row is multiplied by its factor, if there are any.
    pub(super) fn weighted_product(
        &self,
        x: Elements<'_>,
        factors: Option<&[f32]>,
        threads: &Threads,
    ) -> Vec<f64> {
        let inner = match &self.inward {
            InwardKernel::Gated(linears) => {
                let [mut gate, mut up] = LinearKernel::products(linears, x, threads);
                let function = self.activation.bound(&mut gate, &mut up, threads);
                if let Some(factors) = factors {
                    kernels::scale_rows(&mut up, factors);
                }
                let mut inner = Floats::zeros(float(self.dtype), gate.len());
                kernels::gated(function, &gate, &up, inner.elements_mut(), threads);
                inner
            }
            InwardKernel::Ungated(linears) => {
                assert!(factors.is_none(), "experts that are weighed have gates");
                let [up] = LinearKernel::products(linears, x, threads);
                let mut inner = Floats::zeros(float(self.dtype), up.len());
                let function = self.activation.function();
                kernels::activate(function, &up, inner.elements_mut(), threads);
                inner
            }
        };
        self.down.multiply(inner.elements(), threads)
    }
}
