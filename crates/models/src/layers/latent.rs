//! Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1).
//!
//! Always in the absorbed form: a query is brought into the space of the latents, and attends to
//! them directly, so that the cached vector of a position is read once for all heads, and a row has
//! the same bits in a prompt and alone. The key of a position is its rotated part, which all heads
//! share, followed by its latent, which is its value too.
//!
//! ```text
//!   x ─ q_a ─ norm ─ q_b ─┬ nope ─ embed ──┐
//!                         └ rope ─ rotate ─┴─ attention ─ unembed ─ o_proj ─▶ sum over ranks
//!   x ─ kv_a ─┬ latent ─ norm ──┐             │
//!             └ rope ─ rotate ──┴─ cache ─────┘
//! ```
//!
//! With an indexer, a query that sees more positions than are chosen attends to the chosen ones; all others
//! attend to all that they see.

use std::rc::Rc;
use std::sync::Arc;

use jackalope_kernels::{
    self as kernels, AttentionConfig, Elements, ElementsMut, Floats, HeadResults, Threads,
};
use jackalope_mlx::{Array, Dtype, dim};
use jackalope_spec::QueryGrowth;

use super::attention::{query_factors, stock_query_factors};
use super::chosen::{ChooserKernel, ChosenAttention};
use super::frame::BlockFrame;
use super::indexer::{Chooser, IndexProjections, IndexRows, Indexer, StockChooser};
use super::residual::Residual;
use super::stock_attention::{StockAttention, StockHeads, StockKv, StockValues};
use crate::step::{Reach, Step, StepSpan};
use jackalope_cache::{KvShape, LayerCacheShape, LayerPages, Page, PoolShape, float};
use jackalope_kernels::RotationTable;
use jackalope_parallel::head_matrix::{HeadMatrix, HeadMatrixKernel};
use jackalope_parallel::heads::Heads;
use jackalope_parallel::kernel::DivisibleKernel;
use jackalope_parallel::linear::{Linear, LinearKernel};
use jackalope_parallel::norm::{Norm, NormKernel};
use jackalope_parallel::rope::Rope;
use jackalope_parallel::{Compute, Parallel};

/// Widths of a head and of a latent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatentSizes {
    /// Elements of a query that are not rotated.
    pub(crate) nope: usize,
    /// Elements of a query that are rotated.
    pub(crate) rope: usize,
    /// Elements of a value.
    pub(crate) value: usize,
    /// Elements of a latent.
    pub(crate) rank: usize,
}

impl LatentSizes {
    /// Returns the width of a query before it is brought into the space of the latents.
    pub(crate) fn query(self) -> usize {
        self.nope + self.rope
    }

    /// Returns the width of the cached vector of a position.
    fn key(self) -> usize {
        self.rope + self.rank
    }
}

/// Computes queries `[tokens, heads, nope + rope]`.
#[derive(Debug)]
pub(crate) enum LatentQueries {
    /// From the residual stream.
    Direct(Linear),
    /// From a normalised vector of low rank.
    LowRank { down: Linear, norm: Norm, up: Linear },
}

/// The layers and settings of a block of latent attention.
#[derive(Debug)]
pub(crate) struct LatentParts {
    pub(crate) queries: LatentQueries,
    /// Projection `[hidden] -> [rank + rope]`, on every rank.
    pub(crate) kv_down: Linear,
    pub(crate) kv_norm: Norm,
    /// For each head `[nope] -> [rank]`.
    pub(crate) embed: HeadMatrix,
    /// For each head `[rank] -> [value]`.
    pub(crate) unembed: HeadMatrix,
    /// Projection to the logits of the results' gates, `[heads, width]`; `None` if there are none.
    pub(crate) gate: Option<Linear>,
    /// Projection `[heads, value] -> [hidden]`, summed over ranks.
    pub(crate) o_proj: Linear,
    /// `None` if nothing is rotated.
    pub(crate) rope: Option<Rc<Rope>>,
    /// Chooses the positions that a query attends to, which is then of low rank.
    pub(crate) chooser: Option<Chooser>,
    pub(crate) query_growth: Option<QueryGrowth>,
    pub(crate) heads: Heads,
    pub(crate) sizes: LatentSizes,
    /// Factor of the scores.
    pub(crate) scale: f32,
    /// Factor of a normalised latent.
    pub(crate) latent_factor: f32,
}

/// Attention over latents.
#[derive(Debug)]
pub(crate) struct LatentAttention {
    parts: LatentParts,
    layer_idx: usize,
    dtype: Dtype,
    parallel: Parallel,
}

impl LatentAttention {
    pub(crate) fn new(
        parts: LatentParts,
        layer_idx: usize,
        dtype: Dtype,
        parallel: &Parallel,
    ) -> LatentAttention {
        LatentAttention { parts, layer_idx, dtype, parallel: parallel.clone() }
    }

