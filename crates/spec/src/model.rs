//! The description of a model.

use crate::head::{HeadTable, LogitsSpec};
use crate::latent::{BlockChoice, IndexerSpec, LatentSpec, PoolChoice, PositionChoice};
use crate::modules::{AttentionModules, LayerNorms, MlpModules};
use crate::names::TensorNames;
use crate::ngrams::{NgramSpec, TokenMapSpec};
use crate::originals::OriginalNumbers;
use crate::packed::PackedExperts;
use crate::per_layer::{PerLayerBlock, PerLayerInputsSpec};
use crate::pooled::PooledSpec;
use crate::recurrent::{
    GatedDeltaSpec, LightningSpec, ShortConvSpec, StateSpaceSizes, StateSpaceSpec,
};
use crate::residuals::{BlockResiduals, LayerResiduals};
use crate::rope::{QueryGrowth, RopeSpec};
use crate::streams::{LayerStreams, StreamsSpec};
use crate::tensor::{FusedSource, TensorSpec};
use jackalope_config::quantization::QuantizationMap;

/// A model, as its `config.json` describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// `model_type` of the checkpoint.
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of tokens in the vocabulary; token ids are less than this.
    pub vocab_size: usize,
    /// Maximum length of a sequence that the model was trained for, in tokens.
    pub context_tokens: u32,
    /// How its norms normalise.
    pub norm_kind: NormKind,
    /// Epsilon of the norms, added to the mean square.
    pub norm_eps: f32,
    /// Table from tokens to vectors, `[vocab, hidden]`.
    pub embedding: TensorSpec,
    /// Factor of these vectors, which is rounded to the type of the model; `None` if it is one.
    pub embedding_scale: Option<f32>,
    /// What each layer reads of the tokens beside the stream; `None` if nothing.
    pub per_layer_inputs: Option<PerLayerInputsSpec>,
    /// The streams, if there are several.
    pub streams: Option<StreamsSpec>,
    /// Set if layers read the streams at the ends of earlier blocks of layers.
    pub residuals: Option<BlockResiduals>,
    /// The decoder layers, in order.
    pub layers: Vec<LayerSpec>,
    /// Norm after the last layer, of each stream if a gate reads several. It is never quantised; the whole model is computed in its type.
    pub norm: TensorSpec,
    /// Bias of that norm, if its kind has one.
    pub norm_bias: Option<TensorSpec>,
    /// Table from vectors to logits, `[vocab, hidden]`, if there is one.
    pub head: TensorSpec,
    /// Vector that is added to the logits, `[vocab]`.
    pub head_bias: Option<TensorSpec>,
    /// Whether head and embedding share a table.
    pub head_table: HeadTable,
    /// Prefixes of the names of tensors that checkpoints may have but that are not used: other parts
    /// of a larger model, layers that predict several tokens.
    pub unused: Vec<String>,
    /// Prefix of a layer of multi-token prediction that `config.json` does not state; not used either.
    /// It must have a tensor that only such layers have (`eh_proj`, `enorm` or `hnorm`): any other is a
    /// layer of the model.
    pub unstated_prediction: Option<String>,
    /// Scale and cap of the logits.
    pub logits: LogitsSpec,
    /// What the configuration states about quantisation.
    pub quantization: QuantizationMap,
    /// How a checkpoint names the tensors.
    pub names: TensorNames,
    /// How the numbers in original checkpoints differ from those in conversions; `None` if they do not.
    pub original_numbers: Option<OriginalNumbers>,
    /// How some checkpoints store the shared expert with the others; `None` if none does.
    pub packed: Option<PackedExperts>,
}

impl ModelSpec {
    /// Returns the number of caches in these layers.
    pub fn num_caches(&self, layers: std::ops::Range<usize>) -> usize {
        self.layers[layers].iter().map(LayerSpec::num_caches).sum()
    }

    /// Returns the numbers of tokens that tables of n-grams are indexed by, if they are not the ids.
    pub fn token_map(&self) -> Option<&TokenMapSpec> {
        self.layers.iter().find_map(|layer| layer.ngrams.as_ref()?.map.as_ref())
    }

