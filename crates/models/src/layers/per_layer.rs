//! What layers read of the tokens beside the residual stream (Gemma 3n, Gemma 4): a second embedding
//! and a projection of the first one, computed once for all layers; see
//! [`jackalope_spec::PerLayerInputsSpec`].
//!
//! The rank with the first layer computes it. In a pipeline it travels beside the stream, less the parts
//! of layers that have read theirs.

use jackalope_kernels::{
    self as kernels, ActivationFunction, Elements, ElementsMut, Floats, Terms, Threads,
};
use jackalope_mlx::{Array, Dtype, dim};
use jackalope_protocol::TokenId;
use jackalope_spec::{PerLayerBlock, PerLayerInputsSpec};

use super::embedding::{Embedding, Table, TableSize};
use super::residual::Residual;
use crate::split::Cut;
use crate::step::StepTokens;
use jackalope_parallel::activation;
use jackalope_parallel::kernel::primitive;
use jackalope_parallel::linear::{HasBias, Linear, LinearKernel};
use jackalope_parallel::norm::{Norm, NormKernel, NormSettings};
use jackalope_parallel::{Compute, Parallel};
use jackalope_weights::LoadError;
use jackalope_weights::Weights;

/// Computes the inputs of all layers, on ranks that have the first one.
#[derive(Debug)]
pub(crate) struct PerLayerInputs {
    table: Table,
    projection: Linear,
    norm: Norm,
    /// Width of a layer's input.
    width: usize,
    /// Width of all inputs.
    all: usize,
    hidden: usize,
    /// Number of tokens in the table.
    vocab_size: usize,
    parallel: Parallel,
}

impl PerLayerInputs {
    /// Loads this rank's part; `None` if another rank has the first layer.
    pub(crate) fn load(
        root: &Weights<'_>,
        spec: &PerLayerInputsSpec,
        hidden: usize,
        settings: NormSettings,
        parallel: &Parallel,
    ) -> Result<Option<PerLayerInputs>, LoadError> {
        if !parallel.has_first_layer() {
            return Ok(None);
        }
        let &PerLayerInputsSpec { width, vocab_size, ref table, ref projection, ref norm } = spec;
        let all = projection.shape[0];
        let rows = Cut::of_all_ranks(all);
        let size = TableSize { vocab: vocab_size, hidden: all };
        let projection = root.at(projection.module());
        Ok(Some(PerLayerInputs {
            table: Table::load(&root.at(table.module()), size, true, HasBias::No, parallel)?,
            projection: Linear::column(&projection, hidden, &rows, HasBias::No)?,
            norm: Norm::load(&root.at(norm.module()), width, settings, parallel)?,
            width,
            all,
            hidden,
            vocab_size,
            parallel: parallel.clone(),
        }))
    }

    /// Returns the beginning of the stream, and the inputs of all layers `[tokens, layers * width]`.
    pub(crate) fn forward(&self, embedding: &Embedding, ids: StepTokens<'_>) -> (Residual, Array) {
        // Tokens that the table lacks have the vectors of the first.
        let held = |&id: &TokenId| if (id as usize) < self.vocab_size { id } else { 0 };
        let ids_of_table: Vec<TokenId> = ids.host.iter().map(held).collect();
        let bound = |id: usize| Array::scalar_of(id as f32, Dtype::U32);
        let on_device =
            ids.device.map(|ids| Array::where_(&ids.less(&bound(self.vocab_size)), ids, &bound(0)));
        let ids_of_table = StepTokens { host: &ids_of_table, device: on_device.as_ref() };
        let both = [embedding.rows(ids), self.table.rows(ids_of_table, self.all)];
        let (h, rows) = if self.parallel.size() == 1 {
            let [h, rows] = both;
            (h, rows)
        } else {
            let [h, rows] = both;
            let sum = self.parallel.all_sum(&Array::concatenate(&[&h, &rows], 1));
            let (hidden, all) = (dim(self.hidden), dim(self.all));
            (sum.slice_axis(1, 0, hidden), sum.slice_axis(1, hidden, hidden + all))
        };
        let h = embedding.finished(h);
        let inputs = match self.parallel.compute() {
            Compute::Kernels(threads) => {
                let kernel = self.kernel();
                let out = rows.array_type();
                primitive(
                    "per_layer_inputs",
                    &[&h, &rows],
                    out,
                    threads,
                    move |inputs, out, threads| {
                        kernel.inputs(inputs.elements(), inputs.elements(), out, threads);
                    },
                )
            }
            Compute::Stock => self.stock(&h, &rows),
        };
        (Residual::new(h, &self.parallel), inputs)
    }

