//! Causal attention of a step's rows; each sequence attends to its own keys and values.

use std::rc::Rc;
use std::sync::Arc;

use jackalope_kernels::{
    self as kernels, AttentionConfig, Elements, ElementsMut, Float, Floats, Threads,
};
use jackalope_mlx::{Array, Dtype, Pinned, dim};
use jackalope_spec::QueryGrowth;

use super::chosen::{ChooserKernel, ChosenAttention};
use super::frame::{BlockFrame, StockInput};
use super::indexer::{Chooser, IndexProjections, IndexRows, Indexer, StockChooser};
use super::mlp::Mlp;
use super::residual::{Middle, Residual, TwoParts};
use super::stock_attention::{StockAttention, StockHeads, StockKv, StockValues};
use crate::step::{Reach, Step, StepSpan};
use jackalope_cache::{KvShape, LayerCacheShape, LayerPages, Page, PoolShape, float};
use jackalope_kernels::RotationTable;
use jackalope_parallel::fused_qkv::FusedQkv;
use jackalope_parallel::head_norms::{HeadNorms, HeadNormsKernel};
use jackalope_parallel::heads::Heads;
use jackalope_parallel::kernel::{DivisibleKernel, elements, pinned};
use jackalope_parallel::linear::{Linear, LinearKernel};
use jackalope_parallel::norm::{Norm, NormKernel};
use jackalope_parallel::output::{BlockOutput, stock_sum_products, sum_products};
use jackalope_parallel::rope::Rope;
use jackalope_parallel::{Compute, Parallel};
use jackalope_weights::LoadError;

/// The layers and settings of an attention block.
#[derive(Debug)]
pub(crate) struct AttentionParts {
    /// Projection `[hidden] -> [heads, head_dim]`.
    pub(crate) q_proj: Linear,
    /// Projection `[hidden] -> [heads, value_dim]`, or `[hidden] -> [heads]`, whose logistic function
    /// the results are multiplied by, if there is one.
    pub(crate) gate: Option<Linear>,
    /// Whether they are multiplied by the soft-plus function instead.
    pub(crate) has_softplus_gate: bool,
    pub(crate) key_values: KeyValues,
    /// Factor of the values.
    pub(crate) value_scale: f32,
    /// Projection `[heads, value_dim] -> [hidden]`, summed over ranks.
    pub(crate) o_proj: Linear,
    /// Norms of queries and keys.
    pub(crate) head_norms: Option<HeadNorms>,
    pub(crate) rope: Rc<Rope>,
    pub(crate) heads: Heads,
    /// The positions that a query sees.
    pub(crate) reach: Reach,
    pub(crate) query_growth: Option<QueryGrowth>,
    /// A score for each of this rank's query heads that takes part in the soft-max, `[heads]`.
    pub(crate) sinks: Option<Array>,
    /// Factor of the scores.
    pub(crate) scale: f32,
    /// With a cap, a scaled score becomes `cap * tanh(score / cap)`.
    pub(crate) soft_cap: Option<f32>,
    /// Chooses the positions that a query attends to.
    pub(crate) chooser: Option<Chooser>,
}

impl AttentionParts {
    /// Fuses the projections to queries, keys and values, and the norms of their heads, if they allow it.
    fn fuse_qkv(&mut self) -> Result<Option<FusedQkv>, LoadError> {
        let KeyValues::Own(own) = &mut self.key_values else { return Ok(None) };
        let (Some(v_proj), None) = (&mut own.v_proj, self.query_growth) else { return Ok(None) };
        let projections = [&mut self.q_proj, &mut own.k_proj, v_proj];
        FusedQkv::fuse(projections, self.head_norms.as_ref(), &self.heads)
    }
}

/// Where keys and values come from.
#[derive(Debug)]
pub(crate) enum KeyValues {
    /// They are computed and kept.
    Own(Box<OwnKeyValues>),
    /// The layer of this number keeps them.
    OfLayer(usize),
}

/// Computes keys and values.
#[derive(Debug)]
pub(crate) struct OwnKeyValues {
    /// Projection `[hidden] -> [kv_heads, head_dim]`.
    pub(crate) k_proj: Linear,
    /// Projection `[hidden] -> [kv_heads, head_dim]`; `None` if what is projected to keys is also the
    /// values.
    pub(crate) v_proj: Option<Linear>,
    /// Norm of each head's values.
    pub(crate) v_norm: Option<Norm>,
}

