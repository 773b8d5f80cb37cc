//! The residual stream, and the blocks that read it normalised and add to it.
//!
//! With our kernels a block is one node of the graph. What it adds is still a product in f32, of which each rank has
//! a part; the sum over the ranks is rounded together with the residual by the block that reads it next.
//!
//! ```text
//!            ┌────────────── block ──────────────┐
//!   stream ──┤ finish ─ norm ─ … ─ row product ├── sum over ranks ──▶ stream
//!            └───── h ────────────────────────────────────────────▶
//! ```

use std::sync::Arc;

use jackalope_kernels::{self as kernels, Elements, ElementsMut, Terms, Threads};
use jackalope_mlx::{Array, Dtype};

use super::floats::Floats;
use super::kernel::{Inputs, Outputs, primitive, primitives, zeros_after};
use super::linear::Linear;
use super::norm::RmsNorm;
use crate::parallel::{Compute, TensorParallel};

/// The stream between two blocks, `[tokens, hidden]`.
#[derive(Clone, Debug)]
pub(crate) struct Residual {
    h: Array,
    pending: Option<Pending>,
    compute: Compute,
}

/// What the last block adds to the stream.
#[derive(Clone, Debug)]
struct Pending {
    /// Summed over the ranks, f32 `[tokens, hidden]`.
    product: Array,
    bias: Option<Array>, // [hidden]
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

impl Residual {
    /// The embedded tokens.
    pub(crate) fn new(h: Array, tp: &TensorParallel) -> Residual {
        Residual { h, pending: None, compute: tp.compute().clone() }
    }

    /// The stream as an array.
    pub(crate) fn finish(&self) -> Array {
        let (Some(_), Compute::Kernels(threads)) = (&self.pending, &self.compute) else {
            return self.h.clone();
        };
        let (kernel, out) = (self.kernel(), (self.h.shape(), self.h.dtype()));
        primitive("residual", &self.arrays(), out, threads, move |inputs, out, threads| {
            kernel.finish(inputs, Some(out), threads);
        })
    }

    /// `self + row(work(norm(self)))` by MLX; `work` maps `[tokens, hidden]` to what `row` takes.
    pub(super) fn stock_block(
        &self,
        norm: &RmsNorm,
        row: &Linear,
        work: impl FnOnce(&Array) -> Array,
    ) -> Residual {
        let x = norm.forward(&self.h);
        let x = if row.matrix().is_empty() { x } else { work(&x) };
        let h = row.stock(&x).add(&self.h);
        Residual { h, pending: None, compute: self.compute.clone() }
    }

    /// As [`Residual::stock_block`] with our kernels. `work` gets the normalised rows in the model's type, takes its
    /// arrays from the inputs, and gives back rows of the same type.
    pub(super) fn kernel_block(
        &self,
        name: &'static str,
        parts: &BlockParts<'_>,
        (tp, threads): (&TensorParallel, &Arc<Threads>),
        work: impl Fn(Elements<'_>, &Inputs<'_>, &Threads) -> Floats + Send + 'static,
    ) -> Residual {
        let row = parts.row;
        let (h, product) = if row.matrix().is_empty() {
            let h = self.finish();
            let nothing = zeros_after(&h, row.matrix().output(), Dtype::F32);
            (h, nothing)
        } else {
            self.block_node(name, parts, threads, work)
        };
        let product = if tp.size() == 1 { product } else { tp.all_sum(&product) };
        let pending = Some(Pending { product, bias: row.bias().cloned() });
        Residual { h, pending, compute: self.compute.clone() }
    }

    /// The finished stream and this rank's product, not yet summed.
    fn block_node(
        &self,
        name: &'static str,
        BlockParts { norm, arrays, row }: &BlockParts<'_>,
        threads: &Arc<Threads>,
        work: impl Fn(Elements<'_>, &Inputs<'_>, &Threads) -> Floats + Send + 'static,
    ) -> (Array, Array) {
        let mut inputs = self.arrays();
        inputs.push(norm.array());
        inputs.extend(arrays);
        inputs.extend(row.matrix().arrays());
        let mut outputs = vec![(self.h.shape(), Dtype::F32)];
        if self.pending.is_some() {
            outputs.push((self.h.shape(), self.h.dtype()));
        }
        let (kernel, eps, row, dtype) =
            (self.kernel(), norm.eps(), row.matrix().kernel(), self.h.dtype());
        let run = move |inputs: &Inputs<'_>, outputs: &mut Outputs<'_, '_>, threads: &Threads| {
            let product = outputs.next();
            let mut normed = Floats::zeros(dtype, product.len());
            let mut finished = kernel.has_pending.then(|| outputs.next());
            let h = kernel.finish(inputs, finished.as_mut().map(ElementsMut::reborrow), threads);
            let h = h.or_else(|| finished.as_ref().map(ElementsMut::as_elements));
            let h = h.expect("a stream without pending terms is finished");
            kernels::rms_norm(h, inputs.elements(), eps, normed.elements_mut(), threads);
            let x = work(normed.elements(), inputs, threads);
            row.multiply(x.elements(), inputs, product, threads);
        };
        let mut results = primitives(name, &inputs, &outputs, threads, run);
        let h = if self.pending.is_some() { results.remove(1) } else { self.h.clone() };
        (h, results.remove(0))
    }

    /// The arrays that [`ResidualKernel::finish`] takes.
    fn arrays(&self) -> Vec<&Array> {
        let mut arrays = vec![&self.h];
        if let Some(Pending { product, bias }) = &self.pending {
            arrays.push(product);
            arrays.extend(bias);
        }
        arrays
    }

    fn kernel(&self) -> ResidualKernel {
        let pending = self.pending.as_ref();
        ResidualKernel {
            has_pending: pending.is_some(),
            has_bias: pending.is_some_and(|pending| pending.bias.is_some()),
        }
    }
}

/// A stream without its arrays.
#[derive(Clone, Copy)]
struct ResidualKernel {
    has_pending: bool,
    has_bias: bool,
}

impl ResidualKernel {
    /// `out = h + product + bias`, rounded once; takes its arrays from `inputs`. Without pending terms `h` itself.
    fn finish<'a>(
        self,
        inputs: &Inputs<'a>,
        out: Option<ElementsMut<'_>>,
        threads: &Threads,
    ) -> Option<Elements<'a>> {
        let h = inputs.elements();
        let Some(out) = out else { return Some(h) };
        let product = inputs.next().values::<f32>();
        let bias = self.has_bias.then(|| inputs.elements());
        kernels::add_terms(product, Terms { bias, residual: h }, out, threads);
        None
    }
}