    /// Returns every tensor of the whole model; the head's table only if `is_tied` is false.
    pub fn tensors(&self, is_tied: bool) -> impl Iterator<Item = &TensorSpec> {
        let outside = [&self.embedding, &self.norm].into_iter().chain(&self.norm_bias);
        let head = (!is_tied).then_some(&self.head).into_iter().chain(&self.head_bias);
        let inputs = self.per_layer_inputs.iter().flat_map(PerLayerInputsSpec::tensors);
        let inputs = inputs.chain(self.streams.iter().flat_map(StreamsSpec::tensors));
        let inputs = inputs.chain(self.residuals.iter().flat_map(|it| it.end.tensors()));
        let layers = self.layers.iter().flat_map(|layer| &layer.tensors);
        outside.chain(inputs).chain(layers).chain(head)
    }
}

/// How norms of vectors normalise.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NormKind {
    /// Whether the mean is subtracted first, as in layer normalisation.
    pub is_centred: bool,
    /// Whether the factor of an element is one more than its weight.
    pub adds_one: bool,
    /// Whether the norms of the stream have biases.
    pub has_bias: bool,
}

/// A decoder layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Prefix of the names of its tensors: `model.layers.0`.
    pub prefix: String,
    /// How it mixes positions.
    pub mixer: Mixer,
    /// Feed-forward block, which computes each position separately.
    pub feed_forward: FeedForward,
    /// The norms around its blocks.
    pub norms: LayerNorms,
    /// Second mixer and its blocks, which follow the feed-forward block; `None` in layers with a single
    /// mixer.
    pub second: Option<Box<SecondHalf>>,
    /// Whether both blocks read the stream before the layer, and their sum is added to it.
    pub is_parallel: bool,
    /// Factor of what a block adds to the stream.
    pub residual_factor: f32,
    /// How it reads its inputs beside the stream, after its blocks; `None` if it has none.
    pub per_layer_input: Option<PerLayerBlock>,
    /// What it does with the streams, if there are several.
    pub streams: Option<LayerStreams>,
    /// What it adds to the streams before its blocks; `None` if nothing.
    pub ngrams: Option<NgramSpec>,
    /// What its blocks read of the streams of all blocks of layers, if they read several.
    pub residuals: Option<LayerResiduals>,
    /// Name of a number by which it multiplies the stream at its end; `None` if it does not.
    pub stream_scale: Option<String>,
    /// Kind of its cache.
    pub cache: CacheKind,
    /// Every tensor that it has.
    pub tensors: Vec<TensorSpec>,
}

impl LayerSpec {
    /// Returns its experts, if it has any.
    pub fn experts(&self) -> Option<&ExpertsSpec> {
        match (&self.feed_forward, &self.second) {
            (FeedForward::Experts(experts), _) => Some(experts),
            (FeedForward::Mlp(_) | FeedForward::None, second) => {
                second.as_ref().map(|second| &second.experts)
            }
        }
    }

    /// Returns the number of its caches: one for each mixer, then those of n-grams.
    pub fn num_caches(&self) -> usize {
        let of_ngrams = self.ngrams.as_ref().map_or(0, NgramSpec::num_caches);
        1 + usize::from(self.second.is_some()) + of_ngrams
    }

    /// Whether the layer reads the ids of the step's tokens.
    pub fn reads_tokens(&self) -> bool {
        let has_table = |it: &ExpertsSpec| it.modules.token_experts.is_some();
        self.ngrams.is_some() || self.experts().is_some_and(has_table)
    }
}

/// The second half of a layer whose experts are computed beside it (Meituan 2025, "LongCat-Flash",
/// section 2.2): they read what the dense block of the first half reads, and their result is added to
/// the stream together with that of the second half's dense block.
#[derive(Clone, Debug, PartialEq)]
pub struct SecondHalf {
    /// How it mixes positions; the same heads as in the first half.
    pub mixer: Mixer,
    /// Its dense block, with the inner dimension of that of the first half.
    pub mlp: MlpSpec,
    /// The norms around mixer and dense block.
    pub norms: LayerNorms,
    /// The experts beside it.
    pub experts: ExpertsSpec,
}

