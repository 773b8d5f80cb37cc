//! Activations of feed-forward blocks.

use jackalope_kernels::{self as kernels, ActivationFunction, Threads};
use jackalope_mlx::{Array, Dtype};

/// How the gate and the up projection are combined, or the activation of a block without a gate.
#[derive(Clone, Copy, Debug)]
pub enum BlockActivation {
    /// A function of the gate alone, times the up projection.
    Function(ActivationFunction),
    /// See [`jackalope_spec::Activation::ClampedSilu`].
    ClampedSilu {
        /// Factor inside the sigmoid.
        alpha: f32,
        /// Bound of the gate and of the up projection.
        limit: f32,
    },
}

impl BlockActivation {
    /// Computes the activation of `gate`, multiplied by `up`, with MLX, in the type of `gate`.
    pub fn stock_gated(self, gate: &Array, up: &Array) -> Array {
        let number = |value: f32| Array::scalar_of(value, gate.dtype());
        let within = |limit: f32| up.minimum(&number(limit)).maximum(&number(-limit));
        match self {
            BlockActivation::ClampedSilu { alpha, limit } => {
                let gate = gate.minimum(&number(limit));
                let sigmoid = gate.mul(&number(alpha)).sigmoid();
                gate.mul(&sigmoid).mul(&within(limit).add(&number(1.0)))
            }
            BlockActivation::Function(function @ ActivationFunction::BoundedSilu { limit, .. }) => {
                stock(function, gate).mul(&within(limit))
            }
            BlockActivation::Function(
                function @ ActivationFunction::Situ { cap: Some(cap), .. },
            ) => {
                let up = stock_capped(&up.astype(Dtype::F32), cap);
                stock(function, &gate.astype(Dtype::F32)).mul(&up).astype(gate.dtype())
            }
            BlockActivation::Function(function) => stock(function, gate).mul(up),
        }
    }

    /// Clamps the gate and the up projection, if there are bounds. Returns the function that is
    /// still to be applied to the gate.
    pub fn bound(self, gate: &mut [f32], up: &mut [f32], threads: &Threads) -> ActivationFunction {
        let function = match self {
            BlockActivation::ClampedSilu { alpha, limit } => {
                kernels::clamp_gates(gate, up, alpha, limit);
                ActivationFunction::Silu
            }
            BlockActivation::Function(function) => function,
        };
        match function {
            ActivationFunction::BoundedSilu { limit, .. } => kernels::clamp(up, limit),
            ActivationFunction::Situ { cap, .. } => kernels::scale_logits(up, 1.0, cap, threads),
            _ => {}
        }
        function
    }

    /// Returns the activation function of a block without clamping.
    ///
    /// # Panics
    /// Panics if it is [`BlockActivation::ClampedSilu`].
    pub fn function(self) -> ActivationFunction {
        match self {
            BlockActivation::Function(function) => function,
            BlockActivation::ClampedSilu { .. } => panic!("only gates are clamped"),
        }
    }
}

/// Computes the activation with MLX, in the type of `x`.
pub fn stock(activation: ActivationFunction, x: &Array) -> Array {
    let number = |value: f32| Array::scalar_of(value, x.dtype());
    let half = |factor: Array| x.mul(&factor.add(&number(1.0))).mul(&number(0.5));
    match activation {
        ActivationFunction::Silu => x.silu(),
        ActivationFunction::BoundedSilu { bound, .. } => x.silu().minimum(&number(bound)),
        ActivationFunction::Situ { beta, .. } => {
            let wide = x.astype(Dtype::F32);
            stock_capped(&wide, beta).mul(&wide.sigmoid()).astype(x.dtype())
        }
        ActivationFunction::Gelu => half(x.mul(&number(std::f32::consts::FRAC_1_SQRT_2)).erf()),
        ActivationFunction::GeluTanh => {
            let cube = x.square().mul(x).mul(&number(0.044_715));
            let root = std::f32::consts::FRAC_2_PI.sqrt();
            half(x.add(&cube).mul(&number(root)).tanh())
        }
        ActivationFunction::ReluSquared => x.maximum(&number(0.0)).square(),
        ActivationFunction::Xielu { positive, negative, beta, eps } => {
            let above = x.square().mul(&number(positive));
            let power = x.minimum(&number(eps)).exp().sub(&number(1.0));
            let below = power.sub(x).mul(&number(negative));
            let curved = Array::where_(&x.greater(&number(0.0)), &above, &below);
            curved.add(&x.mul(&number(beta)))
        }
    }
}

/// Returns `cap * tanh(x / cap)`, with MLX.
pub fn stock_capped(x: &Array, cap: f32) -> Array {
    let cap = Array::scalar_of(cap, x.dtype());
    x.div(&cap).tanh().mul(&cap)
}
