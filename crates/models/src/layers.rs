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
mod index_pools;
mod indexer;
mod latent;
mod lightning;
mod low_rank_gate;
mod mlp;
mod ngrams;
mod parallel_mixers;
mod per_layer;
mod pool_choice;
mod pool_choice_stock;
mod pool_vectors;
mod pooled;
mod pooled_stock;
mod recurrent;
mod residual;
mod router;
mod short_conv;
mod shortcut;
mod stack;
mod state_space;
mod stock_attention;
mod stream_ends;
mod stream_mix;
mod stream_norm;
mod token_rows;

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
pub(crate) use indexer::{Chooser, IndexWeights, Indexer, IndexerSizes};
pub(crate) use jackalope_parallel::activation::BlockActivation;
pub(crate) use jackalope_parallel::group_norm::GroupNorm;
pub(crate) use jackalope_parallel::head_matrix::HeadMatrix;
pub(crate) use jackalope_parallel::head_norms::{AllHeadsNorm, HeadNorms};
pub(crate) use jackalope_parallel::heads::Heads;
pub(crate) use jackalope_parallel::kernel::OwnRows;
pub(crate) use jackalope_parallel::linear::{HasBias, Linear, RowInput};
pub(crate) use jackalope_parallel::norm::{Norm, NormSettings, VectorNorm};
pub(crate) use jackalope_parallel::rope::{Rope, RopePlace, Ropes};
pub(crate) use latent::{LatentAttention, LatentParts, LatentQueries, LatentSizes};
pub(crate) use lightning::{Lightning, LightningParts};
pub(crate) use low_rank_gate::GatedConnection;
pub(crate) use mlp::{Mlp, MlpBlock, MlpWeights};
pub(crate) use ngrams::Ngrams;
pub(crate) use parallel_mixers::ParallelMixers;
pub(crate) use per_layer::{LayerInput, PerLayerInputs, PerLayerReader, ReaderSizes};
pub(crate) use pool_choice::{PoolChooser, PoolIndexer};
pub(crate) use pool_vectors::{PoolSettings, PoolVectors, ProjectedVectors, VectorPlace};
pub(crate) use pooled::{
    IndexVectors, OwnPools, PoolPlace, PooledAttention, PooledParts, PooledPools, PooledSizes,
};
pub(crate) use recurrent::RecurrentParts;
pub(crate) use residual::Residual;
pub(crate) use router::{Router, RouterSettings, RouterVectors, TokenExperts};
pub(crate) use short_conv::ShortConv;
pub(crate) use shortcut::Shortcut;
pub(crate) use stack::{Beside, Stack, StackSizes, Stream};
pub(crate) use state_space::StateSpace;
pub(crate) use stream_ends::StreamEnds;
pub(crate) use stream_mix::StreamMix;
pub(crate) use token_rows::TokenRows;
