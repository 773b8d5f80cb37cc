//! Operations on single rows or elements between the matrix products: computed in f32, rounded
//! once.

use crate::attention::exp::exp;
use crate::elements::{Elements, ElementsMut};
use crate::simd::{LANES, Simd, dispatched};
use crate::threads::Threads;

/// Number of elements below which the calling thread computes alone.
const PIECE_ELEMENTS: usize = 1 << 13;

/// Number of elements that are converted at a time.
const CHUNK: usize = 256;

/// Returns the number of rows of a piece of work.
fn piece_rows(width: usize) -> usize {
    PIECE_ELEMENTS.div_ceil(width)
}

/// `out = x / sqrt(mean(x²) + eps) * weight` for each row of as many elements as there are weights.
///
/// # Panics
/// If a length does not fit.
#[track_caller]
pub fn rms_norm(
    x: Elements<'_>,
    weight: Elements<'_>,
    eps: f32,
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    let _span = threads.span("rms_norm", 0);
    let width = weight.len();
    assert!(width > 0 && x.len().is_multiple_of(width), "whole rows of {width}");
    assert_eq!(x.len(), out.len(), "as many results as elements");
    let weight = weight.to_f32();
    let pieces = out.chunks(piece_rows(width) * width).into_iter().enumerate().collect();
    threads.for_each(pieces, |(piece, mut out)| {
        let start = piece * piece_rows(width) * width;
        norm_rows(threads.instructions(), x, start, (&weight, eps), &mut out);
    });
}

dispatched! {
    /// Normalises the rows from element `start` on.
    fn norm_rows(x: Elements<'_>, start: usize, norm: (&[f32], f32), out: &mut ElementsMut<'_>) = norm_rows_with
}

#[inline(always)]
fn norm_rows_with<S: Simd>(
    simd: S,
    x: Elements<'_>,
    start: usize,
    norm: (&[f32], f32),
    out: &mut ElementsMut<'_>,
) {
    let mut row = vec![0.0; norm.0.len()];
    for offset in (0..out.len()).step_by(row.len()) {
        x.load(start + offset, &mut row);
        norm_row(simd, &mut row, norm);
        out.store(offset, &row);
    }
}

/// Normalises one row in place. The sum has eight lanes, as in every dot product.
#[inline(always)]
pub(crate) fn norm_row<S: Simd>(simd: S, row: &mut [f32], (weight, eps): (&[f32], f32)) {
    let (whole, rest) = row.as_chunks::<LANES>();
    let mut last = [0.0; LANES];
    last[..rest.len()].copy_from_slice(rest);
    let mut sums = simd.splat(0.0);
    for lanes in whole.iter().chain([&last]) {
        let lanes = simd.load(lanes);
        sums = simd.mul_add(lanes, lanes, sums);
    }
    let scale = 1.0 / (simd.sum(sums) / row.len() as f32 + eps).sqrt();
    for (value, weight) in row.iter_mut().zip(weight) {
        *value = *value * scale * weight;
    }
}

/// `out = gate * sigmoid(gate) * up`, element by element.
///
/// # Panics
/// If a length does not fit.
#[track_caller]
pub fn swiglu(gate: &[f32], up: &[f32], out: ElementsMut<'_>, threads: &Threads) {
    let _span = threads.span("swiglu", 0);
    assert_eq!(gate.len(), up.len(), "as many gates as values");
    assert_eq!(gate.len(), out.len(), "as many results as values");
    let pieces = out.chunks(PIECE_ELEMENTS).into_iter().enumerate().collect();
    threads.for_each(pieces, |(piece, mut out)| {
        let range = piece * PIECE_ELEMENTS..piece * PIECE_ELEMENTS + out.len();
        gate_piece(threads.instructions(), &gate[range.clone()], &up[range], &mut out);
    });
}

dispatched! {
    fn gate_piece(gate: &[f32], up: &[f32], out: &mut ElementsMut<'_>) = gate_piece_with
}

#[inline(always)]
fn gate_piece_with<S: Simd>(_simd: S, gate: &[f32], up: &[f32], out: &mut ElementsMut<'_>) {
    let mut values = [0.0; CHUNK];
    for start in (0..gate.len()).step_by(CHUNK) {
        let end = (start + CHUNK).min(gate.len());
        let values = &mut values[..end - start];
        for ((value, gate), up) in values.iter_mut().zip(&gate[start..end]).zip(&up[start..end]) {
            // The exponential of a negative number cannot overflow.
            let power = exp::<S>(-gate.abs());
            let numerator = if *gate < 0.0 { power } else { 1.0 };
            *value = gate * (numerator / (1.0 + power)) * up;
        }
        out.store(start, values);
    }
}

/// Terms that are added to a product before it is rounded.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// The residual, of the same length as the product.
    pub residual: Elements<'a>,
    /// Added to every row, before the residual.
    pub bias: Option<Elements<'a>>,
}

/// `out = product + bias + residual`. The product is rounded to f32, and the sum, computed in f32,
/// is rounded once.
///
/// # Panics
/// If a length does not fit.
#[track_caller]
pub fn add_terms(product: &[f64], terms: Terms<'_>, out: ElementsMut<'_>, threads: &Threads) {
    let _span = threads.span("add_terms", 0);
    let Terms { residual, bias } = terms;
    assert_eq!(product.len(), out.len(), "as many results as products");
    assert_eq!(product.len(), residual.len(), "a residual for each product");
    let bias = bias.map(|bias| bias.to_f32());
    let width = bias.as_ref().map_or(CHUNK, Vec::len);
    assert!(0 < width && (bias.is_none() || product.len().is_multiple_of(width)), "whole rows");
    let piece_len = piece_rows(width) * width;
    let pieces = out.chunks(piece_len).into_iter().enumerate().collect();
    threads.for_each(pieces, |(piece, mut out)| {
        let start = piece * piece_len;
        let product = &product[start..start + out.len()];
        add_piece(
            threads.instructions(),
            product,
            bias.as_deref(),
            (residual, start),
            (width, &mut out),
        );
    });
}

