//! Embeddings: a plan can ask for one vector of a whole prompt instead of tokens.

use serde::{Deserialize, Serialize};

use crate::ids::CacheId;

/// How the hidden states of a prompt's positions become one vector. The states are the final ones:
/// after the last norm, before the head.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub enum Pooling {
    /// Mean of the hidden states of all positions.
    Mean,
    /// Hidden state of the last position.
    Last,
}

/// Request for a sequence's embedding. Every row of the sequence carries the request, because ranks
/// may have to pool hidden states from the first row on; the row that reaches the end gets the
/// answer.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Embed {
    /// Pooling of the hidden states. With [`Pooling::Mean`] the sequence's first row must start at
    /// position 0, and each later one where the previous row ended.
    pub pooling: Pooling,
    /// Length of the embedded sequence: positions `0..num_tokens` are embedded.
    pub num_tokens: u32,
}

impl Embed {
    /// Whether the row that computes positions `..end` is the last one, which gets the answer.
    pub fn ends_at(&self, end: usize) -> bool {
        self.num_tokens as usize == end
    }
}

/// The answer to an [`Embed`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Embedded {
    /// Cache of the row.
    pub cache: CacheId,
    /// The embedding, of shape `[hidden]`; `None` if the hidden states were not finite numbers.
    pub vector: Option<Vec<f32>>,
}
