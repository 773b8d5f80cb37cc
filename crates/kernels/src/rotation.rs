//! Norms and rotations of queries and keys: computed in f32.

use std::sync::Arc;

use jackalope_simd::{Simd, Threads, dispatched, piece_rows};

use crate::norm::{NormParameters, WideNorm};

/// The rotation of each row's heads.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// Cosines `[rows, pairs]`.
    pub cos: &'a [f32],
    /// Sines `[rows, pairs]`.
    pub sin: &'a [f32],
    /// Number of elements of a head.
    pub head_dim: usize,
    /// Number of pairs of elements that are rotated: the first `2 * pairs` elements of a head.
    pub pairs: usize,
    /// Whether neighbours are rotated together, rather than the two halves of the rotated elements.
    pub is_traditional: bool,
}

/// Normalises, if there is a norm, and rotates `x` `[rows, heads, head_dim]` in place. The norm's weight
/// has `head_dim` elements, the same for all heads, or those of each head, `[heads, head_dim]`.
///
/// # Panics
/// If a length does not fit.
#[track_caller]
pub fn place_heads(
    x: &mut [f32],
    norm: Option<NormParameters<'_>>,
    rotation: Rotation<'_>,
    threads: &Threads,
) {
    let _span = threads.span("place_heads", 0);
    let Rotation { cos, sin, head_dim, pairs, .. } = rotation;
    assert!(head_dim > 0 && 2 * pairs <= head_dim, "{pairs} pairs in a head of {head_dim}");
    let weights = norm.and_then(|norm| norm.weight).map_or(head_dim, |weight| weight.len());
    // Without a rotation, rows matter only to weights of each head, which are as many as a row has elements.
    let num_rows = cos.len().checked_div(pairs).unwrap_or(x.len() / head_dim.max(weights));
    assert!(cos.len() == sin.len() && cos.len() == num_rows * pairs, "rows of angles");
    if x.is_empty() {
        return;
    }
    assert!(num_rows > 0 && x.len().is_multiple_of(num_rows * head_dim), "whole heads of each row");
    let width = x.len() / num_rows;
    assert!(weights == head_dim || weights == width, "a weight for each element");
    let norm = norm.map(|norm| WideNorm::new(norm, weights));
    let pieces = x.chunks_mut(piece_rows(width) * width).enumerate().collect();
    threads.for_each(pieces, |(piece, rows): (usize, &mut [f32])| {
        let first_row = piece * piece_rows(width);
        let work = Placing { norm: norm.as_ref(), rotation, width, weights };
        place_rows(threads.instructions(), rows, first_row, &work);
    });
}

/// The norm and rotation that [`place_heads`] applies to heads.
struct Placing<'a> {
    norm: Option<&'a WideNorm>,
    rotation: Rotation<'a>,
    /// Number of elements of a row.
    width: usize,
    /// Number of weights of the norm.
    weights: usize,
}

dispatched! {
    fn place_rows(x: &mut [f32], first_row: usize, work: &Placing<'_>) = place_rows_with
}

#[inline(always)]
fn place_rows_with<S: Simd>(simd: S, x: &mut [f32], first_row: usize, work: &Placing<'_>) {
    let Placing { norm, rotation, width, weights } = work;
    let head_dim = rotation.head_dim;
    for (idx, row) in x.chunks_exact_mut(*width).enumerate() {
        for (head_idx, head) in row.chunks_exact_mut(head_dim).enumerate() {
            if let Some(norm) = norm {
                norm.row_from(simd, head, head_idx * head_dim % weights);
            }
            rotate(head, rotation, first_row + idx);
        }
    }
}

/// Rotates a head of a row.
#[inline(always)]
fn rotate(head: &mut [f32], rotation: &Rotation<'_>, row: usize) {
    let pairs = rotation.pairs;
    let angles = row * pairs..(row + 1) * pairs;
    let (cos, sin) = (&rotation.cos[angles.clone()], &rotation.sin[angles]);
    let rotated = &mut head[..2 * pairs];
    if rotation.is_traditional {
        rotate_neighbours(rotated, cos, sin);
    } else {
        rotate_halves(rotated, cos, sin);
    }
}

#[inline(always)]
fn rotate_neighbours(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    for ((pair, cos), sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
        let [a, b] = *pair;
        *pair = [a * cos - b * sin, a * sin + b * cos];
    }
}

#[inline(always)]
fn rotate_halves(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}

/// The angles of a rotation, for heads that are rotated one by one.
#[derive(Clone, Debug)]
pub struct Angles {
    /// Angles per position, one for each pair.
    radians: Arc<[f64]>,
    /// Factor of rotated elements.
    magnitude: f64,
    is_traditional: bool,
}

impl Angles {
    /// Creates the rotation from the angles per position of each pair, a factor of rotated elements, and
    /// whether neighbours are pairs instead of one element from each half.
    pub fn new(radians: &[f64], magnitude: f64, is_traditional: bool) -> Angles {
        Angles { radians: radians.into(), magnitude, is_traditional }
    }

    /// Rotates the first elements of a head as at `position`.
    pub fn rotate(&self, head: &mut [f32], position: usize) {
        let positions = std::iter::once(position);
        let table =
            RotationTable::new(&self.radians, self.magnitude, self.is_traditional, positions);
        rotate(head, &table.rotation(head.len()), 0);
    }
}

/// The cosines and sines of a step's rows.
#[derive(Debug)]
pub struct RotationTable {
    /// Number of pairs of elements that are rotated.
    pairs: usize,
    is_traditional: bool,
    cos: Vec<f32>, // [tokens, pairs]
    sin: Vec<f32>,
}

impl RotationTable {
    /// Computes the table for rows at `positions`, from the angles per position of each pair and a factor of
    /// rotated elements.
    pub fn new(
        radians: &[f64],
        magnitude: f64,
        is_traditional: bool,
        positions: impl Iterator<Item = usize>,
    ) -> RotationTable {
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in positions {
            for radians in radians {
                let (s, c) = (position as f64 * radians).sin_cos();
                cos.push((c * magnitude) as f32);
                sin.push((s * magnitude) as f32);
            }
        }
        RotationTable { pairs: radians.len(), is_traditional, cos, sin }
    }

    /// Returns the table in the form that the kernels take, for heads of `head_dim` elements.
    pub fn rotation(&self, head_dim: usize) -> Rotation<'_> {
        let RotationTable { pairs, is_traditional, .. } = *self;
        Rotation { cos: &self.cos, sin: &self.sin, head_dim, pairs, is_traditional }
    }
}