/// How a layer mixes positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Grouped-query attention.
    Attention(Box<AttentionSpec>),
    /// A gated delta net.
    GatedDelta(Box<GatedDeltaSpec>),
    /// A gated short convolution.
    ShortConv(Box<ShortConvSpec>),
    /// Multi-head latent attention.
    Latent(Box<LatentSpec>),
    /// Attention to a window and to pools of positions.
    Pooled(Box<PooledSpec>),
    /// The state space of Mamba-2.
    StateSpace(Box<StateSpaceSpec>),
    /// Lightning attention.
    Lightning(Box<LightningSpec>),
    /// Attention and a state space beside each other.
    Parallel(Box<ParallelMixers>),
    /// No mixer: the layer computes each position separately.
    None,
}

impl Mixer {
    /// Returns the heads by which ranks divide it.
    pub fn heads(&self) -> HeadShape {
        match self {
            Mixer::Attention(attention) => attention.shape(),
            Mixer::Parallel(mixers) => mixers.attention.shape(),
            Mixer::GatedDelta(delta) => HeadShape {
                heads: delta.sizes.value_heads,
                kv_heads: delta.sizes.key_heads,
                head_dim: delta.sizes.value_dim,
            },
            Mixer::ShortConv(conv) => {
                HeadShape { heads: conv.units, kv_heads: conv.units, head_dim: conv.unit_channels }
            }
            Mixer::Latent(latent) => latent.shape(),
            Mixer::Pooled(pooled) => pooled.shape(),
            Mixer::StateSpace(space) => HeadShape::of_space(space),
            Mixer::Lightning(spec) => {
                HeadShape { heads: spec.heads, kv_heads: spec.heads, head_dim: spec.head_dim }
            }
            // There is nothing to divide; one head of one element stands for it.
            Mixer::None => HeadShape { heads: 1, kv_heads: 1, head_dim: 1 },
        }
    }

    /// Returns the number of the earlier layer whose cache it reads, or whose choice of positions it
    /// shares, the first one; `None` if it needs no other layer.
    pub fn source_layer(&self) -> Option<usize> {
        match self {
            Mixer::Attention(attention) => attention.source_layer,
            Mixer::Latent(latent) => match latent.choice {
                Some(PositionChoice::OfLayer { layer_idx, .. }) => Some(layer_idx),
                Some(PositionChoice::Indexer(_)) | None => None,
            },
            Mixer::Pooled(pooled) => pooled.pools.as_ref()?.source_layer(),
            _ => None,
        }
    }
}

impl Mixer {
    /// Returns the heads of the state space beside attention, if there is one; ranks divide it on its
    /// own.
    pub fn state_heads(&self) -> Option<HeadShape> {
        match self {
            Mixer::Parallel(mixers) => Some(HeadShape::of_space(&mixers.space)),
            _ => None,
        }
    }
}

/// Attention and a state space that read the same norm; their sum is added to the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct ParallelMixers {
    /// Attention.
    pub attention: AttentionSpec,
    /// State space.
    pub space: StateSpaceSpec,
}

/// The heads by which ranks divide a mixer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HeadShape {
    /// Number of heads whose results the output projection reads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Number of heads that several of these share: of keys and values, or of keys alone.
    pub kv_heads: usize,
    /// Width of a head's result.
    pub head_dim: usize,
}

impl HeadShape {
    fn of_space(space: &StateSpaceSpec) -> HeadShape {
        let StateSpaceSizes { heads, groups, head_dim, .. } = space.sizes;
        HeadShape { heads, kv_heads: groups, head_dim }
    }
}

/// Grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Number of query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Width of a query and of a key.
    pub head_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Factor of the values.
    pub value_scale: f32,
    /// Whether queries, keys and values have biases.
    pub has_qkv_bias: bool,
    /// Whether the output has a bias.
    pub has_output_bias: bool,
    /// Gate of the results; `None` if there is none.
    pub output_gate: Option<OutputGate>,
    /// Norm of queries and keys; `None` if they have none.
    pub qk_norm: Option<QkNorm>,
    /// Name, relative to the block, of the attention sinks: a score for each head that takes part
    /// in the soft-max without a value, `[heads]`. `None` if there are none.
    pub sinks: Option<&'static str>,
    /// Whether that norm follows the rotation.
    pub norm_follows_rotation: bool,
    /// How values are computed.
    pub values: ValueKind,
    /// Number of an earlier layer with the same shape whose keys and values it reads, instead of
    /// computing and keeping its own.
    pub source_layer: Option<usize>,
    /// Factor of the scores.
    pub scale: f32,
    /// With a cap, a scaled score becomes `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// Number of positions that a query sees, including its own; `None` if all.
    pub window: Option<usize>,
    /// Length of chunks of positions, if a query sees only those of its own chunk.
    pub chunk: Option<usize>,
    /// How blocks of positions are chosen, to which alone a query attends; `None` if none are.
    pub blocks: Option<BlockChoice>,
    /// How pools of positions are chosen, to which alone a query attends; `None` if none are.
    pub pools: Option<PoolChoice>,
    /// Growth of the queries with their position; `None` if they do not grow.
    pub query_growth: Option<QueryGrowth>,
    /// Rotation of queries and keys.
    pub rope: RopeSpec,
    /// Names of its tensors.
    pub modules: AttentionModules,
}

/// How the values of attention are computed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ValueKind {
    /// By a projection of their own.
    Projected,
    /// By a projection of their own; each head is normalised separately, without weights.
    Normalized,
    /// By the projection to keys, before those are normalised; each head is normalised separately,
    /// without weights.
    NormalizedKeys,
}

/// Gate of the results of attention: the logistic function of a projection, by which they are
/// multiplied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OutputGate {
    /// A number for each element of each head; the projection's rows follow those of each query head.
    Elements,
    /// A number for each head; the name of the projection, relative to the block.
    Heads(&'static str),
    /// As `Heads`, but `ln(1 + e^x)` takes the place of the logistic function.
    SoftplusHeads(&'static str),
    /// A number for each element of each head; the name of the projection, relative to the block.
    Apart(&'static str),
}

/// Norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QkNorm {
    /// Each head is normalised separately, with the same weight.
    PerHead,
    /// Each head is normalised separately after its rotation, without weights.
    RotatedUnweighted {
        /// Epsilon added to the mean of the squares.
        eps: f32,
    },
    /// Each head is normalised separately after its rotation, in layers that read the same keys but
    /// have weights of their own for them: the keys are kept without weights, and each layer
    /// multiplies its queries by the weights of both, which gives the same scores.
    OfSharedKeys,
    /// Each head is normalised separately, with a weight of its own: `[heads, head_dim]`.
    OwnWeights,
    /// All heads together are normalised.
    AllHeads,
}

/// What a layer does with each position.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedForward {
    /// A block that every token passes.
    Mlp(MlpSpec),
    /// Experts, of which a router chooses some for each token.
    Experts(Box<ExpertsSpec>),
    /// Nothing.
    None,
}

/// `down(activation(gate(x)) * up(x))` (Shazeer 2020), or `down(activation(up(x)))` without a gate.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpSpec {
    /// Inner dimension.
    pub inner: usize,
    /// Whether its products have biases.
    pub has_bias: bool,
    /// Its activation.
    pub activation: Activation,
    /// Sparsity of the gate, if it has any: a cutoff is subtracted from the gate's results, and
    /// negative differences become zero. The cutoff lies this number of standard deviations above
    /// the mean of a token's results.
    pub cutoff: Option<f32>,
    /// Names of its tensors.
    pub modules: MlpModules,
}

impl MlpSpec {
    /// Creates a block without biases whose activation is `silu` (SwiGLU).
    pub fn plain(inner: usize) -> MlpSpec {
        let modules = MlpModules::default();
        MlpSpec { inner, has_bias: false, activation: Activation::Silu, cutoff: None, modules }
    }
}