impl KeyValues {
    /// Returns the projections.
    fn projections(&self) -> Vec<&Linear> {
        match self {
            KeyValues::Own(own) => [&own.k_proj].into_iter().chain(&own.v_proj).collect(),
            KeyValues::OfLayer(_) => Vec::new(),
        }
    }

    fn kernel(&self, layer_idx: usize, step: &Step<'_, '_>) -> KeyValuesKernel {
        let pages = |layer_idx| step.caches.iter().map(|cache| cache.pages(layer_idx)).collect();
        match self {
            KeyValues::Own(own) => KeyValuesKernel::Own {
                has_values: own.v_proj.is_some(),
                v_norm: own.v_norm.as_ref().map(Norm::kernel),
                pages: pages(layer_idx),
            },
            KeyValues::OfLayer(source) => KeyValuesKernel::Held(pages(*source)),
        }
    }
}

/// Grouped-query attention with rotary positions.
#[derive(Debug)]
pub(crate) struct Attention {
    parts: AttentionParts,
    /// The projections and norms of `parts` as one, for MLX.
    fused_qkv: Option<FusedQkv>,
    layer_idx: usize,
    dtype: Dtype,
    parallel: Parallel,
}

impl Attention {
    pub(crate) fn new(
        mut parts: AttentionParts,
        layer_idx: usize,
        dtype: Dtype,
        parallel: &Parallel,
    ) -> Result<Attention, LoadError> {
        let fused_qkv = match parallel.compute() {
            Compute::Stock => parts.fuse_qkv()?,
            Compute::Kernels(_) => None,
        };
        Ok(Attention { parts, fused_qkv, layer_idx, dtype, parallel: parallel.clone() })
    }

    /// Returns this rank's heads.
    pub(crate) fn heads(&self) -> &Heads {
        &self.parts.heads
    }

    /// Returns the shape of this layer's cache for one sequence on this rank.
    pub(crate) fn cache_shape(&self) -> LayerCacheShape {
        if let KeyValues::OfLayer(_) = self.parts.key_values {
            return LayerCacheShape::None;
        }
        let Heads { head_dim: key_dim, value_dim, ref cut, .. } = self.parts.heads;
        let kv_heads = cut.kv_heads.len();
        let indexer = self.indexer();
        let kept = |dim| if kv_heads == 0 { 0 } else { dim };
        let index_dim = kept(indexer.map_or(0, |it| it.sizes.kept_dim));
        let pools = indexer.and_then(|it| it.pools.as_ref()).map(|pools| pools.shape);
        let pools = pools.map(|pools| PoolShape { dim: kept(pools.dim), ..pools });
        let positions = KvShape { kv_heads, key_dim, value_dim, index_dim, pools };
        let Reach { window, chunk } = self.parts.reach;
        // Within a chunk no position before it is seen.
        match window.or(chunk) {
            None => LayerCacheShape::Positions(positions),
            Some(window) => LayerCacheShape::Window { positions, window },
        }
    }

    fn indexer(&self) -> Option<&Indexer> {
        self.parts.chooser.as_ref().and_then(Chooser::indexer)
    }

    /// Adds the block to the stream.
    pub(crate) fn add_to(
        &self,
        residual: Residual,
        frame: &BlockFrame,
        step: &mut Step<'_, '_>,
    ) -> Residual {
        let num_sums = self.sums_of_norms();
        let output = BlockOutput { num_sums, ..self.parts.o_proj.block_output() };
        let Compute::Kernels(threads) = self.parallel.compute() else {
            return residual.stock_block_of(frame, output, |input| self.stock(input, step));
        };
        let ((projection, widths), kernel) = (self.projection_kernel(), self.kernel(step));
        let block = TwoParts {
            widths,
            first: move |x: Elements<'_>, threads: &Threads| projection.project(x, threads),
            second: move |middle, threads: &Threads| kernel.product(middle, threads),
        };
        residual.kernel_block_of_two(frame, output, threads, block)
    }

