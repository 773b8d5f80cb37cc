//! What placing needs to know of a model: how large its parts are and how each is cut.

use jackalope_protocol::split::HeadCounts;

/// A model by its sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFacts {
    /// `model_type` of its configuration.
    pub architecture: String,
    /// Layers.
    pub num_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Attention heads and the unit they are cut at; none if the configuration does not tell.
    pub heads: Option<HeadCounts>,
    /// Width of a head.
    pub head_dim: usize,
    /// Width inside the feed-forward blocks.
    pub intermediate_size: usize,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Longest context it was made for.
    pub context_tokens: u32,
    /// How most of its weights are stored; none if they are plain.
    pub quantization: Option<Quantization>,
    /// Bytes of an element that is not quantised.
    pub element_bytes: u64,
    /// Keys and values of one token.
    pub kv: KvShape,
    /// The weights, grouped by what they are and how they are cut.
    pub parts: Vec<WeightPart>,
    /// The weights of each layer, which the parts count too.
    pub layers: Vec<LayerBytes>,
    /// The part of the experts' weights that one token uses, from 0 to 1.
    pub active_experts: f64,
    /// True if head and embedding are one table.
    pub is_tied: bool,
    /// True if the ranks cut every tensor as it is counted here. False for architectures with
    /// tensors that are not known, whose matrices are counted as if they could be cut anywhere.
    pub is_exact: bool,
}

impl ModelFacts {
    /// Bytes of all weights.
    pub fn weights_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Bytes of all weights of a kind.
    pub fn bytes_of(&self, kind: PartKind) -> u64 {
        self.parts.iter().filter(|part| part.kind == kind).map(|part| part.bytes).sum()
    }

    /// Bytes of the weights that every rank holds whole.
    pub fn replicated_bytes(&self) -> u64 {
        let whole = self.parts.iter().filter(|part| part.cut == PartCut::Whole);
        whole.map(|part| part.bytes).sum()
    }

    /// Bytes of keys and values of one token over all layers, held once.
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

/// How weights are stored.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quantization {
    /// Bits of a weight.
    pub bits: u32,
    /// Weights that share a scale.
    pub group_size: u32,
}

/// Where keys and values are kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KvShape {
    /// A rank keeps those of its key-value heads.
    PerHead {
        /// Layers that keep any.
        num_layers: usize,
    },
    /// Every rank keeps all: those of latent attention belong to no head.
    Whole {
        /// Bytes of one token.
        bytes_per_token: u64,
    },
}

/// The weights of one layer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LayerBytes {
    /// All of them.
    pub all: u64,
    /// Routed experts among them.
    pub experts: u64,
}

/// Weights that are alike.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WeightPart {
    /// What they are.
    pub kind: PartKind,
    /// How they are divided.
    pub cut: PartCut,
    /// Their size.
    pub bytes: u64,
}

/// What weights are for.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum PartKind {
    /// Tokens to vectors.
    Embedding,
    /// Vectors to logits.
    Head,
    /// Attention of all layers.
    Attention,
    /// Feed-forward blocks of all layers.
    Mlp,
    /// Routed experts of all layers.
    Experts,
    /// Norms, biases of sums, and what is not known.
    Other,
}

/// How weights are divided over the ranks.
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
        /// Its length.
        full: usize,
        /// Elements that stay together.
        unit: usize,
    },
    /// Anywhere: nothing is known but the size.
    Anywhere,
    /// Not at all: every rank holds them.
    Whole,
}
