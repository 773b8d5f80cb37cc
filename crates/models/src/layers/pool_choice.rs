//! The pools that queries attend to beside a window: an indexer of the layer chooses them, or one of an
//! earlier layer has chosen them.

use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use jackalope_kernels::{
    self as kernels, CodeFormat, Elements, IndexBlocks, IndexQueries, RotationTable, Threads,
};
use jackalope_parallel::linear::Linear;
use jackalope_parallel::rope::Rope;
use jackalope_spec::PoolCandidates;

use crate::step::{Choice, Step};

/// Chooses pools.
#[derive(Debug)]
pub(crate) enum PoolChooser {
    /// An indexer of the layer.
    Indexer(Box<PoolIndexer>),
    /// The last indexer of an earlier layer.
    Earlier,
}

/// An indexer that chooses pools.
#[derive(Debug)]
pub(crate) struct PoolIndexer {
    /// Projection `[q_rank] -> [heads, head_dim]`.
    pub(crate) queries: Linear,
    /// Projection `[hidden] -> [heads]`.
    pub(crate) weights: Linear,
    pub(crate) rope: Rc<Rope>,
    /// To what queries are rounded, if they are.
    pub(crate) codes: Option<CodeFormat>,
    pub(crate) heads: usize,
    /// Width of a query.
    pub(crate) head_dim: usize,
    /// Number of pools that are chosen for a query.
    pub(crate) num_chosen: usize,
    pub(crate) candidates: Option<PoolCandidates>,
    /// Whether later layers share the choice.
    pub(crate) is_shared: bool,
}

impl PoolChooser {
    /// Returns the indexer of the layer, if it has one.
    pub(super) fn indexer(&self) -> Option<&PoolIndexer> {
        match self {
            PoolChooser::Indexer(indexer) => Some(indexer),
            PoolChooser::Earlier => None,
        }
    }

    /// Returns where the choice of a step is: the indexer of the layer writes it, other layers read it.
    pub(super) fn choice(&self, step: &mut Step<'_, '_>) -> Choice {
        match self {
            PoolChooser::Indexer(indexer) => match indexer.candidates {
                Some(PoolCandidates::OfLayer { .. }) => step.begin_choice_of_candidates(),
                Some(PoolCandidates::Blocks { .. }) | None => step.begin_choice(),
            },
            PoolChooser::Earlier => step.last_choice(),
        }
    }

    /// Returns what chooses inside a primitive.
    pub(super) fn kernel(&self, step: &mut Step<'_, '_>) -> ChooserKernel {
        let Choice { rows: chosen, candidates, .. } = self.choice(step);
        let indexer = self.indexer().map(|indexer| IndexerKernel {
            rotations: step.rotations(&indexer.rope),
            codes: indexer.codes,
            heads: indexer.heads,
            head_dim: indexer.head_dim,
            num_chosen: indexer.num_chosen,
            candidates: indexer.candidates,
            is_shared: indexer.is_shared,
        });
        ChooserKernel { indexer, chosen, blocks: candidates.rows }
    }
}

/// A row of a step.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// Number of its sequence in the step.
    pub(super) sequence: usize,
    /// Its number in the step.
    pub(super) row: usize,
    pub(super) position: usize,
}

/// What some rows of a sequence see.
pub(super) struct SeenPools<'a> {
    pub(super) rows: &'a [Row],
    /// Number of pools that each row sees.
    pub(super) visible: &'a [usize],
    /// What an indexer compares, by pages.
    pub(super) keys: &'a [Elements<'a>],
}

/// Queries and factors of an indexer.
pub(super) struct IndexRows {
    queries: Vec<f32>, // [tokens, heads, head_dim]
    weights: Vec<f32>, // [tokens, heads]
}

/// Chooses pools inside a primitive.
pub(super) struct ChooserKernel {
    /// `None` if the choice is an earlier layer's.
    indexer: Option<IndexerKernel>,
    /// See [`Choice::rows`].
    chosen: Arc<OnceLock<Vec<Vec<usize>>>>,
    /// See [`Choice::candidates`].
    blocks: Arc<OnceLock<Vec<Vec<usize>>>>,
}

