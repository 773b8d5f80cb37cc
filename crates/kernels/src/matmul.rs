//! Products of activations with weight matrices.

use std::ops::Range;

use jackalope_simd::{
    DenseMatrix, Elements, ElementsMut, Floats, InstructionSet, Matrix, QuantMatrix, QuantMode,
    Threads, cut_matrix_rows,
};

use crate::dense;
use crate::float8;
use crate::integer::{self, InputColumns, Prepared};
use crate::panel::{Activations, Columns, multiply_rows};
use crate::terms::{GROUPS_PER_TERM_MAX, Results};

/// Minimum number of tasks per thread for which each task is computed by one thread.
const TASKS_PER_THREAD: usize = 4;

/// A matrix, and the destination of its product.
#[derive(Debug)]
pub struct Product<'a> {
    /// The matrix to multiply with.
    pub matrix: Matrix<'a>,
    /// Destination of the product, `[tokens, matrix.out]`.
    pub out: ElementsMut<'a>,
}

/// `out[tokens, matrix.out] = x[tokens, matrix.input] · matrixᵀ` for each of some matrices, accumulated in f32 and
/// rounded once to the type of `out`.
///
/// Each result has the same bits as if its matrix were multiplied alone. The products share the preparation of the
/// activations and one start of the threads.
///
/// With a quantised matrix, activations in f32 are used as they are. Those of 16 bits are first rounded, for each group
/// of the weights, to whole multiples of a power of two, with an error below a 32639th of the group's largest
/// magnitude: so every bf16 of at least a 128th of that maximum, and every f16 of at least a 16th, is used as it is. A
/// row with an element that is not finite is never rounded and has the results of IEEE 754; no row affects the results
/// of another.
///
/// # Panics
/// If a length does not fit, the matrices differ in their columns, or MLX does not have a format.
#[track_caller]
pub fn matmul_each(x: Elements<'_>, products: Vec<Product<'_>>, threads: &Threads) {
    let bytes = products.iter().map(|product| product.matrix.bytes()).sum();
    let is_quantized = products.iter().any(|product| product.matrix.format().is_some());
    let _span = threads.span(if is_quantized { "quantized_matmul" } else { "matmul" }, bytes);
    let input = products.first().map_or(0, |product| product.matrix.input());
    assert!(products.iter().all(|it| it.matrix.input() == input), "matrices for the same rows");
    let mut together: Vec<RowProducts<'_>> = Vec::with_capacity(products.len());
    for Product { matrix, out } in products {
        matrix.assert_valid();
        let Some(out) = result_rows(&x, &matrix, out) else { continue };
        if together.first().is_some_and(|first| first.matrix.format() != matrix.format()) {
            multiply(
                vec![Task { x: Rows::All(x), products: std::mem::take(&mut together) }],
                threads,
            );
        }
        together.push(RowProducts { matrix, out });
    }
    if !together.is_empty() {
        multiply(vec![Task { x: Rows::All(x), products: together }], threads);
    }
}

/// [`matmul_each`] with one matrix.
///
/// # Panics
/// If a length does not fit.
#[track_caller]
pub fn matmul(x: Elements<'_>, w: &DenseMatrix<'_>, out: ElementsMut<'_>, threads: &Threads) {
    matmul_each(x, vec![Product { matrix: Matrix::Dense(*w), out }], threads);
}

/// [`matmul_each`] with one quantised matrix.
///
/// # Panics
/// If a length does not fit, or MLX does not have the format.
#[track_caller]
pub fn quantized_matmul(
    x: Elements<'_>,
    w: &QuantMatrix<'_>,
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    matmul_each(x, vec![Product { matrix: Matrix::Quantized(*w), out }], threads);
}

/// A matrix with rows and columns, and a view of each token's results.
pub(crate) struct RowProducts<'a, R = ElementsMut<'a>> {
    pub(crate) matrix: Matrix<'a>,
    pub(crate) out: Vec<R>,
}

impl RowProducts<'_> {
    /// Returns a view of the results of some tokens.
    fn tokens(&mut self, tokens: Range<usize>) -> RowProducts<'_> {
        let out = self.out[tokens].iter_mut().map(ElementsMut::reborrow).collect();
        RowProducts { matrix: self.matrix, out }
    }
}

