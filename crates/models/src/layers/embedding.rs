//! The vocabulary, whose rows are divided over the ranks: tokens to vectors, and vectors to logits.

use std::rc::Rc;
use std::sync::Arc;

use jackalope_kernels::Threads;
use jackalope_mlx::{Array, Dtype};
use jackalope_protocol::TokenId;

use super::kernel::{Matrix, MatrixCut, dim, primitive, zeros_after};
use super::residual::Residual;
use crate::error::LoadError;
use crate::parallel::{Compute, TensorParallel};
use crate::split::{Cut, VOCAB_UNIT, cut_dimension};
use crate::weights::Weights;

/// A table `[vocab, hidden]`, of which this rank holds some rows.
#[derive(Debug)]
struct Table {
    matrix: Matrix,
    /// Every rank's rows.
    cuts: Vec<Cut>,
    dtype: Dtype,
    tp: TensorParallel,
}

impl Table {
    fn load(
        w: &Weights<'_>,
        vocab: usize,
        hidden: usize,
        tp: &TensorParallel,
    ) -> Result<Table, LoadError> {
        let cuts = cut_dimension(vocab, VOCAB_UNIT, tp.shares());
        let cut = MatrixCut::Output { output: &cuts[tp.rank()], input: hidden };
        let matrix = Matrix::load(w, cut)?;
        Ok(Table { matrix, cuts, dtype: w.dtype(), tp: tp.clone() })
    }

    fn own(&self) -> &Cut {
        &self.cuts[self.tp.rank()]
    }

    /// The rows of `ids` that this rank holds; the others are zeros.
    fn rows(&self, ids: &[TokenId], hidden: usize) -> Array {
        let shape = [dim(ids.len()), dim(hidden)];
        if self.matrix.is_empty() {
            return Array::zeros(&shape, self.dtype);
        }
        match self.tp.compute() {
            Compute::Kernels(threads) => self.kernel_rows(ids, hidden, threads),
            Compute::Stock => self.stock_rows(ids),
        }
    }

    fn kernel_rows(&self, ids: &[TokenId], hidden: usize, threads: &Arc<Threads>) -> Array {
        let kernel = self.matrix.kernel();
        let first_id = TokenId::try_from(self.own().own.start).expect("token ids have 32 bits");
        let ids = ids.to_vec();
        let out = (vec![dim(ids.len()), dim(hidden)], self.dtype);
        primitive("embedding", &[], out, threads, move |_, out, threads| {
            kernel.gather((&ids, first_id), out, threads);
        })
    }

    fn stock_rows(&self, ids: &[TokenId]) -> Array {
        let own = &self.own().own;
        let held = |id: TokenId| Some(id as usize).filter(|id| own.contains(id));
        let local: Vec<u32> =
            ids.iter().map(|&id| held(id).map_or(0, |id| (id - own.start) as u32)).collect();
        let local = Array::from_slice(&local, &[dim(ids.len())]);
        let rows = self.matrix.stock_rows(&local, self.dtype);
        if ids.iter().all(|&id| held(id).is_some()) {
            return rows;
        }
        let held: Vec<u8> = ids.iter().map(|&id| u8::from(held(id).is_some())).collect();
        let held = Array::from_slice(&held, &[dim(ids.len()), 1]).astype(Dtype::Bool);
        Array::where_(&held, &rows, &Array::scalar_of(0.0, self.dtype))
    }

    /// The logits of this rank's rows for `x` `[n, hidden]`, f32 with our kernels.
    fn logits(&self, x: &Array) -> Array {
        let threads = match self.tp.compute() {
            Compute::Kernels(threads) => threads,
            Compute::Stock => return self.matrix.stock_product(x),
        };
        let kernel = self.matrix.kernel();
        let out = (vec![x.dim(0), dim(self.matrix.output())], Dtype::F32);
        primitive("head", &[x], out, threads, move |inputs, out, threads| {
            kernel.multiply(inputs.elements(), out, threads);
        })
    }

    /// The logits of this rank's rows and zeros after them, `[n, width]`.
    fn padded_logits(&self, x: &Array, width: usize) -> Array {
        let dtype = match self.tp.compute() {
            Compute::Kernels(_) => Dtype::F32,
            Compute::Stock => self.dtype,
        };
        let padding = zeros_after(x, width - self.own().len(), dtype);
        match self.own().len() {
            0 => padding,
            own if own == width => self.logits(x),
            _ => Array::concatenate(&[&self.logits(x), &padding], 1),
        }
    }

    /// The logits of all rows, f32 `[n, vocab]`, on every rank.
    fn all_logits(&self, x: &Array) -> Array {
        let num_rows = x.dim(0);
        if self.tp.size() == 1 {
            return self.logits(x).astype(Dtype::F32);
        }
        let widest = self.cuts.iter().map(Cut::len).max().unwrap_or(0);
        let gathered = self.tp.all_gather(&self.padded_logits(x, widest)); // [ranks * n, widest]
        let parts = self.cuts.iter().enumerate().filter(|(_, cut)| !cut.is_empty());
        let parts: Vec<Array> = parts
            .map(|(rank, cut)| {
                let first = dim(rank) * num_rows;
                gathered.slice(&[first, 0], &[first + num_rows, dim(cut.len())])
            })
            .collect();
        Array::concatenate(&parts.iter().collect::<Vec<_>>(), 1).astype(Dtype::F32)
    }
}

/// Token ids to vectors.
#[derive(Clone, Debug)]
pub(crate) struct Embedding {
    table: Rc<Table>,
    hidden: usize,
}

impl Embedding {
    pub(crate) fn load(
        w: &Weights<'_>,
        vocab: usize,
        hidden: usize,
        tp: &TensorParallel,
    ) -> Result<Embedding, LoadError> {
        let table = Rc::new(Table::load(w, vocab, hidden, tp)?);
        Ok(Embedding { table, hidden })
    }

    /// The begin of the residual stream.
    pub(crate) fn forward(&self, ids: &[TokenId]) -> Residual {
        let rows = self.table.rows(ids, self.hidden);
        Residual::new(self.table.tp.all_sum(&rows), &self.table.tp)
    }

    /// Vocabulary rows of this rank.
    pub(crate) fn cut(&self) -> &Cut {
        self.table.own()
    }
}

/// Vectors to logits.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    table: Rc<Table>,
}

impl Head {
    /// A table of its own.
    pub(crate) fn load(
        w: &Weights<'_>,
        vocab: usize,
        hidden: usize,
        tp: &TensorParallel,
    ) -> Result<Head, LoadError> {
        Ok(Head { table: Rc::new(Table::load(w, vocab, hidden, tp)?) })
    }

    /// The embedding's table.
    pub(crate) fn tied(embedding: &Embedding) -> Head {
        Head { table: Rc::clone(&embedding.table) }
    }

    /// f32 `[n, vocab]` for `x` `[n, hidden]`.
    pub(crate) fn forward(&self, x: &Array) -> Array {
        self.table.all_logits(x)
    }
}
