//! The vocabulary, whose rows are divided among the ranks: converts tokens to vectors, and vectors
//! to logits.

use std::rc::Rc;
use std::sync::Arc;

use jackalope_kernels::{self as kernels, ElementsMut, Threads};
use jackalope_mlx::{Array, ArrayType, Dtype, dim};
use jackalope_protocol::TokenId;
use jackalope_spec::LogitsSpec;

use super::residual::Residual;
use crate::split::{Cut, VOCAB_UNIT, cut_dimension};
use crate::step::StepTokens;
use jackalope_parallel::kernel::{MatrixCut, WeightMatrix, elements, primitive, zeros_after};
use jackalope_parallel::linear::HasBias;
use jackalope_parallel::output::Bias;
use jackalope_parallel::{Compute, Parallel};
use jackalope_weights::LoadError;
use jackalope_weights::{Part, Weights};

/// Size of a table: its rows and columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableSize {
    pub(crate) vocab: usize,
    pub(crate) hidden: usize,
}

/// A table `[vocab, hidden]`, of which this rank holds some rows.
#[derive(Debug)]
pub(super) struct Table {
    matrix: WeightMatrix,
    /// Vector that is added to the logits, this rank's part.
    bias: Option<Bias>,
    /// Rows of each rank.
    cuts: Vec<Cut>,
    dtype: Dtype,
    parallel: Parallel,
}

impl Table {
    /// Loads this rank's rows; none if this rank does not use the table.
    pub(super) fn load(
        w: &Weights<'_>,
        TableSize { vocab, hidden }: TableSize,
        is_used: bool,
        bias: HasBias,
        parallel: &Parallel,
    ) -> Result<Table, LoadError> {
        let mut cuts = cut_dimension(vocab, VOCAB_UNIT, parallel.shares());
        if !is_used {
            cuts = vec![Cut::new(vocab, 0..0); cuts.len()];
        }
        let cut = MatrixCut::Output { output: &cuts[parallel.rank()], input: hidden };
        let matrix = WeightMatrix::load(w, cut)?;
        let bias = match bias {
            HasBias::Yes => Some(w.floats("bias", &[vocab], Part::rows(&cuts[parallel.rank()]))?),
            HasBias::No => None,
        };
        let bias = bias.map(Bias::new);
        Ok(Table { matrix, bias, cuts, dtype: w.dtype(), parallel: parallel.clone() })
    }

    fn own(&self) -> &Cut {
        &self.cuts[self.parallel.rank()]
    }

    /// Returns the rows of `ids`; rows that this rank does not hold are zeros.
    pub(super) fn rows(&self, ids: StepTokens<'_>, hidden: usize) -> Array {
        let shape = [dim(ids.host.len()), dim(hidden)];
        if self.matrix.is_empty() {
            return Array::zeros(&shape, self.dtype);
        }
        match self.parallel.compute() {
            Compute::Kernels(threads) => self.kernel_rows(ids.host, hidden, threads),
            Compute::Stock => match ids.device {
                Some(ids) => self.device_rows(ids),
                None => self.stock_rows(ids.host),
            },
        }
    }

