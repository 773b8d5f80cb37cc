//! Attention to a window of positions and to pools of positions.

use crate::rope::RopeSpec;

/// Attention whose heads share one vector of each position, which is key and value (DeepSeek-AI 2026,
/// "DeepSeek-V4"). A query attends to the vectors of the last positions, and to those of pools: groups of
/// neighbouring positions from the first one on, each seen with its last position. Results are rotated
/// back by the position of their query, and projected group by group before the output projection. Ranks
/// divide it by these groups; each with one computes all vectors and pools.
#[derive(Clone, Debug, PartialEq)]
pub struct PooledSpec {
    /// Number of heads; a multiple of `groups`.
    pub heads: usize,
    /// Number of groups of heads.
    pub groups: usize,
    /// Width of a query and of a vector.
    pub head_dim: usize,
    /// Width of the vector from which queries are computed.
    pub q_rank: usize,
    /// Width of a group's result.
    pub group_dim: usize,
    /// Number of last positions that a query sees, including its own.
    pub window: usize,
    /// Pools; `None` if a query sees the last positions only.
    pub pools: Option<PoolSpec>,
    /// Whether each head's query is normalised, without weights.
    pub has_query_norm: bool,
    /// Whether what attention and indexers compare is rounded to few bits: vectors of positions to E4M3 in
    /// blocks of 32 elements, those of pools to E2M1 in blocks of 16, and queries and vectors of indexers to
    /// E2M1 in blocks of 32.
    pub is_rounded: bool,
    /// Rotation of the last elements of queries, vectors and results.
    pub rope: RopeSpec,
    /// Epsilon of the norms, added to the mean square.
    pub norm_eps: f32,
    /// Prefix of the names of its tensors.
    pub module: String,
}

/// Pools of positions.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSpec {
    /// Number of positions of a pool; a divisor of the positions of a KV block.
    pub len: usize,
    /// Where their vectors come from.
    pub source: PoolSource,
    /// How the pools are chosen that a query attends to; `None` if it attends to all that it sees.
    pub choice: Option<PoolSelection>,
}

/// Where the vectors of pools come from, and those that an indexer compares.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PoolSource {
    /// The layer computes and keeps them.
    Own(PoolForm),
    /// An earlier layer of this number keeps them; its pools are as long.
    OfLayer(usize),
}

/// How the vectors of pools are computed. The vector of a pool is the mean of a projection of its positions,
/// weighted in each element by the soft-max of gates, which are another projection. It is normalised, and
/// rotated as the first position of the pool.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PoolForm {
    /// A weight for the place in the pool is added to gates. An indexer compares vectors that are computed in
    /// the same way, by projections of their own.
    Placed {
        /// Whether pools overlap: they are means of the positions of the pool before them too, by
        /// projections of their own.
        overlaps: bool,
    },
    /// Pools of one position have no gates. An indexer compares a projection of a pool's vector before
    /// its rotation, which is normalised and rotated likewise.
    Plain,
}

/// How the pools are chosen that a query attends to.
#[derive(Clone, Debug, PartialEq)]
pub enum PoolSelection {
    /// By an indexer of the layer.
    Indexer(PoolIndexerSpec),
    /// The same pools as in an earlier layer: the last one with an indexer.
    OfLayer(usize),
}

/// An indexer that chooses pools, by vectors of its own of each pool; see [`crate::IndexerSpec`].
#[derive(Clone, Debug, PartialEq)]
pub struct PoolIndexerSpec {
    /// Number of heads.
    pub heads: usize,
    /// Width of a head's query, and of the vector of a pool.
    pub head_dim: usize,
    /// Number of pools that are chosen for a query.
    pub num_chosen: usize,
    /// Which pools are candidates; `None` if all are that a query sees.
    pub candidates: Option<PoolCandidates>,
}

/// The candidates for the choice of an indexer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PoolCandidates {
    /// All, but later layers choose among the pools of the best blocks of neighbouring pools: those with the
    /// largest scores, and the last one that a query sees.
    Blocks {
        /// Number of pools of a block.
        len: usize,
        /// Number of blocks.
        num_blocks: usize,
    },
    /// The pools in the blocks that the indexer of an earlier layer chose.
    OfLayer {
        /// Number of that layer.
        layer_idx: usize,
        /// Number of pools of a block.
        len: usize,
    },
}

impl PoolSpec {
    /// Returns how the layer computes vectors of pools; `None` if it reads those of another layer.
    pub fn form(&self) -> Option<PoolForm> {
        match self.source {
            PoolSource::Own(form) => Some(form),
            PoolSource::OfLayer(_) => None,
        }
    }

    /// Returns the layer's own indexer, if it has one.
    pub fn indexer(&self) -> Option<&PoolIndexerSpec> {
        match &self.choice {
            Some(PoolSelection::Indexer(indexer)) => Some(indexer),
            Some(PoolSelection::OfLayer(_)) | None => None,
        }
    }

    /// Returns the width of an indexer's vectors; 0 without one.
    fn index_dim(&self) -> usize {
        self.indexer().map_or(0, |indexer| indexer.head_dim)
    }

    /// Returns the number of an earlier layer without which this one cannot be computed, the first one.
    pub(crate) fn source_layer(&self) -> Option<usize> {
        let of_pools = match self.source {
            PoolSource::OfLayer(layer_idx) => Some(layer_idx),
            PoolSource::Own(_) => None,
        };
        let of_choice = match &self.choice {
            Some(PoolSelection::OfLayer(layer_idx)) => Some(*layer_idx),
            Some(PoolSelection::Indexer(indexer)) => match indexer.candidates {
                Some(PoolCandidates::OfLayer { layer_idx, .. }) => Some(layer_idx),
                Some(PoolCandidates::Blocks { .. }) | None => None,
            },
            None => None,
        };
        of_pools.into_iter().chain(of_choice).min()
    }
}

impl PoolForm {
    /// Whether pools of `len` positions have gates.
    pub fn has_gates(self, len: usize) -> bool {
        self != PoolForm::Plain || 1 < len
    }

    /// Returns the number of pools whose vectors a position takes part in.
    pub fn lanes(self) -> usize {
        if self == (PoolForm::Placed { overlaps: true }) { 2 } else { 1 }
    }
}

impl PooledSpec {
    /// Returns pools that the layer computes, and how.
    pub fn own_pools(&self) -> Option<(&PoolSpec, PoolForm)> {
        let pools = self.pools.as_ref()?;
        Some((pools, pools.form()?))
    }

    /// Returns the number of elements that are kept of a position until no pool needs them: projections
    /// and gates.
    pub fn raw_dim(&self) -> usize {
        let Some((pools, form)) = self.own_pools() else { return 0 };
        let dim = match form {
            PoolForm::Placed { .. } => self.head_dim + pools.index_dim(),
            PoolForm::Plain => self.head_dim,
        };
        let num_projections = if form.has_gates(pools.len) { 2 } else { 1 };
        num_projections * form.lanes() * dim
    }

    /// Returns the number of elements that are kept of a pool.
    pub fn pool_dim(&self) -> usize {
        self.own_pools().map_or(0, |(pools, _)| self.head_dim + pools.index_dim())
    }

    /// Returns the number of last positions that are kept.
    pub fn kept_positions(&self) -> usize {
        let of_pools = self.own_pools().map_or(0, |(pools, form)| form.lanes() * pools.len);
        self.window.max(of_pools)
    }
}
