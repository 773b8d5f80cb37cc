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

use jackalope_simd::{Elements, ElementsMut, Matrix, Threads};

use crate::matmul::{
    Inputs, RowProducts, Task, TermColumns, multiply, multiply_in_f32, multiply_prepared,
};
use crate::panel::{Activations, Columns};

/// `out[tokens, matrix.out] = x[tokens, matrix.input] · matrixᵀ` for a part of the columns of a
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
    out: &mut [f64],
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
        return out.fill(0.0);
    }
    let tokens = x.len() / input;
    assert_eq!(x.len(), tokens * input, "activations: whole rows of {input}");
    assert_eq!(out.len(), tokens * num_rows, "results of {tokens} tokens for {num_rows} rows");
    if tokens == 0 {
        return;
    }
    let products =
        vec![RowProducts { matrix: *matrix, out: out.chunks_exact_mut(num_rows).collect() }];
    multiply_divided(vec![Task { x, products }], terms, threads);
}

/// Computes the products of all tasks in one job.
pub(crate) fn multiply_divided(
    mut tasks: Vec<Task<'_, &mut [f64]>>,
    terms: TermColumns,
    threads: &Threads,
) {
    if let TermColumns::Whole = terms {
        return multiply_whole(&mut tasks, threads);
    }
    let inputs = Inputs::of_tasks(&tasks, terms, threads);
    let all = tasks.iter_mut().map(|task| task.products.iter_mut().map(reborrow).collect());
    multiply_prepared(&inputs, all.collect(), threads);
    for (task, inputs) in tasks.iter_mut().zip(&inputs) {
        let x = task.x;
        for product in &mut task.products {
            for (token, group) in inputs.unrounded_groups() {
                add_group(x, product, token, group, threads);
            }
        }
    }
}

/// Computes the products of all tasks, rounded to f32, in one job.
fn multiply_whole(tasks: &mut [Task<'_, &mut [f64]>], threads: &Threads) {
    let products = tasks.iter().flat_map(|task| &task.products);
    let mut rounded: Vec<Vec<f32>> =
        products.map(|it| vec![0.0; it.out.len() * it.matrix.num_rows()]).collect();
    let mut buffers = rounded.iter_mut();
    let whole = tasks.iter().map(|task| {
        let products = task.products.iter().zip(&mut buffers).map(|(product, buffer)| {
            let out = ElementsMut::F32(buffer).chunks(product.matrix.num_rows());
            RowProducts { matrix: product.matrix, out }
        });
        Task { x: task.x, products: products.collect() }
    });
    multiply(whole.collect(), threads);
    let products = tasks.iter_mut().flat_map(|task| &mut task.products);
    for (product, values) in products.zip(&rounded) {
        let rows = values.chunks_exact(product.matrix.num_rows());
        for (out, values) in product.out.iter_mut().zip(rows) {
            out.iter_mut().zip(values).for_each(|(out, value)| *out = f64::from(*value));
        }
    }
}

fn reborrow<'b>(product: &'b mut RowProducts<'_, &mut [f64]>) -> RowProducts<'b, &'b mut [f64]> {
    let out = product.out.iter_mut().map(|out| &mut **out).collect();
    RowProducts { matrix: product.matrix, out }
}

/// Adds the term of a group whose activations cannot be rounded, computed in f32.
fn add_group(
    x: Elements<'_>,
    product: &mut RowProducts<'_, &mut [f64]>,
    token: usize,
    group: usize,
    threads: &Threads,
) {
    let RowProducts { matrix, out } = product;
    let input = matrix.input();
    let group_size = matrix.format().map_or(1, |format| format.group_size as usize);
    let first = group * group_size;
    let x = x.part(token * input + first..token * input + first + group_size);
    let columns = Columns { range: first..first + group_size, chunk: group_size };
    let mut terms = vec![0.0; matrix.num_rows()];
    let product = RowProducts { matrix: *matrix, out: vec![&mut terms[..]] };
    multiply_in_f32(Activations::new(x, columns, threads), vec![product], threads);
    out[token].iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
}
