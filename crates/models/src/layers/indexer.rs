//! The indexer of latent attention (DeepSeek-AI 2025, "DeepSeek-V3.2", section 2.1): it chooses the
//! positions that a query attends to.
//!
//! Every rank with heads of the attention computes all of it, and keeps its keys beside the latents.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use jackalope_kernels::{self as kernels, Elements, ElementsMut, IndexQueries, Threads};
use jackalope_mlx::fast::RopeOffset;
use jackalope_mlx::{Array, Dtype};

use super::index_pools::{IndexPools, PoolPlaces, PoolsKernel};
use super::kernel::dim;
use super::linear::{Linear, LinearKernel};
use super::norm::{Norm, NormKernel};
use super::rope::{Rope, RotationTable};
use crate::cache::{LayerPages, Page};
use crate::step::{Choice, Step, StepSpan};

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
    /// Number of elements that are kept of a position.
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

/// An indexer.
#[derive(Debug)]
pub(crate) struct Indexer {
    /// Projection from the vectors that queries are computed from, to `[heads, head_dim]`.
    pub(crate) queries: Linear,
    /// Projection from the residual stream to `[head_dim]`.
    pub(crate) keys: Linear,
    pub(crate) key_norm: Norm,
    /// Projection from the residual stream to the factors of the heads, `[heads]`.
    pub(crate) weights: Linear,
    /// `None` if queries and keys are not rotated.
    pub(crate) rope: Option<Rc<Rope>>,
    /// Set if neighbouring positions are chosen together.
    pub(crate) pools: Option<IndexPools>,
    pub(crate) sizes: IndexerSizes,
}

impl Indexer {
    /// Returns the indexer for use inside a primitive.
    pub(super) fn kernel(&self, step: &mut Step<'_, '_>) -> IndexerKernel {
        IndexerKernel {
            queries: self.queries.kernel(),
            inward: [self.keys.kernel(), self.weights.kernel()],
            key_norm: self.key_norm.kernel(),
            rotations: self.rope.as_ref().map(|rope| step.rotations(rope)),
            pools: self.pools.as_ref().map(IndexPools::kernel),
            sizes: self.sizes,
        }
    }

    /// Computes queries, keys and factors of the rows of a step with MLX, before the rotation. `x` is
    /// `[tokens, hidden]`, `low_rank` what queries are computed from.
    pub(super) fn stock(&self, x: &Array, low_rank: &Array) -> StockIndex<'_> {
        let IndexerSizes { heads, head_dim, .. } = self.sizes;
        let tokens = x.dim(0);
        let queries = self.queries.stock(low_rank);
        let keys = self.key_norm.stock(&self.keys.stock(x));
        let kept = self.pools.as_ref().map(|pools| pools.stock_kept(x, &keys));
        StockIndex {
            queries: queries.reshape(&[tokens, dim(heads), dim(head_dim)]),
            kept: kept.unwrap_or(keys).expand_dims(1),
            weights: self.weights.stock(x).expand_dims(2),
            rope: self.rope.as_ref(),
            pools: self.pools.as_ref(),
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
    /// sees. `choose` applies the layer's indexer to what it keeps,
    /// `[sequences, 1, keys, kept_dim]`.
    pub(super) fn next_mask(
        &self,
        keys: Option<&Array>,
        choose: impl FnOnce(&StockIndex<'_>, &Array) -> Array,
    ) -> Option<Array> {
        let part = self.next_part.replace(self.next_part.get() + 1);
        let mut masks = self.choice.masks.borrow_mut();
        if let Some(index) = &self.index {
            let keys = keys.expect("an indexer's keys are kept");
            masks.push(index.chooses_of(keys.dim(2)).then(|| choose(index, keys)));
        }
        masks[part].clone()
    }
}

/// What an indexer computes of the rows of a step, for MLX.
#[derive(Debug)]
pub(super) struct StockIndex<'a> {
    /// `[tokens, heads, head_dim]`.
    pub(super) queries: Array,
    /// What is kept of each position, `[tokens, 1, kept_dim]`: its key, perhaps with gates.
    pub(super) kept: Array,
    /// `[tokens, heads, 1]`.
    pub(super) weights: Array,
    rope: Option<&'a Rc<Rope>>,
    pools: Option<&'a IndexPools>,
    sizes: IndexerSizes,
}

impl StockIndex<'_> {
    /// Rotates queries or keys, `[sequences, heads, seq, head_dim]`, if they are rotated.
    pub(super) fn placed(&self, x: &Array, place: RopeOffset<'_>) -> Array {
        self.rope.map_or(x.clone(), |rope| rope.stock(x, place))
    }

    /// Returns whether queries attend to only some of `num_keys` keys.
    fn chooses_of(&self, num_keys: i32) -> bool {
        dim(self.sizes.attended_max) < num_keys
    }

    /// Returns which of the keys that queries see they attend to: the best ones; of equal ones the
    /// first. Rotated `queries` are `[sequences, heads, seq, head_dim]`, `weights`
    /// `[sequences, heads, seq, 1]`, `kept` `[sequences, 1, keys, kept_dim]`; `visible` broadcasts to
    /// the result, `[sequences, 1, seq, keys]`.
    pub(super) fn chosen(
        &self,
        queries: &Array,
        weights: &Array,
        kept: &Array,
        visible: Option<&Array>,
    ) -> Array {
        let Some(pools) = self.pools else {
            return best(&scores(queries, weights, kept), visible, self.sizes.num_chosen);
        };
        let num_chosen = self.sizes.num_chosen / pools.len();
        pools.stock_chosen(kept.dim(2), visible, |seen| {
            best(&scores(queries, weights, &pools.stock_keys(kept)), seen, num_chosen)
        })
    }
}

