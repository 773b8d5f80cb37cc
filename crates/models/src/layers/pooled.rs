//! Attention to a window beside pools; see [`jackalope_spec::PooledSpec`].
//!
//! ```text
//!   x ─ q_down ─ norm ─┬─ q_up ─ norm ─ rotate ─┐
//!                      └─ indexer ─ choice ─────┤
//!   x ─ kv ─ norm ─ rotate ─ cache ─┬─ window ──┼─ attention ─ rotate back ─ groups ─ output ─▶ sum over ranks
//!   x ─ projections and gates ──────┴─ pools ───┘
//! ```
//!
//! The rows of a layer with pools attend to a copy of what the cache holds of their window and of their
//! pools, in ascending order, so that a row has the same bits in a prompt and alone.

use std::rc::Rc;
use std::sync::Arc;

use jackalope_cache::{KvShape, LayerCacheShape, LayerPages, Page, PoolPages, PoolShape, float};
use jackalope_kernels::{
    self as kernels, AttentionConfig, ChosenPositions, CodeFormat, Elements, ElementsMut, Floats,
    HeadResults, KvPage, SequenceKv, Threads,
};
use jackalope_mlx::{Array, Dtype, Pinned};

use super::frame::BlockFrame;
use super::pool_choice::{ChooserKernel, IndexRows, PoolChooser, Row, SeenPools};
use super::pool_vectors::{
    PoolVectors, PoolVectorsKernel, ProjectedVectors, ProjectedVectorsKernel,
};
use super::residual::Residual;
use crate::step::{Step, StepSpan};
use jackalope_kernels::RotationTable;
use jackalope_parallel::head_matrix::{HeadMatrix, HeadMatrixKernel};
use jackalope_parallel::heads::Heads;
use jackalope_parallel::kernel::{DivisibleKernel, pinned};
use jackalope_parallel::linear::{Linear, LinearKernel};
use jackalope_parallel::norm::{Norm, NormKernel};
use jackalope_parallel::rope::Rope;
use jackalope_parallel::{Compute, Parallel};

/// Number of rows that are computed together: each has a copy of its keys.
const COPYING_ROWS: usize = 16;

/// Sizes of attention to a window and to pools.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PooledSizes {
    pub(crate) heads_per_group: usize,
    /// Width of a query and of a key.
    pub(crate) head_dim: usize,
    /// Width of a group's result.
    pub(crate) group_dim: usize,
    /// Number of last positions that a query sees, including its own.
    pub(crate) window: usize,
    /// Number of last positions that are kept.
    pub(crate) kept_positions: usize,
    /// Whether queries are normalised.
    pub(crate) has_query_norm: bool,
    /// To what keys are rounded, if they are.
    pub(crate) codes: Option<CodeFormat>,
    pub(crate) norm_eps: f32,
}

/// The layers and settings of attention to a window and to pools.
#[derive(Debug)]
pub(crate) struct PooledParts {
    /// Projection `[hidden] -> [q_rank]`, on every rank with heads.
    pub(crate) q_down: Linear,
    pub(crate) q_norm: Norm,
    /// Projection `[q_rank] -> [heads, head_dim]`.
    pub(crate) q_up: Linear,
    /// Projection `[hidden] -> [head_dim]`, on every rank with heads.
    pub(crate) kv: Linear,
    pub(crate) kv_norm: Norm,
    /// A score for each of this rank's heads that takes part in the soft-max, f32 `[heads]`.
    pub(crate) sinks: Array,
    pub(crate) pools: Option<PooledPools>,
    /// For each group `[heads, head_dim] -> [group_dim]`.
    pub(crate) groups: HeadMatrix,
    /// Projection `[groups, group_dim] -> [hidden]`, summed over ranks.
    pub(crate) output: Linear,
    pub(crate) rope: Rc<Rope>,
    /// The rotation back.
    pub(crate) inverse: Rc<Rope>,
    /// The groups, by which ranks divide it.
    pub(crate) heads: Heads,
    pub(crate) sizes: PooledSizes,
}

