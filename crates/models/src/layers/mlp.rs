//! The feed-forward block.

use std::sync::Arc;

use jackalope_kernels::{self as kernels, Threads};
use jackalope_mlx::{Array, Dtype};

use super::kernel::{dim, primitive};
use super::linear::{Bias, Linear};
use crate::error::LoadError;
use crate::parallel::{Compute, TensorParallel};
use crate::split::{Cut, cut_dimension};
use crate::weights::Weights;

/// Inner elements that are not divided when nothing is quantised: whole vector registers.
const PLAIN_UNIT: usize = 32;

/// `down(silu(gate(x)) * up(x))` (Shazeer 2020, SwiGLU).
#[derive(Debug)]
pub(crate) struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    dtype: Dtype,
    compute: Compute,
    /// This rank's part of the inner dimension.
    pub(crate) inner: Cut,
}

impl Mlp {
    pub(crate) fn load(
        w: &Weights<'_>,
        (hidden, inner): (usize, usize),
        bias: Bias,
        tp: &TensorParallel,
    ) -> Result<Mlp, LoadError> {
        let format = w.at("down_proj").quantization(inner)?;
        let unit = format.map_or(PLAIN_UNIT, |format| format.group_size as usize);
        let inner = cut_dimension(inner, unit, tp.shares()).swap_remove(tp.rank());
        Ok(Mlp {
            gate_proj: Linear::column(&w.at("gate_proj"), hidden, &inner, bias, tp)?,
            up_proj: Linear::column(&w.at("up_proj"), hidden, &inner, bias, tp)?,
            down_proj: Linear::row(&w.at("down_proj"), &inner, hidden, bias, tp)?,
            dtype: w.dtype(),
            compute: tp.compute().clone(),
            inner,
        })
    }

    /// `residual + mlp(x)`; all are `[tokens, hidden]`.
    pub(crate) fn add_to(&self, residual: &Array, x: &Array) -> Array {
        if self.inner.is_empty() {
            return self.down_proj.add_to(residual, x);
        }
        let inner = match &self.compute {
            Compute::Kernels(threads) => self.kernel_inner(x, threads),
            Compute::Stock => self.gate_proj.forward(x).silu().mul(&self.up_proj.forward(x)),
        };
        self.down_proj.add_to(residual, &inner)
    }

    /// `silu(gate(x)) * up(x)` in one primitive, `[tokens, inner]`.
    fn kernel_inner(&self, x: &Array, threads: &Arc<Threads>) -> Array {
        let mut inputs = vec![x];
        inputs.extend(self.gate_proj.arrays());
        inputs.extend(self.up_proj.arrays());
        let (gate, up) = (self.gate_proj.kernel(), self.up_proj.kernel());
        let out = (vec![x.dim(0), dim(self.inner.len())], self.dtype);
        primitive("mlp", &inputs, out, threads, move |inputs, out, threads| {
            let x = inputs.elements();
            let gate = gate.product(x, inputs, threads);
            let up = up.product(x, inputs, threads);
            kernels::swiglu(&gate, &up, out, threads);
        })
    }
}
