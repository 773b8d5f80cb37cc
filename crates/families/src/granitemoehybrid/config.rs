//! The fields of Granite 4's configurations, and what they say of its mixers.

use crate::decoder::{DecoderConfig, Sizes};
use crate::state_space::{StateSpaceConfig, StateSpaceLayer};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{factor, parse, setting};
use jackalope_config::rope::RopeSpec;
use jackalope_spec::AttentionSpec;
use serde::Deserialize;
use serde_json::Value;

/// Limits of time steps in checkpoints that do not state them, as in mlx-lm.
pub(super) const STEP_LIMITS: [f64; 2] = [0.001, 100.0];

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub(super) layer_types: Vec<String>,
    pub(super) intermediate_size: u32,
    pub(super) num_key_value_heads: u32,
    pub(super) attention_bias: bool,
    pub(super) position_embedding_type: Option<String>,
    pub(super) normalization_function: Option<String>,
    pub(super) num_local_experts: Option<u32>,
    pub(super) num_experts_per_tok: Option<u32>,
    pub(super) shared_intermediate_size: Option<u32>,
    #[serde(default)]
    pub(super) mlp_bias: bool,
    pub(super) logits_scaling: f32,
    pub(super) attention_multiplier: f32,
    pub(super) embedding_multiplier: f32,
    pub(super) residual_multiplier: f32,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

pub(super) fn space(value: &Value, config: &Config) -> Result<StateSpaceLayer, SpecError> {
    let space: StateSpaceConfig = parse(value)?;
    space.layer(config.decoder.rms_norm_eps, STEP_LIMITS)
}

/// Returns attention, whose rotations mlx-lm does not extend.
pub(super) fn gqa(config: &Config, sizes: Sizes) -> Result<AttentionSpec, SpecError> {
    let kind = config.position_embedding_type.as_deref();
    setting("position embedding", kind, &["rope", "nope"])?;
    let head_dim = sizes.head_dim();
    let rope = match kind {
        Some("nope") => RopeSpec::NONE,
        _ => config.decoder.rope.unscaled_or(head_dim, Some(10_000.0))?,
    };
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    Ok(AttentionSpec {
        has_qkv_bias: config.attention_bias,
        has_output_bias: config.attention_bias,
        scale: factor("attention_multiplier", config.attention_multiplier)?,
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    })
}
