//! Networks: how a model's layers are composed of `layers`, as its description says.

mod decoder;
mod feed_forward;
mod layer;
mod mixer;
mod parts;
mod pooled;
mod second;
mod streams;

use std::ops::Range;

use jackalope_mlx::Array;

use self::decoder::Decoder;
use crate::layers::Heads;
use crate::split::Cut;
use crate::step::{Step, StepTokens};
use jackalope_cache::LayerCacheShape;
use jackalope_parallel::Parallel;
use jackalope_weights::LoadError;
use jackalope_weights::checkpoint::Checkpoint;
use jackalope_weights::{LoadCounters, LoadProgress, Loader};

/// A network that a model file builds.
pub(crate) trait Network: std::fmt::Debug {
    /// Returns the last layer's output for the rows of the step that are needed, `[needed, hidden]`; if
    /// another rank has that layer, the activations of all rows, which are sent on.
    fn forward(&self, tokens: StepTokens<'_>, step: &mut Step<'_, '_>) -> Array;

    /// Applies the final norm to some of these rows, `[n, hidden]`.
    fn norm(&self, h: &Array) -> Array;

    /// Returns f32 logits `[n, vocab]` for normalised rows `[n, hidden]`.
    fn head(&self, h: &Array) -> Array;

    /// Returns the network's sizes on this rank.
    fn dimensions(&self) -> Dimensions;

    /// Returns what each mixer of this rank keeps of a sequence.
    fn cache_shapes(&self) -> Vec<LayerCacheShape>;
}

/// The sizes of a network, of the whole model and of this rank.
#[derive(Clone, Debug)]
pub(crate) struct Dimensions {
    pub(crate) num_layers: usize,
    /// Layers of this rank.
    pub(crate) layers: Range<usize>,
    pub(crate) hidden_size: usize,
    pub(crate) context_tokens: u32,
    pub(crate) heads: Heads,
    pub(crate) mlp: Cut,
    pub(crate) vocab: Cut,
}

/// Loads this rank's part of the network that the checkpoint describes.
pub(crate) fn load(
    checkpoint: &Checkpoint,
    parallel: &Parallel,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(Box<dyn Network>, LoadCounters), LoadError> {
    let shard = parallel.shard(&checkpoint.layout)?;
    let loader = Loader::new(checkpoint, shard.weights_bytes, progress);
    let network = Decoder::load(&loader.root(), checkpoint, parallel)?;
    Ok((Box::new(network), loader.finish()))
}
