//! Sums of products, biases and residuals: computed in f32, rounded once.

use jackalope_simd::{CHUNK, Elements, ElementsMut, Simd, Threads, dispatched, piece_rows};

use crate::norm::{NormParameters, WideNorm};

/// NormParameters, factor and terms that are applied to a product before it is rounded.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// The residual, of the same length as the product.
    pub residual: Elements<'a>,
    /// Bias, added to every row of the product.
    pub bias: Option<Elements<'a>>,
    /// NormParameters of the rows of the product and the bias, of `width` elements, if there is one.
    pub norm: Option<NormParameters<'a>>,
    /// Factor of the product with bias and norm, before the residual is added.
    pub factor: f32,
    /// Factor of the sum with the residual.
    pub scale: f32,
    /// Number of elements of a row.
    pub width: usize,
}

/// [`Terms`] whose vectors are converted.
struct WideTerms<'a> {
    residual: Elements<'a>,
    bias: Option<Vec<f32>>,
    norm: Option<WideNorm>,
    factor: f32,
    scale: f32,
    width: usize,
}

/// `out = scale * (residual + factor * norm(product + bias))`. The product is rounded to f32, and the rest,
/// computed in f32, is rounded once.
///
/// # Panics
/// If a length does not fit.
#[track_caller]
pub fn add_terms(product: &[f64], terms: Terms<'_>, out: ElementsMut<'_>, threads: &Threads) {
    let _span = threads.span("add_terms", 0);
    let Terms { residual, bias, norm, factor, scale, width } = terms;
    assert_eq!(product.len(), out.len(), "as many results as products");
    assert_eq!(product.len(), residual.len(), "a residual for each product");
    assert!(0 < width && product.len().is_multiple_of(width), "whole rows");
    assert!(bias.is_none_or(|bias| bias.len() == width), "a bias for each element of a row");
    let norm = norm.map(|norm| WideNorm::new(norm, width));
    let bias = bias.map(|bias| bias.to_f32());
    let terms = WideTerms { residual, bias, norm, factor, scale, width };
    let piece_len = piece_rows(width) * width;
    let pieces = out.chunks(piece_len).into_iter().enumerate().collect();
    threads.for_each(pieces, |(piece, mut out)| {
        let start = piece * piece_len;
        let product = &product[start..start + out.len()];
        add_piece(threads.instructions(), product, &terms, start, &mut out);
    });
}

dispatched! {
    fn add_piece(
        product: &[f64],
        terms: &WideTerms<'_>,
        start: usize,
        out: &mut ElementsMut<'_>,
    ) = add_piece_with
}

#[inline(always)]
fn add_piece_with<S: Simd>(
    simd: S,
    product: &[f64],
    terms: &WideTerms<'_>,
    start: usize,
    out: &mut ElementsMut<'_>,
) {
    let WideTerms { residual, bias, norm, factor, scale, width } = terms;
    let (mut sums, mut terms) = (vec![0.0; *width], [0.0; CHUNK]);
    for (idx, row) in product.chunks(*width).enumerate() {
        for (sum, product) in sums.iter_mut().zip(row) {
            *sum = *product as f32;
        }
        if let Some(bias) = bias {
            add(&mut sums, bias);
        }
        if let Some(norm) = norm {
            norm.row(simd, &mut sums);
        }
        if *factor != 1.0 {
            sums.iter_mut().for_each(|sum| *sum *= factor);
        }
        for (part, sums) in sums.chunks_mut(CHUNK).enumerate() {
            let offset = idx * width + part * CHUNK;
            let terms = &mut terms[..sums.len()];
            residual.load(start + offset, terms);
            add(sums, terms);
            if *scale != 1.0 {
                sums.iter_mut().for_each(|sum| *sum *= scale);
            }
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
