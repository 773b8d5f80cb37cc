//! Products in which each head has a matrix and activations of its own, as in latent attention
//! (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1). All heads are one job of the threads.

use jackalope_simd::{
    Elements, ElementsMut, Float, Floats, GROUPS_MAX, InstructionSet, Matrix, Region, Simd,
    Threads, WIDEST, dispatched, unpack,
};

use crate::attention::product::{DEPTH, LeftOperand, Product, RightOperand, Sums, add};
use crate::matmul::{RowProducts, Rows, Task, multiply};

/// Number of rows of activations that use an unpacked matrix together, so that their sums stay in a
/// cache.
const TILE_TOKENS: usize = 96;

/// A part of each head's matrix. The stored matrix has the rows of the first head, then those of the
/// second, and so on.
#[derive(Clone, Copy, Debug)]
pub struct HeadMatrices<'a> {
    /// The stored matrix, `[heads * stored rows, columns]`.
    pub matrix: Matrix<'a>,
    /// Number of heads.
    pub num_heads: usize,
    /// Index of the first row of the part, among the stored rows of a head.
    pub first: usize,
    /// Number of rows of the part.
    pub num_rows: usize,
}

impl<'a> HeadMatrices<'a> {
    #[track_caller]
    fn assert_valid(&self) {
        self.matrix.assert_valid();
        let (rows, heads) = (self.matrix.num_rows(), self.num_heads);
        assert!(0 < heads && rows.is_multiple_of(heads), "{rows} rows of {heads} heads");
        assert!(self.first + self.num_rows <= rows / heads, "a part of a head's {rows} rows");
    }

    /// Returns the part of a head.
    fn of_head(&self, head: usize) -> Matrix<'a> {
        let start = head * (self.matrix.num_rows() / self.num_heads) + self.first;
        self.matrix.rows(start..start + self.num_rows)
    }

    /// Returns the size of all parts in bytes.
    fn bytes(&self) -> usize {
        let rows = self.matrix.num_rows().max(1);
        self.matrix.bytes() / rows * self.num_heads * self.num_rows
    }
}

/// Some elements of each head's results.
#[derive(Debug)]
pub struct HeadResults<'a> {
    /// The buffer that holds the results, `[tokens, heads, width]`.
    pub values: ElementsMut<'a>,
    /// Number of elements of a head.
    pub width: usize,
    /// Index of the first element of a head that is written.
    pub first: usize,
}

impl<'a> HeadResults<'a> {
    /// Returns, for each head, a view of the `len` elements of each token.
    #[track_caller]
    fn of_heads(self, num_heads: usize, len: usize) -> Vec<Vec<ElementsMut<'a>>> {
        let HeadResults { values, width, first } = self;
        assert!(first + len <= width, "{len} elements from {first} on of {width}");
        assert!(values.len().is_multiple_of(num_heads * width), "whole heads of each token");
        let mut heads: Vec<Vec<ElementsMut<'a>>> = Vec::new();
        heads.resize_with(num_heads, Vec::new);
        for (idx, row) in values.chunks(width).into_iter().enumerate() {
            let (_, rest) = row.split_at(first);
            heads[idx % num_heads].push(rest.split_at(len).0);
        }
        heads
    }
}

/// Returns the elements `first..first + len` of each head of `x` `[tokens, heads, width]`, rounded to
/// `float`, as `[heads, tokens, len]`.
///
/// # Panics
/// Panics if a length does not fit.
#[track_caller]
pub fn heads_apart(
    x: Elements<'_>,
    [num_heads, width]: [usize; 2],
    [first, len]: [usize; 2],
    float: Float,
) -> Floats {
    assert!(0 < num_heads * width && x.len().is_multiple_of(num_heads * width), "whole heads");
    assert!(first + len <= width, "{len} elements from {first} on of {width}");
    let tokens = x.len() / (num_heads * width);
    let mut apart = Floats::zeros(float, num_heads * tokens * len);
    let mut values = vec![0.0; len];
    for head in 0..num_heads {
        for token in 0..tokens {
            x.load((token * num_heads + head) * width + first, &mut values);
            apart.store((head * tokens + token) * len, &values);
        }
    }
    apart
}

/// Computes `x · partᵀ` for each head. `x` is `[heads, tokens, columns]`; a head's result has an
/// element for each row of the head's part, with the bits that [`crate::matmul_each`] computes for
/// the head alone.
///
/// # Panics
/// Panics if a length does not fit.
#[track_caller]
pub fn head_matmul(
    x: Elements<'_>,
    matrices: &HeadMatrices<'_>,
    out: HeadResults<'_>,
    threads: &Threads,
) {
    let _span = threads.span("head_matmul", matrices.bytes());
    matrices.assert_valid();
    let &HeadMatrices { num_heads, num_rows, .. } = matrices;
    let tokens = assert_fits(&x, num_heads, matrices.matrix.input(), &out);
    if tokens == 0 || num_rows == 0 {
        return;
    }
    let head_len = tokens * matrices.matrix.input();
    let tasks = out.of_heads(num_heads, num_rows).into_iter().enumerate().map(|(head, out)| Task {
        x: Rows::All(x.part(head * head_len..(head + 1) * head_len)),
        products: vec![RowProducts { matrix: matrices.of_head(head), out }],
    });
    multiply(tasks.collect(), threads);
}