    /// Adds this block and a feed-forward block that reads the same norm to the stream.
    ///
    /// # Panics
    /// Panics if all heads are normalised together: the ranks would have to add their squares first.
    pub(crate) fn add_beside(
        &self,
        mlp: &Mlp,
        residual: Residual,
        frame: &BlockFrame,
        step: &mut Step<'_, '_>,
    ) -> Residual {
        let (output, beside) = (self.block_output(), mlp.block_output());
        let (has_heads, has_mlp) = (!output.is_empty, !beside.is_empty);
        let bias = output.bias.or(beside.bias);
        let output = BlockOutput { bias, is_empty: !has_heads && !has_mlp, ..output };
        let Compute::Kernels(threads) = self.parallel.compute() else {
            return residual.stock_block_of(frame, output, |input| {
                let heads = has_heads.then(|| self.stock(input, step));
                let beside = has_mlp.then(|| mlp.stock(&input.normed()));
                stock_sum_products(heads, beside).expect("the block is not empty")
            });
        };
        let heads = has_heads.then(|| (self.projection(), self.kernel(step)));
        let beside = has_mlp.then(|| mlp.kernel());
        residual.kernel_block(frame, output, threads, move |x, threads| {
            let heads = heads
                .as_ref()
                .map(|(projection, heads)| heads.product(projection.project(x, threads), threads));
            let beside = beside.as_ref().map(|mlp| mlp.product(x, threads));
            sum_products(heads, beside).expect("the block is not empty")
        })
    }

