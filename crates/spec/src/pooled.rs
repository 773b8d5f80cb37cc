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
    /// Rotation of the last elements of queries, vectors and results.
    pub rope: RopeSpec,
    /// Epsilon of the norms, added to the mean square.
    pub norm_eps: f32,
    /// Prefix of the names of its tensors.
    pub module: String,
}

/// Pools of positions. The vector of a pool is the mean of a projection of its positions, weighted in each
/// element by the soft-max of gates: another projection, and a weight for the place in the pool. It is
/// normalised, and rotated as the first position of the pool.
///
/// Pools that overlap are means of the positions of the pool before them too, by projections of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSpec {
    /// Number of positions of a pool; a divisor of the positions of a KV block.
    pub len: usize,
    /// Whether pools overlap.
    pub overlaps: bool,
    /// Set if a query attends to the best pools only.
    pub indexer: Option<PoolIndexerSpec>,
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
}

impl PoolSpec {
    /// Returns the width of a projection to vectors of `dim` elements.
    pub fn projected(&self, dim: usize) -> usize {
        if self.overlaps { 2 * dim } else { dim }
    }

    /// Returns the number of positions from whose projections a vector is computed.
    pub fn positions(&self) -> usize {
        if self.overlaps { 2 * self.len } else { self.len }
    }
}

impl PooledSpec {
    /// Returns the width of an indexer's vectors; 0 without one.
    fn index_dim(&self) -> usize {
        let indexer = self.pools.as_ref().and_then(|pools| pools.indexer.as_ref());
        indexer.map_or(0, |indexer| indexer.head_dim)
    }

    /// Returns the number of elements that are kept of a position until no pool needs them: projections
    /// and gates.
    pub fn raw_dim(&self) -> usize {
        let dim = self.head_dim + self.index_dim();
        self.pools.as_ref().map_or(0, |pools| 2 * pools.projected(dim))
    }

    /// Returns the number of elements that are kept of a pool.
    pub fn pool_dim(&self) -> usize {
        if self.pools.is_some() { self.head_dim + self.index_dim() } else { 0 }
    }

    /// Returns the number of last positions that are kept.
    pub fn kept_positions(&self) -> usize {
        self.window.max(self.pools.as_ref().map_or(0, PoolSpec::positions))
    }
}
