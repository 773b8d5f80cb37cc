//! Indexers (DeepSeek-AI 2025, "DeepSeek-V3.2", section 2.1; [`jackalope_spec::BlockChoice`]): they choose
//! the positions that a query attends to.
//!
//! Every rank with heads of the attention keeps all keys of an indexer. It computes all heads of one whose
//! heads choose together, else those that choose for its own heads.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use jackalope_kernels::{
    self as kernels, BlockQueries, Elements, ElementsMut, IndexQueries, Threads,
};
use jackalope_mlx::choice::{self, Blocks};
use jackalope_mlx::{Array, Dtype, dim};

use super::index_pools::{IndexPools, PoolPlaces};
use crate::step::{Choice, Step, StepSpan};
use jackalope_cache::{LayerPages, Page};
use jackalope_kernels::RotationTable;
use jackalope_parallel::linear::{Linear, LinearKernel};
use jackalope_parallel::norm::{Norm, NormKernel};
use jackalope_parallel::rope::Rope;
use jackalope_parallel::wide_matrix::WideMatrixKernel;

/// Heads of an indexer, and how many positions it chooses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexerSizes {
    pub(crate) heads: usize,
    /// Width of a query and of a key.
    pub(crate) head_dim: usize,
    /// Number of positions that are chosen for a query.
    pub(crate) num_chosen: usize,
    /// Number of positions that it attends to at most.
    pub(crate) attended_max: usize,
    /// Number of elements that are kept of a position; with pools, until no pool needs them.
    pub(crate) kept_dim: usize,
}

/// What chooses the positions that a query attends to.
#[derive(Debug)]
pub(crate) enum Chooser {
    /// An indexer of the layer.
    Indexer(Box<Indexer>),
    /// The indexer of an earlier layer, whose queries attend to at most `num_chosen` positions.
    Earlier { num_chosen: usize },
}

impl Chooser {
    /// Returns the indexer of the layer, if it has one.
    pub(super) fn indexer(&self) -> Option<&Indexer> {
        match self {
            Chooser::Indexer(indexer) => Some(indexer),
            Chooser::Earlier { .. } => None,
        }
    }

    /// Returns the number of positions that a query attends to at most.
    pub(super) fn num_chosen(&self) -> usize {
        match self {
            Chooser::Indexer(indexer) => indexer.sizes.attended_max,
            Chooser::Earlier { num_chosen } => *num_chosen,
        }
    }

    /// Returns where the choice of a step is: the indexer of the layer writes it, other layers read it.
    pub(super) fn choice(&self, step: &mut Step<'_, '_>) -> Choice {
        match self {
            Chooser::Indexer(_) => step.begin_choice(),
            Chooser::Earlier { .. } => step.last_choice(),
        }
    }
}

/// The factors of an indexer's heads.
#[derive(Debug)]
pub(crate) enum IndexWeights {
    /// Projection from the residual stream, `[heads]`.
    Projected(Linear),
    /// All of them are this.
    Constant(f32),
    /// Each head chooses blocks for heads of its own.
    None,
}

impl IndexWeights {
    fn linear(&self) -> Option<&Linear> {
        match self {
            IndexWeights::Projected(linear) => Some(linear),
            IndexWeights::Constant(_) | IndexWeights::None => None,
        }
    }

    /// Returns the factors of all heads if they have the same.
    fn constant(&self) -> Option<f32> {
        match self {
            IndexWeights::Constant(factor) => Some(*factor),
            IndexWeights::Projected(_) | IndexWeights::None => None,
        }
    }
}

/// An indexer.
#[derive(Debug)]
pub(crate) struct Indexer {
    /// Projection from the vectors that queries are computed from, to `[heads, head_dim]`.
    pub(crate) queries: Linear,
    /// Norm of each head's queries.
    pub(crate) query_norm: Option<Norm>,
    /// Projection from the residual stream to `[head_dim]`.
    pub(crate) keys: Linear,
    /// Norm of the keys; `None` if those of pools are normalised.
    pub(crate) key_norm: Option<Norm>,
    pub(crate) weights: IndexWeights,
    /// `None` if queries and keys are not rotated.
    pub(crate) rope: Option<Rc<Rope>>,
    /// Set if neighbouring positions are chosen together.
    pub(crate) pools: Option<IndexPools>,
    /// Set if blocks of positions are chosen.
    pub(crate) blocks: Option<Blocks>,
    pub(crate) sizes: IndexerSizes,
}