    /// Returns what the block adds to the stream.
    ///
    /// # Panics
    /// Panics if all heads are normalised together: the ranks would have to add their squares first.
    pub(super) fn block_output(&self) -> BlockOutput<'_> {
        let norms = self.parts.head_norms.as_ref();
        assert!(norms.is_none_or(|norms| norms.num_sums(false) == 0), "heads are normalised alone");
        self.parts.o_proj.block_output()
    }

    /// Computes this rank's part of the product `[tokens, hidden]`, without bias, with MLX.
    pub(super) fn stock(&self, input: &StockInput<'_>, step: &mut Step<'_, '_>) -> Array {
        self.parts.o_proj.stock(&self.stock_heads(input, step))
    }

    /// Returns the part of a primitive's closure that computes queries, keys and values, which have
    /// these widths in the values that it returns.
    pub(super) fn projection_kernel(&self) -> (ProjectionKernel, Vec<usize>) {
        let mut widths = vec![self.parts.heads.queries().len()];
        widths.extend(self.parts.key_values.projections().into_iter().map(Linear::output));
        widths.extend(self.indexer().into_iter().flat_map(Indexer::widths));
        widths.extend(self.parts.gate.as_ref().map(Linear::output));
        (self.projection(), widths)
    }

    fn projection(&self) -> ProjectionKernel {
        let parts = &self.parts;
        let linears = [&parts.q_proj].into_iter().chain(parts.key_values.projections());
        ProjectionKernel {
            qkv: linears.map(Linear::kernel).collect(),
            index: self.indexer().map(Indexer::projections),
            gate: parts.gate.as_ref().map(Linear::kernel),
            norms: parts.head_norms.as_ref().map(HeadNorms::kernel),
        }
    }

    /// Creates the part of the primitive's closure that computes the heads.
    pub(super) fn kernel(&self, step: &mut Step<'_, '_>) -> AttentionKernel {
        let parts = &self.parts;
        AttentionKernel {
            output: parts.o_proj.divisible_kernel(),
            norms: parts.head_norms.as_ref().map(HeadNorms::kernel),
            rotations: step.rotations(&parts.rope),
            sinks: parts.sinks.as_ref().map(pinned),
            value_scale: parts.value_scale,
            query_factors: parts.query_growth.map(|growth| query_factors(growth, step)),
            config: AttentionConfig {
                heads: parts.heads.cut.heads.len(),
                kv_heads: parts.heads.cut.kv_heads.len(),
                head_dim: parts.heads.head_dim,
                value_dim: parts.heads.value_dim,
                scale: parts.scale,
                window: parts.reach.window,
                chunk: parts.reach.chunk,
                soft_cap: parts.soft_cap,
                sinks: None,
            },
            chooser: parts.chooser.as_ref().map(|chooser| ChooserKernel::new(chooser, step)),
            spans: step.spans.clone(),
            has_gate: parts.gate.is_some(),
            has_softplus_gate: parts.has_softplus_gate,
            key_values: parts.key_values.kernel(self.layer_idx, step),
            dtype: self.dtype,
        }
    }

    /// Computes the heads' results `[tokens, heads * head_dim]` with MLX.
    fn stock_heads(&self, input: &StockInput<'_>, step: &mut Step<'_, '_>) -> Array {
        let parts = &self.parts;
        let growth = parts.query_growth;
        let factors = growth.map(|growth| stock_query_factors(growth, step, self.dtype));
        let positions = step.positions();
        let others: Vec<&Array> = [&positions].into_iter().chain(&factors).collect();
        let rows = |inputs: &[Array]| self.stock_rows(&inputs[0], &inputs[1], inputs.get(2));
        let rows = if self.sums_of_norms() == 0 {
            input.compiled(&others, rows)
        } else {
            let x = input.normed();
            rows(&[&x].into_iter().chain(others).cloned().collect::<Vec<_>>())
        };
        let mut rows = rows.into_iter();
        let q = rows.next().expect("queries");
        let gates = parts.gate.as_ref().map(|_| rows.next().expect("gates"));
        let kv = match &parts.key_values {
            KeyValues::Own(_) => {
                let [k, v] = [(); 2].map(|()| rows.next().expect("keys and values"));
                StockKv::New { k, v: StockValues::Own(v) }
            }
            KeyValues::OfLayer(source) => StockKv::OfLayer(*source),
        };
        let index = self.indexer().map(|indexer| indexer.stock([&input.normed(); 2], step));
        let chooser = parts.chooser.as_ref();
        let chooser = chooser.map(|it| StockChooser::new(index, it.choice(step)));
        let attention = StockAttention {
            layer_idx: self.layer_idx,
            chooser: chooser.as_ref(),
            scale: parts.scale,
            soft_cap: parts.soft_cap,
            reach: parts.reach,
            sinks: parts.sinks.as_ref(),
        };
        let out = attention.forward(&StockHeads { q, kv }, step);
        gates.map_or(out.clone(), |gates| {
            let repeats = out.dim(1) / gates.dim(1).max(1);
            out.mul(&if repeats == 1 { gates } else { gates.repeat(repeats, 1) })
        })
    }

    /// Returns the number of sums over the ranks that norms of a row's heads need.
    fn sums_of_norms(&self) -> usize {
        let is_stock = matches!(self.parallel.compute(), Compute::Stock);
        self.parts.head_norms.as_ref().map_or(0, |norms| norms.num_sums(is_stock))
    }

    /// Computes with MLX what attention reads of rows `[tokens, hidden]` at `positions`: queries, what results are
    /// multiplied by if there is a gate, and keys and values if the layer has its own. Heads are
    /// `[tokens, heads, 1, …]`; `factors` are those of [`stock_query_factors`].
    fn stock_rows(&self, x: &Array, positions: &Array, factors: Option<&Array>) -> Vec<Array> {
        let parts = &self.parts;
        let (q, kv) = match &self.fused_qkv {
            Some(qkv) => {
                let [q, k, v] = qkv.stock(x, &parts.rope, positions);
                (q, Some([k, v]))
            }
            None => self.stock_apart(x, positions, factors),
        };
        let mut rows = vec![q];
        rows.extend(parts.gate.as_ref().map(|gate| {
            // A number for each element, or for each head.
            let gates = gate.stock(x);
            if parts.has_softplus_gate {
                let wide = gates.astype(Dtype::F32).logaddexp(&Array::scalar(0.0));
                wide.astype(gates.dtype())
            } else {
                gates.sigmoid()
            }
        }));
        if let (Some([k, v]), KeyValues::Own(own)) = (kv, &parts.key_values) {
            let v = own.v_norm.as_ref().map_or(v.clone(), |norm| norm.stock(&v));
            rows.extend([k, if parts.value_scale == 1.0 { v } else { &v * parts.value_scale }]);
        }
        rows
    }

    /// Computes queries, and keys and values if the layer has its own, from projections of their own.
    fn stock_apart(
        &self,
        x: &Array,
        positions: &Array,
        factors: Option<&Array>,
    ) -> (Array, Option<[Array; 2]>) {
        let parts = &self.parts;
        let Heads { head_dim, value_dim, .. } = parts.heads;
        let heads =
            |linear: &Linear, width| linear.stock(x).reshape(&[x.dim(0), -1, 1, dim(width)]);
        let mut q = heads(&parts.q_proj, head_dim);
        let mut kv = match &parts.key_values {
            KeyValues::OfLayer(_) => None,
            KeyValues::Own(own) => {
                let k = heads(&own.k_proj, head_dim);
                let v_proj = own.v_proj.as_ref();
                let v = v_proj.map_or(k.clone(), |v_proj| heads(v_proj, value_dim));
                Some([k, v])
            }
        };
        if let Some(norms) = &parts.head_norms {
            match &mut kv {
                Some([k, _]) => [q, *k] = norms.stock([q, k.clone()]),
                None => q = norms.stock_queries(&q),
            }
        }
        if let Some(factors) = factors {
            q = q.mul(factors);
        }
        let norms = parts.head_norms.as_ref().and_then(HeadNorms::rotated);
        let placed = |x: &Array, norm_idx: usize| {
            let rotated = parts.rope.stock(x, positions);
            norms.map_or(rotated.clone(), |norms| norms[norm_idx].stock(&rotated))
        };
        (placed(&q, 0), kv.map(|[k, v]| [placed(&k, 1), v]))
    }
}