/// Checks all lengths, and returns a view of each token's results; `None` if there is nothing to
/// compute.
#[track_caller]
fn result_rows<'a>(
    x: &Elements<'_>,
    matrix: &Matrix<'_>,
    mut out: ElementsMut<'a>,
) -> Option<Vec<ElementsMut<'a>>> {
    let (num_rows, input) = (matrix.num_rows(), matrix.input());
    if input == 0 || num_rows == 0 {
        out.fill_zero();
        return None;
    }
    let tokens = x.len() / input;
    assert_eq!(x.len(), tokens * input, "activations: whole rows of {input}");
    assert_eq!(out.len(), tokens * num_rows, "results of {tokens} tokens for {num_rows} rows");
    (tokens > 0).then(|| out.chunks(num_rows))
}

/// Rows of activations: all, or chosen ones.
#[derive(Clone, Copy)]
pub(crate) enum Rows<'a> {
    /// `[rows, input]`.
    All(Elements<'a>),
    /// The rows with these indices, in this order.
    Chosen(&'a SharedRows<'a>, &'a [usize]),
}

impl<'a> Rows<'a> {
    /// Returns row `row`, which has `input` elements.
    fn row(self, row: usize, input: usize) -> Elements<'a> {
        let (values, row) = match self {
            Rows::All(values) => (values, row),
            Rows::Chosen(shared, chosen) => (shared.values, chosen[row]),
        };
        values.part(row * input..(row + 1) * input)
    }
}

/// Rows of activations of which several tasks choose some: what they share is done once.
pub(crate) struct SharedRows<'a> {
    /// `[rows, input]`.
    values: Elements<'a>,
    /// `None` if they are not rounded.
    rounded: Option<integer::PreparedRows>,
}

impl<'a> SharedRows<'a> {
    /// Prepares `values` for products with matrices like `matrix`, of which all columns are one term.
    pub(crate) fn new(values: Elements<'a>, matrix: &Matrix<'_>, threads: &Threads) -> Self {
        let rounded = rounded_with(values, matrix, threads)
            .map(|w| integer::PreparedRows::new(values, w, InputColumns::Whole, threads));
        SharedRows { values, rounded }
    }
}

/// Returns the matrix if activations are rounded for products with it.
fn rounded_with<'m, 'a>(
    x: Elements<'_>,
    matrix: &'m Matrix<'a>,
    threads: &Threads,
) -> Option<&'m QuantMatrix<'a>> {
    match matrix {
        Matrix::Quantized(w) => {
            integer::is_supported(x.float(), w, threads.instructions()).then_some(w)
        }
        Matrix::Dense(_) => None,
    }
}

/// Rows of activations, and the matrices that they are multiplied with.
pub(crate) struct Task<'a> {
    pub(crate) x: Rows<'a>,
    /// Products with matrices of one format, at least one.
    pub(crate) products: Vec<RowProducts<'a>>,
}

impl Task<'_> {
    /// Returns the number of multiplications.
    fn macs(&self) -> usize {
        let products = self.products.iter();
        products.map(|it| it.out.len() * it.matrix.num_rows() * it.matrix.input()).sum()
    }
}

/// The activations of a task in the form that its products need.
pub(crate) enum Inputs {
    /// Rounded to whole numbers.
    Rounded(Prepared),
    /// In f32, without rounding.
    Floats(Activations),
}

impl Inputs {
    /// Prepares `x` for products with matrices like `matrix`.
    pub(crate) fn new(
        x: Rows<'_>,
        matrix: &Matrix<'_>,
        terms: TermColumns,
        threads: &Threads,
    ) -> Inputs {
        let gathered;
        let values = match x {
            Rows::All(values) => values,
            Rows::Chosen(SharedRows { rounded: Some(rounded), .. }, rows) => {
                return Inputs::Rounded(rounded.choose(rows));
            }
            Rows::Chosen(SharedRows { values, rounded: None }, rows) => {
                gathered = Floats::of_rows(*values, rows, matrix.input());
                gathered.elements()
            }
        };
        match rounded_with(values, matrix, threads) {
            Some(w) => {
                let columns = terms.of_groups(w.format.group_size as usize);
                Inputs::Rounded(Prepared::new(values, w, columns, threads))
            }
            None => {
                let columns = terms.of_columns(matrix.input());
                Inputs::Floats(Activations::new(values, columns, threads))
            }
        }
    }