impl Indexer {
    /// Returns the projections for use inside a primitive.
    pub(super) fn projections(&self) -> IndexProjections {
        IndexProjections {
            queries: self.queries.kernel(),
            inward: self.inward().map(Linear::kernel).collect(),
            gates: self.pools.as_ref().and_then(IndexPools::gates),
        }
    }

    /// Returns the widths of what [`IndexProjections::project`] returns, without pools.
    pub(super) fn widths(&self) -> Vec<usize> {
        [&self.queries].into_iter().chain(self.inward()).map(Linear::output).collect()
    }

    /// Returns the projections from the residual stream.
    fn inward(&self) -> impl Iterator<Item = &Linear> {
        [&self.keys].into_iter().chain(self.weights.linear())
    }

    /// Returns the indexer for use inside a primitive, without its projections.
    pub(super) fn kernel(&self, step: &mut Step<'_, '_>) -> IndexerKernel {
        IndexerKernel {
            query_norm: self.query_norm.as_ref().map(Norm::kernel),
            key_norm: self.key_norm.as_ref().map(Norm::kernel),
            rotations: self.rope.as_ref().map(|rope| step.rotations(rope)),
            has_weights: self.weights.linear().is_some(),
            constant: self.weights.constant(),
            pools: self.pools.as_ref().map(|pools| pools.places()),
            blocks: self.blocks,
            sizes: self.sizes,
        }
    }

    /// Computes queries, keys and factors of the rows of a step with MLX, before the rotation. `x` is
    /// `[tokens, hidden]`, `low_rank` what queries are computed from.
    pub(super) fn stock(&self, [x, low_rank]: [&Array; 2], step: &Step<'_, '_>) -> StockIndex<'_> {
        let IndexerSizes { heads, head_dim, .. } = self.sizes;
        let tokens = x.dim(0);
        let queries = self.queries.stock(low_rank);
        let queries = queries.reshape(&[tokens, dim(heads), 1, dim(head_dim)]);
        let normed = self.query_norm.as_ref().map(|norm| norm.stock(&queries));
        let keys = self.keys.stock(x);
        let keys = self.key_norm.as_ref().map_or(keys.clone(), |norm| norm.stock(&keys));
        let kept = self.pools.as_ref().map(|pools| pools.stock_kept(x, &keys));
        let rope = self.rope.as_ref();
        let placed = |x: Array| rope.map_or(x.clone(), |rope| rope.stock(&x, &step.positions()));
        let of_pools = kept.map(|kept| kept.reshape(&[tokens, 1, 1, -1]));
        StockIndex {
            queries: placed(normed.unwrap_or(queries)),
            kept: of_pools.unwrap_or_else(|| placed(keys.reshape(&[tokens, 1, 1, -1]))),
            weights: match &self.weights {
                IndexWeights::Projected(weights) => {
                    Some(weights.stock(x).reshape(&[tokens, dim(heads), 1, 1]))
                }
                IndexWeights::Constant(factor) => {
                    Some(Array::full(&[tokens, dim(heads), 1, 1], *factor, Dtype::F32))
                }
                IndexWeights::None => None,
            },
            pools: self.pools.as_ref(),
            blocks: self.blocks,
            sizes: self.sizes,
        }
    }
}

/// What chooses the keys that the parts of a step attend to, for MLX: groups of sequences, then prompts.
#[derive(Debug)]
pub(super) struct StockChooser<'a> {
    /// `None` if the choice is an earlier layer's.
    pub(super) index: Option<StockIndex<'a>>,
    choice: Choice,
    next_part: Cell<usize>,
}