    /// Returns this rank's heads.
    pub(crate) fn heads(&self) -> &Heads {
        &self.parts.heads
    }

    /// Returns what the layer keeps of a sequence on this rank: nothing if it has no heads.
    pub(crate) fn cache_shape(&self) -> LayerCacheShape {
        let kv_heads = self.parts.heads.cut.kv_heads.len();
        let indexer = self.parts.chooser.as_ref().and_then(Chooser::indexer);
        let pools = indexer.and_then(|it| it.pools.as_ref()).map(|it| it.shape);
        let kept = |dim| if kv_heads == 0 { 0 } else { dim };
        LayerCacheShape::Positions(KvShape {
            kv_heads,
            key_dim: self.parts.sizes.key(),
            value_dim: 0,
            index_dim: kept(indexer.map_or(0, |it| it.sizes.kept_dim)),
            pools: pools.map(|pools| PoolShape { dim: kept(pools.dim), ..pools }),
        })
    }

    /// Adds the block to the stream.
    pub(crate) fn add_to(
        &self,
        residual: Residual,
        frame: &BlockFrame,
        step: &mut Step<'_, '_>,
    ) -> Residual {
        let parts = &self.parts;
        let output = parts.o_proj.block_output();
        let Compute::Kernels(threads) = self.parallel.compute() else {
            let work = |x: &Array| parts.o_proj.stock(&self.stock_heads(x, step));
            return residual.stock_block(frame, output, work);
        };
        let kernel = self.kernel(step);
        residual.kernel_block(frame, output, threads, move |x, threads| kernel.product(x, threads))
    }

    /// Creates the state of the primitive's closure.
    fn kernel(&self, step: &mut Step<'_, '_>) -> LatentKernel {
        let parts = &self.parts;
        let first = match &parts.queries {
            LatentQueries::Direct(queries) => queries.kernel(),
            LatentQueries::LowRank { down, .. } => down.kernel(),
        };
        LatentKernel {
            down: [first, parts.kv_down.kernel()],
            up: match &parts.queries {
                LatentQueries::Direct(_) => None,
                LatentQueries::LowRank { norm, up, .. } => Some((norm.kernel(), up.kernel())),
            },
            kv_norm: parts.kv_norm.kernel(),
            embed: parts.embed.kernel(),
            unembed: parts.unembed.kernel(),
            gate: parts.gate.as_ref().map(Linear::kernel),
            output: parts.o_proj.divisible_kernel(),
            query_factors: parts.query_growth.map(|growth| query_factors(growth, step)),
            rotations: parts.rope.as_ref().map(|rope| step.rotations(rope)),
            index: parts.chooser.as_ref().and_then(Chooser::indexer).map(Indexer::projections),
            chooser: parts.chooser.as_ref().map(|chooser| ChooserKernel::new(chooser, step)),
            sizes: parts.sizes,
            num_heads: parts.heads.cut.heads.len(),
            scale: parts.scale,
            latent_factor: parts.latent_factor,
            spans: step.spans.clone(),
            pages: step.caches.iter().map(|cache| cache.pages(self.layer_idx)).collect(),
            dtype: self.dtype,
        }
    }

    /// Computes the heads' results `[tokens, heads * value]` with MLX.
    fn stock_heads(&self, x: &Array, step: &mut Step<'_, '_>) -> Array {
        let LatentParts { sizes, ref queries, ref kv_norm, .. } = self.parts;
        let [nope, rope, rank] = [sizes.nope, sizes.rope, sizes.rank].map(dim);
        let tokens = x.dim(0);
        let (q, index) = match queries {
            LatentQueries::Direct(queries) => (queries.stock(x), None),
            LatentQueries::LowRank { down, norm, up } => {
                let low_rank = norm.stock(&down.stock(x));
                let indexer = self.parts.chooser.as_ref().and_then(Chooser::indexer);
                (up.stock(&low_rank), indexer.map(|indexer| indexer.stock([x, &low_rank], step)))
            }
        };
        let mut q = q.reshape(&[tokens, -1, nope + rope]);
        if let Some(growth) = self.parts.query_growth {
            q = q.mul(&stock_query_factors(growth, step, self.dtype).squeeze(1));
        }
        let of_heads = |x: &Array| x.transpose(&[1, 0, 2]); // [heads, tokens, …] and back
        let embedded = self.parts.embed.stock(&of_heads(&q.slice_axis(2, 0, nope)));
        let rotated = q.slice_axis(2, nope, nope + rope);
        let q = joined(&rotated, &of_heads(&embedded));
        let kv = self.parts.kv_down.stock(x);
        let latent = kv_norm.stock(&kv.slice_axis(1, 0, rank));
        let latent = match self.parts.latent_factor {
            1.0 => latent,
            factor => &latent * factor,
        };
        let k = joined(&kv.slice_axis(1, rank, rank + rope), &latent);
        let chooser = self.parts.chooser.as_ref();
        let chooser = chooser.map(|it| StockChooser::new(index, it.choice(step)));
        let attention = StockAttention {
            layer_idx: self.layer_idx,
            chooser: chooser.as_ref(),
            soft_cap: None,
            scale: self.parts.scale,
            reach: Reach::ALL,
            sinks: None,
        };
        let v = StockValues::OfKeys { dim: rank };
        let rope = self.parts.rope.as_ref();
        let placed = |x: Array| rope.map_or(x.clone(), |rope| rope.stock(&x, &step.positions()));
        let (q, k) = (placed(q.expand_dims(2)), placed(k.reshape(&[tokens, 1, 1, -1])));
        let out = attention.forward(&StockHeads { q, kv: StockKv::New { k, v } }, step);
        let out = self.parts.unembed.stock(&of_heads(&out.reshape(&[tokens, -1, rank])));
        let out = of_heads(&out); // [tokens, heads, value]
        let gated = self.parts.gate.as_ref().map(|gate| {
            let gates = gate.stock(x).sigmoid().reshape(&[tokens, out.dim(1), -1]);
            out.mul(&gates)
        });
        gated.unwrap_or(out).reshape(&[tokens, -1])
    }
}