    /// Prepares the activations of each product for its matrix.
    pub(crate) fn of_each(
        products: Vec<(Rows<'_>, Matrix<'_>)>,
        terms: TermColumns,
        threads: &Threads,
    ) -> Vec<Inputs> {
        let mut inputs: Vec<Option<Inputs>> = Vec::new();
        inputs.resize_with(products.len(), || None);
        let pairs = products.into_iter().zip(&mut inputs).collect();
        threads.for_each(pairs, |((x, matrix), inputs)| {
            *inputs = Some(Inputs::new(x, &matrix, terms, threads));
        });
        inputs.into_iter().map(|inputs| inputs.expect("every one was prepared")).collect()
    }

    /// Computes the results of all rows for the weight rows `rows`; `out` has one view of
    /// `rows.len()` elements per row of activations.
    pub(crate) fn multiply_rows<R: Results>(
        &self,
        matrix: &Matrix<'_>,
        rows: Range<usize>,
        out: &mut [R],
        instructions: InstructionSet,
    ) {
        match (self, matrix) {
            (Inputs::Rounded(x), Matrix::Quantized(matrix)) => x.multiply_rows(matrix, rows, out),
            (Inputs::Floats(x), matrix) => multiply_floats(instructions, x, matrix, rows, out),
            (Inputs::Rounded(_), Matrix::Dense(_)) => {
                unreachable!("the matrices of a task have one format, which is quantised")
            }
        }
    }

    /// Returns the rows that were left out because they cannot be rounded.
    fn unrounded_tokens(&self) -> Vec<usize> {
        match self {
            Inputs::Rounded(x) => x.unrounded_tokens(),
            Inputs::Floats(_) => Vec::new(),
        }
    }

    /// Returns the groups that were left out because they cannot be rounded, as pairs of row and
    /// group.
    pub(crate) fn unrounded_groups(&self) -> Vec<(usize, usize)> {
        match self {
            Inputs::Rounded(x) => x.unrounded_groups().collect(),
            Inputs::Floats(_) => Vec::new(),
        }
    }
}

/// The division of a product's columns into terms.
#[derive(Clone, Copy, Debug)]
pub enum TermColumns {
    /// All columns are one term.
    Whole,
    /// Terms have at most this number of columns.
    Divided(usize),
}

impl TermColumns {
    fn of_groups(self, group_size: usize) -> InputColumns {
        match self {
            TermColumns::Whole => InputColumns::Whole,
            TermColumns::Divided(chunk) => {
                // A power of two that divides the number of groups of the chunk.
                let groups_per_term = 1 << (chunk / group_size).trailing_zeros();
                InputColumns::Divided { groups_per_term: groups_per_term.min(GROUPS_PER_TERM_MAX) }
            }
        }
    }

    fn of_columns(self, input: usize) -> Columns {
        match self {
            TermColumns::Whole => Columns::all(input),
            TermColumns::Divided(chunk) => Columns { range: 0..input, chunk },
        }
    }
}

/// Computes the products of all tasks in one job.
pub(crate) fn multiply(mut tasks: Vec<Task<'_>>, threads: &Threads) {
    let macs: Vec<usize> = tasks.iter().map(Task::macs).collect();
    let (most, all): (usize, usize) = (macs.iter().copied().max().unwrap_or(0), macs.iter().sum());
    let num_threads = threads.count();
    if tasks.len() < TASKS_PER_THREAD * num_threads || all < most * 2 * num_threads {
        return multiply_together(tasks, num_threads, threads);
    }
    // A thread has what it prepares in its caches when it computes with it. The largest come first, so
    // that all threads end at about the same time.
    tasks.sort_by_key(|task| std::cmp::Reverse(task.macs()));
    threads.for_each(tasks, |task| multiply_together(vec![task], 1, threads));
}

