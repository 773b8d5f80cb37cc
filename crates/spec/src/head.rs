//! The end of a model: from vectors to logits.

/// How logits are scaled and capped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitsSpec {
    /// Factor of every logit.
    pub scale: f32,
    /// With a cap, a scaled logit becomes `cap * tanh(logit / cap)`.
    pub soft_cap: Option<f32>,
}

impl LogitsSpec {
    /// Logits as they are.
    pub const PLAIN: LogitsSpec = LogitsSpec { scale: 1.0, soft_cap: None };
}

/// Whether head and embedding are one table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HeadTable {
    /// The unembedding is the embedding's own matrix.
    Tied,
    /// The head has a table of its own.
    Own,
    /// The configuration does not say: they are one if the checkpoint has no table for the head.
    IfPresent,
}