/// The state of the primitive's closure: everything except the weights' arrays.
struct LatentKernel {
    /// Projections from the residual stream: to queries, or to the vectors that they are computed
    /// from, and to latents.
    down: [LinearKernel; 2],
    up: Option<(NormKernel, LinearKernel)>,
    kv_norm: NormKernel,
    embed: HeadMatrixKernel,
    unembed: HeadMatrixKernel,
    gate: Option<LinearKernel>,
    output: DivisibleKernel,
    /// Factor of each token's queries.
    query_factors: Option<Vec<f32>>,
    rotations: Option<Arc<RotationTable>>,
    index: Option<IndexProjections>,
    chooser: Option<ChooserKernel>,
    sizes: LatentSizes,
    num_heads: usize,
    scale: f32,
    latent_factor: f32,
    spans: Vec<StepSpan>,
    pages: Vec<LayerPages>,
    dtype: Dtype,
}

impl LatentKernel {
    /// Computes this rank's part of the product `[tokens, hidden]`, without bias.
    fn product(&self, x: Elements<'_>, threads: &Threads) -> Vec<f64> {
        let LatentSizes { value, rank, .. } = self.sizes;
        let [first, kv] = LinearKernel::products(&self.down, x, threads);
        let low_rank = self.low_rank(&first, threads);
        let indexer = self.chooser.as_ref().and_then(|chooser| chooser.indexer.as_ref());
        let index = indexer.map(|indexer| {
            let low_rank = low_rank.as_ref().expect("queries with an indexer are of low rank");
            let index = self.index.as_ref().expect("an indexer has projections");
            indexer.rows(index.project(x, low_rank.elements(), threads), threads)
        });
        let q = self.queries(first, low_rank, threads);
        let held = self.write(&kv, index.as_ref(), threads);
        let latents = self.attend(&q, &held, index.as_ref(), threads);
        let shape = [self.num_heads, rank];
        let latents = kernels::heads_apart(latents.elements(), shape, [0, rank], float(self.dtype));
        let tokens = q.len() / (self.num_heads * self.sizes.key());
        let mut out = Floats::zeros(float(self.dtype), tokens * self.num_heads * value);
        let results = HeadResults { values: out.elements_mut(), width: value, first: 0 };
        self.unembed.multiply(latents.elements(), results, threads);
        let out = self.gated(x, out, threads);
        self.output.multiply(out.elements(), threads)
    }

    /// Multiplies the heads' results `[tokens, heads, value]` by their gates, if there are any.
    fn gated(&self, x: Elements<'_>, out: Floats, threads: &Threads) -> Floats {
        let Some(gate) = &self.gate else { return out };
        let [gates] = LinearKernel::products(std::array::from_ref(gate), x, threads);
        let repeats = out.elements().len() / gates.len().max(1);
        let gates = gates.iter().flat_map(|gate| std::iter::repeat_n(*gate, repeats));
        let gates: Vec<f32> = gates.collect();
        let mut gated = Floats::zeros(float(self.dtype), gates.len());
        kernels::sigmoid_gate(out.elements(), &gates, gated.elements_mut(), threads);
        gated
    }

    /// Returns the vectors from which queries are computed, normalised; `None` if `first` are queries.
    fn low_rank(&self, first: &[f32], threads: &Threads) -> Option<Floats> {
        let (norm, _) = self.up.as_ref()?;
        let mut normed = Floats::zeros(float(self.dtype), first.len());
        norm.norm(Elements::F32(first), normed.elements_mut(), threads);
        Some(normed)
    }