/// Returns [`query_factors`] as an array, `[tokens, 1, 1, 1]`.
pub(super) fn stock_query_factors(growth: QueryGrowth, step: &Step<'_, '_>, dtype: Dtype) -> Array {
    let factors = query_factors(growth, step);
    Array::from_slice(&factors, &[dim(factors.len()), 1, 1, 1]).astype(dtype)
}

/// Returns the factor of the query of each row.
pub(super) fn query_factors(growth: QueryGrowth, step: &Step<'_, '_>) -> Vec<f32> {
    let positions = step.spans.iter().flat_map(StepSpan::positions);
    positions.map(|position| growth.factor(position)).collect()
}

/// The first part of the attention primitive: the projections.
pub(super) struct ProjectionKernel {
    /// Projections to queries, keys and values, as far as the layer computes them.
    qkv: Vec<LinearKernel>,
    index: Option<IndexProjections>,
    gate: Option<LinearKernel>,
    norms: Option<HeadNormsKernel>,
}

impl ProjectionKernel {
    pub(super) fn project(&self, x: Elements<'_>, threads: &Threads) -> Middle {
        let mut values = LinearKernel::products_of(&self.qkv, x, threads);
        let keys: &[f32] = values.get(1).map_or(&[], Vec::as_slice);
        let sums = self.norms.as_ref().map(|norms| norms.sums([&values[0], keys], threads));
        if let Some(index) = &self.index {
            values.extend(index.project(x, x, threads));
        }
        if let Some(gate) = &self.gate {
            values.extend(LinearKernel::products(std::array::from_ref(gate), x, threads));
        }
        Middle { values, sums: sums.unwrap_or_default() }
    }
}

/// The second part of the attention primitive.
pub(super) struct AttentionKernel {
    output: DivisibleKernel,
    norms: Option<HeadNormsKernel>,
    rotations: Arc<RotationTable>,
    /// In the type of the model.
    sinks: Option<Pinned>,
    /// Factor of the values.
    value_scale: f32,
    /// Factor of the query of each row.
    query_factors: Option<Vec<f32>>,
    config: AttentionConfig<'static>,
    chooser: Option<ChooserKernel>,
    spans: Vec<StepSpan>,
    has_gate: bool,
    has_softplus_gate: bool,
    key_values: KeyValuesKernel,
    dtype: Dtype,
}

/// Keys and values for the kernels: the pages of each span.
enum KeyValuesKernel {
    /// They are written there.
    Own {
        /// Whether values have a projection of their own.
        has_values: bool,
        v_norm: Option<NormKernel>,
        pages: Vec<LayerPages>,
    },
    /// Another layer has written them there.
    Held(Vec<LayerPages>),
}

impl AttentionKernel {
    /// Computes this rank's part of the product `[tokens, hidden]`, without bias.
    pub(super) fn product(&self, mut projected: Middle, threads: &Threads) -> Vec<f64> {
        // The gates follow queries, keys and values.
        let gates = if self.has_gate { projected.values.pop() } else { None };
        let Some(gates) = gates else {
            let heads = self.heads(&mut projected, float(self.dtype), threads);
            return self.output.multiply(heads.elements(), threads);
        };
        let heads = self.heads(&mut projected, Float::F32, threads);
        // A number for each element, or for each head.
        let repeats = heads.elements().len().checked_div(gates.len()).unwrap_or(1);
        let gates = match repeats {
            1 => gates,
            _ => gates.iter().flat_map(|gate| std::iter::repeat_n(*gate, repeats)).collect(),
        };
        let mut gated = Floats::zeros(float(self.dtype), gates.len());
        if self.has_softplus_gate {
            let factors = gates.iter().map(|gate| kernels::softplus(*gate));
            let values = heads.elements().to_f32();
            let values: Vec<f32> = values.iter().zip(factors).map(|(x, it)| x * it).collect();
            gated.store(0, &values);
        } else {
            kernels::sigmoid_gate(heads.elements(), &gates, gated.elements_mut(), threads);
        }
        self.output.multiply(gated.elements(), threads)
    }

