//! What all decoders have in common: embedding, layers, final norm, head.

use serde::Deserialize;

use super::blocks::{Block, MixerBlock, matrix, vector};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, count, dimension};
use jackalope_config::names::TensorNames;
use jackalope_config::quantization::QuantizationMap;
use jackalope_config::rope::RopeConfig;
use jackalope_spec::{
    AttentionSpec, BlockNorms, BlockResiduals, Dimension, FeedForward, HeadTable, LayerNorms,
    LayerSpec, LogitsSpec, ModelSpec, NormKind, OriginalNumbers, PackedExperts, PerLayerInputsSpec,
    SecondHalf, StreamsSpec, TensorCut, TensorRole, TensorSpec,
};

/// The fields of `config.json` that every family has.
#[derive(Debug, Deserialize)]
pub(super) struct DecoderConfig {
    hidden_size: u32,
    num_hidden_layers: u32,
    num_attention_heads: u32,
    vocab_size: u32,
    pub(super) rms_norm_eps: f32,
    hidden_act: Option<String>,
    tie_word_embeddings: Option<bool>,
    #[serde(flatten)]
    pub(super) rope: RopeConfig,
}

/// Validated sizes of a decoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Width of the residual stream.
    pub(super) hidden: usize,
    pub(super) num_layers: usize,
    /// Number of query heads.
    pub(super) heads: usize,
    pub(super) vocab: usize,
}

/// A decoder, before its `model_type` and quantisation are known.
#[derive(Debug)]
pub(super) struct Description {
    pub(super) sizes: Sizes,
    pub(super) context_tokens: u32,
    pub(super) norm_kind: NormKind,
    pub(super) norm_eps: f32,
    pub(super) head_table: HeadTable,
    /// Whether a vector is added to the logits.
    pub(super) has_head_bias: bool,
    pub(super) embedding_scale: Option<f32>,
    pub(super) per_layer_inputs: Option<PerLayerInputsSpec>,
    pub(super) streams: Option<StreamsSpec>,
    pub(super) residuals: Option<BlockResiduals>,
    pub(super) logits: LogitsSpec,
    pub(super) modules: DecoderNames,
    pub(super) layers: Vec<LayerSpec>,
    /// How a checkpoint names the tensors.
    pub(super) names: TensorNames,
    pub(super) unused: Vec<String>,
    pub(super) unstated_prediction: Option<String>,
    pub(super) original_numbers: Option<OriginalNumbers>,
    pub(super) packed: Option<PackedExperts>,
}

/// Maximum number of layers of multi-token prediction that `config.json` may state.
const PREDICTION_LAYERS_MAX: usize = 16;

/// The modules outside of the layers.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecoderNames {
    pub(super) embedding: &'static str,
    pub(super) norm: &'static str,
    pub(super) head: &'static str,
}

impl DecoderNames {
    /// The names of Llama's checkpoints.
    pub(super) const LLAMA: DecoderNames =
        DecoderNames { embedding: "model.embed_tokens", norm: "model.norm", head: "lm_head" };
}

impl DecoderConfig {
    /// Checks the sizes and the activation.
    ///
    /// # Errors
    /// Fails if a size is out of bounds or the activation is not supported.
    pub(super) fn sizes(&self) -> Result<Sizes, SpecError> {
        self.sizes_with(&["silu", "swish"])
    }

    /// Checks the sizes, and that the activation is one of these names, if it is stated.
    ///
    /// # Errors
    /// Fails if a size is out of bounds or the activation is not supported.
    pub(super) fn sizes_with(
        &self,
        supported: &'static [&'static str],
    ) -> Result<Sizes, SpecError> {
        if let Some(found) = self.hidden_act.clone().filter(|it| !supported.contains(&it.as_str()))
        {
            return Err(SpecError::Setting { what: "activation", found, supported });
        }
        Ok(Sizes {
            hidden: dimension("hidden_size", self.hidden_size)?,
            num_layers: count("num_hidden_layers", self.num_hidden_layers)?,
            heads: dimension("num_attention_heads", self.num_attention_heads)?,
            vocab: dimension("vocab_size", self.vocab_size)?,
        })
    }

    /// Returns a decoder whose layers have the same attention, then what `block` returns for the number
    /// and the prefix of a layer, each after a norm.
    pub(super) fn repeated(
        &self,
        sizes: Sizes,
        attention: &AttentionSpec,
        block: impl Fn(usize, &str) -> Block,
    ) -> Description {
        let layers = (0..sizes.num_layers).map(|layer_idx| {
            let block = block(layer_idx, &format!("model.layers.{layer_idx}"));
            pre_norm_layer(layer_idx, sizes.hidden, attention.clone(), block)
        });
        self.with_layers(sizes, layers.collect())
    }

    /// Returns the decoder with these layers.
    pub(super) fn with_layers(&self, sizes: Sizes, layers: Vec<LayerSpec>) -> Description {
        let head_table = match self.tie_word_embeddings {
            Some(true) => HeadTable::Tied,
            Some(false) => HeadTable::Own,
            None => HeadTable::IfPresent,
        };
        let context_tokens = self.rope.context_tokens();
        Description {
            sizes,
            context_tokens,
            norm_kind: NormKind::default(),
            norm_eps: self.rms_norm_eps,
            head_table,
            has_head_bias: false,
            embedding_scale: None,
            per_layer_inputs: None,
            streams: None,
            residuals: None,
            logits: LogitsSpec::PLAIN,
            modules: DecoderNames::LLAMA,
            layers,
            names: TensorNames::PLAIN,
            unused: Vec::new(),
            unstated_prediction: None,
            original_numbers: None,
            packed: None,
        }
    }
}

