//! Model architectures, one file per family: the fields of `config.json` that it reads, and how a
//! layer is composed of `layers`.

mod decoder;
mod dense;
mod llama;
mod qwen2;
mod qwen3;

use std::ops::Range;

use jackalope_mlx::Array;
use jackalope_protocol::{ARCHITECTURES, TokenId};

use self::decoder::Decoder;
use self::dense::{Dense, DenseFamily};
use crate::checkpoint::Checkpoint;
use crate::error::LoadError;
use crate::layers::Heads;
use crate::parallel::Parallel;
use crate::split::Cut;
use crate::step::Step;
use crate::weights::{LoadCounters, LoadProgress, Loader, Weights};

/// A network that a model file builds.
pub(crate) trait Network: std::fmt::Debug {
    /// Returns the last layer's output for every row of the step, `[tokens, hidden]`; if another
    /// rank has that layer, the activations that are sent on.
    fn forward(&self, tokens: &[TokenId], step: &mut Step<'_, '_>) -> Array;

    /// Applies the final norm to some of these rows, `[n, hidden]`.
    fn norm(&self, h: &Array) -> Array;

    /// Returns f32 logits `[n, vocab]` for normalised rows `[n, hidden]`.
    fn head(&self, h: &Array) -> Array;

    /// Returns the network's sizes on this rank.
    fn dimensions(&self) -> Dimensions;
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

/// Loads the architecture that the checkpoint names.
pub(crate) fn load(
    checkpoint: &Checkpoint,
    parallel: &Parallel,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(Box<dyn Network>, LoadCounters), LoadError> {
    let found = checkpoint.model_type();
    let unsupported =
        || LoadError::UnsupportedArchitecture { found: found.to_owned(), supported: ARCHITECTURES };
    if !ARCHITECTURES.contains(&found) {
        return Err(unsupported());
    }
    let loader = Loader::new(checkpoint, "model.norm.weight", progress)?;
    let w = loader.root();
    let network: Box<dyn Network> = match found {
        "qwen2" => dense::<qwen2::Qwen2>(&w, checkpoint, parallel)?,
        "qwen3" => dense::<qwen3::Qwen3>(&w, checkpoint, parallel)?,
        "llama" | "mistral" => dense::<llama::Llama>(&w, checkpoint, parallel)?,
        _ => return Err(unsupported()),
    };
    let is_tied = !loader.has_taken("lm_head.weight");
    let counters = loader.finish(|name| {
        // Frequencies that old exporters stored, and the second copy of a tied table, are not
        // needed.
        name.ends_with("rotary_emb.inv_freq") || (is_tied && name.starts_with("lm_head."))
    })?;
    Ok((network, counters))
}

fn dense<F: DenseFamily>(
    w: &Weights<'_>,
    checkpoint: &Checkpoint,
    parallel: &Parallel,
) -> Result<Box<dyn Network>, LoadError> {
    Ok(Box::new(Decoder::load::<Dense<F>>(w, checkpoint, parallel)?))
}
