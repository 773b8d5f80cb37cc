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

use super::kernel::dim;
use super::linear::{Linear, LinearKernel};
use super::norm::{Norm, NormKernel};
use super::rope::{Rope, RotationTable};
use crate::cache::Page;
use crate::step::{Choice, Step, StepSpan};

/// Heads of an indexer, and how many positions it chooses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexerSizes {
    pub(crate) heads: usize,
    /// Width of a query and of a key.
    pub(crate) head_dim: usize,
    pub(crate) num_chosen: usize,
}

/// What chooses the positions that a query attends to.
#[derive(Debug)]
pub(crate) enum Chooser {
    /// An indexer of the layer.
    Indexer(Box<Indexer>),
    /// The indexer of an earlier layer, which chooses at most `num_chosen` positions.
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
            Chooser::Indexer(indexer) => indexer.sizes.num_chosen,
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
    pub(crate) rope: Rc<Rope>,
    pub(crate) sizes: IndexerSizes,
}

impl Indexer {
    /// Returns the indexer for use inside a primitive.
    pub(super) fn kernel(&self, step: &mut Step<'_, '_>) -> IndexerKernel {
        IndexerKernel {
            queries: self.queries.kernel(),
            inward: [self.keys.kernel(), self.weights.kernel()],
            key_norm: self.key_norm.kernel(),
            rotations: step.rotations(&self.rope),
            sizes: self.sizes,
        }
    }

    /// Computes queries, keys and factors of the rows of a step with MLX, before the rotation. `x` is
    /// `[tokens, hidden]`, `low_rank` what queries are computed from.
    pub(super) fn stock(&self, x: &Array, low_rank: &Array) -> StockIndex<'_> {
        let IndexerSizes { heads, head_dim, num_chosen } = self.sizes;
        let tokens = x.dim(0);
        let queries = self.queries.stock(low_rank);
        StockIndex {
            queries: queries.reshape(&[tokens, dim(heads), dim(head_dim)]),
            keys: self.key_norm.stock(&self.keys.stock(x)).expand_dims(1),
            weights: self.weights.stock(x).expand_dims(2),
            rope: &self.rope,
            num_chosen: dim(num_chosen),
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
    /// sees. `choose` applies the layer's indexer to its keys, `[sequences, 1, keys, head_dim]`.
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
    /// `[tokens, 1, head_dim]`.
    pub(super) keys: Array,
    /// `[tokens, heads, 1]`.
    pub(super) weights: Array,
    rope: &'a Rc<Rope>,
    num_chosen: i32,
}

impl StockIndex<'_> {
    /// Rotates queries or keys, `[sequences, heads, seq, head_dim]`.
    pub(super) fn placed(&self, x: &Array, place: RopeOffset<'_>) -> Array {
        self.rope.stock(x, place)
    }

    /// Returns whether queries attend to only some of `num_keys` keys.
    fn chooses_of(&self, num_keys: i32) -> bool {
        self.num_chosen < num_keys
    }

    /// Returns which of the keys that queries see they attend to: the best ones; of equal ones the
    /// first. Rotated `queries` are `[sequences, heads, seq, head_dim]`, `weights`
    /// `[sequences, heads, seq, 1]`, `keys` `[sequences, 1, keys, head_dim]`; `visible` broadcasts to
    /// the result, `[sequences, 1, seq, keys]`.
    pub(super) fn chosen(
        &self,
        queries: &Array,
        weights: &Array,
        keys: &Array,
        visible: Option<&Array>,
    ) -> Array {
        let keys = keys.swapaxes(-1, -2);
        let zero = Array::scalar_of(0.0, queries.dtype());
        let weigh = |queries: &Array, weights: &Array| {
            queries.matmul(&keys).maximum(&zero).mul(weights).astype(Dtype::F32)
        };
        let scores = if queries.dim(2) == 1 {
            weigh(queries, weights).sum(1, true)
        } else {
            // Head by head, because the scores of all heads of a prompt would be large.
            let head = |x: &Array, head: i32| x.slice_axis(1, head, head + 1);
            let of_heads =
                (0..queries.dim(1)).map(|idx| weigh(&head(queries, idx), &head(weights, idx)));
            of_heads.reduce(|sum, scores| sum.add(&scores)).expect("an indexer has heads")
        };
        let least = Array::scalar(f32::NEG_INFINITY);
        let seen = visible.map_or(scores.clone(), |mask| Array::where_(mask, &scores, &least));
        let ranks = seen.neg().argsort(-1).argsort(-1).astype(Dtype::I32);
        let chosen = ranks.less(&Array::from_slice(&[self.num_chosen], &[1]));
        visible.map_or(chosen.clone(), |mask| chosen.logical_and(mask))
    }
}

/// An indexer for the kernels.
#[derive(Debug)]
pub(super) struct IndexerKernel {
    queries: LinearKernel,
    /// Keys and factors.
    inward: [LinearKernel; 2],
    key_norm: NormKernel,
    rotations: Arc<RotationTable>,
    pub(super) sizes: IndexerSizes,
}

/// What an indexer computes of the rows of a step.
#[derive(Debug)]
pub(super) struct IndexRows {
    queries: Vec<f32>, // [tokens, heads, head_dim]
    /// `[tokens, head_dim]`.
    pub(super) keys: Vec<f32>,
    weights: Vec<f32>, // [tokens, heads]
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
            let rotation = self.rotations.rotation(self.sizes.head_dim);
            kernels::place_heads(x, None, rotation, threads);
        }
        IndexRows { queries, keys, weights, sizes: self.sizes }
    }
}

impl IndexRows {
    /// Returns the positions that rows of one sequence choose, whose pages hold the keys of all
    /// positions that they see.
    pub(super) fn choose(
        &self,
        rows: &StepSpan,
        pages: &[Arc<Page>],
        threads: &Threads,
    ) -> Vec<Vec<usize>> {
        let IndexerSizes { heads, head_dim, num_chosen } = self.sizes;
        let of_rows = |width: usize| rows.rows.start * width..rows.rows.end * width;
        let rows = IndexQueries {
            queries: &self.queries[of_rows(heads * head_dim)],
            weights: &self.weights[of_rows(heads)],
            heads,
            head_dim,
            first_position: rows.start,
            num_chosen,
        };
        let keys = pages.iter().map(|page| page.view().values);
        let keys: Option<Vec<Elements<'_>>> = keys.collect();
        let keys = keys.expect("an indexer's keys are beside the latents");
        kernels::choose_positions(&rows, &keys, threads)
    }
}
