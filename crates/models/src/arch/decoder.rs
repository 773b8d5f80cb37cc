//! The decoder that all architectures share: embedding, layers, final norm, head. A [`Family`]
//! provides its configuration and loads its layers.

use std::fmt;

use jackalope_mlx::Array;
use jackalope_protocol::TokenId;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Dimensions, Network};
use crate::checkpoint::Checkpoint;
use crate::error::LoadError;
use crate::layers::{Embedding, Head, Heads, Residual, RmsNorm, RopeConfig, Stack, vocabulary};
use crate::parallel::Parallel;
use crate::split::Cut;
use crate::step::Step;
use crate::weights::Weights;

/// The fields of `config.json` that every family has.
#[derive(Debug, Deserialize)]
pub(super) struct DecoderConfig {
    hidden_size: u32,
    num_hidden_layers: u32,
    num_attention_heads: u32,
    vocab_size: u32,
    rms_norm_eps: f32,
    hidden_act: Option<String>,
    tie_word_embeddings: Option<bool>,
    #[serde(flatten)]
    pub(super) rope: RopeConfig,
}

/// An architecture, or several that differ only in their configuration. The value holds the
/// settings that its layers share.
pub(super) trait Family: Sized {
    /// The fields of `config.json` that the family reads.
    type Config: DeserializeOwned;

    /// The family's decoder layer.
    type Layer: DecoderLayer;

    /// Returns the fields that every family has.
    fn decoder(config: &Self::Config) -> &DecoderConfig;

    /// Checks the configuration.
    ///
    /// # Errors
    /// Fails if a value is out of bounds or not supported.
    fn new(config: &Self::Config, sizes: &Sizes<'_>) -> Result<Self, LoadError>;

    /// Returns the shape of the attention heads.
    fn heads(&self) -> HeadShape;

    /// Loads the layer `layer_idx`, whose tensors are at `w`.
    ///
    /// # Errors
    /// Fails if a tensor is missing or has another shape.
    fn load_layer(
        &self,
        w: &Weights<'_>,
        shared: &Shared<'_>,
        layer_idx: usize,
    ) -> Result<Self::Layer, LoadError>;
}

/// A decoder layer.
pub(super) trait DecoderLayer: fmt::Debug {
    /// Adds the layer's output to the residual stream.
    fn forward(&self, x: Residual, step: &mut Step<'_, '_>) -> Residual;

    /// Returns this rank's part of the inner dimension of the feed-forward block.
    fn inner(&self) -> &Cut;
}

/// The shape of attention heads.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadShape {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

/// Validated sizes of the decoder.
#[derive(Debug)]
pub(super) struct Sizes<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    /// Width of the residual stream.
    pub(super) hidden: usize,
    /// Number of layers of the whole model.
    pub(super) num_layers: usize,
    /// Number of query heads.
    pub(super) heads: usize,
    vocab: usize,
}

/// The settings that the layers of a decoder share.
#[derive(Debug)]
pub(super) struct Shared<'a> {
    pub(super) sizes: Sizes<'a>,
    pub(super) heads: Heads,
    pub(super) parallel: &'a Parallel,
    eps: f32,
}

impl Sizes<'_> {
    fn of<'a>(config: &DecoderConfig, checkpoint: &'a Checkpoint) -> Result<Sizes<'a>, LoadError> {
        Ok(Sizes {
            checkpoint,
            hidden: checkpoint.dimension("hidden_size", config.hidden_size)?,
            num_layers: checkpoint.dimension("num_hidden_layers", config.num_hidden_layers)?,
            heads: checkpoint.dimension("num_attention_heads", config.num_attention_heads)?,
            vocab: checkpoint.dimension("vocab_size", config.vocab_size)?,
        })
    }

    /// Returns a size from `config.json` after checking its bounds.
    ///
    /// # Errors
    /// Fails if the size is out of bounds.
    pub(super) fn dimension(&self, field: &'static str, size: u32) -> Result<usize, LoadError> {
        self.checkpoint.dimension(field, size)
    }
}

