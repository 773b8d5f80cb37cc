//! Attention over latents.

use crate::rope::{QueryGrowth, RopeSpec};

/// Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1): of each position it
/// keeps a latent, from which every head derives its key and its value, and a rotated part of the key
/// that all heads share.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentSpec {
    /// Number of heads.
    pub heads: usize,
    /// Number of elements of a query and of a key that are not rotated.
    pub nope_dim: usize,
    /// Number of elements of a query and of a key that are rotated.
    pub rope_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Width of a latent.
    pub kv_rank: usize,
    /// Width of the vector from which queries are computed; `None` if they are computed from the
    /// residual stream.
    pub q_rank: Option<usize>,
    /// Whether the projections from the residual stream to `q_rank` and `kv_rank`, and the output,
    /// have biases.
    pub has_bias: bool,
    /// Epsilon of the norms of both low-rank vectors, added to the mean square.
    pub norm_eps: f32,
    /// Factor of the scores.
    pub scale: f64,
    /// Factor of a normalised latent.
    pub latent_factor: f32,
    /// Rotation of the shared part; `None` if it is not rotated.
    pub rope: Option<RopeSpec>,
    /// Growth of the queries with their position, if any.
    pub query_growth: Option<QueryGrowth>,
    /// Whether checkpoints may have the projections from the residual stream to `q_rank` and `kv_rank` in
    /// one tensor, the former first.
    pub may_join_down: bool,
    /// How the positions that a query attends to are chosen; `None` if it attends to all that it sees.
    pub choice: Option<PositionChoice>,
    /// Number of gates of a head, by whose logistic functions its result is multiplied: one, or one for
    /// each element; `None` if there are none.
    pub gate_width: Option<usize>,
    /// Prefix of the names of its tensors.
    pub module: String,
    /// Output projection.
    pub output: String,
}

/// How the positions that a query attends to are chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum PositionChoice {
    /// By an indexer of the layer.
    Indexer(IndexerSpec),
    /// The same positions as in an earlier layer.
    OfLayer {
        /// Number of that layer, which has an indexer.
        layer_idx: usize,
        /// Maximum number of positions that its queries attend to.
        num_chosen: usize,
    },
}

impl LatentSpec {
    /// Returns the layer's own indexer, if it has one.
    pub fn indexer(&self) -> Option<&IndexerSpec> {
        match &self.choice {
            Some(PositionChoice::Indexer(indexer)) => Some(indexer),
            Some(PositionChoice::OfLayer { .. }) | None => None,
        }
    }
}

/// An indexer that chooses blocks of neighbouring positions for grouped-query attention (MiniMax 2026,
/// "MiniMax-M3"). The score of a block is the largest product of a query with the keys of those of its
/// positions that the query sees. Keys are shared by all heads of the indexer; every rank with heads of the
/// attention keeps them.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockChoice {
    /// Number of heads: one for each key-value head, which chooses for it, or one that chooses for all.
    pub heads: usize,
    /// Width of a query and of a key.
    pub head_dim: usize,
    /// Number of positions in a block.
    pub len: usize,
    /// Number of blocks that a query attends to.
    pub num_chosen: usize,
    /// Number of blocks among them that need no score: that of the query, and those before it.
    pub num_local: usize,
    /// Rotation of queries and keys.
    pub rope: RopeSpec,
}

/// An indexer that chooses pools of neighbouring positions for grouped-query attention (Qwen team 2026,
/// "Qwen3.8-Flash-Next"). The key of a pool is the mean of the keys of its positions, normalised and then
/// rotated as the pool's first position. Its score is the sum over the heads of the positive parts of their
/// products with it. A query also attends to the positions after the last pool that it sees whole. Every
/// rank with heads of the attention computes all of it, so that all choose alike. Keys are kept until their
/// pool is whole; then the key of the pool is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolChoice {
    /// Number of heads.
    pub heads: usize,
    /// Width of a query and of a key.
    pub head_dim: usize,
    /// Number of positions in a pool.
    pub len: usize,
    /// Number of pools that a query attends to.
    pub num_chosen: usize,
    /// Rotation of queries and keys.
    pub rope: RopeSpec,
}

/// An indexer (DeepSeek-AI 2025, "DeepSeek-V3.2", section 2.1): it scores the positions that a query
/// sees, and the query attends to the best ones only. Of each position it keeps a key, which all of its
/// heads share. Every rank with heads of the attention computes all of it, so that all choose alike.
///
/// With pools (Z.ai 2026, "GLM-5.3"), groups of `pool` positions from the first one on are chosen as a
/// whole. The key of a group is the mean of its keys, weighted in each element by the soft-max over the
/// group of gates: a projection of the stream and a weight for the place in the group. A query also
/// attends to the positions after the last group that it sees whole. Gates are kept beside the key, both
/// until their group is whole; then the key of the group is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexerSpec {
    /// Number of heads.
    pub heads: usize,
    /// Width of a head's query, and of a key.
    pub head_dim: usize,
    /// Number of positions that are chosen for a query.
    pub num_chosen: usize,
    /// Set if neighbouring positions are chosen together.
    pub pool: Option<usize>,
    /// Rotation of queries and keys; `None` if they are not rotated.
    pub rope: Option<RopeSpec>,
    /// Epsilon of the norm of the keys, added to their variance.
    pub norm_eps: f32,
}

impl IndexerSpec {
    /// Returns the number of elements that it keeps of a position; with pools, until no pool needs them.
    pub fn kept_dim(&self) -> usize {
        if self.pool.is_some() { 2 * self.head_dim } else { self.head_dim }
    }

    /// Returns the number of positions that a query attends to at most.
    pub fn attended_max(&self) -> usize {
        self.num_chosen + self.pool.map_or(0, |pool| pool - 1)
    }
}
