//! A mixture of experts: a router chooses, for each token, some of many feed-forward blocks.
//!
//! Every expert is divided among the ranks like a dense block, along its inner dimension, so all
//! ranks work on every token. The weight of an expert is applied before the product that is summed
//! over the ranks: a weighted sum of rounded parts would depend on the division.

use jackalope_cache::float;
use std::sync::Arc;

use jackalope_kernels::{self as kernels, Elements, ElementsMut, Floats, TermColumns, Threads};
use jackalope_mlx::{Array, Dtype, Pinned, dim, quant};

use super::frame::BlockFrame;
use super::mlp::{Mlp, MlpKernel};
use super::residual::{Middle, Residual, TwoParts};
use super::router::{Router, RouterKernel, Routes, StockRoutes};
use super::token_rows::TokenRows;
use crate::split::{Cut, cut_dimension};
use jackalope_parallel::activation::{self, BlockActivation};
use jackalope_parallel::kernel::{
    DivisibleKernel, MatrixCut, MatrixKernel, WeightMatrix, elements, pinned, zeros_after,
};
use jackalope_parallel::linear::{Linear, LinearKernel};
use jackalope_parallel::norm::{Norm, NormKernel};
use jackalope_parallel::output::{BlockOutput, stock_sum_products, sum_products};
use jackalope_parallel::{Compute, Parallel};
use jackalope_weights::LoadError;
use jackalope_weights::{Part, Weights};

/// Number of choices from which MLX sorts them by expert, as mlx-lm does.
const SORTED_CHOICES_MIN: usize = 64;

/// Sizes of the experts of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertSizes {
    pub(crate) num_experts: usize,
    /// Width of what an expert reads and writes: of the stream, or of a projection of it.
    pub(crate) hidden: usize,
    /// Inner dimension of an expert.
    pub(crate) inner: usize,
    /// Number of inner elements in an indivisible unit.
    pub(crate) unit: usize,
    /// How gate and up are combined.
    pub(crate) activation: BlockActivation,
    /// Whether the products have biases.
    pub(crate) has_bias: bool,
    /// Whether the router's weights multiply what an expert reads, not its result.
    pub(crate) weighs_input: bool,
}

/// The tensors of a layer's experts.
#[derive(Clone)]
pub(crate) struct ExpertWeights<'a> {
    /// `None` if experts have no gates.
    pub(crate) gate_proj: Option<Weights<'a>>,
    pub(crate) up_proj: Weights<'a>,
    pub(crate) down_proj: Weights<'a>,
}

/// Experts that each compute `down(activation(gate(x), up(x)))`, or `down(activation(up(x)))`.
#[derive(Debug)]
pub(crate) struct Experts {
    gate_proj: Option<WeightMatrix>, // [experts * inner, hidden]
    up_proj: WeightMatrix,           // [experts * inner, hidden]
    down_proj: WeightMatrix,         // [experts * hidden, inner]
    biases: Option<ExpertBiases>,
    sizes: ExpertSizes,
    /// This rank's part of the inner dimension.
    inner: Cut,
    /// Terms of the sums over the ranks.
    terms: TermColumns,
    dtype: Dtype,
}

/// Vectors that are added to the experts' products.
#[derive(Debug)]
struct ExpertBiases {
    gate_up: [Array; 2], // [experts, inner]
    down: Array,         // [experts, hidden]
    /// Whether this rank adds those of `down`: one rank of all does.
    adds_down: bool,
}

impl ExpertBiases {
    fn load(
        w: &ExpertWeights<'_>,
        sizes: ExpertSizes,
        inner: &Cut,
    ) -> Result<ExpertBiases, LoadError> {
        let part = Part::Axis { axis: 1, cut: inner };
        let gate_up = |w: &Weights<'_>| w.floats("bias", &[sizes.num_experts, inner.full], part);
        let gate_proj = w.gate_proj.as_ref().expect("experts with biases have gates");
        let down = [sizes.num_experts, sizes.hidden];
        Ok(ExpertBiases {
            gate_up: [gate_up(gate_proj)?, gate_up(&w.up_proj)?],
            down: w.down_proj.floats("bias", &down, Part::Whole)?,
            adds_down: inner.own.start == 0 && !inner.is_empty(),
        })
    }
}

