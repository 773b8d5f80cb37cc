//! The layers that models are composed of. Each knows how it is divided among the ranks, how its
//! weights are stored, and how to compute itself with our CPU kernels or with MLX's own operations;
//! model files know none of this.

mod activation;
mod altup;
mod attention;
mod convolution;
mod cutoff;
mod embedding;
mod experts;
mod frame;
mod gated_delta;
mod group_norm;
mod head_matrix;
mod head_norms;
mod heads;
mod indexer;
mod kernel;
mod latent;
mod lightning;
mod linear;
mod mlp;
mod norm;
mod output;
mod parallel_mixers;
mod per_layer;
mod recurrent;
mod residual;
mod rope;
mod router;
mod runs;
mod short_conv;
mod shortcut;
mod stack;
mod state_space;
mod stock_attention;
mod stream_mix;

pub(crate) use altup::{AltUp, AltUpParts, StreamEnds};
pub(crate) use attention::{Attention, AttentionParts, KeyValues, OwnKeyValues};
pub(crate) use embedding::{Embedding, Head, TableSize, vocabulary};
pub(crate) use experts::{
    DenseBeside, ExpertSizes, ExpertWeights, Experts, Latent, SharedExpert, SparseMlp,
};
pub(crate) use frame::BlockFrame;
pub(crate) use gated_delta::{GatedDelta, GatedDeltaParts};
pub(crate) use group_norm::GroupNorm;
pub(crate) use head_matrix::HeadMatrix;
pub(crate) use head_norms::{AllHeadsNorm, HeadNorms};
pub(crate) use heads::Heads;
pub(crate) use indexer::{Chooser, Indexer, IndexerSizes};
pub(crate) use kernel::{OwnRows, dim, float};
pub(crate) use latent::{LatentAttention, LatentParts, LatentQueries, LatentSizes};
pub(crate) use lightning::{Lightning, LightningParts};
pub(crate) use linear::{HasBias, Linear, RowInput};
pub(crate) use mlp::{Mlp, MlpBlock, MlpWeights};
pub(crate) use norm::{Norm, NormSettings, VectorNorm};
pub(crate) use parallel_mixers::ParallelMixers;
pub(crate) use per_layer::{LayerInput, PerLayerInputs, PerLayerReader, ReaderSizes};
pub(crate) use residual::Residual;
pub(crate) use rope::{Rope, Ropes, RotationTable};
pub(crate) use router::{Router, RouterSettings, RouterVectors};
pub(crate) use short_conv::{ShortConv, ShortConvParts};
pub(crate) use shortcut::Shortcut;
pub(crate) use stack::{Stack, StackSizes, Stream};
pub(crate) use state_space::{StateSpace, StateSpaceParts};
pub(crate) use stream_mix::StreamMix;