impl Sizes {
    /// Returns the number of key and value heads after checking it.
    ///
    /// # Errors
    /// Fails if it does not divide the number of query heads.
    pub(super) fn kv_heads(&self, kv_heads: u32) -> Result<usize, SpecError> {
        let kv_heads = dimension("num_key_value_heads", kv_heads)?;
        if self.heads.is_multiple_of(kv_heads) {
            return Ok(kv_heads);
        }
        let expected = format!("a divisor of num_attention_heads, {}", self.heads);
        Err(bad_value("num_key_value_heads", kv_heads, expected))
    }

    /// Returns the number of key and value heads; as many as query heads if it is not stated.
    ///
    /// # Errors
    /// Fails if it does not divide the number of query heads.
    pub(super) fn kv_heads_or_all(&self, kv_heads: Option<u32>) -> Result<usize, SpecError> {
        kv_heads.map_or(Ok(self.heads), |kv_heads| self.kv_heads(kv_heads))
    }

    /// Returns the width of a head; the hidden size divided among the heads if it is not stated.
    ///
    /// # Errors
    /// Fails if it is out of bounds.
    pub(super) fn head_dim_or(&self, head_dim: Option<u32>) -> Result<usize, SpecError> {
        head_dim.map_or(Ok(self.head_dim()), |head_dim| dimension("head_dim", head_dim))
    }

    /// Returns the width of a head that the configuration does not state.
    pub(super) fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }
}

impl Description {
    /// Returns the description for checkpoints with these names.
    pub(super) fn with_names(self, names: TensorNames) -> Description {
        Description { names, ..self }
    }

    /// Returns the description for checkpoints that also have tensors whose names begin with one of
    /// these, which are not used.
    pub(super) fn without(self, unused: impl IntoIterator<Item = String>) -> Description {
        Description { unused: unused.into_iter().collect(), ..self }
    }

    /// Returns the description for checkpoints in which this many layers of multi-token prediction
    /// follow the `num_layers` of the model; `None` if `config.json` does not state it, where one may.
    pub(super) fn without_prediction(
        self,
        num_layers: usize,
        num_predicting: Option<usize>,
    ) -> Description {
        let prefix = |idx: usize| format!("model.layers.{}.", num_layers + idx);
        match num_predicting {
            Some(stated @ 1..) => self.without((0..stated.min(PREDICTION_LAYERS_MAX)).map(prefix)),
            _ => Description { unstated_prediction: Some(prefix(0)), ..self },
        }
    }

    /// Returns the description for a family whose head is used if it is stored, even if
    /// `tie_word_embeddings` is set, as in mlx-lm.
    pub(super) fn with_stored_head(self) -> Description {
        let head_table = match self.head_table {
            HeadTable::Tied => HeadTable::IfPresent,
            stated => stated,
        };
        Description { head_table, ..self }
    }

    /// Completes the description.
    pub(super) fn into_model(self, model_type: String, quantization: QuantizationMap) -> ModelSpec {
        let Sizes { hidden, vocab, .. } = self.sizes;
        let rows = TensorCut::whole_column(Dimension::Vocab, vocab);
        let table = |name: &str, role| matrix(name, role, vec![vocab, hidden], rows.clone());
        let head_bias = self.has_head_bias.then(|| {
            let name = format!("{}.bias", self.modules.head);
            vector(&name, TensorRole::Head, vocab, rows.clone())
        });
        let norms = match &self.streams {
            Some(StreamsSpec::Gated { end, .. }) => vec![end.norm.clone()],
            _ => norm_tensors(self.modules.norm, hidden, self.norm_kind),
        };
        let mut norms = norms.into_iter();
        ModelSpec {
            model_type,
            hidden_size: hidden,
            vocab_size: vocab,
            context_tokens: self.context_tokens,
            norm_kind: self.norm_kind,
            norm_eps: self.norm_eps,
            embedding: table(self.modules.embedding, TensorRole::Embedding),
            embedding_scale: self.embedding_scale,
            per_layer_inputs: self.per_layer_inputs,
            streams: self.streams,
            residuals: self.residuals,
            layers: self.layers,
            norm: norms.next().expect("a norm has a weight"),
            norm_bias: norms.next(),
            head: table(self.modules.head, TensorRole::Head),
            head_bias,
            head_table: self.head_table,
            logits: self.logits,
            quantization: of_language_model(quantization, self.names),
            names: self.names,
            unused: self.unused,
            unstated_prediction: self.unstated_prediction,
            original_numbers: self.original_numbers,
            packed: self.packed,
        }
    }
}

