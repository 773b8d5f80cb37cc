//! What layers read of the tokens beside the residual stream.

use crate::tensor::TensorSpec;

/// What each layer reads beside the stream (Gemma 3n, Gemma 4): a part of a second embedding of the
/// token, added to a projection of the first. Of layer `l` and token `t`, with the embedding `h`:
/// `(norm(projection_l(h) / sqrt(hidden)) + table_l[t] * sqrt(width)) / sqrt(2)`.
#[derive(Clone, Debug, PartialEq)]
pub struct PerLayerInputsSpec {
    /// Width of a layer's input.
    pub width: usize,
    /// Number of tokens in the table; others have the vectors of token 0.
    pub vocab_size: usize,
    /// Second embedding, `[vocab, layers * width]`.
    pub table: TensorSpec,
    /// Projection of the first embedding, `[layers * width, hidden]`.
    pub projection: TensorSpec,
    /// Norm of each layer's part of the projection, `[width]`.
    pub norm: TensorSpec,
}

impl PerLayerInputsSpec {
    /// Returns all tensors.
    pub(crate) fn tensors(&self) -> [&TensorSpec; 3] {
        [&self.table, &self.projection, &self.norm]
    }
}

/// How a layer reads its inputs: it adds `norm(projection(gelu(gate(stream)) * inputs))` to the stream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PerLayerBlock {
    /// Projection `[width, hidden]` of the stream.
    pub gate: String,
    /// Projection `[hidden, width]`.
    pub projection: String,
    /// Norm of the result.
    pub norm: String,
}