impl Experts {
    pub(crate) fn load(
        w: &ExpertWeights<'_>,
        sizes: ExpertSizes,
        parallel: &Parallel,
    ) -> Result<Experts, LoadError> {
        let ExpertSizes { num_experts, hidden, inner, unit, has_bias, .. } = sizes;
        let inner = cut_dimension(inner, unit, parallel.shares()).swap_remove(parallel.rank());
        let rows = MatrixCut::Output { output: &inner, input: hidden };
        let columns = MatrixCut::Input { output: hidden, input: &inner };
        let biases = has_bias.then(|| ExpertBiases::load(w, sizes, &inner)).transpose()?;
        let gate_proj = w.gate_proj.as_ref();
        let gate_proj = gate_proj.map(|w| WeightMatrix::load_experts(w, num_experts, rows));
        Ok(Experts {
            biases,
            gate_proj: gate_proj.transpose()?,
            up_proj: WeightMatrix::load_experts(&w.up_proj, num_experts, rows)?,
            down_proj: WeightMatrix::load_experts(&w.down_proj, num_experts, columns)?,
            sizes,
            inner,
            terms: parallel.terms(unit),
            dtype: w.down_proj.dtype(),
        })
    }

    /// Computes this rank's part of the weighted sum of the chosen experts, `[tokens, hidden]`, with
    /// MLX.
    fn stock(&self, x: &Array, routes: &StockRoutes) -> Array {
        let (tokens, chosen) = (routes.experts.dim(0), routes.experts.dim(1));
        let choices = routes.experts.flatten(0, 1); // [tokens * chosen]
        let is_sorted = SORTED_CHOICES_MIN <= choices.size();
        let order = is_sorted.then(|| choices.argsort(0));
        let indices = order.as_ref().map_or(choices.clone(), |order| choices.take(order, 0));
        // The row of activations of each choice.
        let row = order.as_ref().map_or_else(
            || {
                let rows: Vec<i32> = (0..choices.dim(0)).map(|choice| choice / chosen).collect();
                Array::from_slice(&rows, &[dim(rows.len())])
            },
            |order| order.floor_divide(&Array::from_slice(&[chosen.cast_unsigned()], &[1])),
        );
        let gather = quant::Gather { indices: &indices, is_sorted };
        let own = x;
        // MLX reads the distance of rows from the strides, of which `expand_dims` makes up one: rows that were
        // taken afterwards have true ones.
        let mut x = x.expand_dims(1).take(&row, 0); // [choices, 1, hidden]
        if self.sizes.weighs_input {
            let weights = routes.weights.flatten(0, 1);
            let weights = order.as_ref().map_or(weights.clone(), |order| weights.take(order, 0));
            x = x.mul(&weights.reshape(&[-1, 1, 1]).astype(x.dtype()));
        }
        // The row of a bias of each choice, `[choices, 1, width]`.
        let biased = |x: Array, bias: Option<&Array>| {
            bias.map_or(x.clone(), |bias| x.add(&bias.take(&indices, 0).expand_dims(1)))
        };
        let biases = self.biases.as_ref();
        let projected = |matrix: &WeightMatrix, idx: usize| {
            biased(matrix.stock_gathered(&x, gather), biases.map(|biases| &biases.gate_up[idx]))
        };
        let gate = self.gate_proj.as_ref().map(|matrix| projected(matrix, 0));
        let up = projected(&self.up_proj, 1);
        let inner = match &gate {
            Some(gate) => self.sizes.activation.stock_gated(gate, &up),
            None => activation::stock(self.sizes.activation.function(), &up),
        };
        let out = self.down_proj.stock_gathered(&inner, gather);
        let down = biases.filter(|biases| biases.adds_down).map(|biases| &biases.down);
        let out = biased(out, down).squeeze(1); // [choices, hidden]
        let out = order.map_or(out.clone(), |order| out.take(&order.argsort(0), 0));
        let out = out.reshape(&[tokens, chosen, dim(self.sizes.hidden)]);
        let out = out.astype(Dtype::F32);
        let weighed =
            if self.sizes.weighs_input { out } else { out.mul(&routes.weights.expand_dims(2)) };
        let sum = weighed.sum(1, false);
        let sum = match &routes.identity {
            Some(weights) if self.adds_once() => sum.add(&own.astype(Dtype::F32).mul(weights)),
            _ => sum,
        };
        sum.astype(self.dtype)
    }

