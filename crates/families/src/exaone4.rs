//! EXAONE 4 (LG AI 2025): norms follow the blocks; most layers see a window, the others all positions
//! without a rotation.

use serde::Deserialize;
use serde_json::Value;

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer, LayerModules};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension, parse};
use jackalope_spec::{AttentionSpec, QkNorm};

/// Modules whose norms follow the blocks.
pub(super) const POST_NORM: LayerModules = LayerModules {
    norms: [None, Some("post_attention_layernorm"), None, Some("post_feedforward_layernorm")],
    ..LayerModules::LLAMA
};

#[derive(Debug, Deserialize)]
struct Config {
    sliding_window: Option<u32>,
    /// `L` for each layer with a window and `G` for the others, repeated over all layers.
    sliding_window_pattern: Option<String>,
    #[serde(flatten)]
    dense: DenseConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let dense = &config.dense;
    let sizes = dense.decoder.sizes()?;
    let rope = dense.decoder.rope.spec(dense.head_dim(sizes)?, None)?;
    let attention = AttentionSpec {
        has_qkv_bias: false,
        has_output_bias: false,
        qk_norm: Some(QkNorm::PerHead),
        ..dense.attention(sizes, rope)?
    };
    let mlp = dense.mlp()?;
    let pattern = config.sliding_window_pattern.as_deref().unwrap_or_default().as_bytes();
    if let Some(other) = pattern.iter().find(|kind| !matches!(kind, b'L' | b'G')) {
        let expected = "letters L and G";
        return Err(bad_value("sliding_window_pattern", char::from(*other), expected));
    }
    let mut layers = Vec::with_capacity(sizes.num_layers);
    for layer_idx in 0..sizes.num_layers {
        let mut attention = attention.clone();
        match pattern.get(layer_idx % pattern.len().max(1)) {
            None => {}
            Some(b'L') => {
                let window = config.sliding_window.unwrap_or(0);
                attention.window = Some(dimension("sliding_window", window)?);
            }
            Some(_) => attention.rope.dims = 0,
        }
        let layer = DenseLayer::new(POST_NORM, attention, mlp.clone());
        layers.push(layer.at(layer_idx, sizes.hidden));
    }
    Ok(dense.decoder.with_layers(sizes, layers))
}
