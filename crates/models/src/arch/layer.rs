//! The decoder layer: a mixer, then a dense block or a mixture of experts, each after a norm.

use super::feed_forward::FeedForwardBlock;
use super::mixer::MixerBlock;
use super::parts::LayerParts;
use crate::cache::LayerCacheShape;
use crate::error::LoadError;
use crate::layers::{Heads, Residual, RmsNorm};
use crate::split::Cut;
use crate::step::Step;
use crate::weights::Weights;

/// A decoder layer.
#[derive(Debug)]
pub(super) struct DecoderLayer {
    input_layernorm: RmsNorm,
    mixer: MixerBlock,
    post_attention_layernorm: RmsNorm,
    feed_forward: FeedForwardBlock,
}

impl DecoderLayer {
    /// Loads the layer whose tensors are at `w`.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(super) fn load(
        w: &Weights<'_>,
        parts: &LayerParts<'_, '_>,
    ) -> Result<DecoderLayer, LoadError> {
        let hidden = parts.model.hidden_size;
        Ok(DecoderLayer {
            input_layernorm: parts.norm(&w.at("input_layernorm"), hidden)?,
            mixer: MixerBlock::load(w, parts)?,
            post_attention_layernorm: parts.norm(&w.at("post_attention_layernorm"), hidden)?,
            feed_forward: FeedForwardBlock::load(w, parts)?,
        })
    }

    /// Adds the layer's output to the residual stream.
    pub(super) fn forward(&self, x: Residual, step: &mut Step<'_, '_>) -> Residual {
        let h = self.mixer.add_to(x, &self.input_layernorm, step);
        self.feed_forward.add_to(h, &self.post_attention_layernorm)
    }

    /// Returns this rank's part of the inner dimension of the feed-forward block.
    pub(super) fn inner(&self) -> &Cut {
        self.feed_forward.inner()
    }

    /// Returns what the layer keeps of a sequence on this rank.
    pub(super) fn cache_shape(&self) -> LayerCacheShape {
        self.mixer.cache_shape()
    }

    /// Returns this rank's heads of the mixer.
    pub(super) fn heads(&self) -> &Heads {
        self.mixer.heads()
    }

    /// Whether the mixer is attention.
    pub(super) fn has_attention(&self) -> bool {
        self.mixer.is_attention()
    }
}
