//! The properties of a model on which its placement depends: the sizes of its parts, and how each
//! is cut.

use jackalope_protocol::split::HeadCounts;

/// A model, described by its sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFacts {
    /// `model_type` from its configuration.
    pub architecture: String,
    /// Number of layers.
    pub num_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Attention heads and the unit at which they are cut; `None` if the configuration does not
    /// state them.
    pub heads: Option<HeadCounts>,
    /// Width of a head.
    pub head_dim: usize,
    /// Width inside the feed-forward blocks.
    pub intermediate_size: usize,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Longest context that the model was made for.
    pub context_tokens: u32,
    /// Quantisation of most of its weights; `None` if they are not quantised.
    pub quantization: Option<Quantization>,
    /// Size in bytes of an element that is not quantised.
    pub element_bytes: u64,
    /// Layout of the KV cache.
    pub kv: KvShape,
    /// Weights, grouped by purpose and by how they are cut.
    pub parts: Vec<WeightPart>,
    /// Weights of each layer; the parts include them as well.
    pub layers: Vec<LayerBytes>,
    /// Fraction of the experts' weights that one token uses, from 0 to 1.
    pub active_experts: f64,
    /// True if head and embedding share one table.
    pub is_tied: bool,
    /// True if the ranks cut every tensor as it is counted here. False for architectures with
    /// unknown tensors, whose matrices are counted as if they could be cut anywhere.
    pub is_exact: bool,
}

impl ModelFacts {
    /// Returns the bytes of all weights.
    pub fn weights_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Returns the bytes of all weights of a kind.
    pub fn bytes_of(&self, kind: PartKind) -> u64 {
        self.parts.iter().filter(|part| part.kind == kind).map(|part| part.bytes).sum()
    }

    /// Returns the bytes of the weights that every rank holds in full.
    pub fn replicated_bytes(&self) -> u64 {
        let whole = self.parts.iter().filter(|part| part.cut == PartCut::Whole);
        whole.map(|part| part.bytes).sum()
    }

    /// Returns the bytes of the KV cache for one token over all layers, counted once.
    pub fn kv_bytes_per_token(&self) -> u64 {
        match self.kv {
            KvShape::PerHead { num_layers } => {
                let kv_heads = self.heads.map_or(0, |heads| heads.kv_heads);
                2 * (num_layers * kv_heads * self.head_dim) as u64 * self.element_bytes
            }
            KvShape::Whole { bytes_per_token } => bytes_per_token,
        }
    }
}

/// How weights are quantised.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quantization {
    /// Bits per weight.
    pub bits: u32,
    /// Number of weights that share a scale.
    pub group_size: u32,
}

/// How the KV cache is distributed over the ranks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KvShape {
    /// A rank holds the part of its own key-value heads.
    PerHead {
        /// Number of layers that have a KV cache.
        num_layers: usize,
    },
    /// Every rank holds all of it, because latent attention has no separate key-value heads.
    Whole {
        /// Bytes for one token.
        bytes_per_token: u64,
    },
}

/// Size of the weights of one layer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LayerBytes {
    /// Bytes of all its weights.
    pub all: u64,
    /// Bytes of its routed experts.
    pub experts: u64,
}

/// Weights with the same purpose and the same cut.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WeightPart {
    /// Purpose of the weights.
    pub kind: PartKind,
    /// How they are cut.
    pub cut: PartCut,
    /// Size in bytes.
    pub bytes: u64,
}

/// The purpose of weights.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum PartKind {
    /// Embedding: from tokens to vectors.
    Embedding,
    /// Output head: from vectors to logits.
    Head,
    /// Attention of all layers.
    Attention,
    /// Feed-forward blocks of all layers.
    Mlp,
    /// Routed experts of all layers.
    Experts,
    /// Norms, biases added after an all-reduce, and unknown tensors.
    Other,
}

/// How weights are cut for the ranks.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum PartCut {
    /// By rows of the vocabulary.
    Vocab,
    /// By query heads.
    Queries,
    /// By key-value heads.
    Keys,
    /// By the inner dimension of a feed-forward block.
    Inner {
        /// Length of the dimension.
        full: usize,
        /// Number of elements that are not separated.
        unit: usize,
    },
    /// Anywhere, because only the size is known.
    Anywhere,
    /// Not at all; every rank holds them.
    Whole,
}