impl Shared<'_> {
    /// Loads the norm at `w`, of vectors of `width` elements.
    pub(super) fn norm(&self, w: &Weights<'_>, width: usize) -> Result<RmsNorm, LoadError> {
        RmsNorm::load(w, width, self.eps, self.parallel)
    }
}

/// The network of a family with layers of type `L`.
#[derive(Debug)]
pub(super) struct Decoder<L> {
    embed_tokens: Embedding,
    layers: Stack<L>,
    norm: RmsNorm,
    lm_head: Head,
    hidden_size: usize,
    context_tokens: u32,
    heads: Heads,
}

impl<L: DecoderLayer> Decoder<L> {
    /// Loads the network of the family `F`.
    ///
    /// # Errors
    /// Fails if the configuration or a tensor is invalid.
    pub(super) fn load<F: Family<Layer = L>>(
        w: &Weights<'_>,
        checkpoint: &Checkpoint,
        parallel: &Parallel,
    ) -> Result<Decoder<L>, LoadError> {
        let family_config: F::Config = checkpoint.config()?;
        let config = F::decoder(&family_config);
        check_activation(checkpoint, config.hidden_act.as_deref())?;
        let sizes = Sizes::of(config, checkpoint)?;
        let (hidden, num_layers) = (sizes.hidden, sizes.num_layers);
        let model = w.at("model");
        let family = F::new(&family_config, &sizes)?;
        let HeadShape { heads, kv_heads, head_dim } = family.heads();
        let o_proj = model.at("layers.0.self_attn.o_proj");
        let heads = Heads::new(checkpoint, (heads, kv_heads, head_dim), &o_proj, parallel)?;
        let head = (!is_tied(w, config.tie_word_embeddings)).then(|| w.at("lm_head"));
        let table = model.at("embed_tokens");
        let (embed_tokens, lm_head) =
            vocabulary(&table, head.as_ref(), (sizes.vocab, hidden), parallel)?;
        let shared = Shared { sizes, heads, parallel, eps: config.rms_norm_eps };
        let load = |w: &Weights<'_>, layer_idx| family.load_layer(w, &shared, layer_idx);
        let layers = Stack::load(&model.at("layers"), (num_layers, hidden), parallel, load)?;
        Ok(Decoder {
            embed_tokens,
            layers,
            norm: shared.norm(&model.at("norm"), hidden)?,
            lm_head,
            hidden_size: hidden,
            context_tokens: config.rope.context_tokens(),
            heads: shared.heads,
        })
    }
}

impl<L: DecoderLayer> Network for Decoder<L> {
    fn forward(&self, tokens: &[TokenId], step: &mut Step<'_, '_>) -> Array {
        let embed = || self.embed_tokens.forward(tokens);
        self.layers.forward(tokens.len(), embed, |h, layer| layer.forward(h, step))
    }

    fn norm(&self, h: &Array) -> Array {
        self.norm.forward(h)
    }

    fn head(&self, h: &Array) -> Array {
        self.lm_head.forward(h)
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions {
            num_layers: self.layers.num_layers(),
            layers: self.layers.range(),
            hidden_size: self.hidden_size,
            context_tokens: self.context_tokens,
            heads: self.heads.clone(),
            mlp: self.layers.first().inner().clone(),
            vocab: self.lm_head.rows(&self.embed_tokens),
        }
    }
}

/// Whether head and embedding are one table. If `config.json` does not say so, they are tied if the
/// checkpoint has no table for the head.
fn is_tied(w: &Weights<'_>, stated: Option<bool>) -> bool {
    stated.unwrap_or_else(|| !w.at("lm_head").has("weight"))
}

/// Refuses activations that no supported family has.
fn check_activation(checkpoint: &Checkpoint, hidden_act: Option<&str>) -> Result<(), LoadError> {
    match hidden_act {
        None | Some("silu" | "swish") => Ok(()),
        Some(other) => Err(checkpoint.unsupported("activation", other, &["silu"])),
    }
}
