//! Activations of feed-forward blocks with MLX's operations.

use jackalope_kernels::Activation;
use jackalope_mlx::Array;

/// Computes the activation with MLX, in the type of `x`.
pub(super) fn stock(activation: Activation, x: &Array) -> Array {
    let number = |value: f32| Array::scalar_of(value, x.dtype());
    let half = |factor: Array| x.mul(&factor.add(&number(1.0))).mul(&number(0.5));
    match activation {
        Activation::Silu => x.silu(),
        Activation::Gelu => half(x.mul(&number(std::f32::consts::FRAC_1_SQRT_2)).erf()),
        Activation::GeluTanh => {
            let cube = x.square().mul(x).mul(&number(0.044_715));
            let root = std::f32::consts::FRAC_2_PI.sqrt();
            half(x.add(&cube).mul(&number(root)).tanh())
        }
        Activation::ReluSquared => x.maximum(&number(0.0)).square(),
        Activation::Xielu { positive, negative, beta, eps } => {
            let above = x.square().mul(&number(positive));
            let power = x.minimum(&number(eps)).exp().sub(&number(1.0));
            let below = power.sub(x).mul(&number(negative));
            let curved = Array::where_(&x.greater(&number(0.0)), &above, &below);
            curved.add(&x.mul(&number(beta)))
        }
    }
}
