//! Activations of feed-forward blocks with MLX's operations.

use jackalope_kernels::{self as kernels, ActivationFunction, Threads};
use jackalope_mlx::{Array, Dtype};

/// Computes the activation with MLX, in the type of `x`.
pub(super) fn stock(activation: ActivationFunction, x: &Array) -> Array {
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
pub(super) fn stock_capped(x: &Array, cap: f32) -> Array {
    let cap = Array::scalar_of(cap, x.dtype());
    x.div(&cap).tanh().mul(&cap)
}

/// Computes the activation of `gate`, multiplied by `up`, with MLX, in the type of `gate`.
pub(super) fn stock_gated(activation: ActivationFunction, gate: &Array, up: &Array) -> Array {
    let activated = stock(activation, gate);
    match activation {
        ActivationFunction::BoundedSilu { limit, .. } => {
            let [limit, least] = [limit, -limit].map(|it| Array::scalar_of(it, gate.dtype()));
            activated.mul(&up.minimum(&limit).maximum(&least))
        }
        ActivationFunction::Situ { cap: Some(cap), .. } => {
            let up = stock_capped(&up.astype(Dtype::F32), cap);
            let activated = stock(activation, &gate.astype(Dtype::F32));
            activated.mul(&up).astype(gate.dtype())
        }
        _ => activated.mul(up),
    }
}

/// Bounds what the activation is multiplied by, if it has bounds.
pub(super) fn bound_values(activation: ActivationFunction, up: &mut [f32], threads: &Threads) {
    match activation {
        ActivationFunction::BoundedSilu { limit, .. } => kernels::clamp(up, limit),
        ActivationFunction::Situ { cap, .. } => kernels::scale_logits(up, 1.0, cap, threads),
        _ => {}
    }
}