/// Returns the scores of `keys` `[sequences, 1, keys, head_dim]`, f32 `[sequences, 1, seq, keys]`.
fn scores(queries: &Array, weights: &Array, keys: &Array) -> Array {
    let keys = keys.swapaxes(-1, -2);
    let zero = Array::scalar_of(0.0, queries.dtype());
    let weigh = |queries: &Array, weights: &Array| {
        queries.matmul(&keys).maximum(&zero).mul(weights).astype(Dtype::F32)
    };
    if queries.dim(2) == 1 {
        return weigh(queries, weights).sum(1, true);
    }
    // Head by head, because the scores of all heads of a prompt would be large.
    let head = |x: &Array, head: i32| x.slice_axis(1, head, head + 1);
    let of_heads = (0..queries.dim(1)).map(|idx| weigh(&head(queries, idx), &head(weights, idx)));
    of_heads.reduce(|sum, scores| sum.add(&scores)).expect("an indexer has heads")
}

/// Returns where the largest of the visible scores are; of equal ones the first.
fn best(scores: &Array, visible: Option<&Array>, num_chosen: usize) -> Array {
    let least = Array::scalar(f32::NEG_INFINITY);
    let seen = visible.map_or(scores.clone(), |mask| Array::where_(mask, scores, &least));
    let ranks = seen.neg().argsort(-1).argsort(-1).astype(Dtype::I32);
    let chosen = ranks.less(&Array::from_slice(&[dim(num_chosen)], &[1]));
    visible.map_or(chosen.clone(), |mask| chosen.logical_and(mask))
}

/// An indexer for the kernels.
#[derive(Debug)]
pub(super) struct IndexerKernel {
    queries: LinearKernel,
    /// Keys and factors.
    inward: [LinearKernel; 2],
    key_norm: NormKernel,
    rotations: Option<Arc<RotationTable>>,
    pools: Option<PoolsKernel>,
    pub(super) sizes: IndexerSizes,
}

/// What an indexer computes of the rows of a step.
#[derive(Debug)]
pub(super) struct IndexRows {
    queries: Vec<f32>, // [tokens, heads, head_dim]
    /// What is kept of each position, `[tokens, kept_dim]`: its key, perhaps with gates.
    pub(super) kept: Vec<f32>,
    weights: Vec<f32>, // [tokens, heads]
    pools: Option<PoolPlaces>,
    sizes: IndexerSizes,
}

impl IndexerKernel {
    /// Computes queries, keys and factors of the rows of a step. `x` is `[tokens, hidden]`, `low_rank`
    /// what queries are computed from.
    pub(super) fn rows(
        &self,
        x: Elements<'_>,
        low_rank: Elements<'_>,
        threads: &Threads,
    ) -> IndexRows {
        let [projected, weights] = LinearKernel::products(&self.inward, x, threads);
        let queries = std::array::from_ref(&self.queries);
        let [mut queries] = LinearKernel::products(queries, low_rank, threads);
        let mut keys = vec![0.0; projected.len()];
        self.key_norm.norm(Elements::F32(&projected), ElementsMut::F32(&mut keys), threads);
        for x in [&mut queries, &mut keys] {
            let Some(rotations) = &self.rotations else { break };
            kernels::place_heads(x, None, rotations.rotation(self.sizes.head_dim), threads);
        }
        let pools = self.pools.as_ref();
        let kept = pools.map(|pools| {
            let gates = pools.gates.product(&x.to_f32(), threads);
            let width = self.sizes.head_dim;
            let rows = keys.chunks_exact(width).zip(gates.chunks_exact(width));
            rows.flat_map(|(key, gates)| [key, gates].concat()).collect()
        });
        let pools = pools.map(|pools| pools.places.clone());
        IndexRows { queries, kept: kept.unwrap_or(keys), weights, pools, sizes: self.sizes }
    }
}

impl IndexRows {
    /// Writes the rows of a sequence to its pages, the vectors `keys` and what the indexer keeps.
    /// Returns the pages.
    pub(super) fn write(
        &self,
        rows: &StepSpan,
        keys: &[f32],
        pages: &LayerPages,
    ) -> Vec<Arc<Page>> {
        let width = self.sizes.kept_dim;
        let kept = &self.kept[rows.rows.start * width..rows.rows.end * width];
        let held = pages.write(rows.start, keys, kept);
        let Some(pools) = &self.pools else { return held };
        // No handle may be left, or the pages would be copied.
        drop(held);
        let written = rows.start..rows.start + rows.rows.len();
        pages.replace_values(pools.last_positions(written), |pages, last| pools.key(pages, last))
    }

    /// Returns the positions that rows of one sequence choose, whose pages hold what is kept of all
    /// positions that they see.
    pub(super) fn choose(
        &self,
        rows: &StepSpan,
        pages: &[Arc<Page>],
        threads: &Threads,
    ) -> Vec<Vec<usize>> {
        let IndexerSizes { heads, head_dim, num_chosen, .. } = self.sizes;
        let of_rows = |width: usize| rows.rows.start * width..rows.rows.end * width;
        let positions = rows.start..rows.start + rows.rows.len();
        let pool_len = self.pools.as_ref().map_or(1, |pools| pools.len);
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
            let keys = pages.iter().map(|page| page.view().values);
            let keys: Option<Vec<Elements<'_>>> = keys.collect();
            let keys = keys.expect("an indexer's keys are beside the latents");
            return kernels::choose_positions(&rows, &keys, threads);
        };
        let keys = pools.keys(pages, positions.end / pool_len);
        let chosen = kernels::choose_positions(&rows, &[keys.elements()], threads);
        let rows = chosen.iter().zip(positions);
        rows.map(|(chosen, position)| pools.positions(chosen, position)).collect()
    }
}