    fn stock(&self, h: &Array, rows: &Array) -> Array {
        let [projected, table, sum] = self.factors();
        let projected = &self.projection.stock(h) * projected;
        let parts = projected.reshape(&[rows.dim(0), -1, dim(self.width)]);
        let normed = self.norm.stock(&parts).reshape(&rows.shape());
        &normed.add(&(rows * table)) * sum
    }

    /// Returns the factors of the projection, of the table, and of their sum.
    fn factors(&self) -> [f32; 3] {
        let root = |number: usize| (number as f64).sqrt();
        [1.0 / root(self.hidden), root(self.width), 1.0 / root(2)].map(|factor| factor as f32)
    }

    fn kernel(&self) -> InputsKernel {
        InputsKernel {
            projection: self.projection.kernel(),
            norm: self.norm.kernel(),
            factors: self.factors(),
        }
    }
}

/// The computation of the inputs, for the kernels.
struct InputsKernel {
    projection: LinearKernel,
    norm: NormKernel,
    factors: [f32; 3],
}

impl InputsKernel {
    /// Computes the inputs from the embedding `h` `[tokens, hidden]` and the rows of the table.
    fn inputs(
        &self,
        h: Elements<'_>,
        rows: Elements<'_>,
        mut out: ElementsMut<'_>,
        threads: &Threads,
    ) {
        let [of_projection, of_table, of_sum] = self.factors;
        let projection = std::array::from_ref(&self.projection);
        let [mut projected] = LinearKernel::products(projection, h, threads);
        projected.iter_mut().for_each(|value| *value *= of_projection);
        let mut normed = vec![0.0; projected.len()];
        self.norm.norm(Elements::F32(&projected), ElementsMut::F32(&mut normed), threads);
        for (value, row) in normed.iter_mut().zip(rows.to_f32()) {
            *value = (*value + row * of_table) * of_sum;
        }
        out.store(0, &normed);
    }
}

/// The inputs of the layers of a rank that are still to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerInput<'a> {
    /// `[tokens, layers * width]`.
    pub(crate) rows: &'a Array,
    /// First element of a row that the layer reads.
    pub(crate) first: usize,
}

/// Adds `norm(projection(gelu(gate(stream)) * inputs))` to the stream. Every rank computes all of it:
/// it is small, and no sum over the ranks is needed.
#[derive(Debug)]
pub(crate) struct PerLayerReader {
    gate: Linear,
    projection: Linear,
    norm: Norm,
    width: usize,
    /// Factor of the stream after the block.
    scale: f32,
    parallel: Parallel,
}

/// What a reader is loaded with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReaderSizes {
    pub(crate) hidden: usize,
    pub(crate) width: usize,
    /// Factor of the stream after the block.
    pub(crate) scale: f32,
}

impl PerLayerReader {
    /// Loads the block.
    pub(crate) fn load(
        root: &Weights<'_>,
        spec: &PerLayerBlock,
        sizes: ReaderSizes,
        settings: NormSettings,
        parallel: &Parallel,
    ) -> Result<PerLayerReader, LoadError> {
        let ReaderSizes { hidden, width, scale } = sizes;
        let linear = |module: &str, input, output| {
            Linear::column(&root.at(module), input, &Cut::of_all_ranks(output), HasBias::No)
        };
        Ok(PerLayerReader {
            gate: linear(&spec.gate, hidden, width)?,
            projection: linear(&spec.projection, width, hidden)?,
            norm: Norm::load(&root.at(&spec.norm), hidden, settings, parallel)?,
            width,
            scale,
            parallel: parallel.clone(),
        })
    }