    /// Computes queries in the space of the cached vectors, f32 `[tokens, heads, rope + rank]`.
    fn queries(&self, first: Vec<f32>, low_rank: Option<Floats>, threads: &Threads) -> Vec<f32> {
        let LatentSizes { nope, rope, .. } = self.sizes;
        let mut q = match (&self.up, low_rank) {
            (Some((_, up)), Some(low_rank)) => {
                let up = std::array::from_ref(up);
                let [q] = LinearKernel::products(up, low_rank.elements(), threads);
                q
            }
            _ => first,
        };
        if let Some(factors) = &self.query_factors {
            kernels::scale_rows(&mut q, factors);
        }
        let (width, key) = (self.sizes.query(), self.sizes.key());
        let mut rotated: Vec<f32> =
            q.chunks_exact(width).flat_map(|head| &head[nope..]).copied().collect();
        self.rotate(&mut rotated, threads);
        let shape = [self.num_heads, width];
        let plain = kernels::heads_apart(Elements::F32(&q), shape, [0, nope], float(self.dtype));
        let mut queries = vec![0.0; q.len() / width * key];
        for (head, query) in queries.chunks_exact_mut(key).enumerate() {
            query[..rope].copy_from_slice(&rotated[head * rope..(head + 1) * rope]);
        }
        let values = ElementsMut::F32(&mut queries);
        let results = HeadResults { values, width: key, first: rope };
        self.embed.multiply(plain.elements(), results, threads);
        queries
    }

    /// Rotates the parts of queries or keys that are rotated, if any.
    fn rotate(&self, x: &mut [f32], threads: &Threads) {
        if let Some(rotations) = &self.rotations {
            kernels::place_heads(x, None, rotations.rotation(self.sizes.rope), threads);
        }
    }

    /// Writes the vectors of the step's positions to the cache; `kv` is `[tokens, rank + rope]`.
    /// Returns the pages of each sequence.
    fn write(
        &self,
        kv: &[f32],
        index: Option<&IndexRows>,
        threads: &Threads,
    ) -> Vec<Vec<Arc<Page>>> {
        let LatentSizes { rank, rope, .. } = self.sizes;
        let key = self.sizes.key();
        let rows = kv.chunks_exact(key);
        let latents: Vec<f32> = rows.clone().flat_map(|row| &row[..rank]).copied().collect();
        let mut rotated: Vec<f32> = rows.flat_map(|row| &row[rank..]).copied().collect();
        self.rotate(&mut rotated, threads);
        let mut normed = vec![0.0; latents.len()];
        self.kv_norm.norm(Elements::F32(&latents), ElementsMut::F32(&mut normed), threads);
        if self.latent_factor != 1.0 {
            normed.iter_mut().for_each(|value| *value *= self.latent_factor);
        }
        let mut keys = Vec::with_capacity(kv.len());
        for (row, latent) in normed.chunks_exact(rank).enumerate() {
            keys.extend_from_slice(&rotated[row * rope..(row + 1) * rope]);
            keys.extend_from_slice(latent);
        }
        let _writing = threads.span("kv_cache", 0);
        let spans = self.spans.iter().zip(&self.pages);
        let held = spans.map(|(span, pages)| {
            let keys = &keys[span.rows.start * key..span.rows.end * key];
            match index {
                Some(index) => index.write(span, [keys, &[]], pages, threads),
                None => pages.write(span.positions(), keys, &[], &[]),
            }
        });
        held.collect()
    }

    /// Computes each head's mean of latents, `[tokens, heads, rank]`.
    fn attend(
        &self,
        q: &[f32],
        held: &[Vec<Arc<Page>>],
        index: Option<&IndexRows>,
        threads: &Threads,
    ) -> Floats {
        let num_heads = q.len() / self.sizes.key();
        let mut out = Floats::zeros(float(self.dtype), num_heads * self.sizes.rank);
        let (config, chooser) = (self.config(), self.chooser.as_ref());
        let attention = ChosenAttention { config, spans: &self.spans, held, chooser, index };
        attention.attend(q, out.elements_mut(), threads);
        out
    }

    fn config(&self) -> AttentionConfig<'static> {
        AttentionConfig {
            heads: self.num_heads,
            kv_heads: 1,
            head_dim: self.sizes.key(),
            value_dim: self.sizes.rank,
            scale: self.scale,
            window: None,
            chunk: None,
            soft_cap: None,
            sinks: None,
        }
    }
}

/// Returns the rotated part, if there is one, followed by the other part in the last dimension.
fn joined(rotated: &Array, other: &Array) -> Array {
    match rotated.dim(-1) {
        0 => other.clone(),
        _ => Array::concatenate(&[rotated, other], -1),
    }
}