    /// Whether this rank adds what is not divided: one rank of all does.
    fn adds_once(&self) -> bool {
        self.inner.own.start == 0 && !self.inner.is_empty()
    }

    fn kernel(&self) -> ExpertsKernel {
        ExpertsKernel {
            gate: self.gate_proj.as_ref().map(WeightMatrix::kernel),
            up: self.up_proj.kernel(),
            down: DivisibleKernel { matrix: self.down_proj.kernel(), terms: self.terms },
            biases: self.biases.as_ref().map(|biases| BiasesKernel {
                gate_up: biases.gate_up.each_ref().map(pinned),
                down: biases.adds_down.then(|| pinned(&biases.down)),
            }),
            activation: self.sizes.activation,
            weighs_input: self.sizes.weighs_input,
            adds_once: self.adds_once(),
            dtype: self.dtype,
        }
    }
}

/// Experts for the kernels.
#[derive(Debug)]
struct ExpertsKernel {
    /// `None` if experts have no gates.
    gate: Option<Arc<MatrixKernel>>,
    up: Arc<MatrixKernel>,
    down: DivisibleKernel,
    biases: Option<BiasesKernel>,
    activation: BlockActivation,
    weighs_input: bool,
    /// Whether this rank adds what is not divided.
    adds_once: bool,
    dtype: Dtype,
}

/// Vectors that are added to the experts' products, for the kernels.
#[derive(Debug)]
struct BiasesKernel {
    gate_up: [Pinned; 2],
    /// `None` if another rank adds it.
    down: Option<Pinned>,
}

impl ExpertsKernel {
    /// Computes this rank's part of the weighted sum of the chosen experts, `[tokens, hidden]`.
    fn product(&self, x: Elements<'_>, routes: &Routes, threads: &Threads) -> Vec<f64> {
        let Routes { experts: rows, identity } = routes;
        let inner = match &self.gate {
            Some(gate) => self.gated(gate, x, rows, threads),
            None => self.ungated(x, rows, threads),
        };
        let DivisibleKernel { matrix, terms } = &self.down;
        let (down, inner) = (&matrix.view(), inner.elements());
        let mut sums = kernels::divisible_expert_matmul(inner, rows, down, *terms, threads);
        if let Some(bias) = self.biases.as_ref().and_then(|biases| biases.down.as_ref()) {
            kernels::add_weighted_biases(&mut sums, rows, elements(bias));
        }
        if let Some(weights) = identity.as_ref().filter(|_| self.adds_once) {
            kernels::add_scaled_rows(&mut sums, x, weights);
        }
        sums
    }

