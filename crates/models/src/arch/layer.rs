//! The decoder layer: a mixer, and a dense block or a mixture of experts, one after the other or beside
//! each other, with norms around them.

use super::feed_forward::FeedForwardBlock;
use super::mixer::MixerBlock;
use super::parts::LayerParts;
use crate::cache::LayerCacheShape;
use crate::error::LoadError;
use crate::layers::{BlockFrame, Heads, Residual};
use crate::split::Cut;
use crate::step::Step;

/// A decoder layer.
#[derive(Debug)]
pub(super) struct DecoderLayer {
    mixer_frame: BlockFrame,
    mixer: MixerBlock,
    feed_forward_frame: BlockFrame,
    feed_forward: FeedForwardBlock,
    /// Whether both blocks read the mixer's norm, and their sum is added to the stream.
    is_parallel: bool,
}

impl DecoderLayer {
    /// Loads a layer.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(super) fn load(parts: &LayerParts<'_, '_>) -> Result<DecoderLayer, LoadError> {
        Ok(DecoderLayer {
            mixer_frame: parts.frame(&parts.spec.norms.mixer)?,
            mixer: MixerBlock::load(parts)?,
            feed_forward_frame: parts.frame(&parts.spec.norms.feed_forward)?,
            feed_forward: FeedForwardBlock::load(parts)?,
            is_parallel: parts.spec.is_parallel,
        })
    }

    /// Adds the layer's output to the residual stream.
    pub(super) fn forward(&self, x: Residual, step: &mut Step<'_, '_>) -> Residual {
        if !self.is_parallel {
            let h = self.mixer.add_to(x, &self.mixer_frame, step);
            return self.feed_forward.add_to(h, &self.feed_forward_frame);
        }
        match (&self.mixer, &self.feed_forward) {
            (MixerBlock::Attention(attention), FeedForwardBlock::Dense(mlp)) => {
                attention.add_beside(mlp, x, &self.mixer_frame, step)
            }
            _ => panic!("only dense blocks are computed beside a mixer, and only beside attention"),
        }
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
