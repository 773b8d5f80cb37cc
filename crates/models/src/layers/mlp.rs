//! The feed-forward block.

use jackalope_kernels::{self as kernels, Floats};
use jackalope_mlx::Dtype;
use jackalope_spec::{Dimension, LayerLayout, MlpSpec};

use super::kernel::float;
use super::linear::{Bias, Linear, LinearKernel, RowInput};
use super::norm::RmsNorm;
use super::residual::Residual;
use crate::error::LoadError;
use crate::parallel::{Compute, Parallel};
use crate::split::{Cut, cut_dimension};
use crate::weights::Weights;

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
        spec: &MlpSpec,
        layout: &LayerLayout,
        parallel: &Parallel,
    ) -> Result<Mlp, LoadError> {
        let bias = Bias::when(spec.has_bias);
        let unit = layout.inner_units[&Dimension::Inner];
        let inner = cut_dimension(spec.inner, unit, parallel.shares()).swap_remove(parallel.rank());
        Ok(Mlp {
            gate_proj: Linear::column(&w.at("gate_proj"), hidden, &inner, bias, parallel)?,
            up_proj: Linear::column(&w.at("up_proj"), hidden, &inner, bias, parallel)?,
            down_proj: Linear::row(
                &w.at("down_proj"),
                RowInput { cut: &inner, unit },
                hidden,
                bias,
                parallel,
            )?,
            dtype: w.dtype(),
            parallel: parallel.clone(),
            inner,
        })
    }

    /// Returns `residual + mlp(norm(residual))`.
    pub(crate) fn add_to(&self, residual: Residual, norm: &RmsNorm) -> Residual {
        let Mlp { gate_proj, up_proj, down_proj, dtype, .. } = self;
        let Compute::Kernels(threads) = self.parallel.compute() else {
            return residual.stock_block(norm, down_proj, |x| {
                gate_proj.stock(x).silu().mul(&up_proj.stock(x))
            });
        };
        let (linears, dtype) = ([gate_proj.kernel(), up_proj.kernel()], *dtype);
        residual.kernel_block(norm, down_proj, threads, move |x, threads| {
            let [gate, up] = LinearKernel::products(&linears, x, threads);
            let mut inner = Floats::zeros(float(dtype), gate.len());
            kernels::swiglu(&gate, &up, inner.elements_mut(), threads);
            inner
        })
    }
}