/// The pools of a layer.
#[derive(Debug)]
pub(crate) struct PooledPools {
    /// Number of positions of a pool.
    pub(crate) len: usize,
    pub(crate) place: PoolPlace,
    /// Chooses the pools that a query attends to; `None` if it attends to all that it sees.
    pub(crate) chooser: Option<PoolChooser>,
}

/// Where pools are.
#[derive(Debug)]
pub(crate) enum PoolPlace {
    /// The layer computes and keeps them.
    Own(Box<OwnPools>),
    /// An earlier layer keeps them, in the cache of this number.
    OfCache(usize),
}

/// Computes pools.
#[derive(Debug)]
pub(crate) struct OwnPools {
    /// Whether the vector of a pool is also computed from the pool before it.
    pub(crate) overlaps: bool,
    pub(crate) vectors: PoolVectors,
    /// What indexers compare; `None` if there is none.
    pub(crate) index: Option<IndexVectors>,
}

/// Computes what indexers compare of pools.
#[derive(Debug)]
pub(crate) enum IndexVectors {
    /// From the stream, as vectors are.
    Compressed(PoolVectors),
    /// From the vectors.
    Projected(ProjectedVectors),
}

/// Attention to a window and to pools.
#[derive(Debug)]
pub(crate) struct PooledAttention {
    pub(super) parts: PooledParts,
    pub(super) layer_idx: usize,
    dtype: Dtype,
    parallel: Parallel,
}

impl PooledPools {
    /// Returns what computes the pools; `None` if another layer does.
    pub(super) fn own(&self) -> Option<&OwnPools> {
        match &self.place {
            PoolPlace::Own(own) => Some(own),
            PoolPlace::OfCache(_) => None,
        }
    }
}

impl OwnPools {
    /// Returns what reads projections that are kept of positions.
    pub(super) fn compressors(&self) -> impl Iterator<Item = &PoolVectors> {
        let index = match &self.index {
            Some(IndexVectors::Compressed(vectors)) => Some(vectors),
            Some(IndexVectors::Projected(_)) | None => None,
        };
        [&self.vectors].into_iter().chain(index)
    }

    /// Returns the number of elements that are kept of a position.
    fn raw_dim(&self) -> usize {
        self.compressors().map(PoolVectors::raw_dim).sum()
    }

    /// Returns the number of elements that are kept of a pool.
    fn pool_dim(&self) -> usize {
        let index = self.index.as_ref().map_or(0, |index| match index {
            IndexVectors::Compressed(vectors) => vectors.dim(),
            IndexVectors::Projected(vectors) => vectors.dim(),
        });
        self.vectors.dim() + index
    }

    fn kernel(&self) -> OwnPoolsKernel {
        OwnPoolsKernel {
            overlaps: self.overlaps,
            raw_dim: self.raw_dim(),
            num_projections: self.compressors().map(|it| it.projections.len()).sum(),
            first_of_index: self.vectors.raw_dim(),
            vectors: self.vectors.kernel(),
            index: self.index.as_ref().map(|index| match index {
                IndexVectors::Compressed(vectors) => {
                    IndexVectorsKernel::Compressed(vectors.kernel())
                }
                IndexVectors::Projected(vectors) => IndexVectorsKernel::Projected(vectors.kernel()),
            }),
        }
    }
}

impl PooledAttention {
    pub(crate) fn new(
        parts: PooledParts,
        layer_idx: usize,
        dtype: Dtype,
        parallel: &Parallel,
    ) -> PooledAttention {
        PooledAttention { parts, layer_idx, dtype, parallel: parallel.clone() }
    }

    /// Returns this rank's groups.
    pub(crate) fn heads(&self) -> &Heads {
        &self.parts.heads
    }

    /// Returns what the layer keeps of a sequence on this rank: nothing if it has no heads.
    pub(crate) fn cache_shape(&self) -> LayerCacheShape {
        let kv_heads = self.parts.heads.cut.kv_heads.len();
        let kept = |dim| if kv_heads == 0 { 0 } else { dim };
        let pools = self.parts.pools.as_ref().and_then(|pools| Some((pools.len, pools.own()?)));
        let positions = KvShape {
            kv_heads,
            key_dim: self.parts.sizes.head_dim,
            value_dim: 0,
            index_dim: kept(pools.map_or(0, |(_, own)| own.raw_dim())),
            pools: pools.map(|(len, own)| PoolShape { len, dim: kept(own.pool_dim()) }),
        };
        LayerCacheShape::Window { positions, window: self.parts.sizes.kept_positions }
    }

