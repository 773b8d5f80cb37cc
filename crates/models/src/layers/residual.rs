//! The residual stream, and the blocks that read it normalised and add to it.
//!
//! What a block adds is a product in f32, of which each rank has a part. The sum over the ranks is rounded together
//! with the residual by whoever reads the stream next. With our kernels, blocks between two sums are one node of MLX's
//! graph: one block with several ranks, all of them with one.
//!
//! ```text
//!            ┌────────────── block ──────────────┐
//!   stream ──┤ finish ─ norm ─ … ─ row product ├── sum over ranks ──▶ stream
//!            └───── h ────────────────────────────────────────────▶
//! ```

use std::fmt;
use std::sync::Arc;

use jackalope_kernels::{self as kernels, Elements, ElementsMut, Terms, Threads};
use jackalope_mlx::{Array, Dtype};

use super::floats::Floats;
use super::kernel::{Inputs, MatrixKernel, Outputs, primitives, zeros_after};
use super::linear::Linear;
use super::norm::RmsNorm;
use crate::parallel::{Compute, TensorParallel};

/// The stream between two blocks, `[tokens, hidden]`.
#[derive(Debug)]
pub(crate) struct Residual {
    h: Array,
    /// What the blocks before add.
    pending: Option<Pending>,
    /// Blocks that are not yet in the graph.
    blocks: Blocks,
    tp: TensorParallel,
}

/// Terms of the stream that are not yet added.
#[derive(Debug)]
struct Pending {
    /// Summed over the ranks, f32 `[tokens, hidden]`.
    product: Array,
    bias: Option<Array>, // [hidden]
}

/// Blocks that follow one another without a sum over ranks.
#[derive(Default)]
struct Blocks {
    /// What the kernels take, one after the other.
    arrays: Vec<Array>,
    kernels: Vec<BlockKernel>,
    /// Of the last block.
    bias: Option<Array>,
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks", self.kernels.len())
    }
}

/// What a block reads and what it ends with.
pub(super) struct BlockParts<'a> {
    /// Normalises what the block reads.
    pub(super) norm: &'a RmsNorm,
    /// The arrays that the block's own work takes.
    pub(super) arrays: Vec<&'a Array>,
    /// The row-parallel layer at its end.
    pub(super) row: &'a Linear,
}

/// A block's own work: from normalised rows to what its row-parallel layer takes, both in the model's type.
type Work = Box<dyn Fn(Elements<'_>, &Inputs<'_>, &Threads) -> Floats + Send>;

impl Residual {
    /// The embedded tokens.
    pub(crate) fn new(h: Array, tp: &TensorParallel) -> Residual {
        Residual { h, pending: None, blocks: Blocks::default(), tp: tp.clone() }
    }

    /// The stream as an array.
    pub(crate) fn finish(self) -> Array {
        match self.tp.compute().clone() {
            Compute::Kernels(threads) if self.pending.is_some() || !self.blocks.is_empty() => {
                let out = [(self.h.shape(), self.h.dtype())];
                self.node(&out, &threads, |chain, outputs, threads| chain.finish(outputs, threads))
                    .remove(0)
            }
            _ => self.h,
        }
    }

    /// `self + row(work(norm(self)))` by MLX; `work` maps `[tokens, hidden]` to what `row` takes.
    pub(super) fn stock_block(
        self,
        norm: &RmsNorm,
        row: &Linear,
        work: impl FnOnce(&Array) -> Array,
    ) -> Residual {
        let x = norm.forward(&self.h);
        let x = if row.matrix().is_empty() { x } else { work(&x) };
        Residual { h: row.stock(&x).add(&self.h), ..self }
    }

    /// As [`Residual::stock_block`] with our kernels; `work` takes its arrays from the inputs.
    pub(super) fn kernel_block(
        mut self,
        parts: &BlockParts<'_>,
        threads: &Arc<Threads>,
        work: impl Fn(Elements<'_>, &Inputs<'_>, &Threads) -> Floats + Send + 'static,
    ) -> Residual {
        if parts.row.matrix().is_empty() {
            let (width, tp, bias) =
                (parts.row.matrix().output(), self.tp.clone(), parts.row.bias().cloned());
            let h = self.finish();
            let product = tp.all_sum(&zeros_after(&h, width, Dtype::F32));
            let pending = Some(Pending { product, bias });
            return Residual { h, pending, blocks: Blocks::default(), tp };
        }
        self.blocks.push(parts, Box::new(work));
        if self.tp.size() == 1 { self } else { self.sum_over_ranks(threads) }
    }

    /// Puts the blocks into the graph, and the sum of what they add.
    fn sum_over_ranks(mut self, threads: &Arc<Threads>) -> Residual {
        let (tp, bias) = (self.tp.clone(), self.blocks.bias.take());
        let out = [(self.h.shape(), Dtype::F32), (self.h.shape(), self.h.dtype())];
        let mut results =
            self.node(&out, threads, |chain, outputs, threads| chain.split(outputs, threads));
        let h = results.remove(1);
        let product = tp.all_sum(&results.remove(0));
        Residual { h, pending: Some(Pending { product, bias }), blocks: Blocks::default(), tp }
    }