    /// Computes what the experts' last product reads, `[choices, inner]`.
    fn gated(
        &self,
        gate: &MatrixKernel,
        x: Elements<'_>,
        rows: &kernels::ExpertRows,
        threads: &Threads,
    ) -> Floats {
        let [mut gate, mut up] =
            kernels::expert_matmul(x, rows, [&gate.view(), &self.up.view()], threads);
        if self.weighs_input {
            // The product of a weighed row is the weighed product.
            kernels::scale_rows(&mut gate, rows.weights());
        }
        if let Some(BiasesKernel { gate_up: [gate_bias, up_bias], .. }) = &self.biases {
            kernels::add_expert_bias(&mut gate, rows, elements(gate_bias));
            kernels::add_expert_bias(&mut up, rows, elements(up_bias));
        }
        let function = self.activation.bound(&mut gate, &mut up, threads);
        kernels::scale_rows(&mut up, rows.weights());
        let mut inner = Floats::zeros(float(self.dtype), up.len());
        kernels::gated(function, &gate, &up, inner.elements_mut(), threads);
        inner
    }

    /// Like [`ExpertsKernel::gated`], for experts without gates.
    fn ungated(&self, x: Elements<'_>, rows: &kernels::ExpertRows, threads: &Threads) -> Floats {
        let [up] = kernels::expert_matmul(x, rows, [&self.up.view()], threads);
        let mut weighed = vec![0.0; up.len()];
        let function = self.activation.function();
        kernels::activate(function, &up, ElementsMut::F32(&mut weighed), threads);
        kernels::scale_rows(&mut weighed, rows.weights());
        let mut inner = Floats::zeros(float(self.dtype), up.len());
        inner.store(0, &weighed);
        inner
    }
}

/// A feed-forward block of experts, and of one more that every token passes, if there is one.
#[derive(Debug)]
pub(crate) struct SparseMlp {
    pub(crate) router: Router,
    pub(crate) experts: Experts,
    pub(crate) shared: Option<SharedExpert>,
    /// Projections between the stream and the routed experts, if these do not read the stream
    /// itself.
    latent: Option<Latent>,
    /// Width of the stream.
    hidden: usize,
    /// A dense block with norms of its own, if there is one.
    beside: Option<DenseBeside>,
    parallel: Parallel,
}

/// The projections between the stream and vectors that routed experts read and write. Every rank
/// holds them; the sum over the ranks is taken of these vectors.
#[derive(Debug)]
pub(crate) struct Latent {
    /// Projection `[hidden] -> [width]`.
    pub(crate) down: Linear,
    /// Norm of the experts' sum, if there is one.
    pub(crate) norm: Option<Norm>,
    /// Projection `[width] -> [hidden]`.
    pub(crate) up: Linear,
    /// Width of the vectors.
    pub(crate) width: usize,
}

/// A dense block beside experts. Each reads the stream through a norm of its own, and what each returns
/// is normalised before it is added up.
#[derive(Debug)]
pub(crate) struct DenseBeside {
    pub(crate) mlp: Mlp,
    /// Norms of what the dense block and the experts read.
    pub(crate) inputs: [Norm; 2],
    /// Norms of what the dense block and the experts return.
    pub(crate) outputs: [Norm; 2],
}

/// An expert that every token passes.
#[derive(Debug)]
pub(crate) struct SharedExpert {
    pub(crate) mlp: Mlp,
    /// Its result is multiplied by the logistic function of this layer's; `[1, hidden]`.
    pub(crate) gate: Option<Linear>,
}

impl SparseMlp {
    pub(crate) fn new(
        router: Router,
        experts: Experts,
        shared: Option<SharedExpert>,
        latent: Option<Latent>,
        parallel: &Parallel,
    ) -> SparseMlp {
        let hidden = latent.as_ref().map_or(experts.sizes.hidden, |latent| latent.up.output());
        let (beside, parallel) = (None, parallel.clone());
        SparseMlp { router, experts, shared, beside, latent, hidden, parallel }
    }

    /// Puts a dense block beside the experts.
    pub(crate) fn beside(self, beside: Option<DenseBeside>) -> SparseMlp {
        SparseMlp { beside, ..self }
    }

    /// Returns this rank's part of the inner dimension of an expert.
    pub(crate) fn inner(&self) -> &Cut {
        &self.experts.inner
    }

