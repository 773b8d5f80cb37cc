//! OLMo 3 (Ai2 2025): norms follow the blocks, queries and keys are normalised over all heads, and
//! three of four layers see a window, whose rotations are not scaled.

use serde::Deserialize;
use serde_json::Value;

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer};
use super::exaone4::POST_NORM;
use super::windows::windows;
use jackalope_config::error::SpecError;
use jackalope_config::fields::parse;
use jackalope_spec::{AttentionSpec, QkNorm};

/// In checkpoints that do not state it, each layer of this number sees all positions.
const GLOBAL_INTERVAL: usize = 4;

#[derive(Debug, Deserialize)]
struct Config {
    sliding_window: u32,
    layer_types: Option<Vec<String>>,
    #[serde(flatten)]
    dense: DenseConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let dense = &config.dense;
    let sizes = dense.decoder.sizes()?;
    let head_dim = dense.head_dim(sizes)?;
    let scaled = dense.decoder.rope.spec(head_dim, None)?;
    let local = dense.decoder.rope.unscaled(head_dim)?;
    let attention =
        AttentionSpec { qk_norm: Some(QkNorm::AllHeads), ..dense.attention(sizes, scaled)? };
    let default = |layer_idx: usize| {
        let is_global = (layer_idx + 1).is_multiple_of(GLOBAL_INTERVAL);
        if is_global { "full_attention" } else { "sliding_attention" }.to_owned()
    };
    let types = config.layer_types.clone();
    let types = types.unwrap_or_else(|| (0..sizes.num_layers).map(default).collect());
    let windows = windows(&types, Some(config.sliding_window), sizes.num_layers)?;
    let mlp = dense.mlp()?;
    let layers = windows.into_iter().enumerate().map(|(layer_idx, window)| {
        let rope = if window.is_some() { local.clone() } else { attention.rope.clone() };
        let attention = AttentionSpec { window, rope, ..attention.clone() };
        DenseLayer::new(POST_NORM, attention, mlp.clone()).at(layer_idx, sizes.hidden)
    });
    let layers = layers.collect();
    Ok(dense.decoder.with_layers(sizes, layers))
}
