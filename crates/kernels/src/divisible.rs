//! Products whose columns can be divided among machines without changing the result.
//!
//! The sum of a result is cut into *terms*: up to eight neighbouring groups of packed weights, or
//! chunks of columns if the product is computed in f32. A term is an f32 that depends only on its own
//! columns. It is rounded to a multiple of [`crate::GRID`]. Such multiples add up exactly in f64, so the sum has the same
//! bits in any order and for any distribution over machines.
//!
//! ```text
//!   any of the terms sum to less than 2^20:  exact, so the parts add up to the whole
//!   larger sums:                             rounded as f64; parts may differ by 2^-52 of the sum
//!   infinite, or not a number:               as in IEEE 754
//! ```
//!
//! Rounding changes each term by at most half of [`crate::GRID`], 2^-31, whereas the elements of residual
//! streams are about one and are rounded to 2^-9 (bf16) or 2^-12 (f16) of themselves.

use std::ops::Range;

use jackalope_simd::{Elements, ElementsMut, Matrix, Threads, cut_matrix_rows};

use crate::matmul::{Inputs, RowProducts, Rows, Task, TermColumns, multiply, multiply_in_f32};
use crate::panel::{Activations, Columns};

/// Adds `x[tokens, matrix.input] · matrixᵀ` to `sums[tokens, matrix.out]`, for a part of the columns of a
/// product. The sum of the parts' results in f64, in any order, has the same bits as the result for
/// all columns (see the module).
///
/// Every part begins at a multiple of the number of columns in `terms`. That number is the same for
/// all parts, and a multiple of the group size if the weights are packed. In a product computed in
/// f32 it is the number of columns of a term; otherwise, that many columns are one or several whole
/// terms. With [`TermColumns::Whole`], each part is rounded to f32 instead, so the last bits of the
/// sum depend on the division.
///
/// Activations are rounded as by [`crate::matmul_each`], except that a value that cannot be rounded
/// affects only its group.
///
/// # Panics
/// If a length does not fit, or the format is not one of MLX's.
#[track_caller]
pub fn divisible_matmul(
    x: Elements<'_>,
    matrix: &Matrix<'_>,
    terms: TermColumns,
    sums: &mut [f64],
    threads: &Threads,
) {
    let is_quantized = matrix.format().is_some();
    let name = if is_quantized { "quantized_matmul" } else { "matmul" };
    let _span = threads.span(name, matrix.bytes());
    matrix.assert_valid();
    let group_size = matrix.format().map_or(1, |format| format.group_size as usize);
    if let TermColumns::Divided(columns) = terms {
        assert!(0 < columns && columns.is_multiple_of(group_size), "terms of whole groups");
    }
    let (num_rows, input) = (matrix.num_rows(), matrix.input());
    if input == 0 || num_rows == 0 {
        return;
    }
    let tokens = x.len() / input;
    assert_eq!(x.len(), tokens * input, "activations: whole rows of {input}");
    assert_eq!(sums.len(), tokens * num_rows, "sums of {tokens} tokens for {num_rows} rows");
    if tokens == 0 {
        return;
    }
    let tokens: Vec<usize> = (0..tokens).collect();
    add_products(&[Summand { x, matrix: *matrix, tokens: &tokens }], terms, sums, threads);
}

/// A product that is added to some rows of sums.
pub(crate) struct Summand<'a> {
    /// Rows of activations, `[rows, input]`.
    pub(crate) x: Elements<'a>,
    pub(crate) matrix: Matrix<'a>,
    /// The row of sums for each row of activations, each one once.
    pub(crate) tokens: &'a [usize],
}

