//! Describes a model: a [`ModelSpec`] states for each layer how it mixes positions, what its feed-forward
//! block is and what it caches, and for each tensor its name, shape, purpose and how ranks divide it.
//! `jackalope_families` makes it from `config.json`.
//!
//! Pure: it computes nothing of the model.
//!
//! ```text
//!   config.json ─▶ families ─▶ ModelSpec ─▶ check (headers of the weight files) ─▶ ModelLayout
//!                     │                          └─▶ CheckReport                       │
//!                   rope, quantization                                               shard
//!                                             (what rank r of a split holds and caches) ┘
//! ```

mod altup;
mod check;
mod head;
mod latent;
mod layout;
mod model;
mod modules;
mod ngrams;
mod originals;
mod packed;
mod per_layer;
mod pooled;
mod quantization;
pub mod quantized_originals;
mod recurrent;
mod report;
mod residuals;
mod shard;
mod streams;
mod tensor;

use jackalope_config::{error, fields as config, names, rope};

pub use altup::{AltUpLayer, AltUpSpec};
pub use config::parse_config;
pub use error::SpecError;
pub use head::{HeadTable, LogitsSpec};
pub use jackalope_config::quantization::{
    ModuleQuantization, QuantizationFormat, QuantizationMap, QuantizationMode, StatedFormat,
};
pub use latent::{BlockChoice, IndexerSpec, LatentSpec, PoolChoice, PositionChoice};
pub use layout::{Division, LayerLayout, ModelLayout, WeightPart};
pub use model::{
    Activation, AttentionSpec, CacheKind, DenseBeside, ExpertLatent, ExpertModules, ExpertsSpec,
    FeedForward, HeadShape, LayerSpec, Mixer, MlpSpec, ModelSpec, NormKind, OutputGate,
    ParallelMixers, QkNorm, RouterGroups, RouterScores, RouterSpec, SecondHalf, StackedModule,
    ValueKind,
};
pub use modules::{
    AttentionModules, BlockNorms, InwardModules, LayerNorms, MlpModules, QkvModules,
};
pub use names::{TensorNames, UnusedPart};
pub use ngrams::{
    NgramConvolution, NgramHash, NgramProjections, NgramSpec, NgramTable, TokenMapSpec,
};
pub use originals::{NumberEdit, OriginalNumbers, OriginalSign, RowFactors};
pub use packed::{PackedExperts, PackedPart};
pub use per_layer::{PerLayerBlock, PerLayerInputsSpec};
pub use pooled::{
    PoolCandidates, PoolForm, PoolIndexerSpec, PoolSelection, PoolSource, PoolSpec, PooledSpec,
};
pub use recurrent::{
    GatedDeltaSizes, GatedDeltaSpec, GroupNormSpec, HeadRows, KimiDelta, LightningSpec,
    ShortConvSpec, StateSpaceSizes, StateSpaceSpec,
};
pub use report::{CheckReport, TensorProblem, UnusedTensors};
pub use residuals::{BlockResiduals, LayerResiduals, StreamReader};
pub use rope::{QueryGrowth, RopeScaling, RopeSpec};
pub use shard::RankShard;
pub use streams::{
    ConnectionsEnd, GatedConnectionSpec, HyperConnectionSpec, LayerStreams, StreamEndSpec,
    StreamGate, StreamsSpec,
};
pub use tensor::{
    CutSegment, Dimension, ElementType, FusedForm, FusedSource, Presence, TensorCut, TensorHeader,
    TensorHeaders, TensorRole, TensorSpec,
};
