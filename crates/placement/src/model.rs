//! The properties of a model on which its placement depends.

use jackalope_spec::{
    FeedForward, ModelLayout, ModelSpec, RankShard, StatedFormat, StreamsSpec, TensorRole,
    WeightPart,
};

/// A model that is to be placed.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementModel {
    /// `model_type` from its configuration.
    pub architecture: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of what goes from layer to layer beside this stream: further streams, and what each
    /// layer reads of a second embedding.
    pub beside_size: usize,
    /// Width of the queries of all heads, in the widest layer.
    pub queries_size: usize,
    /// Width inside the feed-forward blocks that a token passes, in the widest layer.
    pub inner_size: usize,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Longest context that the model was made for.
    pub context_tokens: u32,
    /// Quantisation of most of the model's weights; `None` if they are not quantised.
    pub quantization: Option<StatedFormat>,
    /// Layout of the model in its checkpoint: the sizes of its parts, and where each may be cut.
    pub layout: ModelLayout,
}

impl PlacementModel {
    /// Combines the description of a model with its layout in a checkpoint.
    pub fn new(spec: &ModelSpec, layout: ModelLayout) -> PlacementModel {
        let queries = spec.layers.iter().map(|layer| {
            let heads = layer.mixer.heads();
            heads.heads * heads.head_dim
        });
        let inner = spec.layers.iter().map(|layer| {
            let dense = match &layer.feed_forward {
                FeedForward::Mlp(mlp) => mlp.inner,
                FeedForward::Experts(_) | FeedForward::None => 0,
            };
            let experts = layer.experts().map_or(0, |experts| {
                let dense = experts.beside.as_ref().map(|beside| &beside.mlp);
                let shared = experts.shared.as_ref().or(dense).map_or(0, |mlp| mlp.inner);
                experts.experts_per_token * experts.inner + shared
            });
            dense.max(experts)
        });
        let num_streams = spec.streams.as_ref().map_or(1, StreamsSpec::num_streams);
        let inputs = spec.per_layer_inputs.as_ref().map_or(0, |inputs| inputs.width);
        PlacementModel {
            architecture: spec.model_type.clone(),
            hidden_size: spec.hidden_size,
            beside_size: (num_streams - 1) * spec.hidden_size + spec.layers.len() * inputs,
            queries_size: queries.max().unwrap_or(0),
            inner_size: inner.max().unwrap_or(0),
            vocab_size: spec.vocab_size,
            context_tokens: spec.context_tokens,
            quantization: spec.quantization.most,
            layout,
        }
    }

    /// Returns the number of layers.
    pub fn num_layers(&self) -> usize {
        self.layout.layers.len()
    }

    /// Returns what one rank holds that has the whole model.
    pub fn whole(&self) -> RankShard {
        self.layout.stage_shard(0..self.num_layers())
    }

    /// Returns the bytes of all weights.
    pub fn weights_bytes(&self) -> u64 {
        self.whole().weights_bytes
    }

    /// Returns the total bytes of the weights with this role.
    pub fn bytes_of(&self, role: TensorRole) -> u64 {
        let parts = self.layout.parts().filter(|part| part.role == role);
        parts.map(|part: &WeightPart| part.bytes).sum()
    }

    /// Returns the bytes of the weights that every rank holds in full.
    pub fn replicated_bytes(&self) -> u64 {
        self.whole().replicated_bytes
    }

    /// Returns the bytes of the KV cache for one token over all layers, counted once, before layers with
    /// windows free it.
    pub fn kv_bytes_per_token(&self) -> u64 {
        self.whole().cache.bytes_per_held_token()
    }

    /// Returns the bytes of the states of one sequence over all layers, counted once; 0 without
    /// recurrent layers.
    pub fn state_bytes(&self) -> u64 {
        self.whole().cache.state_bytes
    }

    /// Returns the size in bytes of an element that is not quantised.
    pub fn element_bytes(&self) -> u64 {
        self.layout.element_type.size_bytes()
    }
}
