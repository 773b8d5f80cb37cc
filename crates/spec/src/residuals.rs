//! Residuals over blocks of layers.

use crate::tensor::TensorSpec;

/// Attention residuals (Kimi team 2026): in the first layer of each block of layers the stream begins
/// anew, and what is read is a mean of the streams at the ends of the earlier blocks and of the current one.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockResiduals {
    /// Number of layers of a block.
    pub block_layers: usize,
    /// What the last norm reads.
    pub end: StreamReader,
}

/// The means of streams that the two blocks of a layer read.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerResiduals {
    /// The mixer, before its norm.
    pub mixer: StreamReader,
    /// The feed-forward block, before its norm.
    pub feed_forward: StreamReader,
}

/// The weights of the mean: the soft-max over the streams of `projection(norm(stream))`.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamReader {
    /// Weights of the norm, `[hidden]`.
    pub norm: TensorSpec,
    /// Projection, `[1, hidden]`.
    pub projection: TensorSpec,
    /// Whether the current stream counts; it does not where a block of layers begins.
    pub has_current: bool,
}

impl StreamReader {
    /// Returns both tensors.
    pub fn tensors(&self) -> [&TensorSpec; 2] {
        [&self.norm, &self.projection]
    }
}