    /// Adds the block to the stream.
    pub(crate) fn add_to(
        &self,
        residual: Residual,
        frame: &BlockFrame,
        step: &mut Step<'_, '_>,
    ) -> Residual {
        let output = self.parts.output.block_output();
        let Compute::Kernels(threads) = self.parallel.compute() else {
            let work = |x: &Array| self.parts.output.stock(&self.stock_groups(x, step));
            return residual.stock_block(frame, output, work);
        };
        let kernel = self.kernel(step);
        residual.kernel_block(frame, output, threads, move |x, threads| kernel.product(x, threads))
    }

    /// Creates the state of the primitive's closure.
    fn kernel(&self, step: &mut Step<'_, '_>) -> PooledKernel {
        let parts = &self.parts;
        let pools = parts.pools.as_ref();
        let indexer = pools.and_then(|pools| pools.chooser.as_ref()?.indexer());
        let own = pools.and_then(PooledPools::own).into_iter();
        let down = [&parts.q_down, &parts.kv].into_iter();
        let of_pools = own.flat_map(OwnPools::compressors);
        let down = down.chain(of_pools.flat_map(|it| &it.projections));
        let down = down.chain(indexer.map(|it| &it.weights));
        let up = [&parts.q_up].into_iter().chain(indexer.map(|it| &it.queries));
        PooledKernel {
            down: down.map(Linear::kernel).collect(),
            q_norm: parts.q_norm.kernel(),
            up: up.map(Linear::kernel).collect(),
            kv_norm: parts.kv_norm.kernel(),
            sinks: pinned(&parts.sinks),
            pools: pools.map(|pools| PoolsKernel {
                len: pools.len,
                place: match &pools.place {
                    PoolPlace::Own(own) => PoolPlaceKernel::Own(Box::new(own.kernel())),
                    PoolPlace::OfCache(idx) => PoolPlaceKernel::OfCache(pages(step, *idx)),
                },
                chooser: pools.chooser.as_ref().map(|chooser| chooser.kernel(step)),
            }),
            groups: parts.groups.kernel(),
            output: parts.output.divisible_kernel(),
            rotations: step.rotations(&parts.rope),
            inverse: step.rotations(&parts.inverse),
            num_groups: parts.heads.cut.heads.len(),
            sizes: parts.sizes,
            spans: step.spans.clone(),
            pages: pages(step, self.layer_idx),
            dtype: self.dtype,
        }
    }
}

/// Returns the pages of each sequence of a step in the cache of this number.
fn pages(step: &Step<'_, '_>, cache_idx: usize) -> Vec<LayerPages> {
    step.caches.iter().map(|cache| cache.pages(cache_idx)).collect()
}

/// The state of the primitive's closure: everything except the weights' arrays.
struct PooledKernel {
    /// Projections from the stream: to what queries are computed from, to keys, to what pools and then those
    /// of the indexer are computed from, and to the factors of the indexer's heads.
    down: Vec<LinearKernel>,
    q_norm: NormKernel,
    /// To queries, and to those of the indexer.
    up: Vec<LinearKernel>,
    kv_norm: NormKernel,
    sinks: Pinned, // f32 [heads]
    pools: Option<PoolsKernel>,
    groups: HeadMatrixKernel,
    output: DivisibleKernel,
    rotations: Arc<RotationTable>,
    inverse: Arc<RotationTable>,
    num_groups: usize,
    sizes: PooledSizes,
    spans: Vec<StepSpan>,
    pages: Vec<LayerPages>,
    dtype: Dtype,
}

/// The pools of a layer, for the kernels.
struct PoolsKernel {
    len: usize,
    place: PoolPlaceKernel,
    chooser: Option<ChooserKernel>,
}