    /// Adds the mixture to the stream.
    pub(crate) fn add_to(
        &self,
        residual: Residual,
        frame: &BlockFrame,
        tokens: Option<&TokenRows>,
    ) -> Residual {
        if let Some(beside) = &self.beside {
            return self.add_halves(beside, residual, frame);
        }
        let output = self.block_output();
        let Compute::Kernels(threads) = self.parallel.compute() else {
            let work = |x: &Array| self.stock(x, tokens).expect("the block is not empty");
            if tokens.is_none() && output.num_sums == 0 {
                return residual.stock_row_block(frame, output, work);
            }
            return residual.stock_block(frame, output, work);
        };
        let kernel = self.kernel(tokens);
        let Some(latent) = &self.latent else {
            return residual.kernel_block(frame, output, threads, move |x, threads| {
                kernel.product(x, threads).expect("the block is not empty")
            });
        };
        let SparseKernel { routed, shared } = kernel;
        let first = LatentExpertsKernel { routed, down: latent.down.kernel(), width: latent.width };
        let second = LatentSumKernel {
            shared,
            norm: latent.norm.as_ref().map(Norm::kernel),
            up: self.experts.adds_once().then(|| latent.up.divisible_kernel()),
            hidden: self.hidden,
            dtype: self.experts.dtype,
        };
        let block = TwoParts {
            widths: vec![self.hidden],
            first: move |x: Elements<'_>, threads: &Threads| first.compute(x, threads),
            second: move |middle, threads: &Threads| second.product(middle, threads),
        };
        residual.kernel_block_of_two(frame, output, threads, block)
    }

    /// Returns what the block adds to the stream, unless there is a dense block beside it.
    pub(super) fn block_output(&self) -> BlockOutput<'_> {
        BlockOutput {
            hidden: self.hidden,
            halves: None,
            // What a dense block adds for once is that of the expert that every token passes.
            bias: self.shared.as_ref().and_then(|shared| shared.mlp.block_output().bias),
            num_sums: self.latent.as_ref().map_or(0, |latent| latent.width),
            is_empty: self.experts.inner.is_empty() && self.own_shared().is_none(),
            dtype: self.experts.dtype,
        }
    }

    /// Adds the experts and the dense block beside them: both halves of a product of twice the width.
    fn add_halves(&self, beside: &DenseBeside, residual: Residual, frame: &BlockFrame) -> Residual {
        let DenseBeside { mlp, inputs, outputs } = beside;
        let hidden = self.experts.sizes.hidden;
        let (has_dense, has_experts) = (!mlp.inner.is_empty(), !self.experts.inner.is_empty());
        let output = BlockOutput {
            hidden: 2 * hidden,
            halves: Some(outputs),
            bias: None,
            num_sums: 0,
            is_empty: !has_dense && !has_experts,
            dtype: self.experts.dtype,
        };
        let Compute::Kernels(threads) = self.parallel.compute() else {
            return residual.stock_row_block(frame, output, |x| {
                let zeros = || zeros_after(x, hidden, self.experts.dtype);
                let dense = has_dense.then(|| mlp.stock(&inputs[0].stock(x)));
                let routed = has_experts
                    .then(|| self.experts.stock(&inputs[1].stock(x), &self.router.stock(x, None)));
                let [dense, routed] = [dense, routed].map(|half| half.unwrap_or_else(zeros));
                Array::concatenate(&[&dense, &routed], 1)
            });
        };
        let kernel = HalvesKernel {
            dense: has_dense.then(|| (inputs[0].kernel(), mlp.kernel())),
            routed: has_experts
                .then(|| (inputs[1].kernel(), self.router.kernel(None), self.experts.kernel())),
            dtype: self.experts.dtype,
            hidden,
        };
        residual.kernel_block(frame, output, threads, move |x, threads| kernel.product(x, threads))
    }

    /// Whether the block is one product: routed experts read the stream itself, and nothing is computed
    /// beside them.
    pub(super) fn is_one_product(&self) -> bool {
        self.latent.is_none() && self.beside.is_none()
    }

    /// Returns the expert that every token passes, if this rank has a part of it.
    fn own_shared(&self) -> Option<&SharedExpert> {
        self.shared.as_ref().filter(|shared| !shared.mlp.inner.is_empty())
    }

    /// Returns what this rank computes inside a primitive.
    pub(super) fn kernel(&self, tokens: Option<&TokenRows>) -> SparseKernel {
        let has_experts = !self.experts.inner.is_empty();
        SparseKernel {
            routed: has_experts.then(|| (self.router.kernel(tokens), self.experts.kernel())),
            shared: self.own_shared().map(SharedExpert::kernel),
        }
    }

    /// Computes this rank's part of the product `[tokens, hidden]` with MLX; `None` if this rank has
    /// no part of the block.
    pub(super) fn stock(&self, x: &Array, tokens: Option<&TokenRows>) -> Option<Array> {
        let shared = self.own_shared().map(|shared| shared.stock(x));
        let Some(latent) = &self.latent else {
            let routed = (!self.experts.inner.is_empty())
                .then(|| self.experts.stock(x, &self.router.stock(x, tokens)));
            return stock_sum_products(routed, shared);
        };
        let sum = if self.experts.inner.is_empty() {
            zeros_after(x, latent.width, Dtype::F32)
        } else {
            let routes = self.router.stock(x, tokens);
            self.experts.stock(&latent.down.stock(x), &routes).astype(Dtype::F32)
        };
        let sum = self.parallel.all_sum(&sum).astype(self.experts.dtype);
        // What every rank returns depends on the sum, so that all take part in it in the same order.
        let routed = if self.experts.adds_once() {
            latent.up.stock(&latent.norm.as_ref().map_or(sum.clone(), |norm| norm.stock(&sum)))
        } else {
            zeros_after(&sum, self.hidden, self.experts.dtype)
        };
        stock_sum_products(Some(routed), shared)
    }
}

