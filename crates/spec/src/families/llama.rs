//! Llama 1 to 3.x (Touvron et al. 2023, Grattafiori et al. 2024) and Mistral (Jiang et al. 2023).

use serde::Deserialize;
use serde_json::Value;

use super::blocks::mlp;
use super::decoder::{DecoderConfig, Description, Sizes, pre_norm_layer};
use crate::config::{bad_value, dimension, parse};
use crate::error::SpecError;
use crate::model::{AttentionSpec, MlpSpec};

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
    let windows = windows(&config, sizes)?.into_iter().enumerate();
    let layers = windows.map(|(layer_idx, window)| {
        let spec = MlpSpec { inner, has_bias: config.mlp_bias };
        let block = mlp(&format!("model.layers.{layer_idx}.mlp"), sizes.hidden, spec);
        pre_norm_layer(
            layer_idx,
            sizes.hidden,
            AttentionSpec { window, ..attention.clone() },
            block,
        )
    });
    let layers = layers.collect();
    Ok(config.decoder.with_layers(sizes, layers))
}

/// Returns the window of each layer. A window without `layer_types` is ignored, as in mlx-lm.
fn windows(config: &Config, sizes: Sizes) -> Result<Vec<Option<usize>>, SpecError> {
    let Some(types) = &config.layer_types else { return Ok(vec![None; sizes.num_layers]) };
    if types.len() != sizes.num_layers {
        let expected = format!("{} entries", sizes.num_layers);
        return Err(bad_value("layer_types", types.len(), expected));
    }
    let window = |kind: &String| match kind.as_str() {
        "full_attention" => Ok(None),
        "sliding_attention" => {
            dimension("sliding_window", config.sliding_window.unwrap_or(0)).map(Some)
        }
        other => {
            let supported = &["full_attention", "sliding_attention"];
            let (what, found) = ("layer type", other.to_owned());
            Err(SpecError::Setting { what, found, supported })
        }
    };
    types.iter().map(window).collect()
}