impl<'a> StockChooser<'a> {
    pub(super) fn new(index: Option<StockIndex<'a>>, choice: Choice) -> StockChooser<'a> {
        StockChooser { index, choice, next_part: Cell::new(0) }
    }

    /// Returns which keys the next part of the step attends to; `None` if it attends to all that it
    /// sees of `num_positions`. `choose` applies the layer's indexer.
    pub(super) fn next_mask(
        &self,
        num_positions: i32,
        choose: impl FnOnce(&StockIndex<'_>) -> Array,
    ) -> Option<Array> {
        let part = self.next_part.replace(self.next_part.get() + 1);
        let mut masks = self.choice.masks.borrow_mut();
        if let Some(index) = &self.index {
            masks.push(index.chooses_of(num_positions).then(|| choose(index)));
        }
        masks[part].clone()
    }
}

/// What an indexer computes of the rows of a step, for MLX.
#[derive(Debug)]
pub(super) struct StockIndex<'a> {
    /// `[tokens, heads, 1, head_dim]`.
    pub(super) queries: Array,
    /// What is kept of each position, `[tokens, 1, 1, kept_dim]`: its key, perhaps with gates.
    pub(super) kept: Array,
    /// `[tokens, heads, 1, 1]`, if heads choose together.
    pub(super) weights: Option<Array>,
    pub(super) pools: Option<&'a IndexPools>,
    blocks: Option<Blocks>,
    sizes: IndexerSizes,
}

impl StockIndex<'_> {
    /// Returns whether queries attend to only some of `num_positions`.
    fn chooses_of(&self, num_positions: i32) -> bool {
        dim(self.sizes.attended_max) < num_positions
    }

    /// Returns which of the first `num_positions` that queries see they attend to: the best ones; of equal ones
    /// the first. Rotated `queries` are `[sequences, heads, seq, head_dim]`, `weights`
    /// `[sequences, heads, seq, 1]`; `keys`, of positions or of whole pools, are
    /// `[sequences, 1, keys, head_dim]`; `visible` broadcasts to the result,
    /// `[sequences, 1, seq, num_positions]`, or with `heads` if each chooses blocks.
    pub(super) fn chosen(
        &self,
        [queries, keys]: [&Array; 2],
        weights: Option<&Array>,
        num_positions: i32,
        visible: Option<&Array>,
    ) -> Array {
        if let Some(blocks) = self.blocks {
            return choice::best_blocks(queries, keys, visible, blocks);
        }
        let weights = weights.expect("heads that choose together have factors");
        // Factors in single precision ask for such scores.
        let wide = |x: &Array| match weights.dtype() {
            Dtype::F32 => x.astype(Dtype::F32),
            _ => x.clone(),
        };
        let scores = choice::scores(&wide(queries), weights, &wide(keys));
        let Some(pools) = self.pools else {
            return choice::best(&scores, visible, self.sizes.num_chosen);
        };
        let num_chosen = self.sizes.num_chosen / pools.shape.len;
        pools.stock_chosen(num_positions, visible, |seen| choice::best(&scores, seen, num_chosen))
    }
}

/// The projections of an indexer, for the kernels.
#[derive(Debug)]
pub(super) struct IndexProjections {
    queries: LinearKernel,
    /// To keys, and to factors if there are any.
    inward: Vec<LinearKernel>,
    gates: Option<WideMatrixKernel>,
}

impl IndexProjections {
    /// Computes queries, keys, and factors and gates if there are any, of the rows of a step. `x` is
    /// `[tokens, hidden]`, `low_rank` what queries are computed from.
    pub(super) fn project(
        &self,
        x: Elements<'_>,
        low_rank: Elements<'_>,
        threads: &Threads,
    ) -> Vec<Vec<f32>> {
        let queries = std::slice::from_ref(&self.queries);
        let mut projected = LinearKernel::products_of(queries, low_rank, threads);
        projected.extend(LinearKernel::products_of(&self.inward, x, threads));
        projected.extend(self.gates.as_ref().map(|gates| gates.product(&x.to_f32(), threads)));
        projected
    }
}

/// An indexer for the kernels, without its projections.
#[derive(Debug)]
pub(super) struct IndexerKernel {
    query_norm: Option<NormKernel>,
    key_norm: Option<NormKernel>,
    /// Whether the factors of the heads are projected, and what they are if not.
    has_weights: bool,
    constant: Option<f32>,
    rotations: Option<Arc<RotationTable>>,
    pools: Option<PoolPlaces>,
    blocks: Option<Blocks>,
    sizes: IndexerSizes,
}

/// What an indexer computes of the rows of a step.
#[derive(Debug)]
pub(super) struct IndexRows {
    queries: Vec<f32>, // [tokens, heads, head_dim]
    /// What is kept of each position, `[tokens, kept_dim]`: its key, perhaps with gates.
    kept: Vec<f32>,
    weights: Vec<f32>, // [tokens, heads]
    pools: Option<PoolPlaces>,
    blocks: Option<Blocks>,
    sizes: IndexerSizes,
}