dispatched! {
    fn add_piece(
        product: &[f64],
        bias: Option<&[f32]>,
        residual: (Elements<'_>, usize),
        out: (usize, &mut ElementsMut<'_>),
    ) = add_piece_with
}

#[inline(always)]
fn add_piece_with<S: Simd>(
    _simd: S,
    product: &[f64],
    bias: Option<&[f32]>,
    (residual, start): (Elements<'_>, usize),
    (width, out): (usize, &mut ElementsMut<'_>),
) {
    let (mut sums, mut terms) = ([0.0; CHUNK], [0.0; CHUNK]);
    for (idx, row) in product.chunks(width).enumerate() {
        for (part, row) in row.chunks(CHUNK).enumerate() {
            let offset = idx * width + part * CHUNK;
            let (sums, terms) = (&mut sums[..row.len()], &mut terms[..row.len()]);
            for (sum, product) in sums.iter_mut().zip(row) {
                *sum = *product as f32;
            }
            if let Some(bias) = bias {
                add(sums, &bias[part * CHUNK..]);
            }
            residual.load(start + offset, terms);
            add(sums, terms);
            out.store(offset, sums);
        }
    }
}

/// `x += bias` for rows of as many elements.
///
/// # Panics
/// If a length does not fit.
#[track_caller]
pub fn add_bias(x: &mut [f32], bias: Elements<'_>, threads: &Threads) {
    let _span = threads.span("add_bias", 0);
    let bias = bias.to_f32();
    assert!(!bias.is_empty() && x.len().is_multiple_of(bias.len()), "whole rows of {}", bias.len());
    let pieces = x.chunks_mut(piece_rows(bias.len()) * bias.len()).collect();
    threads.for_each(pieces, |rows: &mut [f32]| {
        rows.chunks_exact_mut(bias.len()).for_each(|row| add(row, &bias));
    });
}

#[inline(always)]
fn add(sums: &mut [f32], terms: &[f32]) {
    for (sum, term) in sums.iter_mut().zip(terms) {
        *sum += term;
    }
}

/// The rotation of each row's heads.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// Cosines `[rows, pairs]`.
    pub cos: &'a [f32],
    /// Sines, as `cos`.
    pub sin: &'a [f32],
    /// Elements of a head.
    pub head_dim: usize,
    /// Number of pairs of elements that are rotated: the first `2 * pairs` elements of a head.
    pub pairs: usize,
    /// Whether neighbours are rotated together, rather than the two halves of the rotated elements.
    pub is_traditional: bool,
}

/// The norm of each head before it is rotated.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorm<'a> {
    /// `[head_dim]`.
    pub weight: Elements<'a>,
    /// Added to the mean of the squares.
    pub eps: f32,
}

/// Normalises, if there is a norm, and rotates `x` `[rows, heads, head_dim]` in place.
///
/// # Panics
/// If a length does not fit.
#[track_caller]
pub fn place_heads(
    x: &mut [f32],
    norm: Option<HeadNorm<'_>>,
    rotation: Rotation<'_>,
    threads: &Threads,
) {
    let _span = threads.span("place_heads", 0);
    let Rotation { cos, sin, head_dim, pairs, .. } = rotation;
    assert!(head_dim > 0 && 2 * pairs <= head_dim, "{pairs} pairs in a head of {head_dim}");
    let num_rows = cos.len().checked_div(pairs).unwrap_or(x.len() / head_dim);
    assert!(cos.len() == sin.len() && cos.len() == num_rows * pairs, "rows of angles");
    assert!(norm.is_none_or(|norm| norm.weight.len() == head_dim), "a weight for each element");
    if x.is_empty() {
        return;
    }
    assert!(num_rows > 0 && x.len().is_multiple_of(num_rows * head_dim), "whole heads of each row");
    let width = x.len() / num_rows;
    let weight = norm.map(|norm| (norm.weight.to_f32(), norm.eps));
    let pieces = x.chunks_mut(piece_rows(width) * width).enumerate().collect();
    threads.for_each(pieces, |(piece, rows): (usize, &mut [f32])| {
        let first_row = piece * piece_rows(width);
        let norm = weight.as_ref().map(|(weight, eps)| (weight.as_slice(), *eps));
        place_rows(threads.instructions(), rows, first_row, norm, (width, rotation));
    });
}

dispatched! {
    fn place_rows(
        x: &mut [f32],
        first_row: usize,
        norm: Option<(&[f32], f32)>,
        rotation: (usize, Rotation<'_>),
    ) = place_rows_with
}

#[inline(always)]
fn place_rows_with<S: Simd>(
    simd: S,
    x: &mut [f32],
    first_row: usize,
    norm: Option<(&[f32], f32)>,
    (width, rotation): (usize, Rotation<'_>),
) {
    let pairs = rotation.pairs;
    for (idx, row) in x.chunks_exact_mut(width).enumerate() {
        let angles = (first_row + idx) * pairs..(first_row + idx + 1) * pairs;
        let (cos, sin) = (&rotation.cos[angles.clone()], &rotation.sin[angles]);
        for head in row.chunks_exact_mut(rotation.head_dim) {
            if let Some(norm) = norm {
                norm_row(simd, head, norm);
            }
            let rotated = &mut head[..2 * pairs];
            if rotation.is_traditional {
                rotate_neighbours(rotated, cos, sin);
            } else {
                rotate_halves(rotated, cos, sin);
            }
        }
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