/// Computes `x · part` for each head. `x` is `[heads, tokens, rows]`; a head's result has an
/// element for each column of the matrix. Elements are computed in f32, each as one chain of
/// multiply-adds along the rows, and rounded once.
///
/// # Panics
/// Panics if a length does not fit.
#[track_caller]
pub fn head_matmul_untransposed(
    x: Elements<'_>,
    matrices: &HeadMatrices<'_>,
    out: HeadResults<'_>,
    threads: &Threads,
) {
    let _span = threads.span("head_matmul", matrices.bytes());
    matrices.assert_valid();
    let &HeadMatrices { num_heads, num_rows, .. } = matrices;
    let columns = matrices.matrix.input();
    let tokens = assert_fits(&x, num_heads, num_rows, &out);
    if tokens == 0 || columns == 0 {
        return;
    }
    let instructions = threads.instructions();
    let heads = out.of_heads(num_heads, columns).into_iter().enumerate().collect();
    threads.for_each(heads, |(head, mut out): (usize, Vec<ElementsMut<'_>>)| {
        let head_len = tokens * num_rows;
        let x = x.part(head * head_len..(head + 1) * head_len);
        multiply_rows(instructions, x, &matrices.of_head(head), &mut out);
    });
}

/// Returns the number of tokens of `x`, after comparing it with the results.
#[track_caller]
fn assert_fits(x: &Elements<'_>, num_heads: usize, len: usize, out: &HeadResults<'_>) -> usize {
    let head_len = num_heads * len;
    assert!(0 < head_len && x.len().is_multiple_of(head_len), "{num_heads} heads of {len}");
    let tokens = x.len() / head_len;
    assert_eq!(out.values.len(), tokens * num_heads * out.width, "results of {tokens} tokens");
    tokens
}

/// Computes `x · matrix` for the rows of `x`.
fn multiply_rows(
    instructions: InstructionSet,
    x: Elements<'_>,
    matrix: &Matrix<'_>,
    out: &mut [ElementsMut<'_>],
) {
    let (num_rows, columns) = (matrix.num_rows(), matrix.input());
    let stride = columns.next_multiple_of(WIDEST);
    let mut weights = vec![0.0; num_rows * stride];
    unpack_rows(instructions, matrix, stride, &mut weights);
    let right = RightOperand { values: &weights[..], stride, columns: stride };
    for (tile, out) in out.chunks_mut(TILE_TOKENS).enumerate() {
        let num_tokens = out.len();
        let mut left = vec![[0.0; DEPTH]; num_rows.div_ceil(DEPTH) * num_tokens];
        for (idx, piece) in left.iter_mut().enumerate() {
            let (token, row) = (tile * TILE_TOKENS + idx % num_tokens, idx / num_tokens * DEPTH);
            let len = DEPTH.min(num_rows - row);
            x.load(token * num_rows + row, &mut piece[..len]);
        }
        let mut sums = vec![0.0; num_tokens * stride];
        let left = LeftOperand { values: &left, num_rows: num_tokens };
        let product = Product { left, rows: 0..num_tokens, right, depth: 0..num_rows };
        add(instructions, &product, &mut Sums { values: &mut sums, stride });
        for (out, sums) in out.iter_mut().zip(sums.chunks_exact(stride)) {
            out.store(0, &sums[..columns]);
        }
    }
}

dispatched! {
    /// Converts a matrix to f32 rows of `stride` elements.
    fn unpack_rows(matrix: &Matrix<'_>, stride: usize, out: &mut [f32]) = unpack_rows_with
}

#[inline(always)]
fn unpack_rows_with<S: Simd>(simd: S, matrix: &Matrix<'_>, stride: usize, out: &mut [f32]) {
    let matrix = match matrix {
        Matrix::Dense(dense) => {
            for (row, out) in out.chunks_exact_mut(stride).enumerate() {
                dense.values.load(row * dense.input, &mut out[..dense.input]);
            }
            return;
        }
        Matrix::Quantized(matrix) => matrix,
    };
    let width = GROUPS_MAX * matrix.format.group_size as usize;
    let mut unpacked = vec![0.0; width];
    for (row, out) in out.chunks_exact_mut(stride).enumerate() {
        for start in (0..matrix.input).step_by(width) {
            let width = width.min(matrix.input - start);
            let region = Region { rows: row..row + 1, start, width };
            unpack(simd, matrix, &region, &mut unpacked[..width]);
            out[start..start + width].copy_from_slice(&unpacked[..width]);
        }
    }
}