/// An activation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `min(x * sigmoid(x), bound)` of the gate; the up projection is clamped to ±`limit`.
    BoundedSilu {
        /// Upper bound of the result.
        bound: f32,
        /// Bound of the up projection.
        limit: f32,
    },
    /// `min(x, limit) * sigmoid(alpha * min(x, limit))` of the gate (OpenAI 2025); the up
    /// projection is clamped to ±`limit`, plus one.
    ClampedSilu {
        /// Factor inside the logistic function.
        alpha: f32,
        /// Bound of the gate and of the up projection.
        limit: f32,
    },
    /// `beta * tanh(x / beta) * sigmoid(x)` of the gate (Kimi team 2026, "SiTU"); the up projection
    /// becomes `cap * tanh(up / cap)` before, if there is a cap.
    Situ {
        /// Bound of the hyperbolic tangent.
        beta: f32,
        /// Cap of the up projection.
        cap: Option<f32>,
    },
    /// `x * (1 + erf(x / √2)) / 2`.
    Gelu,
    /// The approximation of [`Activation::Gelu`] by the hyperbolic tangent.
    GeluTanh,
    /// The square of `max(x, 0)`.
    ReluSquared,
    /// The expanded integral of the exponential linear unit, whose parameters are tensors (Huang and
    /// Schlag 2025).
    Xielu,
}

impl Activation {
    /// Returns `silu(min(x, limit))` of the gate; the up projection is clamped to ±`limit`.
    pub fn limited_silu(limit: f32) -> Activation {
        // It grows above zero.
        let bound = (f64::from(limit) / (1.0 + (-f64::from(limit)).exp())) as f32;
        Activation::BoundedSilu { bound, limit }
    }

    /// Whether experts with this activation have gates.
    pub fn has_gate(self) -> bool {
        self != Activation::ReluSquared
    }
}

/// Routed experts, each an MLP.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// Number of experts.
    pub num_experts: usize,
    /// Number of experts after these that have no weights and return what they read.
    pub num_identity: usize,
    /// Number of experts that a token passes, those without weights included.
    pub experts_per_token: usize,
    /// Inner dimension of an expert.
    pub inner: usize,
    /// The expert that every token passes; `None` if there is none.
    pub shared: Option<MlpSpec>,
    /// How an expert's gate and its other projection are combined. There is no gate with the square of
    /// the positive part.
    pub activation: Activation,
    /// Whether an expert's products have biases.
    pub has_bias: bool,
    /// What routed experts read and write, if it is not the stream.
    pub latent: Option<ExpertLatent>,
    /// How experts are chosen and weighted.
    pub router: RouterSpec,
    /// Names of the tensors.
    pub modules: ExpertModules,
    /// A dense block beside the experts; `None` if there is none.
    pub beside: Option<DenseBeside>,
}

/// A dense block beside routed experts. Both read the stream, each through a norm of its own, and
/// what they return is normalised before it is added up.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseBeside {
    /// The dense block.
    pub mlp: MlpSpec,
    /// Norms of what the dense block and the experts read.
    pub inputs: [String; 2],
    /// Norms of what the dense block and the experts return.
    pub outputs: [String; 2],
}

/// The vectors that routed experts read and write, if it is not the stream: a projection of the stream
/// is their input, and a projection of their weighted sum their result.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ExpertLatent {
    /// Width of these vectors.
    pub width: usize,
    /// Projection of the stream, `[width, hidden]`.
    pub down: String,
    /// Norm of the experts' sum; `None` if there is none.
    pub norm: Option<String>,
    /// Projection to the stream, `[hidden, width]`.
    pub up: String,
}

/// How experts are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterSpec {
    /// Whether the logits have biases.
    pub has_bias: bool,
    /// Whether the weights multiply what an expert reads, not its result.
    pub weighs_input: bool,
    /// How logits become scores.
    pub scores: RouterScores,
    /// Groups of experts, if experts are chosen from the best groups only.
    pub groups: Option<RouterGroups>,
    /// With a cap, a logit becomes `cap * tanh(logit / cap)`.
    pub logit_cap: Option<f32>,
    /// Set if the weights of the chosen experts are divided by their sum plus this.
    pub normalization_eps: Option<f32>,
    /// Factor of the weights.
    pub scale: f32,
}

impl RouterSpec {
    /// A router whose weights are the soft-max over all experts.
    pub const SOFTMAX: RouterSpec = RouterSpec {
        has_bias: false,
        weighs_input: false,
        scores: RouterScores::Softmax,
        groups: None,
        logit_cap: None,
        normalization_eps: None,
        scale: 1.0,
    };
}