    /// A node that computes the blocks and hands the stream to `end`.
    fn node(
        self,
        outputs: &[(Vec<i32>, Dtype)],
        threads: &Arc<Threads>,
        end: fn(Chain<'_>, &mut Outputs<'_, '_>, &Threads),
    ) -> Vec<Array> {
        let mut inputs = vec![&self.h];
        let pending = self.pending.as_ref();
        if let Some(Pending { product, bias }) = pending {
            inputs.push(product);
            inputs.extend(bias);
        }
        inputs.extend(&self.blocks.arrays);
        inputs.extend(&self.blocks.bias);
        let has_pending = pending.map(|pending| pending.bias.is_some());
        let has_bias_after = self.blocks.bias.is_some();
        let (blocks, dtype) = (self.blocks.kernels, self.h.dtype());
        primitives("blocks", &inputs, outputs, threads, move |inputs, outputs, threads| {
            let mut chain = Chain::begin(inputs, has_pending, dtype);
            for block in &blocks {
                chain.run(block, inputs, threads);
            }
            if has_bias_after {
                chain.bias = Some(inputs.elements());
            }
            end(chain, outputs, threads);
        })
    }
}

impl Blocks {
    fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    fn push(&mut self, parts: &BlockParts<'_>, work: Work) {
        let BlockParts { norm, arrays, row } = parts;
        let bias_before = self.bias.take();
        self.kernels.push(BlockKernel {
            has_bias_before: bias_before.is_some(),
            eps: norm.eps(),
            work,
            row: row.matrix().kernel(),
        });
        self.arrays.extend(bias_before);
        let own =
            [norm.array()].into_iter().chain(arrays.iter().copied()).chain(row.matrix().arrays());
        self.arrays.extend(own.cloned());
        self.bias = row.bias().cloned();
    }
}

/// A block without its arrays.
struct BlockKernel {
    /// Whether the block before left a bias to be added.
    has_bias_before: bool,
    eps: f32,
    work: Work,
    row: MatrixKernel,
}

/// The stream while a node computes it.
struct Chain<'a> {
    h: Stream<'a>,
    /// Still to be added, f32.
    product: Option<std::borrow::Cow<'a, [f32]>>,
    bias: Option<Elements<'a>>,
    dtype: Dtype,
}

/// As the node found it, or as a block of it left it.
enum Stream<'a> {
    Found(Elements<'a>),
    Made(Floats),
}

impl Stream<'_> {
    fn elements(&self) -> Elements<'_> {
        match self {
            Stream::Found(elements) => *elements,
            Stream::Made(floats) => floats.elements(),
        }
    }
}

impl<'a> Chain<'a> {
    /// `has_pending` says whether there is something to add, and whether a bias is part of it.
    fn begin(inputs: &Inputs<'a>, has_pending: Option<bool>, dtype: Dtype) -> Chain<'a> {
        let h = Stream::Found(inputs.elements());
        let product = has_pending.map(|_| inputs.next().values::<f32>().into());
        let bias = has_pending.filter(|has_bias| *has_bias).map(|_| inputs.elements());
        Chain { h, product, bias, dtype }
    }

    /// `out = h + product + bias`, rounded once.
    fn add(&self, product: &[f32], out: ElementsMut<'_>, threads: &Threads) {
        let terms = Terms { bias: self.bias, residual: self.h.elements() };
        kernels::add_terms(product, terms, out, threads);
    }

    fn run(&mut self, block: &BlockKernel, inputs: &Inputs<'a>, threads: &Threads) {
        if block.has_bias_before {
            self.bias = Some(inputs.elements());
        }
        if let Some(product) = self.product.take() {
            let mut h = Floats::zeros(self.dtype, product.len());
            self.add(&product, h.elements_mut(), threads);
            self.h = Stream::Made(h);
        }
        self.bias = None;
        let h = self.h.elements();
        let mut normed = Floats::zeros(self.dtype, h.len());
        kernels::rms_norm(h, inputs.elements(), block.eps, normed.elements_mut(), threads);
        let x = (block.work)(normed.elements(), inputs, threads);
        let mut product = vec![0.0; h.len()];
        block.row.multiply(x.elements(), inputs, ElementsMut::F32(&mut product), threads);
        self.product = Some(product.into());
    }

    /// The finished stream to the only output.
    fn finish(self, outputs: &mut Outputs<'_, '_>, threads: &Threads) {
        let product = self.product.as_ref().expect("only unfinished streams are finished");
        self.add(product, outputs.next(), threads);
    }

    /// This rank's part of what is to be added, and what it is to be added to.
    fn split(self, outputs: &mut Outputs<'_, '_>, _threads: &Threads) {
        let product = self.product.as_ref().expect("a block adds something");
        outputs.next().copy_from(Elements::F32(product));
        outputs.next().copy_from(self.h.elements());
    }
}