    /// Adds the block to the stream.
    pub(crate) fn add_to(&self, residual: Residual, input: LayerInput<'_>) -> Residual {
        let h = residual.finish();
        let h = match self.parallel.compute() {
            Compute::Kernels(threads) => {
                let (kernel, out) = (self.kernel(input), h.array_type());
                let inputs = [&h, input.rows];
                primitive("per_layer", &inputs, out, threads, move |inputs, out, threads| {
                    kernel.add(inputs.elements(), inputs.elements(), out, threads);
                })
            }
            Compute::Stock => {
                let sum = h.add(&self.stock_addition(&h, input));
                if self.scale == 1.0 { sum } else { &sum * self.scale }
            }
        };
        Residual::new(h, &self.parallel)
    }

    /// Computes what is added to the stream of which `h` is read, with MLX.
    pub(super) fn stock_addition(&self, h: &Array, input: LayerInput<'_>) -> Array {
        let (first, width) = (dim(input.first), dim(self.width));
        let rows = input.rows.slice_axis(1, first, first + width);
        let gate = activation::stock(ActivationFunction::GeluTanh, &self.gate.stock(h));
        self.norm.stock(&self.projection.stock(&gate.mul(&rows)))
    }

    /// Returns the block for use inside a primitive.
    pub(super) fn kernel(&self, input: LayerInput<'_>) -> ReaderKernel {
        ReaderKernel {
            gate: self.gate.kernel(),
            projection: self.projection.kernel(),
            norm: self.norm.kernel(),
            columns: InputColumns {
                all: input.rows.dim(-1) as usize,
                first: input.first,
                width: self.width,
            },
            scale: self.scale,
        }
    }
}

/// Where a layer's inputs are in those of all layers.
#[derive(Clone, Copy, Debug)]
struct InputColumns {
    /// Width of the inputs of all layers.
    all: usize,
    /// First element of this layer's.
    first: usize,
    width: usize,
}

/// The block for the kernels.
pub(super) struct ReaderKernel {
    gate: LinearKernel,
    projection: LinearKernel,
    norm: NormKernel,
    columns: InputColumns,
    scale: f32,
}

impl ReaderKernel {
    /// Computes the stream after the block, from the stream `[tokens, hidden]` and the inputs of all
    /// layers.
    fn add(&self, h: Elements<'_>, rows: Elements<'_>, out: ElementsMut<'_>, threads: &Threads) {
        let product = self.product(h, rows, threads);
        let product: Vec<f64> = product.into_iter().map(f64::from).collect();
        let terms = Terms {
            residual: h,
            bias: None,
            norm: Some(self.norm.view()),
            factor: 1.0,
            scale: self.scale,
            width: self.norm.width(),
        };
        kernels::add_terms(&product, terms, out, threads);
    }

    /// Computes what is added to the stream of which `h` is read, f32 `[tokens, hidden]`.
    pub(super) fn addition(
        &self,
        h: Elements<'_>,
        rows: Elements<'_>,
        threads: &Threads,
    ) -> Vec<f32> {
        let product = self.product(h, rows, threads);
        let mut normed = vec![0.0; product.len()];
        self.norm.norm(Elements::F32(&product), ElementsMut::F32(&mut normed), threads);
        normed
    }

    /// Computes the product before its norm.
    fn product(&self, h: Elements<'_>, rows: Elements<'_>, threads: &Threads) -> Vec<f32> {
        let InputColumns { all, first, width } = self.columns;
        let [gate] = LinearKernel::products(std::array::from_ref(&self.gate), h, threads);
        let mut inputs = vec![0.0; gate.len()];
        for (row, own) in inputs.chunks_exact_mut(width).enumerate() {
            rows.load(row * all + first, own);
        }
        let mut inner = Floats::zeros(h.float(), gate.len());
        let function = ActivationFunction::GeluTanh;
        kernels::gated(function, &gate, &inputs, inner.elements_mut(), threads);
        let projection = std::array::from_ref(&self.projection);
        let [product] = LinearKernel::products(projection, inner.elements(), threads);
        product
    }
}
