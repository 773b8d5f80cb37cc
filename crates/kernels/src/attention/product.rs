//! Products of many rows with a matrix of f32; every lane computes a separate result.
//!
//! A result is one chain of multiply-adds in the order of the depth, so neither the tile it is computed in nor the
//! width of the vectors shows in its bits.
#![expect(
    clippy::needless_range_loop,
    reason = "indices name rows and registers alike, and iterators' closures would be compiled without the set"
)]

use std::ops::Range;

use jackalope_simd::{Elements, VectorElement, WIDEST, Wide, dispatched_wide};

/// Depth of the pieces into which rows are divided.
pub(crate) const DEPTH: usize = 64;

/// Vectors in a row of a panel.
const PANEL_VECTORS: usize = 2;

/// The rows of a product.
#[derive(Clone, Copy)]
pub(crate) struct LeftOperand<'a> {
    /// `[pieces of the depth, rows, DEPTH]`.
    pub(crate) values: &'a [[f32; DEPTH]],
    pub(crate) num_rows: usize,
}

/// A matrix, or some columns of it.
#[derive(Clone, Copy)]
pub(crate) struct RightOperand<'a, E> {
    /// Elements `[depth, stride]`; the last row may end after its last column.
    pub(crate) values: &'a [E],
    /// Number of elements between two rows.
    pub(crate) stride: usize,
    /// Number of columns, a multiple of the lanes of a vector.
    pub(crate) columns: usize,
}

/// Destination of the sums.
pub(crate) struct Sums<'a> {
    /// `[rows, stride]`, from the first row and column of a product on.
    pub(crate) values: &'a mut [f32],
    pub(crate) stride: usize,
}

/// The product of some rows with a matrix.
pub(crate) struct Product<'a> {
    pub(crate) left: LeftOperand<'a>,
    pub(crate) rows: Range<usize>,
    pub(crate) right: RightOperand<'a, f32>,
    /// Range of the depth, for both operands.
    pub(crate) depth: Range<usize>,
}

dispatched_wide! {
    /// Adds a product to the sums. Compiled once for each set, not for each use.
    pub(crate) fn add(product: &Product<'_>, sums: &mut Sums<'_>) = add_with
}

#[inline(always)]
fn add_with<W: Wide>(simd: W, product: &Product<'_>, sums: &mut Sums<'_>) {
    let mut row = product.rows.start;
    while row < product.rows.end {
        // The number of sums is limited by the registers.
        row += match (product.rows.end - row, W::LANES == WIDEST) {
            (12.., true) => product.strip::<W, 12>(simd, row, sums),
            (6.., false) => product.strip::<W, 6>(simd, row, sums),
            (4.., _) => product.strip::<W, 4>(simd, row, sums),
            (2.., _) => product.strip::<W, 2>(simd, row, sums),
            _ => product.strip::<W, 1>(simd, row, sums),
        };
    }
}

impl Product<'_> {
    /// Computes `ROWS` rows from `row` on with all columns; returns the number of rows.
    #[inline(always)]
    fn strip<W: Wide, const ROWS: usize>(&self, simd: W, row: usize, sums: &mut Sums<'_>) -> usize {
        let width = PANEL_VECTORS * W::LANES;
        let whole = self.right.columns - self.right.columns % width;
        for column in (0..whole).step_by(width) {
            self.tile::<W, ROWS, PANEL_VECTORS>(simd, row, column, sums);
        }
        for column in (whole..self.right.columns).step_by(W::LANES) {
            self.tile::<W, ROWS, 1>(simd, row, column, sums);
        }
        ROWS
    }

    /// The inner loop, with the sums of `ROWS` rows and `VECTORS` vectors in registers.
    #[inline(always)]
    fn tile<W: Wide, const ROWS: usize, const VECTORS: usize>(
        &self,
        simd: W,
        row: usize,
        column: usize,
        sums: &mut Sums<'_>,
    ) {
        let first_sum = (row - self.rows.start) * sums.stride + column;
        // No closures around vectors: a closure is compiled on its own, without the features, unless it is inlined.
        let mut acc = [[simd.splat(0.0); VECTORS]; ROWS];
        for r in 0..ROWS {
            let sums = &sums.values[first_sum + r * sums.stride..][..VECTORS * W::LANES];
            for c in 0..VECTORS {
                acc[r][c] = simd.load_f32(&sums[c * W::LANES..]);
            }
        }
        let mut start = self.depth.start;
        while start < self.depth.end {
            let piece = start / DEPTH;
            let end = self.depth.end.min((piece + 1) * DEPTH);
            let factors = &self.left.values[piece * self.left.num_rows + row..];
            let factors: &[[f32; DEPTH]; ROWS] = factors.first_chunk().expect("as many rows");
            for k in start..end {
                let values = &self.right.values[k * self.right.stride + column..];
                let values = &values[..VECTORS * W::LANES];
                let mut vectors = [simd.splat(0.0); VECTORS];
                for c in 0..VECTORS {
                    vectors[c] = simd.load_f32(&values[c * W::LANES..]);
                }
                for r in 0..ROWS {
                    let factor = simd.splat(factors[r][k % DEPTH]);
                    for c in 0..VECTORS {
                        acc[r][c] = simd.mul_add(factor, vectors[c], acc[r][c]);
                    }
                }
            }
            start = end;
        }
        for r in 0..ROWS {
            let sums = &mut sums.values[first_sum + r * sums.stride..][..VECTORS * W::LANES];
            for c in 0..VECTORS {
                simd.store(acc[r][c], &mut sums[c * W::LANES..]);
            }
        }
    }
}

