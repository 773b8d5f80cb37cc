//! Embeddings: one vector of a whole prompt instead of tokens.

use serde::{Deserialize, Serialize};

use crate::CacheId;

/// How the hidden states of a prompt's positions become one vector. They are the final ones: after
/// the last norm, before the head.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub enum Pooling {
    /// The mean over all positions.
    Mean,
    /// The last position's.
    Last,
}

/// Asks for a sequence's embedding. Stands on every row of the sequence, so that a rank knows from the
/// first one what to keep; the row that reaches the end is answered.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Embed {
    /// What becomes of the hidden states. With [`Pooling::Mean`] the sequence's first row starts at
    /// position 0 and each later one where the one before has ended.
    pub pooling: Pooling,
    /// Positions `0..num_tokens` are embedded.
    pub num_tokens: u32,
}

impl Embed {
    /// True for the row that computes positions `..end` and is answered.
    pub fn ends_at(&self, end: usize) -> bool {
        self.num_tokens as usize == end
    }
}

/// The answer to an [`Embed`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Embedded {
    /// The row's cache.
    pub cache: CacheId,
    /// `[hidden]`; none if the hidden states were not numbers.
    pub vector: Option<Vec<f32>>,
}
