//! Normalisation of rows: computed in f32, rounded once.

use jackalope_simd::{Elements, ElementsMut, LANES, Simd, Threads, dispatched, piece_rows};

/// A normalisation of rows of one width.
#[derive(Clone, Copy, Debug)]
pub struct NormParameters<'a> {
    /// Whether the mean is subtracted first, as in layer normalisation (Ba et al. 2016); otherwise it
    /// is root-mean-square normalisation (Zhang and Sennrich 2019).
    pub is_centred: bool,
    /// Factor of each element; `None` if it is one.
    pub weight: Option<Elements<'a>>,
    /// Bias, added to each element at the end, if there is one.
    pub bias: Option<Elements<'a>>,
    /// Epsilon added to the mean of the squares.
    pub eps: f32,
}

/// A [`NormParameters`] whose vectors are converted.
#[derive(Clone, Debug)]
pub(crate) struct WideNorm {
    /// Number of elements of the vectors.
    pub(crate) width: usize,
    is_centred: bool,
    weight: Option<Vec<f32>>,
    bias: Option<Vec<f32>>,
    eps: f32,
}

impl WideNorm {
    /// Converts the vectors of a norm of rows of `width` elements.
    ///
    /// # Panics
    /// If a vector has another length.
    #[track_caller]
    pub(crate) fn new(norm: NormParameters<'_>, width: usize) -> WideNorm {
        let NormParameters { is_centred, weight, bias, eps } = norm;
        let fits = |vector: &Option<Elements<'_>>| vector.is_none_or(|it| it.len() == width);
        assert!(fits(&weight) && fits(&bias), "a weight for each of {width} elements");
        let [weight, bias] = [weight, bias].map(|it| it.map(|vector| vector.to_f32()));
        WideNorm { width, is_centred, weight, bias, eps }
    }

    /// Normalises one row in place. Sums have eight lanes, as in every dot product.
    #[inline(always)]
    pub(crate) fn row<S: Simd>(&self, simd: S, row: &mut [f32]) {
        self.row_from(simd, row, 0);
    }

    /// Like [`WideNorm::row`], with the weights from `first` on.
    #[inline(always)]
    pub(crate) fn row_from<S: Simd>(&self, simd: S, row: &mut [f32], first: usize) {
        if self.is_centred {
            let mean = sum(simd, row) / row.len() as f32;
            row.iter_mut().for_each(|value| *value -= mean);
        }
        let scale = 1.0 / (sum_of_squares(simd, row) / row.len() as f32 + self.eps).sqrt();
        match &self.weight {
            Some(weight) => {
                for (value, weight) in row.iter_mut().zip(&weight[first..]) {
                    *value = *value * scale * weight;
                }
            }
            None => row.iter_mut().for_each(|value| *value *= scale),
        }
        if let Some(bias) = &self.bias {
            row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
    }
}

/// Returns the vectors of a row; the last one is filled up with zeros.
#[inline(always)]
fn vectors(row: &[f32]) -> (&[[f32; LANES]], [f32; LANES]) {
    let (whole, rest) = row.as_chunks::<LANES>();
    let mut last = [0.0; LANES];
    last[..rest.len()].copy_from_slice(rest);
    (whole, last)
}

#[inline(always)]
fn sum<S: Simd>(simd: S, row: &[f32]) -> f32 {
    let (whole, last) = vectors(row);
    let one = simd.splat(1.0);
    let sums = whole.iter().chain([&last]).fold(simd.splat(0.0), |sums, lanes| {
        // A product with one is exact.
        simd.mul_add(simd.load(lanes), one, sums)
    });
    simd.sum(sums)
}

#[inline(always)]
fn sum_of_squares<S: Simd>(simd: S, row: &[f32]) -> f32 {
    let (whole, last) = vectors(row);
    let sums = whole.iter().chain([&last]).fold(simd.splat(0.0), |sums, lanes| {
        let lanes = simd.load(lanes);
        simd.mul_add(lanes, lanes, sums)
    });
    simd.sum(sums)
}

/// Normalises each row of `width` elements.
///
/// # Panics
/// If a length does not fit.
#[track_caller]
pub fn normalize(
    x: Elements<'_>,
    norm: NormParameters<'_>,
    width: usize,
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    let _span = threads.span("norm", 0);
    assert!(width > 0 && x.len().is_multiple_of(width), "whole rows of {width}");
    assert_eq!(x.len(), out.len(), "as many results as elements");
    let norm = WideNorm::new(norm, width);
    let pieces = out.chunks(piece_rows(width) * width).into_iter().enumerate().collect();
    threads.for_each(pieces, |(piece, mut out)| {
        let start = piece * piece_rows(width) * width;
        let x = x.part(start..start + out.len());
        norm_rows(threads.instructions(), x, &norm, &mut out);
    });
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
    let norm = NormParameters { is_centred: false, weight: Some(weight), bias: None, eps };
    normalize(x, norm, weight.len(), out, threads);
}

dispatched! {
    fn norm_rows(
        x: Elements<'_>,
        norm: &WideNorm,
        out: &mut ElementsMut<'_>,
    ) = norm_rows_with
}

#[inline(always)]
fn norm_rows_with<S: Simd>(simd: S, x: Elements<'_>, norm: &WideNorm, out: &mut ElementsMut<'_>) {
    let mut row = vec![0.0; norm.width];
    for offset in (0..out.len()).step_by(norm.width) {
        x.load(offset, &mut row);
        norm.row(simd, &mut row);
        out.store(offset, &row);
    }
}