/// A matrix in f32 by panels of columns, `[panels, depth, width]`. A panel fits into the first-level
/// cache, so it is read from memory once for all rows that it is multiplied with.
pub(super) struct Panels {
    values: Vec<f32>,
    depth: usize,
    columns: usize,
}

impl Panels {
    /// Allocates `depth` rows of `columns` columns, which must be a multiple of [`WIDEST`].
    pub(super) fn new(depth: usize, columns: usize) -> Panels {
        let width = columns.next_multiple_of(PANEL_VECTORS * WIDEST);
        Panels { values: vec![0.0; depth * width], depth, columns }
    }

    /// Returns the first column of each panel.
    #[inline(always)]
    pub(super) fn starts<W: Wide>(&self) -> impl Iterator<Item = usize> + use<W> {
        (0..self.columns).step_by(PANEL_VECTORS * W::LANES)
    }

    /// Returns the panel that starts at a column.
    #[inline(always)]
    pub(super) fn panel<W: Wide>(&self, column: usize) -> RightOperand<'_, f32> {
        let stride = PANEL_VECTORS * W::LANES;
        let values = &self.values[column * self.depth..][..self.depth * stride];
        RightOperand { values, stride, columns: stride.min(self.columns - column) }
    }

    /// Loads the first `num_rows` rows of a matrix whose columns are whole vectors, from `column`
    /// on, where a panel starts.
    #[inline(always)]
    pub(super) fn load<W: Wide, E: VectorElement>(
        &mut self,
        simd: W,
        matrix: RightOperand<'_, E>,
        num_rows: usize,
        column: usize,
    ) {
        let width = PANEL_VECTORS * W::LANES;
        let panels = self.values[column * self.depth..].chunks_exact_mut(self.depth * width);
        for (panel, to) in panels.take(matrix.columns.div_ceil(width)).enumerate() {
            let columns = panel * width..matrix.columns.min((panel + 1) * width);
            for (row, to) in to.chunks_exact_mut(width).take(num_rows).enumerate() {
                let from = &matrix.values[row * matrix.stride..];
                for column in columns.clone().step_by(W::LANES) {
                    let vector = E::load_wide(simd, &from[column..]);
                    simd.store(vector, &mut to[column - columns.start..]);
                }
            }
        }
    }

    /// Loads a transposed part of `from`: the first `num_rows` columns of its rows `rows`. Each
    /// column becomes a row.
    #[inline(always)]
    pub(super) fn load_transposed<W: Wide>(
        &mut self,
        from: &Panels,
        rows: Range<usize>,
        num_rows: usize,
    ) {
        let width = PANEL_VECTORS * W::LANES;
        let panels = self.values.chunks_exact_mut(self.depth * width);
        for (to, first) in panels.zip(rows.clone().step_by(width)) {
            let columns = width.min(rows.end - first);
            for row in (0..num_rows).step_by(SQUARE) {
                let (panel, offset) = (row / width, row % width);
                let from = &from.values[(panel * from.depth + first) * width + offset..];
                let to = &mut to[row * width..];
                for column in (0..columns).step_by(SQUARE) {
                    if columns - column < SQUARE {
                        for column in column..columns {
                            for row in 0..SQUARE {
                                to[row * width + column] = from[column * width + row];
                            }
                        }
                        break;
                    }
                    transpose_square(&from[column * width..], &mut to[column..], width);
                }
            }
        }
    }

    /// Loads a part of a row.
    #[inline(always)]
    pub(super) fn load_row<W: Wide>(&mut self, row: usize, column: usize, part: &Elements<'_>) {
        let width = PANEL_VECTORS * W::LANES;
        let mut value = [0.0];
        for idx in 0..part.len() {
            part.load(idx, &mut value);
            let (panel, offset) = ((column + idx) / width, (column + idx) % width);
            self.values[(panel * self.depth + row) * width + offset] = value[0];
        }
    }
}

/// Number of rows and columns that are transposed together; it divides the lanes of two vectors of
/// every instruction set, and the keys of a block.
const SQUARE: usize = 8;

/// Transposes a square of matrices whose rows are `width` elements apart.
#[inline(always)]
fn transpose_square(from: &[f32], to: &mut [f32], width: usize) {
    let mut square = [[0.0; SQUARE]; SQUARE];
    for (idx, row) in square.iter_mut().enumerate() {
        *row = *from[idx * width..].first_chunk().expect("a whole square");
    }
    for column in 0..SQUARE {
        let to: &mut [f32; SQUARE] =
            to[column * width..].first_chunk_mut().expect("a whole square");
        for (to, row) in to.iter_mut().zip(&square) {
            *to = row[column];
        }
    }
}