impl SharedExpert {
    fn stock(&self, x: &Array) -> Array {
        let out = self.mlp.stock(x);
        match &self.gate {
            Some(gate) => out.mul(&gate.stock(x).sigmoid()),
            None => out,
        }
    }

    fn kernel(&self) -> SharedKernel {
        SharedKernel { mlp: self.mlp.kernel(), gate: self.gate.as_ref().map(Linear::kernel) }
    }
}

/// Experts and the dense block beside them, for the kernels.
struct HalvesKernel {
    dense: Option<(NormKernel, MlpKernel)>,
    routed: Option<(NormKernel, RouterKernel, ExpertsKernel)>,
    dtype: Dtype,
    /// Width of a half.
    hidden: usize,
}

impl HalvesKernel {
    /// Computes this rank's part of the product `[tokens, 2 * hidden]`.
    fn product(&self, x: Elements<'_>, threads: &Threads) -> Vec<f64> {
        let normed = |norm: &NormKernel| {
            let mut normed = Floats::zeros(float(self.dtype), x.len());
            norm.norm(x, normed.elements_mut(), threads);
            normed
        };
        let dense =
            self.dense.as_ref().map(|(norm, mlp)| mlp.product(normed(norm).elements(), threads));
        let routed = self.routed.as_ref().map(|(norm, router, experts)| {
            let rows = router.route(x, threads);
            experts.product(normed(norm).elements(), &rows, threads)
        });
        let mut halves = vec![0.0; 2 * x.len()];
        for (idx, half) in [dense, routed].iter().enumerate() {
            let Some(half) = half else { continue };
            let rows = halves.chunks_exact_mut(2 * self.hidden).zip(half.chunks_exact(self.hidden));
            for (row, own) in rows {
                row[idx * self.hidden..][..self.hidden].copy_from_slice(own);
            }
        }
        halves
    }
}

