//! What surrounds a block between two states of the residual stream.

use super::stream_mix::StreamMix;
use jackalope_parallel::norm::Norm;

/// The norms and factors around a block: `scale * (stream + factor * output(block(input(stream))))`.
#[derive(Debug)]
pub(crate) struct BlockFrame {
    /// What the block reads of several streams, before the norm; `None` if it reads the current one.
    pub(crate) mix: Option<StreamMix>,
    /// Norm of the stream that the block reads; `None` if it reads the stream itself.
    pub(crate) input: Option<Norm>,
    /// Norm of what the block returns.
    pub(crate) output: Option<Norm>,
    /// Factor of what is added to the stream.
    pub(crate) factor: f32,
    /// Factor of the stream after the block.
    pub(crate) scale: f32,
}
