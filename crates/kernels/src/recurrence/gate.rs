//! The norm after a recurrence, and its gate.

use std::ops::Range;

use jackalope_simd::{Elements, ElementsMut, Simd, Threads, dispatched};

use super::block::silu;
use crate::activation::logistic;
use crate::norm::{NormParameters, WideNorm};

/// Number of elements of a piece of work, about.
const PIECE_ELEMENTS: usize = 1 << 10;

/// The gates of a recurrence's results, `[rows, heads, head_dim]`.
#[derive(Clone, Copy, Debug)]
pub enum OutputGates<'a> {
    /// A factor is `gate * sigmoid(gate)`.
    Silu(&'a [f32]),
    /// A factor is `sigmoid(gate)`.
    Sigmoid(&'a [f32]),
}

impl<'a> OutputGates<'a> {
    fn values(self) -> &'a [f32] {
        match self {
            OutputGates::Silu(values) | OutputGates::Sigmoid(values) => values,
        }
    }

    fn part(self, range: Range<usize>) -> OutputGates<'a> {
        match self {
            OutputGates::Silu(values) => OutputGates::Silu(&values[range]),
            OutputGates::Sigmoid(values) => OutputGates::Sigmoid(&values[range]),
        }
    }
}

/// Computes `norm(x)` times its gates, where each head is normalised separately; `x` is `[rows,
/// heads, head_dim]`. The norm has a weight.
///
/// # Panics
/// Panics if a length does not fit.
#[track_caller]
pub fn gated_norm(
    x: &[f32],
    norm: NormParameters<'_>,
    gates: OutputGates<'_>,
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    let _span = threads.span("gated_norm", 0);
    let width = norm.weight.map_or(0, |weight| weight.len());
    assert!(0 < width && x.len().is_multiple_of(width), "whole heads of {width}");
    let num_gates = gates.values().len();
    assert!(x.len() == num_gates && x.len() == out.len(), "a gate and a result for each element");
    let norm = WideNorm::new(norm, width);
    let piece_len = PIECE_ELEMENTS.div_ceil(width) * width;
    let pieces = out.chunks(piece_len).into_iter().enumerate().collect();
    threads.for_each(pieces, |(piece, mut out): (usize, ElementsMut<'_>)| {
        let range = piece * piece_len..piece * piece_len + out.len();
        let (x, gates) = (&x[range.clone()], gates.part(range));
        gate_heads(threads.instructions(), x, &norm, gates, &mut out);
    });
}

dispatched! {
    fn gate_heads(
        x: &[f32],
        norm: &WideNorm,
        gates: OutputGates<'_>,
        out: &mut ElementsMut<'_>,
    ) = gate_heads_with
}

#[inline(always)]
fn gate_heads_with<S: Simd>(
    simd: S,
    x: &[f32],
    norm: &WideNorm,
    gates: OutputGates<'_>,
    out: &mut ElementsMut<'_>,
) {
    let width = norm.width;
    let mut head = vec![0.0; width];
    let of_heads = gates.values().chunks_exact(width);
    for (idx, (x, own)) in x.chunks_exact(width).zip(of_heads).enumerate() {
        head.copy_from_slice(x);
        norm.row(simd, &mut head);
        let values = head.iter_mut().zip(own);
        match gates {
            OutputGates::Silu(_) => values.for_each(|(value, gate)| *value *= silu::<S>(*gate)),
            OutputGates::Sigmoid(_) => {
                values.for_each(|(value, gate)| *value *= logistic::<S>(*gate));
            }
        }
        out.store(idx * width, &head);
    }
}

/// Multiplies each element of `x` by `gate * sigmoid(gate)`.
///
/// # Panics
/// Panics if the lengths differ.
#[track_caller]
pub fn silu_gate(x: &mut [f32], gates: &[f32], threads: &Threads) {
    let _span = threads.span("silu_gate", 0);
    assert_eq!(x.len(), gates.len(), "a gate for each element");
    let pieces = x.chunks_mut(PIECE_ELEMENTS).zip(gates.chunks(PIECE_ELEMENTS)).collect();
    threads.for_each(pieces, |(x, gates): (&mut [f32], &[f32])| {
        silu_gate_elements(threads.instructions(), x, gates);
    });
}

dispatched! {
    fn silu_gate_elements(x: &mut [f32], gates: &[f32]) = silu_gate_elements_with
}

#[inline(always)]
fn silu_gate_elements_with<S: Simd>(_simd: S, x: &mut [f32], gates: &[f32]) {
    for (value, gate) in x.iter_mut().zip(gates) {
        *value *= silu::<S>(*gate);
    }
}

/// `out = x * sigmoid(gate)`, element by element.
///
/// # Panics
/// Panics if a length does not fit.
#[track_caller]
pub fn sigmoid_gate(x: Elements<'_>, gates: &[f32], out: ElementsMut<'_>, threads: &Threads) {
    let _span = threads.span("sigmoid_gate", 0);
    assert!(x.len() == gates.len() && x.len() == out.len(), "a gate and a result for each element");
    let pieces = out.chunks(PIECE_ELEMENTS).into_iter().enumerate().collect();
    threads.for_each(pieces, |(piece, mut out): (usize, ElementsMut<'_>)| {
        let start = piece * PIECE_ELEMENTS;
        gate_elements(threads.instructions(), x, start, gates, &mut out);
    });
}

dispatched! {
    /// Computes the elements from `start` on.
    fn gate_elements(
        x: Elements<'_>,
        start: usize,
        gates: &[f32],
        out: &mut ElementsMut<'_>,
    ) = gate_elements_with
}

#[inline(always)]
fn gate_elements_with<S: Simd>(
    _simd: S,
    x: Elements<'_>,
    start: usize,
    gates: &[f32],
    out: &mut ElementsMut<'_>,
) {
    let mut values = vec![0.0; out.len()];
    x.load(start, &mut values);
    for (value, gate) in values.iter_mut().zip(&gates[start..]) {
        *value *= logistic::<S>(*gate);
    }
    out.store(0, &values);
}
