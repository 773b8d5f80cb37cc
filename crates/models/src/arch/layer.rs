//! The decoder layer: a mixer, and a dense block or a mixture of experts, one after the other or beside
//! each other, with norms around them.

use std::f32::consts::FRAC_1_SQRT_2;

use jackalope_mlx::Array;

use super::feed_forward::FeedForwardBlock;
use super::mixer::MixerBlock;
use super::parts::LayerParts;
use super::second::SecondBlock;
use super::streams::{LayerStreams, shape};
use crate::layers::{AltUp, Beside, BlockFrame, Heads, LayerInput, Ngrams, Residual, TokenRows};
use crate::split::Cut;
use crate::step::Step;
use jackalope_cache::LayerCacheShape;
use jackalope_spec::LayerSpec;
use jackalope_weights::LoadError;

/// A decoder layer.
#[derive(Debug)]
pub(super) struct DecoderLayer {
    mixer_frame: BlockFrame,
    mixer: Option<MixerBlock>,
    feed_forward_frame: BlockFrame,
    rest: Rest,
    /// Whether both blocks read the mixer's norm, and their sum is added to the stream.
    is_parallel: bool,
    streams: LayerStreams,
    /// What is added to the streams before the blocks.
    ngrams: Option<Box<Ngrams>>,
    /// Whether a block of layers begins here.
    starts_block: bool,
    /// Whether what follows the mixer is computed only for the rows that are needed after the last layer:
    /// this is that layer.
    keeps_needed_rows: bool,
}

/// What follows the mixer.
#[derive(Debug)]
enum Rest {
    /// Nothing, if there is no block.
    FeedForward(Option<FeedForwardBlock>),
    /// In a layer with two mixers.
    Second(Box<SecondBlock>),
}

/// Whether what follows a layer's mixer reads nothing but its own row of the stream.
fn rest_reads_own_rows(spec: &LayerSpec) -> bool {
    let has_altup = matches!(spec.streams, Some(jackalope_spec::LayerStreams::AltUp(_)));
    !spec.is_parallel && spec.second.is_none() && !spec.reads_tokens() && !has_altup
}