/// How a router's logits become the scores by which experts are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RouterScores {
    /// Soft-max over all experts.
    Softmax,
    /// The logits; the weights are their soft-max over the chosen experts.
    SoftmaxOfChosen,
    /// The logistic function.
    Sigmoid,
    /// The square root of `ln(1 + e^logit)`.
    SqrtSoftplus,
    /// The logits; the weights are the logistic function of those of the chosen experts.
    SigmoidOfChosen,
    /// The logits (Liu et al. 2023, "Sparse Backpropagation for MoE Training"). Experts are chosen one
    /// after the other; the weight of each is its soft-max over those that were not chosen before it
    /// and whose logits are near its own: a distance of at most twice `jitter`, relative to the larger
    /// of the two.
    SparseMixer {
        /// Half of the distance.
        jitter: f32,
    },
}

/// Groups of neighbouring experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterGroups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups that are considered for a token.
    pub chosen: usize,
    /// Number of a group's best scores whose sum ranks the group.
    pub best: usize,
    /// What the scores in other groups become for the choice: zero or minus infinity. A bias may make
    /// scores negative.
    pub excluded: f32,
}

/// Names of the tensors of a block of experts.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ExpertModules {
    /// Matrix of the router, `[experts, hidden]`.
    pub router: String,
    /// Vector that is added to the scores for the choice only, `[experts]`.
    pub selection_bias: Option<String>,
    /// Table of the experts of each token, `[vocab, experts per token]`, which takes the place of a choice by
    /// scores.
    pub token_experts: Option<String>,
    /// Weights of a norm of what the router reads, `[hidden]`, which are divided by the square root of
    /// their number.
    pub router_norm: Option<String>,
    /// Factors of the experts' weights, `[experts]`.
    pub expert_scales: Option<String>,
    /// Gate, up and down projections of all experts. There is no gate with some activations.
    pub experts: [StackedModule; 3],
    /// Gate of the shared expert, a matrix `[1, hidden]`: the logistic function of its product
    /// weighs that expert.
    pub shared_gate: Option<String>,
}

/// Names of the tensors of one projection of all experts.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StackedModule {
    /// The matrices of all experts in one tensor.
    pub stacked: String,
    /// Parts of the name before and after the expert's number, where each matrix is a tensor.
    pub each: [String; 2],
    /// Tensors of original checkpoints that may contain it together with another projection.
    pub fused: Vec<FusedSource>,
}

/// What a layer caches of a sequence.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CacheKind {
    /// Vectors for every position.
    Positions {
        /// Number of elements for each key-value head: its key and its value.
        elements_per_kv_head: usize,
        /// Number of elements that every rank with heads keeps beside them.
        shared_elements: usize,
    },
    /// Keys and values of the last positions; those of earlier ones are not needed any more.
    Window {
        /// Number of elements for each key-value head.
        elements_per_kv_head: usize,
        /// Number of positions that are needed.
        window: usize,
    },
    /// Vectors for every position, and what an indexer keeps of pools of positions.
    Pools {
        /// Number of elements for each position and key-value head.
        elements_per_kv_head: usize,
        /// Number of elements for each position that every rank with heads keeps of pools.
        shared_elements: usize,
        /// Number of elements that every rank with heads keeps of each of the last positions: what the
        /// vector of the last pool is computed from, and keys of a window.
        last_elements: usize,
        /// Number of these last positions: those of a pool, or of the window beside pools.
        num_last: usize,
    },
    /// A state in single precision, whose size does not depend on the number of positions.
    State {
        /// Number of elements for each head.
        elements_per_head: usize,
        /// Number of elements for each of the heads that several heads share.
        elements_per_kv_head: usize,
    },
    /// Vectors for every position and a state in single precision: for layers with attention and a
    /// state space side by side.
    PositionsAndState {
        /// Number of elements for each position and key-value head: its key and its value.
        elements_per_kv_head: usize,
        /// Number of elements of the state for each head of the state space.
        elements_per_state_head: usize,
        /// Number of elements of the state for each group of these heads.
        elements_per_state_group: usize,
    },
    /// Nothing.
    None,
}

