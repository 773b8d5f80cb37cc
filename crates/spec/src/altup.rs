//! Several streams beside one another.

use crate::tensor::TensorSpec;

/// Alternating updates (Baykal et al. 2023, "Alternating Updates for Efficient Transformers"; Gemma 3n):
/// there are several streams, of which the layers' blocks read and update one. The others are predicted
/// from all, and corrected by what the blocks add to the first.
#[derive(Clone, Debug, PartialEq)]
pub struct AltUpSpec {
    /// Number of streams.
    pub num_streams: usize,
    /// Number of the stream that the blocks read.
    pub active: usize,
    /// Bound of the weights from which predictions and corrections are computed; `None` if there is
    /// none.
    pub coef_clip: Option<f32>,
    /// Projections `[hidden, hidden]` of the embedding to the other streams.
    pub projections: Vec<TensorSpec>,
    /// Projections `[hidden, hidden]` of the other streams before the mean of all.
    pub unembeds: Vec<TensorSpec>,
}

impl AltUpSpec {
    /// Returns all tensors.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        self.projections.iter().chain(&self.unembeds)
    }
}

/// How a layer predicts and corrects the streams, and what it adds beside its mixer. It also reads the
/// layer's inputs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AltUpLayer {
    /// Norm of what the router reads.
    pub router_norm: String,
    /// Projection `[streams, hidden]` whose hyperbolic tangent weighs the coefficients.
    pub router: String,
    /// Weights `[streams * streams, streams]` of the predictions.
    pub prediction: String,
    /// Weights `[streams, streams]` of the corrections.
    pub correction: String,
    /// Name of the factors `[hidden]` of the stream from which the layer's inputs are read.
    pub output_scale: String,
    /// Whether these factors are used.
    pub scales_output: bool,
    /// Rank of the learned augmented residual (Menghani et al. 2024, "LAUREL").
    pub laurel_rank: usize,
    /// Its projections `[rank, hidden]` and `[hidden, rank]`.
    pub laurel: [String; 2],
    /// Norm of its result.
    pub laurel_norm: String,
}
