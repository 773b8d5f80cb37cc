//! Computes the memory of each rank, with the same split by which ranks load.

use jackalope_protocol::KV_BLOCK_TOKENS;
use jackalope_protocol::split::Split;
use jackalope_spec::RankShard;

use super::model::PlacementModel;

/// Memory of a rank's program, its libraries and their allocations before a model is loaded.
const RANK_BYTES: u64 = 256 << 20;

/// Number of rows in a step, whose activations exist at the same time. Steps with more are planned only where memory
/// is left.
const STEP_TOKENS: u64 = 512;

/// Number of rows whose logits exist at the same time.
const LOGIT_ROWS: u64 = 64;

/// Size of an activation; counted as f32.
const ACTIVATION_BYTES: u64 = 4;

/// Number of states of a sequence at the planned context: the current one, and one kept at an
/// earlier length.
const PLANNED_STATES: u64 = 2;

/// The memory that a rank needs, in bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RankNeed {
    /// Memory of the weights.
    pub weights_bytes: u64,
    /// KV cache at the planned context, and states of recurrent layers.
    pub kv_bytes: u64,
    /// Everything else: program, activations, and a quarter of the KV cache for the copy that a
    /// growing cache makes of itself. The engine leaves the same part free when it budgets caches.
    pub overhead_bytes: u64,
}

impl RankNeed {
    /// Returns the sum of all parts.
    pub fn total(&self) -> u64 {
        self.weights_bytes + self.kv_bytes + self.overhead_bytes
    }
}

/// Returns what each rank of a split needs, with a KV cache for `context_tokens`.
///
/// # Panics
/// If there is no rank, a rank has nothing, or a pipeline is for another number of layers.
pub fn needs(model: &PlacementModel, split: &Split, context_tokens: u32) -> Vec<RankNeed> {
    let shards = shards(model, split);
    shards.iter().map(|shard| need(model, shard, context_tokens)).collect()
}

/// Returns what each rank of a split holds.
///
/// # Panics
/// If there is no rank, a rank has nothing, or a pipeline is for another number of layers.
pub(super) fn shards(model: &PlacementModel, split: &Split) -> Vec<RankShard> {
    model.layout.shards(split).expect("every rank has a part of this model")
}

/// Returns what a rank with this part of the model needs.
pub(super) fn need(model: &PlacementModel, shard: &RankShard, context_tokens: u32) -> RankNeed {
    let blocks = context_tokens.div_ceil(KV_BLOCK_TOKENS);
    let cached_tokens = u64::from(blocks) * u64::from(KV_BLOCK_TOKENS);
    let state_bytes = shard.cache.state_bytes * PLANNED_STATES;
    let window_blocks = shard.cache.window_blocks_max(STEP_TOKENS as usize) as u64;
    let window_blocks = window_blocks.min(u64::from(blocks));
    let kv_bytes = shard.cache.bytes_per_token * cached_tokens
        + shard.cache.window_block_bytes() * window_blocks
        + state_bytes;
    RankNeed {
        weights_bytes: shard.weights_bytes,
        kv_bytes,
        overhead_bytes: RANK_BYTES + activation_bytes(model) + kv_bytes / 4,
    }
}

/// Returns an upper bound of the memory for activations during a step, whatever the rank's part is.
fn activation_bytes(model: &PlacementModel) -> u64 {
    // What is beside the stream exists twice: as a layer reads it, and as the layer leaves it.
    let streams = 4 * model.hidden_size + 2 * model.beside_size;
    let row = (streams + 2 * model.inner_size + 2 * model.queries_size) as u64;
    ACTIVATION_BYTES * (STEP_TOKENS * row + LOGIT_ROWS * model.vocab_size as u64)
}