    fn kernel_rows(&self, ids: &[TokenId], hidden: usize, threads: &Arc<Threads>) -> Array {
        let kernel = self.matrix.kernel();
        let first_id = TokenId::try_from(self.own().own.start).expect("token ids have 32 bits");
        let ids = ids.to_vec();
        let shape = vec![dim(ids.len()), dim(hidden)];
        let out = ArrayType { shape, dtype: self.dtype };
        primitive("embedding", &[], out, threads, move |_, out, threads| {
            kernel.gather(&ids, first_id, out, threads);
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

    /// As [`Table::stock_rows`], for ids u32 `[n]` that the host does not know.
    fn device_rows(&self, ids: &Array) -> Array {
        let own = &self.own().own;
        if own.len() == self.own().full {
            return self.matrix.stock_rows(ids, self.dtype);
        }
        let bound = |id: usize| Array::scalar_of(id as f32, Dtype::U32);
        let held = ids.greater_equal(&bound(own.start)).logical_and(&ids.less(&bound(own.end)));
        let local = Array::where_(&held, &ids.sub(&bound(own.start)), &bound(0));
        let rows = self.matrix.stock_rows(&local, self.dtype);
        Array::where_(&held.expand_dims(1), &rows, &Array::scalar_of(0.0, self.dtype))
    }

    /// Returns the logits of this rank's rows for `x` `[n, hidden]`, in f32 with our kernels.
    fn logits(&self, x: &Array, finish: LogitsSpec) -> Array {
        let threads = match self.parallel.compute() {
            Compute::Kernels(threads) => threads,
            Compute::Stock => {
                let product = self.matrix.stock_product(x);
                return match &self.bias {
                    Some(bias) => product.add(bias.array()),
                    None => product,
                };
            }
        };
        let kernel = self.matrix.kernel();
        let bias = self.bias.as_ref().map(Bias::pinned);
        let shape = vec![x.dim(0), dim(self.matrix.output())];
        let out = ArrayType { shape, dtype: Dtype::F32 };
        primitive("head", &[x], out, threads, move |inputs, mut out, threads| {
            kernel.multiply(inputs.elements(), out.reborrow(), threads);
            let ElementsMut::F32(logits) = out else { panic!("logits are in single precision") };
            if let Some(bias) = &bias {
                kernels::add_bias(logits, elements(bias), threads);
            }
            if finish != LogitsSpec::PLAIN {
                kernels::scale_logits(logits, finish.scale, finish.soft_cap, threads);
            }
        })
    }

    /// Returns the logits of this rank's rows, padded with zeros to `[n, width]`.
    fn padded_logits(&self, x: &Array, width: usize, finish: LogitsSpec) -> Array {
        let dtype = match self.parallel.compute() {
            Compute::Kernels(_) => Dtype::F32,
            Compute::Stock => self.dtype,
        };
        let padding = zeros_after(x, width - self.own().len(), dtype);
        match self.own().len() {
            0 => padding,
            own if own == width => self.logits(x, finish),
            _ => Array::concatenate(&[&self.logits(x, finish), &padding], 1),
        }
    }

    /// Returns the logits of all rows, f32 `[n, vocab]`, on every rank.
    fn all_logits(&self, x: &Array, finish: LogitsSpec) -> Array {
        let num_rows = x.dim(0);
        if self.parallel.size() == 1 {
            return self.logits(x, finish).astype(Dtype::F32);
        }
        let widest = self.cuts.iter().map(Cut::len).max().unwrap_or(0);
        let gathered = self.parallel.all_gather(&self.padded_logits(x, widest, finish)); // [ranks * n, widest]
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

/// Loads the table of `embed` on ranks that have the first layer, and the table of `head` on ranks
/// that have the last one. Without `head` both are one table, whose logits have no bias.
pub(crate) fn vocabulary(
    embed: &Weights<'_>,
    head: Option<&Weights<'_>>,
    size: TableSize,
    head_bias: HasBias,
    parallel: &Parallel,
) -> Result<(Embedding, Head), LoadError> {
    let (begins, ends) = (parallel.has_first_layer(), parallel.has_last_layer());
    let is_used = begins || (head.is_none() && ends);
    let table = Rc::new(Table::load(embed, size, is_used, HasBias::No, parallel)?);
    let head = match head {
        Some(w) => Rc::new(Table::load(w, size, ends, head_bias, parallel)?),
        None => Rc::clone(&table),
    };
    let embedding = Embedding { table, hidden: size.hidden, scale: None };
    Ok((embedding, Head { table: head, finish: LogitsSpec::PLAIN }))
}

/// Converts token ids to vectors.
#[derive(Clone, Debug)]
pub(crate) struct Embedding {
    table: Rc<Table>,
    hidden: usize,
    /// Factor of the vectors.
    scale: Option<f32>,
}

impl Embedding {
    /// Multiplies the vectors by a factor.
    pub(crate) fn scaled(self, scale: Option<f32>) -> Embedding {
        Embedding { scale, ..self }
    }

    /// Returns the beginning of the residual stream.
    pub(crate) fn forward(&self, ids: StepTokens<'_>) -> Residual {
        let rows = self.table.parallel.all_sum(&self.rows(ids));
        Residual::new(self.finished(rows), &self.table.parallel)
    }

    /// Returns the vectors of `ids` before their sum over the ranks.
    pub(super) fn rows(&self, ids: StepTokens<'_>) -> Array {
        self.table.rows(ids, self.hidden)
    }

    /// Returns the beginning of the stream, of vectors that are summed over the ranks.
    pub(super) fn finished(&self, rows: Array) -> Array {
        // The factor is rounded to the type of the model, as in mlx-lm.
        let scaled = self.scale.map(|scale| rows.mul(&Array::scalar_of(scale, rows.dtype())));
        scaled.unwrap_or(rows)
    }
}

/// Converts vectors to logits.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    table: Rc<Table>,
    /// Scale and cap of the logits.
    finish: LogitsSpec,
}

/// Scales and caps logits with MLX.
fn stock_finish(logits: Array, LogitsSpec { scale, soft_cap }: LogitsSpec) -> Array {
    let scaled = if scale == 1.0 { logits } else { &logits * scale };
    match soft_cap {
        Some(cap) => &(&scaled * (1.0 / cap)).tanh() * cap,
        None => scaled,
    }
}

impl Head {
    /// Scales and caps the logits.
    pub(crate) fn finishing(self, finish: LogitsSpec) -> Head {
        Head { finish, ..self }
    }

    /// Returns this rank's rows of the head's table; if it has none, those of the embedding's.
    pub(crate) fn rows(&self, embedding: &Embedding) -> Cut {
        let own = self.table.own();
        if own.is_empty() { embedding.table.own().clone() } else { own.clone() }
    }

    /// Returns f32 logits `[n, vocab]` for `x` `[n, hidden]`.
    pub(crate) fn forward(&self, x: &Array) -> Array {
        let logits = self.table.all_logits(x, self.finish);
        match self.table.parallel.compute() {
            Compute::Kernels(_) => logits,
            Compute::Stock => stock_finish(logits, self.finish),
        }
    }
}
