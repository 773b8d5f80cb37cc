//! The feed-forward block.

use jackalope_kernels::{self as kernels, Elements, Floats, Threads};
use jackalope_mlx::{Array, Dtype};

use super::kernel::{DivisibleKernel, float};
use super::linear::{HasBias, Linear, LinearKernel, RowInput};
use super::norm::RmsNorm;
use super::residual::Residual;
use crate::error::LoadError;
use crate::parallel::{Compute, Parallel};
use crate::split::{Cut, cut_dimension};
use crate::weights::Weights;

/// The inner dimension of a feed-forward block, and its biases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MlpBlock {
    /// Inner dimension.
    pub(crate) inner: usize,
    /// Number of inner elements in an indivisible unit.
    pub(crate) unit: usize,
    /// Whether its products have biases.
    pub(crate) has_bias: bool,
}

/// Computes `down(silu(gate(x)) * up(x))` (Shazeer 2020, SwiGLU).
#[derive(Debug)]
pub(crate) struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    dtype: Dtype,
    parallel: Parallel,
    /// This rank's part of the inner dimension.
    pub(crate) inner: Cut,
}

impl Mlp {
    pub(crate) fn load(
        w: &Weights<'_>,
        hidden: usize,
        block: MlpBlock,
        parallel: &Parallel,
    ) -> Result<Mlp, LoadError> {
        let MlpBlock { inner, unit, has_bias } = block;
        let bias = HasBias::when(has_bias);
        let inner = cut_dimension(inner, unit, parallel.shares()).swap_remove(parallel.rank());
        let input = RowInput { cut: &inner, unit };
        Ok(Mlp {
            gate_proj: Linear::column(&w.at("gate_proj"), hidden, &inner, bias)?,
            up_proj: Linear::column(&w.at("up_proj"), hidden, &inner, bias)?,
            down_proj: Linear::row(&w.at("down_proj"), input, hidden, bias)?,
            dtype: w.dtype(),
            parallel: parallel.clone(),
            inner,
        })
    }

    /// Returns `residual + mlp(norm(residual))`.
    pub(crate) fn add_to(&self, residual: Residual, norm: &RmsNorm) -> Residual {
        let output = self.down_proj.block_output();
        match self.parallel.compute() {
            Compute::Kernels(threads) => {
                let kernel = self.kernel();
                let work = move |x: Elements<'_>, threads: &Threads| kernel.product(x, threads);
                residual.kernel_block(norm, output, threads, work)
            }
            Compute::Stock => residual.stock_block(norm, output, |x| self.stock(x)),
        }
    }

    /// Computes this rank's part of the product `[tokens, hidden]`, without bias, with MLX.
    pub(super) fn stock(&self, x: &Array) -> Array {
        let inner = self.gate_proj.stock(x).silu().mul(&self.up_proj.stock(x));
        self.down_proj.stock(&inner)
    }

    /// Returns the block for use inside a primitive.
    pub(super) fn kernel(&self) -> MlpKernel {
        MlpKernel {
            gate_up: [self.gate_proj.kernel(), self.up_proj.kernel()],
            down: self.down_proj.divisible_kernel(),
            dtype: self.dtype,
        }
    }
}

/// A feed-forward block for the kernels.
#[derive(Debug)]
pub(super) struct MlpKernel {
    gate_up: [LinearKernel; 2],
    down: DivisibleKernel,
    dtype: Dtype,
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
        let [gate, mut up] = LinearKernel::products(&self.gate_up, x, threads);
        if let Some(factors) = factors {
            kernels::scale_rows(&mut up, factors);
        }
        let mut inner = Floats::zeros(float(self.dtype), gate.len());
        kernels::swiglu(&gate, &up, inner.elements_mut(), threads);
        self.down.multiply(inner.elements(), threads)
    }
}