impl DecoderLayer {
    /// Loads a layer.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(super) fn load(parts: &LayerParts<'_, '_>) -> Result<DecoderLayer, LoadError> {
        let scale = parts.stream_scale()?;
        let reader = parts.reader(scale)?;
        // The last block scales the stream.
        let scale = if reader.is_some() { 1.0 } else { scale };
        let is_parallel = parts.spec.is_parallel;
        let streams = LayerStreams::load(parts, reader)?;
        let ngrams = parts.spec.ngrams.as_ref().map(|spec| {
            assert!(parts.spec.second.is_none(), "the caches of n-grams follow that of the mixer");
            let cache_idx = parts.cache_idx + 1;
            Ngrams::load(parts.root, spec, shape(parts), cache_idx, parts.parallel).map(Box::new)
        });
        assert!(!is_parallel || scale == 1.0, "no family scales the stream after parallel blocks");
        Ok(DecoderLayer {
            starts_block: parts.spec.residuals.as_ref().is_some_and(|it| !it.mixer.has_current),
            mixer_frame: parts.mixed_frame(&parts.spec.norms.mixer, |it| &it.mixer, 1.0)?,
            mixer: MixerBlock::load(&parts.spec.mixer, parts)?,
            feed_forward_frame: parts.mixed_frame(
                &parts.spec.norms.feed_forward,
                |it| &it.feed_forward,
                scale,
            )?,
            rest: match &parts.spec.second {
                None => Rest::FeedForward(FeedForwardBlock::load(parts)?),
                Some(second) => Rest::Second(Box::new(SecondBlock::load(second, parts)?)),
            },
            is_parallel,
            streams,
            ngrams: ngrams.transpose()?,
            keeps_needed_rows: parts.is_last && rest_reads_own_rows(parts.spec),
        })
    }

    /// Adds the layer's output to the residual stream.
    pub(super) fn forward(
        &self,
        x: Residual,
        Beside { input, tokens }: Beside<'_>,
        step: &mut Step<'_, '_>,
    ) -> Residual {
        let x = if self.starts_block { x.begin_block() } else { x };
        let x = match &self.ngrams {
            Some(ngrams) => {
                let tokens = tokens.expect("a layer with n-grams gets tokens");
                x.replaced(|streams| ngrams.add_to(&streams, tokens, step))
            }
            None => x,
        };
        match (&self.streams, input) {
            (LayerStreams::One(None), _) => self.blocks(x, tokens, step),
            (LayerStreams::One(Some(reader)), Some(input)) => {
                let x = self.blocks(x, tokens, step);
                let LayerInput { rows, first } = input;
                reader.add_to(x, LayerInput { rows: &self.kept_rows(rows, step), first })
            }
            (LayerStreams::AltUp(altup), Some(input)) => {
                x.replaced(|streams| self.update(altup, &streams, input, step))
            }
            (LayerStreams::HyperConnections(connections), _) => x.replaced(|streams| {
                let [of_mixer, of_rest] = &**connections;
                let streams = of_mixer.around(&streams, |h| self.add_mixer(h, step));
                let streams = self.kept_rows(&streams, step);
                of_rest.around(&streams, |h| self.add_rest(h, tokens, step))
            }),
            (LayerStreams::Passing(connections), _) => {
                x.replaced_with_weights(|streams, weights| {
                    let [of_mixer, of_rest] = &**connections;
                    let add = |h| self.add_mixer(h, step);
                    let both = of_mixer.around_with_weights(&streams, &weights, add);
                    let [streams, weights] = both.map(|it| self.kept_rows(&it, step));
                    let add = |h| self.add_rest(h, tokens, step);
                    of_rest.around_with_weights(&streams, &weights, add)
                })
            }
            (LayerStreams::Gated(connections), _) => x.replaced(|streams| {
                let [of_mixer, of_rest] = &**connections;
                let streams = of_mixer.around(&streams, |h| self.add_mixer(h, step));
                let streams = self.kept_rows(&streams, step);
                of_rest.around(&streams, |h| self.add_rest(h, tokens, step))
            }),
            (LayerStreams::One(Some(_)) | LayerStreams::AltUp(_), None) => {
                panic!("a layer that reads inputs gets them")
            }
        }
    }

    /// Returns the streams after the layer, `[tokens, streams * hidden]`.
    fn update(
        &self,
        altup: &AltUp,
        streams: &Array,
        input: LayerInput<'_>,
        step: &mut Step<'_, '_>,
    ) -> Array {
        let norm = self.mixer_frame.input.as_ref().expect("the mixer reads a norm");
        let predicted = altup.predict(streams, norm);
        let h = altup.stream(predicted.active.clone());
        let h = self.add_mixer(h, step);
        // Both residuals have the same weight.
        let h = h.replaced(|h| &h.add(&predicted.laurel) * FRAC_1_SQRT_2);
        let h = self.add_rest(h, None, step).finish();
        altup.correct(&predicted.streams, &h, input)
    }

    fn add_mixer(&self, x: Residual, step: &mut Step<'_, '_>) -> Residual {
        match &self.mixer {
            Some(mixer) => mixer.add_to(x, &self.mixer_frame, step),
            None => x,
        }
    }

    /// Adds what follows the mixer to the stream.
    fn add_rest(
        &self,
        h: Residual,
        tokens: Option<&TokenRows>,
        step: &mut Step<'_, '_>,
    ) -> Residual {
        match &self.rest {
            Rest::FeedForward(Some(block)) => block.add_to(h, &self.feed_forward_frame, tokens),
            Rest::FeedForward(None) => h,
            Rest::Second(second) => second.add_to(h, &self.feed_forward_frame, step),
        }
    }

    fn blocks(&self, x: Residual, tokens: Option<&TokenRows>, step: &mut Step<'_, '_>) -> Residual {
        if !self.is_parallel {
            let h = self.add_mixer(x, step);
            let h = if self.keeps_needed_rows { h.rows(|x| step.needed_rows(x)) } else { h };
            return self.add_rest(h, tokens, step);
        }
        match (&self.mixer, &self.rest) {
            (
                Some(MixerBlock::Attention(attention)),
                Rest::FeedForward(Some(FeedForwardBlock::Dense(mlp))),
            ) => attention.add_beside(mlp, x, &self.mixer_frame, step),
            _ => panic!("only dense blocks are computed beside a mixer, and only beside attention"),
        }
    }

    /// Returns the rows of `x` that are computed after the mixer.
    fn kept_rows(&self, x: &Array, step: &Step<'_, '_>) -> Array {
        if self.keeps_needed_rows { step.needed_rows(x) } else { x.clone() }
    }

    /// Whether the layer's output has only the rows that are needed after the last layer.
    pub(super) fn keeps_needed_rows(&self) -> bool {
        self.keeps_needed_rows
    }

    /// Returns this rank's part of the inner dimension of the feed-forward block; `None` if there is
    /// no such block.
    pub(super) fn inner(&self) -> Option<&Cut> {
        match &self.rest {
            Rest::FeedForward(block) => block.as_ref().map(FeedForwardBlock::inner),
            Rest::Second(second) => Some(second.inner()),
        }
    }

    /// Returns what each mixer of the layer keeps of a sequence on this rank, then what n-grams do; a
    /// layer without a mixer keeps nothing.
    pub(super) fn cache_shapes(&self) -> impl Iterator<Item = LayerCacheShape> {
        let first = self.mixer.as_ref().map_or(LayerCacheShape::None, MixerBlock::cache_shape);
        let second = match &self.rest {
            Rest::FeedForward(_) => None,
            Rest::Second(second) => Some(second.cache_shape()),
        };
        let ngrams = self.ngrams.iter().flat_map(|ngrams| ngrams.cache_shapes());
        std::iter::once(first).chain(second).chain(ngrams)
    }

    /// Returns this rank's heads of the mixer; `None` if there is none.
    pub(super) fn heads(&self) -> Option<&Heads> {
        self.mixer.as_ref().map(MixerBlock::heads)
    }

    /// Whether the mixer is attention.
    pub(super) fn has_attention(&self) -> bool {
        self.mixer.as_ref().is_some_and(MixerBlock::is_attention)
    }
}
