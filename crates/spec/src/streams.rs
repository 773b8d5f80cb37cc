//! Residuals of several streams.

use crate::altup::{AltUpLayer, AltUpSpec};
use crate::tensor::TensorSpec;

/// The streams of a model whose residual has several.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamsSpec {
    /// Alternating updates.
    AltUp(AltUpSpec),
    /// Hyper-connections: each of the streams begins as the embedding, and a sum of them follows the last
    /// layer.
    HyperConnections {
        /// Number of streams.
        num_streams: usize,
        /// How the streams are summed after the last layer.
        end: ConnectionsEnd,
    },
    /// Gates of low rank: each of the streams begins as the embedding, and after the last layer a gate
    /// reads them, in the place of a norm.
    Gated {
        /// Number of streams.
        num_streams: usize,
        /// What reads them after the last layer. Its norm is that of the model.
        end: Box<StreamGate>,
    },
}

impl StreamsSpec {
    /// Returns the number of streams.
    pub fn num_streams(&self) -> usize {
        match self {
            StreamsSpec::AltUp(altup) => altup.num_streams,
            StreamsSpec::HyperConnections { num_streams, .. }
            | StreamsSpec::Gated { num_streams, .. } => *num_streams,
        }
    }

    /// Returns the tensors that are no layer's, without the model's norm.
    pub(crate) fn tensors(&self) -> Vec<&TensorSpec> {
        match self {
            StreamsSpec::AltUp(altup) => altup.tensors().collect(),
            StreamsSpec::HyperConnections { end: ConnectionsEnd::Weighted(end), .. } => {
                end.tensors.iter().collect()
            }
            StreamsSpec::HyperConnections { .. } => Vec::new(),
            StreamsSpec::Gated { end, .. } => vec![&end.down, &end.up],
        }
    }
}

/// The sum of streams that follows the last layer of a model with hyper-connections.
#[derive(Clone, Debug, PartialEq)]
pub enum ConnectionsEnd {
    /// Their mean.
    Mean,
    /// Weights of its own.
    Weighted(Box<StreamEndSpec>),
    /// The weights that the last block has computed (DeepSeek-AI 2026, "DeepSeek-V4.1"): each block reads
    /// the streams with the weights that the block before it has computed, the first one reads the first
    /// stream.
    OfLastBlock,
}

impl StreamsSpec {
    /// Whether each block computes the weights with which the next one reads the streams.
    pub fn passes_weights(&self) -> bool {
        matches!(self, StreamsSpec::HyperConnections { end: ConnectionsEnd::OfLastBlock, .. })
    }
}

/// The weights of the streams in the sum that follows the last layer, which depend on the token: the logistic
/// function of a projection of the normalised streams.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamEndSpec {
    /// Prefix of the names of its tensors.
    pub module: String,
    /// In single precision: `fn` `[streams, streams * hidden]`, `base` `[streams]` and `scale` `[1]`.
    pub tensors: [TensorSpec; 3],
    /// Epsilon that is added to the weights.
    pub eps: f32,
}

/// What a layer does with the streams.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerStreams {
    /// Alternating updates: the layer predicts the streams and corrects them.
    AltUp(AltUpLayer),
    /// Hyper-connections: each block, the mixer and the feed-forward block, reads a sum of the streams
    /// and adds its result to all of them.
    HyperConnections([HyperConnectionSpec; 2]),
    /// Gates: each block reads the streams through a gate and adds its result to all of them.
    Gated(Box<[GatedConnectionSpec; 2]>),
}

/// How a block reads streams and adds to them (Xie et al. 2025, "mHC: Manifold-Constrained
/// Hyper-Connections"). The block reads a weighted sum of the streams. Then each stream becomes a
/// weighted sum of all, by a matrix that iterations of Sinkhorn and Knopp make nearly doubly stochastic,
/// to which a multiple of the block's result is added. All weights depend on the token.
#[derive(Clone, Debug, PartialEq)]
pub struct HyperConnectionSpec {
    /// Prefix of the names of its tensors in single precision: `fn`
    /// `[(2 + streams) * streams, streams * hidden]`, `base` and `scale`.
    pub module: String,
    /// Number of iterations; each divides columns by their sums, and all but the first one rows before.
    pub iterations: usize,
    /// Epsilon that is added to the weights and to divisors.
    pub eps: f32,
}

/// What a block reads of several streams (Qwen team 2026, "Qwen3.8-Flash-Next"): the mean of the normalised
/// streams, whose elements are multiplied by the logistic function of a product of low rank:
/// `up(silu(down(streams) / num_streams))`. There are no other norms.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamGate {
    /// Norm of the streams, `[streams * hidden]`; each stream is normalised separately.
    pub norm: TensorSpec,
    /// Projection `[rank, streams * hidden]`.
    pub down: TensorSpec,
    /// Projection `[streams * hidden, rank]`.
    pub up: TensorSpec,
}

/// How a block reads streams through a gate, and adds to them: to each a multiple of its result, twice the
/// logistic function of `add(streams) / num_streams`, where the streams are normalised as for the gate.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedConnectionSpec {
    /// What the block reads.
    pub gate: StreamGate,
    /// Projection `[streams, streams * hidden]` to the factors of the block's result.
    pub add: TensorSpec,
}