/// [`PoolPlace`] for the kernels, with the pages of each sequence.
enum PoolPlaceKernel {
    Own(Box<OwnPoolsKernel>),
    OfCache(Vec<LayerPages>),
}

/// [`OwnPools`] for the kernels.
struct OwnPoolsKernel {
    overlaps: bool,
    /// Number of elements that are kept of a position.
    raw_dim: usize,
    /// Number of projections to them.
    num_projections: usize,
    /// First of these elements that is the indexer's.
    first_of_index: usize,
    vectors: PoolVectorsKernel,
    index: Option<IndexVectorsKernel>,
}

/// [`IndexVectors`] for the kernels.
enum IndexVectorsKernel {
    Compressed(PoolVectorsKernel),
    Projected(ProjectedVectorsKernel),
}

impl PooledKernel {
    /// Computes this rank's part of the product `[tokens, hidden]`, without bias.
    fn product(&self, x: Elements<'_>, threads: &Threads) -> Vec<f64> {
        let PooledSizes { head_dim, .. } = self.sizes;
        let mut projected = LinearKernel::products_of(&self.down, x, threads).into_iter();
        let mut next = || projected.next().unwrap_or_default();
        let [first, kv] = [next(), next()];
        let num_raw = self.own_pools().map_or(0, |own| own.num_projections);
        let raw: Vec<Vec<f32>> = (0..num_raw).map(|_| next()).collect();
        let weights = next();
        let mut low_rank = Floats::zeros(float(self.dtype), first.len());
        self.q_norm.norm(Elements::F32(&first), low_rank.elements_mut(), threads);
        let mut up = LinearKernel::products_of(&self.up, low_rank.elements(), threads);
        let chooser = self.pools.as_ref().and_then(|pools| pools.chooser.as_ref());
        let index = chooser.and_then(ChooserKernel::indexer).map(|indexer| {
            indexer.rows(up.pop().expect("an indexer has queries"), weights, threads)
        });
        let mut q = up.pop().expect("there are queries");
        let norm = self.sizes.has_query_norm.then_some(kernels::NormParameters {
            is_centred: false,
            weight: None,
            bias: None,
            eps: self.sizes.norm_eps,
        });
        kernels::place_heads(&mut q, norm, self.rotations.rotation(head_dim), threads);
        let mut keys = vec![0.0; kv.len()];
        self.kv_norm.norm(Elements::F32(&kv), ElementsMut::F32(&mut keys), threads);
        kernels::place_heads(&mut keys, None, self.rotations.rotation(head_dim), threads);
        if let Some(codes) = self.sizes.codes {
            codes.round(&mut keys);
        }
        let held = self.write(&keys, &raw, threads);
        let mut out = self.attend(&q, &held, index.as_ref(), threads);
        kernels::place_heads(&mut out, None, self.inverse.rotation(head_dim), threads);
        self.project(&out, threads)
    }

    /// Projects the heads' results `[tokens, heads, head_dim]`.
    fn project(&self, out: &[f32], threads: &Threads) -> Vec<f64> {
        let PooledSizes { heads_per_group, head_dim, group_dim, .. } = self.sizes;
        let width = heads_per_group * head_dim;
        let shape = [self.num_groups, width];
        let apart = kernels::heads_apart(Elements::F32(out), shape, [0, width], float(self.dtype));
        let mut groups = Floats::zeros(float(self.dtype), out.len() / width * group_dim);
        let results = HeadResults { values: groups.elements_mut(), width: group_dim, first: 0 };
        self.groups.multiply(apart.elements(), results, threads);
        self.output.multiply(groups.elements(), threads)
    }