/// The block for the kernels.
pub(super) struct SparseKernel {
    routed: Option<(RouterKernel, ExpertsKernel)>,
    shared: Option<SharedKernel>,
}

/// The expert that every token passes, for the kernels.
struct SharedKernel {
    mlp: MlpKernel,
    gate: Option<LinearKernel>,
}

impl SparseKernel {
    /// Computes this rank's part of the product `[tokens, hidden]`; `None` if this rank has no part of
    /// the block.
    pub(super) fn product(&self, x: Elements<'_>, threads: &Threads) -> Option<Vec<f64>> {
        let routed = self.routed.as_ref().map(|(router, experts)| {
            let routes = router.route(x, threads);
            experts.product(x, &routes, threads)
        });
        let shared = self.shared.as_ref().map(|shared| shared.product(x, threads));
        sum_products(routed, shared)
    }
}

/// The first part of a block whose routed experts do not read the stream itself.
struct LatentExpertsKernel {
    /// `None` if this rank has no part of them.
    routed: Option<(RouterKernel, ExpertsKernel)>,
    down: LinearKernel,
    width: usize,
}

impl LatentExpertsKernel {
    /// Returns the rows `x`, and as sums this rank's part of the experts' weighted sum.
    fn compute(&self, x: Elements<'_>, threads: &Threads) -> Middle {
        let [latents] = LinearKernel::products(std::array::from_ref(&self.down), x, threads);
        let sums = match &self.routed {
            Some((router, experts)) => {
                let rows = router.route(x, threads);
                let mut rounded = Floats::zeros(float(experts.dtype), latents.len());
                rounded.store(0, &latents);
                experts.product(rounded.elements(), &rows, threads)
            }
            None => vec![0.0; latents.len()],
        };
        debug_assert_eq!(sums.len() % self.width, 0, "whole rows");
        Middle { values: vec![x.to_f32()], sums }
    }
}

/// The second part: the projection of the experts' sum, and the expert that every token passes.
struct LatentSumKernel {
    shared: Option<SharedKernel>,
    /// Norm of the experts' sum, if there is one.
    norm: Option<NormKernel>,
    /// `None` if another rank adds it.
    up: Option<DivisibleKernel>,
    hidden: usize,
    dtype: Dtype,
}

impl LatentSumKernel {
    fn product(&self, middle: Middle, threads: &Threads) -> Vec<f64> {
        let Middle { values, sums } = middle;
        let rounded = |values: &[f32]| {
            let mut rounded = Floats::zeros(float(self.dtype), values.len());
            rounded.store(0, values);
            rounded
        };
        let routed = self.up.as_ref().map(|up| {
            let sums: Vec<f32> = sums.iter().map(|sum| *sum as f32).collect();
            let mut latents = rounded(&sums);
            if let Some(norm) = &self.norm {
                let sums = latents;
                latents = Floats::zeros(float(self.dtype), sums.elements().len());
                norm.norm(sums.elements(), latents.elements_mut(), threads);
            }
            up.multiply(latents.elements(), threads)
        });
        // The rows were in the type of the model before.
        let shared =
            self.shared.as_ref().map(|it| it.product(rounded(&values[0]).elements(), threads));
        let tokens = values[0].len() / self.hidden;
        sum_products(routed, shared).unwrap_or_else(|| vec![0.0; tokens * self.hidden])
    }
}

impl SharedKernel {
    fn product(&self, x: Elements<'_>, threads: &Threads) -> Vec<f64> {
        let factors = self.gate.as_ref().map(|gate| {
            let [mut logits] = LinearKernel::products(std::array::from_ref(gate), x, threads);
            kernels::sigmoid(&mut logits);
            logits
        });
        self.mlp.weighted_product(x, factors.as_deref(), threads)
    }
}