impl Summand<'_> {
    /// Adds the results for some rows of the matrix to their places in `sums`, a view of each token's.
    fn add(&self, inputs: &Inputs, rows: Range<usize>, sums: &mut [&mut [f64]], threads: &Threads) {
        let mut own: Vec<&mut [f64]> =
            self.tokens.iter().map(|token| std::mem::take(&mut sums[*token])).collect();
        inputs.multiply_rows(&self.matrix, rows, &mut own, threads.instructions());
        self.tokens.iter().zip(own).for_each(|(token, view)| sums[*token] = view);
    }

    /// Adds the term of a group whose activations cannot be rounded, computed in f32, to the sums of row
    /// `row` of the activations.
    fn add_group(&self, row: usize, group: usize, sums: &mut [f64], threads: &Threads) {
        let (num_rows, input) = (self.matrix.num_rows(), self.matrix.input());
        let group_size = self.matrix.format().map_or(1, |format| format.group_size as usize);
        let first = group * group_size;
        let x = self.x.part(row * input + first..row * input + first + group_size);
        let columns = Columns { range: first..first + group_size, chunk: group_size };
        let sums = &mut sums[self.tokens[row] * num_rows..][..num_rows];
        let product = RowProducts { matrix: self.matrix, out: vec![sums] };
        multiply_in_f32(Activations::new(x, columns, threads), vec![product], threads);
    }
}

/// Some columns of the sums, with a view of each token's.
struct Piece<'a> {
    rows: Range<usize>,
    sums: Vec<&'a mut [f64]>,
}

/// Adds all products to `sums` `[tokens, features]`, where every matrix has as many rows as there are
/// features.
pub(crate) fn add_products(
    summands: &[Summand<'_>],
    terms: TermColumns,
    sums: &mut [f64],
    threads: &Threads,
) {
    if summands.is_empty() {
        return;
    }
    if let TermColumns::Whole = terms {
        return add_whole(summands, sums, threads);
    }
    let products = summands.iter().map(|it| (Rows::All(it.x), it.matrix)).collect();
    let inputs = Inputs::of_each(products, terms, threads);
    add_in_place(summands, &inputs, sums, threads);
    for (summand, inputs) in summands.iter().zip(&inputs) {
        for (row, group) in inputs.unrounded_groups() {
            summand.add_group(row, group, sums, threads);
        }
    }
}

/// Adds each product to the sums as it is computed. Each thread has some of the features for itself.
fn add_in_place(summands: &[Summand<'_>], inputs: &[Inputs], sums: &mut [f64], threads: &Threads) {
    let features = summands[0].matrix.num_rows();
    let row_macs = summands.iter().map(|it| it.tokens.len() * it.matrix.input()).sum();
    let cuts = cut_matrix_rows(features, 0, row_macs, threads.count()).into_iter();
    let mut pieces: Vec<Piece<'_>> = cuts.map(|rows| Piece { rows, sums: Vec::new() }).collect();
    for mut rest in sums.chunks_exact_mut(features) {
        for piece in &mut pieces {
            let (view, others) = rest.split_at_mut(piece.rows.len());
            piece.sums.push(view);
            rest = others;
        }
    }
    threads.for_each(pieces, |Piece { rows, mut sums }| {
        for (summand, inputs) in summands.iter().zip(inputs) {
            summand.add(inputs, rows.clone(), &mut sums, threads);
        }
    });
}

/// Adds all products in their order, each rounded to f32.
fn add_whole(summands: &[Summand<'_>], sums: &mut [f64], threads: &Threads) {
    let mut rounded: Vec<Vec<f32>> =
        summands.iter().map(|it| vec![0.0; it.tokens.len() * it.matrix.num_rows()]).collect();
    let tasks = summands.iter().zip(&mut rounded).map(|(Summand { x, matrix, .. }, buffer)| {
        let out = ElementsMut::F32(buffer).chunks(matrix.num_rows());
        Task { x: Rows::All(*x), products: vec![RowProducts { matrix: *matrix, out }] }
    });
    multiply(tasks.collect(), threads);
    for (Summand { matrix, tokens, .. }, values) in summands.iter().zip(&rounded) {
        let features = matrix.num_rows();
        for (token, values) in tokens.iter().zip(values.chunks_exact(features)) {
            let sums = sums[token * features..].iter_mut();
            sums.zip(values).for_each(|(sum, value)| *sum += f64::from(*value));
        }
    }
}
