//! The second half of a layer with two mixers, and what spans both halves.

use jackalope_spec::{FeedForward, SecondHalf};

use super::feed_forward::{dense, mixture};
use super::mixer::MixerBlock;
use super::parts::LayerParts;
use crate::layers::{BlockFrame, Residual, Shortcut};
use crate::split::Cut;
use crate::step::Step;
use jackalope_cache::LayerCacheShape;
use jackalope_weights::LoadError;

/// The dense blocks of both halves, the experts beside them, and the second mixer.
#[derive(Debug)]
pub(super) struct SecondBlock {
    shortcut: Shortcut,
    mixer_frame: BlockFrame,
    mixer: MixerBlock,
    feed_forward_frame: BlockFrame,
}

impl SecondBlock {
    /// Loads the dense blocks of both halves, the experts, and the second mixer.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(super) fn load(
        second: &SecondHalf,
        parts: &LayerParts<'_, '_>,
    ) -> Result<SecondBlock, LoadError> {
        let FeedForward::Mlp(first) = &parts.spec.feed_forward else {
            panic!("both halves of a layer have dense blocks")
        };
        let blocks = [dense(first, parts)?, dense(&second.mlp, parts)?];
        let experts = mixture(&second.experts, parts)?;
        let own = LayerParts { cache_idx: parts.cache_idx + 1, ..*parts };
        Ok(SecondBlock {
            shortcut: Shortcut::new(blocks, experts, parts.parallel),
            mixer_frame: parts.frame(&second.norms.mixer, 1.0)?,
            mixer: MixerBlock::load(&second.mixer, &own)?.expect("the second half has a mixer"),
            feed_forward_frame: parts.frame(&second.norms.feed_forward, 1.0)?,
        })
    }

    /// Adds all that follows the first mixer to the stream. `frame` is that of the first dense block.
    pub(super) fn add_to(
        &self,
        residual: Residual,
        frame: &BlockFrame,
        step: &mut Step<'_, '_>,
    ) -> Residual {
        let (h, sum) = self.shortcut.begin(residual, frame);
        let h = self.mixer.add_to(h, &self.mixer_frame, step);
        self.shortcut.finish(h, &self.feed_forward_frame, sum)
    }

    /// Returns this rank's part of the inner dimension of a dense block.
    pub(super) fn inner(&self) -> &Cut {
        self.shortcut.inner()
    }

    /// Returns what the second mixer keeps of a sequence on this rank.
    pub(super) fn cache_shape(&self) -> LayerCacheShape {
        self.mixer.cache_shape()
    }
}
