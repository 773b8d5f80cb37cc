//! Activations of feed-forward blocks with MLX's operations.

use jackalope_kernels::ActivationFunction;
use jackalope_mlx::Array;

/// Computes the activation with MLX, in the type of `x`.
pub(super) fn stock(activation: ActivationFunction, x: &Array) -> Array {
    let number = |value: f32| Array::scalar_of(value, x.dtype());
    let half = |factor: Array| x.mul(&factor.add(&number(1.0))).mul(&number(0.5));
    match activation {
        ActivationFunction::Silu => x.silu(),
        ActivationFunction::BoundedSilu { limit } => x.silu().minimum(&number(limit)),
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

/// Computes the activation of `gate`, multiplied by `up`, with MLX, in the type of `gate`.
pub(super) fn stock_gated(activation: ActivationFunction, gate: &Array, up: &Array) -> Array {
    let activated = stock(activation, gate);
    let Some(limit) = activation.value_limit() else { return activated.mul(up) };
    let [limit, least] = [limit, -limit].map(|it| Array::scalar_of(it, gate.dtype()));
    activated.mul(&up.minimum(&limit).maximum(&least))
}
