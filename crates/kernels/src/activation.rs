//! The activations of feed-forward blocks: computed in f32, rounded once.

use jackalope_simd::{CHUNK, ElementsMut, PIECE_ELEMENTS, Simd, Threads, dispatched, exp, tanh};

/// An activation function, applied to each element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ActivationFunction {
    /// `x * sigmoid(x)` (Hendrycks and Gimpel 2016; Ramachandran et al. 2017).
    Silu,
    /// `min(x * sigmoid(x), bound)`; the values that it is multiplied by are clamped by [`clamp`]
    /// before.
    BoundedSilu {
        /// Upper bound of the activation.
        bound: f32,
        /// Bound of the values on both sides.
        limit: f32,
    },
    /// `beta * tanh(x / beta) * sigmoid(x)` (Kimi team 2026); [`scale_logits`] with a cap bounds what it
    /// is multiplied by before.
    Situ {
        /// Bound of the hyperbolic tangent.
        beta: f32,
        /// Cap of what it is multiplied by; `None` if there is none.
        cap: Option<f32>,
    },
    /// `x * (1 + erf(x / √2)) / 2` (Hendrycks and Gimpel 2016).
    Gelu,
    /// [`ActivationFunction::Gelu`] approximated by the hyperbolic tangent (ibid.).
    GeluTanh,
    /// The square of `max(x, 0)` (So et al. 2021).
    ReluSquared,
    /// The expanded integral of the exponential linear unit (Huang and Schlag 2025):
    /// `positive * x² + beta * x` above zero, else `negative * (exp(min(x, eps)) - 1 - x) + beta * x`.
    Xielu {
        /// Factor of the square above zero.
        positive: f32,
        /// Factor of the exponential below zero.
        negative: f32,
        /// Slope at zero.
        beta: f32,
        /// Largest argument of the exponential.
        eps: f32,
    },
}

/// Replaces each value by the nearest one from `-limit` to `limit`. NaN stays NaN.
///
/// # Panics
/// Panics if the limit is negative or not a number.
#[track_caller]
pub fn clamp(values: &mut [f32], limit: f32) {
    values.iter_mut().for_each(|value| *value = value.clamp(-limit, limit));
}

/// `out = activation(gate) * up`, element by element.
///
/// # Panics
/// If a length does not fit.
#[track_caller]
pub fn gated(
    activation: ActivationFunction,
    gate: &[f32],
    up: &[f32],
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    let _span = threads.span("gated", 0);
    assert_eq!(gate.len(), up.len(), "as many gates as values");
    run(activation, gate, Some(up), out, threads);
}

/// `out = activation(x)`, element by element.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn activate(
    activation: ActivationFunction,
    x: &[f32],
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    let _span = threads.span("activate", 0);
    run(activation, x, None, out, threads);
}

/// `out = gate * sigmoid(gate) * up`, element by element.
///
/// # Panics
/// If a length does not fit.
#[track_caller]
pub fn swiglu(gate: &[f32], up: &[f32], out: ElementsMut<'_>, threads: &Threads) {
    gated(ActivationFunction::Silu, gate, up, out, threads);
}

#[track_caller]
fn run(
    activation: ActivationFunction,
    x: &[f32],
    up: Option<&[f32]>,
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    assert_eq!(x.len(), out.len(), "as many results as values");
    let pieces = out.chunks(PIECE_ELEMENTS).into_iter().enumerate().collect();
    threads.for_each(pieces, |(piece, mut out)| {
        let range = piece * PIECE_ELEMENTS..piece * PIECE_ELEMENTS + out.len();
        let up = up.map(|up| &up[range.clone()]);
        run_piece(threads.instructions(), activation, &x[range], up, &mut out);
    });
}

dispatched! {
    fn run_piece(
        activation: ActivationFunction,
        x: &[f32],
        up: Option<&[f32]>,
        out: &mut ElementsMut<'_>,
    ) = run_piece_with
}

#[inline(always)]
fn run_piece_with<S: Simd>(
    _simd: S,
    activation: ActivationFunction,
    x: &[f32],
    up: Option<&[f32]>,
    out: &mut ElementsMut<'_>,
) {
    match activation {
        ActivationFunction::Silu => each(x, up, out, |x| x * logistic::<S>(x)),
        ActivationFunction::BoundedSilu { bound, .. } => each(x, up, out, |x| {
            let value = x * logistic::<S>(x);
            if bound < value { bound } else { value }
        }),
        ActivationFunction::Situ { beta, .. } => {
            each(x, up, out, |x| beta * tanh::<S>(x / beta) * logistic::<S>(x));
        }
        ActivationFunction::Gelu => each(x, up, out, gelu::<S>),
        ActivationFunction::GeluTanh => each(x, up, out, gelu_tanh::<S>),
        ActivationFunction::ReluSquared => each(x, up, out, |x| if x < 0.0 { 0.0 } else { x * x }),
        ActivationFunction::Xielu { positive, negative, beta, eps } => each(x, up, out, |x| {
            let above = positive * x * x;
            let below = negative * (exp_less_one::<S>(x.min(eps)) - x);
            beta * x + if x > 0.0 { above } else { below }
        }),
    }
}

