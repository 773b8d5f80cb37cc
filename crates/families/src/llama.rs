//! Llama 1 to 3.x (Touvron et al. 2023, Grattafiori et al. 2024) and Mistral (Jiang et al. 2023).

use serde::Deserialize;
use serde_json::Value;

use super::blocks::mlp;
use super::decoder::{DecoderConfig, Description, Sizes, pre_norm_layer};
use super::windows::windows;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, parse};
use jackalope_spec::{AttentionSpec, MlpSpec};

/// Base of the rotations in checkpoints that predate the field for it.
const LLAMA1_ROPE_THETA: f64 = 10_000.0;

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    layer_types: Option<Vec<String>>,
    sliding_window: Option<u32>,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    read_with(config, |_, attention| attention)
}

/// Reads a family whose attention differs from Llama's: `change` gets a layer's index.
pub(super) fn read_with(
    config: &Value,
    change: impl Fn(usize, AttentionSpec) -> AttentionSpec,
) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let sizes = config.decoder.sizes()?;
    let head_dim = sizes.head_dim_or(config.head_dim)?;
    let kv_heads = sizes.kv_heads_or_all(config.num_key_value_heads)?;
    let rope = config.decoder.rope.spec(head_dim, Some(LLAMA1_ROPE_THETA))?;
    let attention = AttentionSpec {
        has_qkv_bias: config.attention_bias,
        has_output_bias: config.attention_bias,
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    };
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let windows = layer_windows(&config, sizes)?.into_iter().enumerate();
    let layers = windows.map(|(layer_idx, window)| {
        let spec = MlpSpec { has_bias: config.mlp_bias, ..MlpSpec::plain(inner) };
        let block = mlp(&format!("model.layers.{layer_idx}.mlp"), sizes.hidden, spec);
        let attention = change(layer_idx, AttentionSpec { window, ..attention.clone() });
        pre_norm_layer(layer_idx, sizes.hidden, attention, block)
    });
    let layers = layers.collect();
    Ok(config.decoder.with_layers(sizes, layers))
}

/// Returns the window of each layer. A window without `layer_types` is ignored, as in mlx-lm.
fn layer_windows(config: &Config, sizes: Sizes) -> Result<Vec<Option<usize>>, SpecError> {
    let Some(types) = &config.layer_types else { return Ok(vec![None; sizes.num_layers]) };
    windows(types, config.sliding_window, sizes.num_layers)
}