    /// Writes the keys of the step's positions and what pools are computed from to the cache, and computes
    /// the pools that end there. Returns the pages of each sequence.
    fn write(&self, keys: &[f32], raw: &[Vec<f32>], threads: &Threads) -> Vec<PoolPages> {
        let _writing = threads.span("kv_cache", 0);
        let width = self.sizes.head_dim;
        let spans = self.spans.iter().zip(&self.pages);
        let held = spans.enumerate().map(|(sequence, (span, pages))| {
            let rows = span.rows.clone();
            let keys = &keys[rows.start * width..rows.end * width];
            let Some(pools) = &self.pools else {
                let window = pages.write(span.positions(), keys, &[], &[]);
                return PoolPages { window, pools: Vec::new() };
            };
            let own = match &pools.place {
                PoolPlaceKernel::Own(own) => own,
                PoolPlaceKernel::OfCache(others) => {
                    let window = pages.write(span.positions(), keys, &[], &[]);
                    return PoolPages { window, pools: others[sequence].held() };
                }
            };
            let raw_width = |part: &Vec<f32>| part.len() / (self.num_rows().max(1));
            let mut kept = Vec::with_capacity(rows.len() * own.raw_dim);
            for row in rows {
                raw.iter().for_each(|it| kept.extend(&it[row * raw_width(it)..][..raw_width(it)]));
            }
            pages.write_pooled(span.positions(), keys, &kept, |held, last| {
                own.vectors_of(held, [pools.len, last], threads)
            })
        });
        held.collect()
    }

    fn own_pools(&self) -> Option<&OwnPoolsKernel> {
        match &self.pools.as_ref()?.place {
            PoolPlaceKernel::Own(own) => Some(own),
            PoolPlaceKernel::OfCache(_) => None,
        }
    }

    /// Returns the number of rows of the step.
    fn num_rows(&self) -> usize {
        self.spans.last().map_or(0, |span| span.rows.end)
    }

    /// Computes each head's mean of values, `[tokens, heads, head_dim]`.
    fn attend(
        &self,
        q: &[f32],
        held: &[PoolPages],
        index: Option<&IndexRows>,
        threads: &Threads,
    ) -> Vec<f32> {
        let mut out = vec![0.0; q.len()];
        let Some(pools) = &self.pools else {
            self.attend_window(q, held, &mut out, threads);
            return out;
        };
        let config = AttentionConfig { window: None, ..self.config() };
        let width = config.heads * config.head_dim;
        let rows = self.spans.iter().enumerate().flat_map(|(sequence, span)| {
            let rows = span.rows.clone().zip(span.positions());
            rows.map(move |(row, position)| Row { sequence, row, position })
        });
        let rows: Vec<Row> = rows.collect();
        let chosen_of = |rows: &[Row]| pools.chosen(rows, held, index, threads);
        let mut shared = [Vec::new(), Vec::new()];
        let parts = out.chunks_mut(COPYING_ROWS * width).zip(q.chunks(COPYING_ROWS * width));
        for (rows, (out, q)) in rows.chunks(COPYING_ROWS).zip(parts) {
            let [chosen, blocks] = chosen_of(rows);
            let copied = self.copied(rows, &chosen, held);
            let parts = copied.iter().map(|it| &it[..]).collect();
            let keys = kernels::gather_joined(parts, config.head_dim, threads);
            let pages = keys.iter().map(|keys| [KvPage { keys: keys.elements(), values: None }]);
            let pages: Vec<[KvPage<'_>; 1]> = pages.collect();
            let sequences = pages.iter().zip(&copied).map(|(pages, parts)| SequenceKv {
                pages,
                length: parts.iter().map(|part| part.positions.len()).sum(),
                num_queries: 1,
            });
            let sequences: Vec<SequenceKv<'_>> = sequences.collect();
            let out = ElementsMut::F32(out);
            kernels::attention(Elements::F32(q), &sequences, &config, out, threads);
            if pools.chooser.as_ref().is_some_and(ChooserKernel::is_shared) {
                shared[0].extend(chosen);
                shared[1].extend(blocks);
            }
        }
        pools.chooser.iter().for_each(|chooser| chooser.share(std::mem::take(&mut shared)));
        out
    }

    /// Computes rows that see a window alone.
    fn attend_window(&self, q: &[f32], held: &[PoolPages], out: &mut [f32], threads: &Threads) {
        let views = held.iter().map(|held| views(&held.window));
        let views: Vec<Vec<KvPage<'_>>> = views.collect();
        let sequences = self.spans.iter().zip(&views).map(|(span, pages)| {
            let num_queries = span.rows.len();
            SequenceKv { pages, length: span.start + num_queries, num_queries }
        });
        let sequences: Vec<SequenceKv<'_>> = sequences.collect();
        let out = ElementsMut::F32(out);
        kernels::attention(Elements::F32(q), &sequences, &self.config(), out, threads);
    }

    /// Returns for each row the positions of its window, and the pools that it attends to.
    fn copied<'a>(
        &self,
        rows: &[Row],
        chosen: &[Vec<usize>],
        held: &'a [PoolPages],
    ) -> Vec<[ChosenPositions<'a>; 2]> {
        let of_rows = rows.iter().zip(chosen).map(|(row, chosen)| {
            let held = &held[row.sequence];
            let first = (row.position + 1).saturating_sub(self.sizes.window);
            let window = (first..=row.position).collect();
            [(&held.window, window), (&held.pools, chosen.clone())]
                .map(|(pages, positions)| ChosenPositions { pages: views(pages), positions })
        });
        of_rows.collect()
    }

