//! The layers that models are composed of. Each knows how it is divided among the ranks, how its
//! weights are stored, and how to compute itself with our CPU kernels or with MLX's own operations;
//! model files know none of this.

mod altup;
mod attention;
mod chosen;
mod embedding;
mod experts;
mod frame;
mod gated_delta;
mod hyper;
mod index_blocks;
mod index_pools;
mod indexer;
mod latent;
mod lightning;
mod mlp;
mod parallel_mixers;
mod per_layer;
mod recurrent;
mod residual;
mod router;
mod runs;
mod short_conv;
mod shortcut;
mod stack;
mod state_space;
mod stock_attention;
mod stream_ends;
mod stream_mix;

pub(crate) use altup::{AltUp, AltUpParts};
pub(crate) use attention::{Attention, AttentionParts, KeyValues, OwnKeyValues};
pub(crate) use embedding::{Embedding, Head, TableSize, vocabulary};
pub(crate) use experts::{
    DenseBeside, ExpertSizes, ExpertWeights, Experts, Latent, SharedExpert, SparseMlp,
};
pub(crate) use frame::BlockFrame;
pub(crate) use gated_delta::GatedDelta;
pub(crate) use hyper::{HyperConnection, StreamShape};
pub(crate) use index_pools::IndexPools;
pub(crate) use indexer::{Chooser, Indexer, IndexerSizes};
pub(crate) use jackalope_parallel::activation::BlockActivation;
pub(crate) use jackalope_parallel::group_norm::GroupNorm;
pub(crate) use jackalope_parallel::head_matrix::HeadMatrix;
pub(crate) use jackalope_parallel::head_norms::{AllHeadsNorm, HeadNorms};
pub(crate) use jackalope_parallel::heads::Heads;
pub(crate) use jackalope_parallel::kernel::OwnRows;
pub(crate) use jackalope_parallel::linear::{HasBias, Linear, RowInput};
pub(crate) use jackalope_parallel::norm::{Norm, NormSettings, VectorNorm};
pub(crate) use jackalope_parallel::rope::{Rope, Ropes, RotationTable};
pub(crate) use latent::{LatentAttention, LatentParts, LatentQueries, LatentSizes};
pub(crate) use lightning::{Lightning, LightningParts};
pub(crate) use mlp::{Mlp, MlpBlock, MlpWeights};
pub(crate) use parallel_mixers::ParallelMixers;
pub(crate) use per_layer::{LayerInput, PerLayerInputs, PerLayerReader, ReaderSizes};
pub(crate) use recurrent::RecurrentParts;
pub(crate) use residual::Residual;
pub(crate) use router::{Router, RouterSettings, RouterVectors};
pub(crate) use short_conv::ShortConv;
pub(crate) use shortcut::Shortcut;
pub(crate) use stack::{Stack, StackSizes, Stream};
pub(crate) use state_space::StateSpace;
pub(crate) use stream_ends::StreamEnds;
pub(crate) use stream_mix::StreamMix;