#[inline(always)]
fn each(x: &[f32], up: Option<&[f32]>, out: &mut ElementsMut<'_>, activation: impl Fn(f32) -> f32) {
    let mut values = [0.0; CHUNK];
    for start in (0..x.len()).step_by(CHUNK) {
        let end = (start + CHUNK).min(x.len());
        let values = &mut values[..end - start];
        for (value, x) in values.iter_mut().zip(&x[start..end]) {
            *value = activation(*x);
        }
        if let Some(up) = up {
            values.iter_mut().zip(&up[start..end]).for_each(|(value, up)| *value *= up);
        }
        out.store(start, values);
    }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn logistic<S: Simd>(x: f32) -> f32 {
    // The exponential of a negative number cannot overflow.
    let power = exp::<S>(-x.abs());
    let numerator = if x < 0.0 { power } else { 1.0 };
    numerator / (1.0 + power)
}

#[inline(always)]
fn gelu<S: Simd>(x: f32) -> f32 {
    0.5 * x * (1.0 + erf::<S>(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// `x * (1 + tanh(u)) / 2` with `u = √(2 / π) (x + 0.044715 x³)`, which is `x * sigmoid(2 u)`.
#[inline(always)]
fn gelu_tanh<S: Simd>(x: f32) -> f32 {
    const TWICE_ROOT: f32 = 1.595_769;
    x * logistic::<S>(TWICE_ROOT * x * S::mul_add_scalar(0.044_715 * x, x, 1.0))
}

/// The error function, within a few units in the last place: the polynomials of Juffa
/// (stackoverflow.com/a/35148199), as in MLX.
#[inline(always)]
fn erf<S: Simd>(x: f32) -> f32 {
    let (t, s) = (x.abs(), x * x);
    let u = S::mul_add_scalar(-3.883_964_4e-3, t, 2.425_462_2e-2);
    let mut r = S::mul_add_scalar(-1.728_534_7e-5, t, 3.831_972e-4);
    r = S::mul_add_scalar(r, s, u);
    for coefficient in [-1.067_778_8e-1, -6.348_467e-1, -1.287_175_1e-1] {
        r = S::mul_add_scalar(r, t, coefficient);
    }
    let far = (1.0 - exp::<S>(S::mul_add_scalar(r, t, -t))).copysign(x);
    let mut r = -5.967_617e-4;
    let coefficients = [4.991_194e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_3e-1];
    for coefficient in coefficients {
        r = S::mul_add_scalar(r, s, coefficient);
    }
    r = S::mul_add_scalar(r, s, 1.283_791_7e-1);
    let near = S::mul_add_scalar(r, x, x);
    if t > 0.927_734_4 { far } else { near }
}

/// `e^x - 1` for `x <= 0`, near zero without loss of relative precision.
#[inline(always)]
fn exp_less_one<S: Simd>(x: f32) -> f32 {
    // tanh(x / 2) = (e^x - 1) / (e^x + 1)
    let near = tanh::<S>(0.5 * x) * (exp::<S>(x) + 1.0);
    if x > -0.5 { near } else { exp::<S>(x) - 1.0 }
}

/// Replaces each logit by `scale * logit` and then, with `Some(cap)`, by `cap * tanh(logit / cap)`.
pub fn scale_logits(logits: &mut [f32], scale: f32, soft_cap: Option<f32>, threads: &Threads) {
    let _span = threads.span("scale_logits", 0);
    let pieces = logits.chunks_mut(PIECE_ELEMENTS).collect();
    threads.for_each(pieces, |piece: &mut [f32]| {
        scale_piece(threads.instructions(), piece, scale, soft_cap);
    });
}

dispatched! {
    fn scale_piece(logits: &mut [f32], scale: f32, soft_cap: Option<f32>) = scale_piece_with
}

#[inline(always)]
fn scale_piece_with<S: Simd>(_simd: S, logits: &mut [f32], scale: f32, soft_cap: Option<f32>) {
    logits.iter_mut().for_each(|logit| *logit *= scale);
    if let Some(cap) = soft_cap {
        logits.iter_mut().for_each(|logit| *logit = cap * tanh::<S>(*logit / cap));
    }
}