    /// Computes the heads' results `[tokens, heads * head_dim]`, rounded to `result`.
    fn heads(&self, projected: &mut Middle, result: Float, threads: &Threads) -> Floats {
        let Middle { values, sums } = projected;
        let mut values = values.iter_mut().map(std::mem::take);
        let mut q = values.next().expect("a projection to queries");
        let mut k = values.next().unwrap_or_default();
        let v = self.values(&k, values.next(), threads);
        let norms = self.norms.as_ref();
        let norms = norms.and_then(|norms| norms.apply([&mut q, &mut k], sums, threads));
        let norms = norms.map(|norms| norms.each_ref().map(NormKernel::view));
        let rotation = self.rotations.rotation(self.config.head_dim);
        kernels::place_heads(&mut q, norms.map(|norms| norms[0]), rotation, threads);
        kernels::place_heads(&mut k, norms.map(|norms| norms[1]), rotation, threads);
        if let Some(norms) = &self.norms {
            norms.apply_rotated([&mut q, &mut k], threads);
        }
        if let Some(factors) = &self.query_factors {
            kernels::scale_rows(&mut q, factors);
        }
        let chooser = self.chooser.as_ref();
        let indexer = chooser.and_then(|chooser| chooser.indexer.as_ref());
        let index = indexer.map(|indexer| indexer.rows(values.collect(), threads));
        let held = self.hold([&k, &v], index.as_ref(), threads);
        let AttentionConfig { head_dim, value_dim, .. } = self.config;
        let mut out = Floats::zeros(result, q.len() / head_dim * value_dim);
        let sinks = self.sinks.as_ref().map(|sinks| elements(sinks).to_f32());
        let config = AttentionConfig { sinks: sinks.as_deref(), ..self.config };
        let (spans, held, index) = (&self.spans, &held, index.as_ref());
        let attention = ChosenAttention { config, spans, held, chooser, index };
        attention.attend(&q, out.elements_mut(), threads);
        out
    }

    /// Returns the values of the layer's own heads, normalised if there is a norm, and scaled; none if another
    /// layer has them. `k` are the projections to keys.
    fn values(&self, k: &[f32], v: Option<Vec<f32>>, threads: &Threads) -> Vec<f32> {
        let KeyValuesKernel::Own { has_values, v_norm, .. } = &self.key_values else {
            return Vec::new();
        };
        let v = if *has_values { v.expect("a projection to values") } else { k.to_vec() };
        let mut v = match v_norm {
            Some(norm) => {
                let mut normed = vec![0.0; v.len()];
                norm.norm(Elements::F32(&v), ElementsMut::F32(&mut normed), threads);
                normed
            }
            None => v,
        };
        if self.value_scale != 1.0 {
            v.iter_mut().for_each(|value| *value *= self.value_scale);
        }
        v
    }

    /// Writes the keys and values of the step's rows, if the layer keeps them. Returns the pages of
    /// each span.
    fn hold<'a>(
        &self,
        kv: [&'a [f32]; 2],
        index: Option<&IndexRows>,
        threads: &Threads,
    ) -> Vec<Vec<Arc<Page>>> {
        let AttentionConfig { kv_heads, head_dim, value_dim, .. } = self.config;
        let _writing = threads.span("kv_cache", 0);
        match &self.key_values {
            KeyValuesKernel::Own { pages, .. } => {
                let spans = self.spans.iter().zip(pages);
                let held = spans.map(|(span, pages)| {
                    let of_span = |all: &'a [f32], dim: usize| {
                        let width = kv_heads * dim;
                        &all[span.rows.start * width..span.rows.end * width]
                    };
                    let (keys, values) = (of_span(kv[0], head_dim), of_span(kv[1], value_dim));
                    match index {
                        Some(index) => index.write(span, [keys, values], pages, threads),
                        None => pages.write(span.positions(), keys, values, &[]),
                    }
                });
                held.collect()
            }
            KeyValuesKernel::Held(pages) => pages.iter().map(LayerPages::held).collect(),
        }
    }
}