/// Prepares the activations of all tasks, and then computes their products, cut for `num_threads`.
fn multiply_together(mut tasks: Vec<Task<'_>>, num_threads: usize, threads: &Threads) {
    let products = tasks.iter().map(|task| (task.x, task.products[0].matrix)).collect();
    let inputs = Inputs::of_each(products, TermColumns::Whole, threads);
    let all = tasks.iter_mut().map(|task| {
        let tokens = 0..task.products.first().map_or(0, |it| it.out.len());
        task.products.iter_mut().map(|it| it.tokens(tokens.clone())).collect()
    });
    multiply_prepared(&inputs, all.collect(), num_threads, threads);
    for (task, inputs) in tasks.iter_mut().zip(&inputs) {
        for token in inputs.unrounded_tokens() {
            let input = task.products[0].matrix.input();
            let x = task.x.row(token, input);
            let row = task.products.iter_mut().map(|it| it.tokens(token..token + 1)).collect();
            multiply_in_f32(Activations::new(x, Columns::all(input), threads), row, threads);
        }
    }
}

/// Like [`multiply`] for a single task, with activations in f32.
pub(crate) fn multiply_in_f32<R: Results>(
    x: Activations,
    products: Vec<RowProducts<'_, R>>,
    threads: &Threads,
) {
    multiply_prepared(&[Inputs::Floats(x)], vec![products], threads.count(), threads);
}

/// Computes the products of each task with its `inputs`, except for what could not be rounded.
fn multiply_prepared<R: Results>(
    inputs: &[Inputs],
    products: Vec<Vec<RowProducts<'_, R>>>,
    num_threads: usize,
    threads: &Threads,
) {
    let products = inputs.iter().zip(products);
    let products = products.flat_map(|(inputs, it)| it.into_iter().map(move |it| (inputs, it)));
    let instructions = threads.instructions();
    threads.for_each(pieces(products.collect(), num_threads), |piece| {
        let Piece { inputs, matrix, rows, mut out } = piece;
        inputs.multiply_rows(&matrix, rows, &mut out, instructions);
    });
}

fn multiply_floats<R: Results>(
    instructions: InstructionSet,
    x: &Activations,
    matrix: &Matrix<'_>,
    rows: Range<usize>,
    out: &mut [R],
) {
    match matrix {
        Matrix::Dense(matrix) if x.tokens() <= dense::FEW_TOKENS => {
            dense::multiply_few(instructions, x, matrix, rows, out);
        }
        Matrix::Quantized(matrix)
            if matrix.format.mode == QuantMode::Mxfp8 && x.tokens() <= float8::FEW_TOKENS =>
        {
            float8::multiply_few(instructions, x, matrix, rows, out);
        }
        _ => multiply_rows(instructions, x, matrix, rows, out),
    }
}

/// Some output features of a matrix, with a view of their results for each token.
struct Piece<'a, R> {
    inputs: &'a Inputs,
    matrix: Matrix<'a>,
    rows: Range<usize>,
    out: Vec<R>,
}

/// Cuts products into pieces of work for some threads.
fn pieces<'a, R: Results>(
    products: Vec<(&'a Inputs, RowProducts<'a, R>)>,
    num_threads: usize,
) -> Vec<Piece<'a, R>> {
    let mut rows_left: usize = products.iter().map(|(_, it)| it.matrix.num_rows()).sum();
    let mut pieces: Vec<Piece<'_, R>> = Vec::new();
    for (inputs, RowProducts { matrix, out }) in products {
        let (num_rows, tokens) = (matrix.num_rows(), out.len());
        rows_left -= num_rows;
        let first_piece = pieces.len();
        let cuts = cut_matrix_rows(num_rows, rows_left, tokens * matrix.input(), num_threads);
        pieces.extend(cuts.into_iter().map(|rows| Piece {
            inputs,
            matrix,
            rows,
            out: Vec::with_capacity(tokens),
        }));
        for view in out {
            let mut rest = view;
            for piece in &mut pieces[first_piece..] {
                let (view, others) = rest.split_at(piece.rows.len());
                piece.out.push(view);
                rest = others;
            }
        }
    }
    pieces
}