/// Returns the norm of vectors of `width` elements, which every rank holds.
pub(super) fn norm(module: &str, width: usize) -> TensorSpec {
    vector(&format!("{module}.weight"), TensorRole::Norm, width, TensorCut::Replicated)
}

/// Returns the tensors of a norm of the stream: its weight, then its bias if there is one.
fn norm_tensors(module: &str, hidden: usize, kind: NormKind) -> Vec<TensorSpec> {
    let bias =
        || vector(&format!("{module}.bias"), TensorRole::Norm, hidden, TensorCut::Replicated);
    std::iter::once(norm(module, hidden)).chain(kind.has_bias.then(bias)).collect()
}

/// A layer of attention and a feed-forward block.
pub(super) struct LayerBuilder {
    /// Prefix of the names of its tensors.
    pub(super) prefix: String,
    pub(super) hidden: usize,
    pub(super) norm_kind: NormKind,
    pub(super) norms: LayerNorms,
    pub(super) is_parallel: bool,
    pub(super) residual_factor: f32,
}

impl LayerBuilder {
    /// Creates a layer in which each block follows a norm, with the names of Llama's checkpoints.
    pub(super) fn pre_norm(prefix: String, hidden: usize) -> LayerBuilder {
        let input =
            |name: &str| BlockNorms { input: Some(format!("{prefix}.{name}")), output: None };
        let norms = LayerNorms {
            mixer: input("input_layernorm"),
            feed_forward: input("post_attention_layernorm"),
            eps: None,
        };
        LayerBuilder {
            prefix,
            hidden,
            norm_kind: NormKind::default(),
            norms,
            is_parallel: false,
            residual_factor: 1.0,
        }
    }

    /// Completes the layer.
    pub(super) fn build(self, mixer: MixerBlock, block: Block) -> LayerSpec {
        let LayerBuilder { prefix, hidden, norm_kind, norms, is_parallel, residual_factor } = self;
        let Block { feed_forward, tensors: of_block } = block;
        let MixerBlock { mixer, cache, mut tensors } = mixer;
        tensors.extend(of_block);
        tensors.extend(norms.modules().flat_map(|it| norm_tensors(it, hidden, norm_kind)));
        LayerSpec {
            prefix,
            mixer,
            feed_forward,
            norms,
            second: None,
            is_parallel,
            residual_factor,
            per_layer_input: None,
            streams: None,
            ngrams: None,
            residuals: None,
            stream_scale: None,
            cache,
            tensors,
        }
    }
}

/// Returns the map with the names of the language model.
fn of_language_model(map: QuantizationMap, names: TensorNames) -> QuantizationMap {
    // Prefixes end with a dot, so a module is renamed as its tensors are.
    map.renamed(|module| Some(names.of_model(module)?.into_owned()))
}

/// Adds a second half to a layer: another layer of a mixer and a dense block, and the experts beside it.
///
/// # Panics
/// Panics if the other layer is not of that kind.
pub(super) fn with_second(mut layer: LayerSpec, second: LayerSpec, experts: Block) -> LayerSpec {
    let LayerSpec { mixer, feed_forward, norms, tensors, cache, .. } = second;
    let (FeedForward::Mlp(mlp), FeedForward::Experts(spec)) = (feed_forward, experts.feed_forward)
    else {
        panic!("a dense block, and experts beside it")
    };
    layer.second = Some(Box::new(SecondHalf { mixer, mlp, norms, experts: *spec }));
    layer.cache = layer.cache.joined(cache);
    layer.tensors.extend(tensors);
    layer.tensors.extend(experts.tensors);
    layer
}

/// Returns a layer of an attention block and a feed-forward block, each after a norm.
pub(super) fn pre_norm_layer(
    layer_idx: usize,
    hidden: usize,
    attention: AttentionSpec,
    block: Block,
) -> LayerSpec {
    let prefix = format!("model.layers.{layer_idx}");
    let mixer = super::blocks::attention(&format!("{prefix}.self_attn"), hidden, attention);
    mixed_layer(prefix, hidden, mixer, block)
}

/// Returns a layer of a mixer and a feed-forward block, each after a norm.
pub(super) fn mixed_layer(
    prefix: String,
    hidden: usize,
    mixer: MixerBlock,
    block: Block,
) -> LayerSpec {
    LayerBuilder::pre_norm(prefix, hidden).build(mixer, block)
}
