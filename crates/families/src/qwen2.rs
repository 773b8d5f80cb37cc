//! Qwen2 and Qwen2.5, dense (Yang et al. 2024): biases on queries, keys and values. Sliding windows
//! are ignored, as in mlx-lm; no published checkpoint uses them.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::mlp;
use super::decoder::{DecoderConfig, Description};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, parse};
use jackalope_spec::{AttentionSpec, MlpSpec};

/// Base of the rotations that are not stated.
const DEFAULT_ROPE_THETA: f64 = 1e6;

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    num_key_value_heads: u32,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let sizes = config.decoder.sizes()?;
    let head_dim = sizes.head_dim();
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    let rope = config.decoder.rope.spec(head_dim, Some(DEFAULT_ROPE_THETA))?;
    let attention = AttentionSpec {
        has_qkv_bias: true,
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    };
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    Ok(config.decoder.repeated(sizes, &attention, |_, prefix| {
        mlp(&format!("{prefix}.mlp"), sizes.hidden, MlpSpec::plain(inner))
    }))
}
