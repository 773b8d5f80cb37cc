//! Weight matrices in the forms in which they are held.

use std::ops::Range;

use crate::elements::Elements;
use crate::quant::{QuantFormat, QuantMatrix};

/// A plain matrix `[out, input]`; it multiplies as its transpose.
#[derive(Clone, Copy, Debug)]
pub struct DenseMatrix<'a> {
    /// Output features: rows of the matrix.
    pub out: usize,
    /// Input features: columns.
    pub input: usize,
    /// The elements, row by row.
    pub values: Elements<'a>,
}

impl<'a> DenseMatrix<'a> {
    /// Returns some rows as a matrix.
    #[inline]
    pub fn rows(&self, rows: Range<usize>) -> DenseMatrix<'a> {
        let DenseMatrix { input, values, .. } = *self;
        let values = values.part(rows.start * input..rows.end * input);
        DenseMatrix { out: rows.len(), input, values }
    }

    /// Panics, at the caller's line, unless shape and lengths agree.
    #[track_caller]
    pub fn assert_valid(&self) {
        assert_eq!(self.values.len(), self.out * self.input, "elements of a dense matrix");
    }
}

/// A matrix `[out, input]` in one of the forms in which weights are held; it multiplies as its transpose.
#[derive(Clone, Copy, Debug)]
pub enum Matrix<'a> {
    /// Floats.
    Dense(DenseMatrix<'a>),
    /// Packed codes with a scale for each group.
    Quantized(QuantMatrix<'a>),
}

impl<'a> Matrix<'a> {
    /// Returns some rows as a matrix.
    #[inline]
    pub fn rows(&self, rows: Range<usize>) -> Matrix<'a> {
        match self {
            Matrix::Dense(matrix) => Matrix::Dense(matrix.rows(rows)),
            Matrix::Quantized(matrix) => Matrix::Quantized(matrix.rows(rows)),
        }
    }

    /// Rows of the matrix: output features, or ids of an embedding.
    #[inline]
    pub fn num_rows(&self) -> usize {
        match self {
            Matrix::Dense(matrix) => matrix.out,
            Matrix::Quantized(matrix) => matrix.out,
        }
    }

    /// Columns of the matrix: input features, or the width of an embedding.
    #[inline]
    pub fn input(&self) -> usize {
        match self {
            Matrix::Dense(matrix) => matrix.input,
            Matrix::Quantized(matrix) => matrix.input,
        }
    }

    /// Returns the format of packed codes.
    #[inline]
    pub fn format(&self) -> Option<QuantFormat> {
        match self {
            Matrix::Dense(_) => None,
            Matrix::Quantized(matrix) => Some(matrix.format),
        }
    }

    /// Size of the weights in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        match self {
            Matrix::Dense(matrix) => matrix.values.bytes(),
            Matrix::Quantized(matrix) => matrix.bytes(),
        }
    }

    /// Panics, at the caller's line, unless shape and lengths agree.
    #[track_caller]
    pub fn assert_valid(&self) {
        match self {
            Matrix::Dense(matrix) => matrix.assert_valid(),
            Matrix::Quantized(matrix) => matrix.assert_valid(),
        }
    }
}