/// An indexer for the kernels, without its projections.
pub(super) struct IndexerKernel {
    rotations: Arc<RotationTable>,
    codes: Option<CodeFormat>,
    heads: usize,
    head_dim: usize,
    num_chosen: usize,
    candidates: Option<PoolCandidates>,
    is_shared: bool,
}

impl IndexerKernel {
    /// Rotates and rounds queries.
    pub(super) fn rows(
        &self,
        mut queries: Vec<f32>,
        weights: Vec<f32>,
        threads: &Threads,
    ) -> IndexRows {
        let rotation = self.rotations.rotation(self.head_dim);
        kernels::place_heads(&mut queries, None, rotation, threads);
        if let Some(codes) = self.codes {
            codes.round(&mut queries);
        }
        IndexRows { queries, weights }
    }
}

impl ChooserKernel {
    pub(super) fn indexer(&self) -> Option<&IndexerKernel> {
        self.indexer.as_ref()
    }

    /// Whether later layers read what the layer's indexer chooses.
    pub(super) fn is_shared(&self) -> bool {
        self.indexer.as_ref().is_some_and(|indexer| indexer.is_shared)
    }

    /// Keeps what the layer's indexer has chosen for all rows of the step, pools and blocks, for later layers.
    pub(super) fn share(&self, [chosen, blocks]: [Vec<Vec<usize>>; 2]) {
        let Some(indexer) = self.indexer.as_ref().filter(|indexer| indexer.is_shared) else {
            return;
        };
        self.chosen.get_or_init(|| chosen);
        if matches!(indexer.candidates, Some(PoolCandidates::Blocks { .. })) {
            self.blocks.get_or_init(|| blocks);
        }
    }

    /// Returns the pools that each of some rows of a sequence attends to, in ascending order, and the blocks
    /// that it leaves to later indexers, if it does.
    pub(super) fn choose(
        &self,
        SeenPools { rows, visible, keys }: &SeenPools<'_>,
        index: Option<&IndexRows>,
        threads: &Threads,
    ) -> [Vec<Vec<usize>>; 2] {
        let (first, end) = (rows[0].row, rows[0].row + rows.len());
        let (Some(indexer), Some(index)) = (&self.indexer, index) else {
            let chosen = self.chosen.get().expect("the earlier layer is computed before");
            return [chosen[first..end].to_vec(), Vec::new()];
        };
        let &IndexerKernel { heads, head_dim, num_chosen, candidates, .. } = indexer;
        let up_to = |len: usize| -> Vec<Vec<usize>> {
            visible.iter().map(|number| (0..number.div_ceil(len)).collect()).collect()
        };
        if visible.iter().all(|number| *number <= num_chosen) {
            let blocks = match candidates {
                Some(PoolCandidates::Blocks { len, .. }) => up_to(len),
                Some(PoolCandidates::OfLayer { .. }) | None => Vec::new(),
            };
            return [up_to(1), blocks];
        }
        let queries = IndexQueries {
            queries: &index.queries[first * heads * head_dim..end * heads * head_dim],
            weights: &index.weights[first * heads..end * heads],
            heads,
            head_dim,
            num_visible: visible,
            num_chosen,
        };
        let blocks = match candidates {
            None => return [kernels::choose_positions(&queries, keys, threads), Vec::new()],
            Some(PoolCandidates::Blocks { len, num_blocks }) => {
                IndexBlocks::Choose { len, num_chosen: num_blocks }
            }
            Some(PoolCandidates::OfLayer { len, .. }) => {
                let blocks = self.blocks.get().expect("the earlier layer is computed before");
                IndexBlocks::Within { len, blocks: &blocks[first..end] }
            }
        };
        kernels::choose_with_blocks(&queries, keys, blocks, threads)
    }
}
