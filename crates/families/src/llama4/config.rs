//! The fields of Llama 4's configurations, and what they say of attention.

use crate::decoder::DecoderConfig;
use jackalope_config::error::SpecError;
use jackalope_config::fields::dimension;
use jackalope_config::rope::QueryGrowth;
use jackalope_spec::{AttentionSpec, QkNorm};
use serde::Deserialize;
use serde_json::Value;

/// Every layer of this number sees all positions.
pub(super) const GLOBAL_INTERVAL: usize = 4;

/// Epsilon of the norms of queries and keys, added to the mean of their squares.
pub(super) const QK_EPS: f32 = 1e-6;

#[derive(Debug, Deserialize)]
pub(super) struct Wrapper {
    pub(super) text_config: Value,
}

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    #[serde(default)]
    pub(super) attention_bias: bool,
    pub(super) attention_chunk_size: u32,
    pub(super) head_dim: Option<u32>,
    pub(super) interleave_moe_layer_step: u32,
    pub(super) intermediate_size: u32,
    pub(super) intermediate_size_mlp: u32,
    pub(super) num_key_value_heads: u32,
    pub(super) num_local_experts: u32,
    pub(super) num_experts_per_tok: u32,
    pub(super) use_qk_norm: bool,
    pub(super) attn_temperature_tuning: Option<Switch>,
    pub(super) floor_scale: Option<f64>,
    pub(super) attn_scale: Option<f32>,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

/// A switch that older checkpoints state as a number.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected true, false or a number")]
pub(super) enum Switch {
    Flag(bool),
    Number(f64),
}

pub(super) fn attention(config: &Config, layer_idx: usize) -> Result<AttentionSpec, SpecError> {
    let sizes = config.decoder.sizes()?;
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    let head_dim = sizes.head_dim_or(config.head_dim)?;
    let rope = config.decoder.rope.spec(head_dim, None)?.with_pairs(true);
    let bias = config.attention_bias;
    let local = AttentionSpec {
        has_qkv_bias: bias,
        has_output_bias: bias,
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    };
    if !(layer_idx + 1).is_multiple_of(GLOBAL_INTERVAL) {
        let chunk = Some(dimension("attention_chunk_size", config.attention_chunk_size)?);
        let qk_norm = config.use_qk_norm.then_some(QkNorm::RotatedUnweighted { eps: QK_EPS });
        return Ok(AttentionSpec { chunk, qk_norm, ..local });
    }
    let is_growing = match config.attn_temperature_tuning {
        None => true,
        Some(Switch::Flag(flag)) => flag,
        Some(Switch::Number(number)) => number != 0.0,
    };
    let period = dimension("floor_scale", config.floor_scale.unwrap_or(8192.0) as u32)?;
    let beta = config.attn_scale.unwrap_or(0.1);
    let query_growth = is_growing.then_some(QueryGrowth { beta, period, offset: 1 });
    let mut global = AttentionSpec { query_growth, ..local };
    global.rope.dims = 0;
    Ok(global)
}