impl IndexerKernel {
    /// Normalises and rotates what [`IndexProjections::project`] returns.
    pub(super) fn rows(&self, projected: Vec<Vec<f32>>, threads: &Threads) -> IndexRows {
        let mut projected = projected.into_iter();
        let mut next = || projected.next().unwrap_or_default();
        let [mut queries, mut keys] = [next(), next()];
        let mut weights = if self.has_weights { next() } else { Vec::new() };
        let gates = next();
        if let Some(factor) = self.constant {
            weights = vec![factor; queries.len() / self.sizes.head_dim];
        }
        let pools = self.pools.clone();
        let are_placed = [true, pools.as_ref().is_none_or(|pools| !pools.has_means())];
        let norms = [self.query_norm.as_ref(), self.key_norm.as_ref()];
        for (idx, (x, norm)) in [&mut queries, &mut keys].into_iter().zip(norms).enumerate() {
            if let Some(norm) = norm {
                let values = std::mem::replace(x, vec![0.0; x.len()]);
                norm.norm(Elements::F32(&values), ElementsMut::F32(x), threads);
            }
            let Some(rotations) = self.rotations.as_ref().filter(|_| are_placed[idx]) else {
                continue;
            };
            kernels::place_heads(x, None, rotations.rotation(self.sizes.head_dim), threads);
        }
        let kept = pools.as_ref().filter(|pools| !pools.has_means()).map(|_| {
            let width = self.sizes.head_dim;
            let rows = keys.chunks_exact(width).zip(gates.chunks_exact(width));
            rows.flat_map(|(key, gates)| [key, gates].concat()).collect()
        });
        let (kept, blocks, sizes) = (kept.unwrap_or(keys), self.blocks, self.sizes);
        IndexRows { queries, kept, weights, pools, blocks, sizes }
    }
}

impl IndexRows {
    /// Writes the rows of a sequence to its pages: keys and values of attention, and what the indexer
    /// keeps. Returns the pages.
    pub(super) fn write(
        &self,
        rows: &StepSpan,
        [keys, values]: [&[f32]; 2],
        pages: &LayerPages,
        threads: &Threads,
    ) -> Vec<Arc<Page>> {
        let width = self.sizes.kept_dim;
        let kept = &self.kept[rows.rows.start * width..rows.rows.end * width];
        let held = pages.write(rows.positions(), keys, values, kept);
        let Some(pools) = &self.pools else { return held };
        // No handle may be left, or the pages would be copied.
        drop(held);
        pages.write_pools(rows.positions(), kept, |raw, last| pools.key(raw, last, threads))
    }

    /// Returns the number of sets of positions that a row chooses, each for as many heads.
    pub(super) fn sets_per_row(&self) -> usize {
        if self.blocks.is_some() { self.sizes.heads } else { 1 }
    }

    /// Returns the sets of positions that rows of one sequence choose, whose pages hold what is kept of all
    /// positions that they see.
    pub(super) fn choose(
        &self,
        rows: &StepSpan,
        pages: &[Arc<Page>],
        threads: &Threads,
    ) -> Vec<Vec<usize>> {
        let IndexerSizes { heads, head_dim, num_chosen, .. } = self.sizes;
        let of_rows = |width: usize| rows.rows.start * width..rows.rows.end * width;
        if let Some(Blocks { len: block_len, num_chosen, num_local }) = self.blocks {
            let first = rows.start;
            let shape = BlockQueries { heads, head_dim, first, block_len, num_chosen, num_local };
            let keys = pages.iter().map(|page| page.index());
            return shape.choose(&self.queries[of_rows(heads * head_dim)], keys, threads);
        }
        let positions = rows.positions();
        let pool_len = self.pools.as_ref().map_or(1, |pools| pools.shape.len);
        let num_visible: Vec<usize> =
            positions.clone().map(|position| (position + 1) / pool_len).collect();
        let rows = IndexQueries {
            queries: &self.queries[of_rows(heads * head_dim)],
            weights: &self.weights[of_rows(heads)],
            heads,
            head_dim,
            num_visible: &num_visible,
            num_chosen: num_chosen / pool_len,
        };
        let Some(pools) = &self.pools else {
            let keys: Vec<Elements<'_>> = pages.iter().map(|page| page.index()).collect();
            return kernels::choose_positions(&rows, &keys, threads);
        };
        let keys = pools.keys(pages, positions.end / pool_len);
        let chosen = kernels::choose_positions(&rows, &[keys.elements()], threads);
        let rows = chosen.iter().zip(positions);
        rows.map(|(chosen, position)| pools.positions(chosen, position)).collect()
    }
}