    fn config(&self) -> AttentionConfig<'_> {
        let PooledSizes { heads_per_group, head_dim, window, .. } = self.sizes;
        AttentionConfig {
            heads: self.num_groups * heads_per_group,
            kv_heads: 1,
            head_dim,
            value_dim: head_dim,
            scale: scale(head_dim),
            window: Some(window),
            chunk: None,
            soft_cap: None,
            sinks: Some(self.sinks.values::<f32>()),
        }
    }
}

impl OwnPoolsKernel {
    /// Returns the vectors of the pool of `len` positions that ends at `last`, for keys and for the indexer, from
    /// the pages of its positions.
    fn vectors_of(
        &self,
        held: &[Arc<Page>],
        [len, last]: [usize; 2],
        threads: &Threads,
    ) -> [Vec<f32>; 2] {
        let pool = last / len;
        let num_pools = if self.overlaps && 0 < pool { 2 } else { 1 };
        let positions = last + 1 - num_pools * len..=last;
        let row = |position: usize| {
            let page_tokens = held[0].index().len() / self.raw_dim;
            let mut row = vec![0.0; self.raw_dim];
            let page = held[position / page_tokens].index();
            page.load(position % page_tokens * self.raw_dim, &mut row);
            row
        };
        let rows: Vec<Vec<f32>> = positions.map(row).collect();
        let normed = self.vectors.normed(&rows, 0, threads);
        let index = match &self.index {
            Some(IndexVectorsKernel::Compressed(vectors)) => {
                vectors.placed(vectors.normed(&rows, self.first_of_index, threads), pool)
            }
            Some(IndexVectorsKernel::Projected(vectors)) => vectors.vector(pool, &normed, threads),
            None => Vec::new(),
        };
        [self.vectors.placed(normed, pool), index]
    }
}

impl PoolsKernel {
    /// Returns the pools that each of some rows attends to, in ascending order, and the blocks that it leaves
    /// to later indexers, if it does.
    fn chosen(
        &self,
        rows: &[Row],
        held: &[PoolPages],
        index: Option<&IndexRows>,
        threads: &Threads,
    ) -> [Vec<Vec<usize>>; 2] {
        let mut all = [Vec::new(), Vec::new()];
        for rows in rows.chunk_by(|a, b| a.sequence == b.sequence) {
            let visible: Vec<usize> =
                rows.iter().map(|row| (row.position + 1) / self.len).collect();
            let keys: Vec<Elements<'_>> =
                held[rows[0].sequence].pools.iter().map(|page| page.index()).collect();
            let own = match &self.chooser {
                Some(chooser) => {
                    let seen = SeenPools { rows, visible: &visible, keys: &keys };
                    chooser.choose(&seen, index, threads)
                }
                None => [visible.iter().map(|number| (0..*number).collect()).collect(), Vec::new()],
            };
            all.iter_mut().zip(own).for_each(|(all, own)| all.extend(own));
        }
        all
    }
}

/// Returns the factor of scores.
pub(super) fn scale(head_dim: usize) -> f32 {
    (head_dim as f64).powf(-0.5) as f32
}

fn views(pages: &[Arc<Page>]) -> Vec<KvPage<'_>> {
    pages.iter().map(|page| page.view()).collect()
}