impl CacheKind {
    /// Returns the cache of a layer with two mixers, both of which keep all positions.
    ///
    /// # Panics
    /// Panics if one of them keeps something else.
    pub fn joined(self, other: CacheKind) -> CacheKind {
        match (self, other) {
            (
                CacheKind::Positions { elements_per_kv_head: own, shared_elements: 0 },
                CacheKind::Positions { elements_per_kv_head: others, shared_elements: 0 },
            ) => CacheKind::Positions { elements_per_kv_head: own + others, shared_elements: 0 },
            _ => panic!("both halves of a layer keep all positions"),
        }
    }
}

impl LatentSpec {
    /// Returns the heads by which ranks divide it. All of them share one key.
    pub fn shape(&self) -> HeadShape {
        HeadShape { heads: self.heads, kv_heads: 1, head_dim: self.value_dim }
    }

    /// Returns what a layer with this attention keeps: the latent, the shared part of the key, and
    /// what the indexer keeps.
    pub fn cache(&self) -> CacheKind {
        let latent = self.kv_rank + self.rope_dim;
        let index_dim = self.indexer().map_or(0, IndexerSpec::kept_dim);
        if let Some((len, indexer)) = self.indexer().and_then(|it| Some((it.pool?, it))) {
            return CacheKind::Pools {
                elements_per_kv_head: latent,
                shared_elements: indexer.head_dim.div_ceil(len),
                last_elements: index_dim,
                num_last: len,
            };
        }
        CacheKind::Positions { elements_per_kv_head: latent + index_dim, shared_elements: 0 }
    }
}

impl PooledSpec {
    /// Returns the heads by which ranks divide it: groups, all of which share one vector.
    pub fn shape(&self) -> HeadShape {
        HeadShape { heads: self.groups, kv_heads: 1, head_dim: self.group_dim }
    }

    /// Returns what a layer with this attention keeps.
    pub fn cache(&self) -> CacheKind {
        let (last_elements, window) = (self.head_dim + self.raw_dim(), self.kept_positions());
        match self.own_pools() {
            None => CacheKind::Window { elements_per_kv_head: last_elements, window },
            Some((pools, _)) => CacheKind::Pools {
                elements_per_kv_head: 0,
                shared_elements: self.pool_dim().div_ceil(pools.len),
                last_elements,
                num_last: window,
            },
        }
    }
}

impl AttentionSpec {
    /// Returns its heads.
    pub fn shape(&self) -> HeadShape {
        let &AttentionSpec { heads, kv_heads, value_dim, .. } = self;
        HeadShape { heads, kv_heads, head_dim: value_dim }
    }

    /// Creates attention without biases and norms, in which a query sees all positions up to its own.
    pub fn plain(heads: usize, kv_heads: usize, head_dim: usize, rope: RopeSpec) -> AttentionSpec {
        AttentionSpec {
            heads,
            kv_heads,
            head_dim,
            value_dim: head_dim,
            value_scale: 1.0,
            has_qkv_bias: false,
            has_output_bias: false,
            output_gate: None,
            qk_norm: None,
            sinks: None,
            norm_follows_rotation: false,
            values: ValueKind::Projected,
            source_layer: None,
            scale: (head_dim as f64).powf(-0.5) as f32,
            soft_cap: None,
            window: None,
            chunk: None,
            blocks: None,
            pools: None,
            query_growth: None,
            rope,
            modules: AttentionModules::default(),
        }
    }

    /// Returns what a layer with this attention keeps.
    pub fn cache(&self) -> CacheKind {
        if self.source_layer.is_some() {
            return CacheKind::None;
        }
        let elements_per_kv_head = self.head_dim + self.value_dim;
        if let Some(&PoolChoice { head_dim, len, .. }) = self.pools.as_ref() {
            let shared_elements = head_dim.div_ceil(len);
            return CacheKind::Pools {
                elements_per_kv_head,
                shared_elements,
                last_elements: head_dim,
                num_last: len,
            };
        }
        let shared_elements = self.blocks.as_ref().map_or(0, |it| it.head_dim);
        // Within a chunk no position before it is seen.
        match self.window.or(self.chunk) {
            None => CacheKind::Positions { elements_per_kv_head, shared_elements },
            Some(window) => CacheKind::Window { elements_per_kv_head, window },
        }
    }
}
