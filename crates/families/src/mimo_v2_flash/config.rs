//! The fields of MiMo-V2-Flash's configurations, and what they say of a layer.

use crate::blocks::router_groups;
use crate::decoder::DecoderConfig;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension, factor};
use jackalope_spec::{AttentionSpec, RouterScores, RouterSpec};
use serde::Deserialize;

/// Epsilon added to the sum of the chosen experts' weights.
pub(super) const WEIGHTS_EPS: f32 = 1e-20;

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub(super) intermediate_size: u32,
    /// 1 for layers with windows, 0 for the others.
    pub(super) hybrid_layer_pattern: Vec<u8>,
    /// 1 for layers with experts, 0 for the others.
    pub(super) moe_layer_freq: Vec<u8>,
    pub(super) add_swa_attention_sink_bias: Option<bool>,
    pub(super) add_full_attention_sink_bias: Option<bool>,
    pub(super) sliding_window_size: u32,
    pub(super) num_key_value_heads: u32,
    pub(super) head_dim: u32,
    pub(super) v_head_dim: u32,
    pub(super) swa_rope_theta: f64,
    pub(super) swa_num_attention_heads: u32,
    pub(super) swa_num_key_value_heads: u32,
    pub(super) swa_head_dim: u32,
    pub(super) swa_v_head_dim: u32,
    pub(super) attention_value_scale: Option<f32>,
    #[serde(default)]
    pub(super) attention_bias: bool,
    pub(super) moe_intermediate_size: u32,
    pub(super) n_shared_experts: Option<u32>,
    pub(super) n_routed_experts: u32,
    pub(super) num_experts_per_tok: u32,
    pub(super) routed_scaling_factor: Option<f32>,
    pub(super) topk_method: String,
    pub(super) scoring_func: String,
    pub(super) norm_topk_prob: bool,
    pub(super) n_group: u32,
    pub(super) topk_group: u32,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

pub(super) fn attention(config: &Config, has_window: bool) -> Result<AttentionSpec, SpecError> {
    let sizes = config.decoder.sizes()?;
    let [heads, kv_heads, head_dim, value_dim] = if has_window {
        [
            dimension("swa_num_attention_heads", config.swa_num_attention_heads)?,
            dimension("swa_num_key_value_heads", config.swa_num_key_value_heads)?,
            dimension("swa_head_dim", config.swa_head_dim)?,
            dimension("swa_v_head_dim", config.swa_v_head_dim)?,
        ]
    } else {
        [
            sizes.heads,
            dimension("num_key_value_heads", config.num_key_value_heads)?,
            dimension("head_dim", config.head_dim)?,
            dimension("v_head_dim", config.v_head_dim)?,
        ]
    };
    if !heads.is_multiple_of(kv_heads) {
        let field = if has_window { "swa_num_key_value_heads" } else { "num_key_value_heads" };
        return Err(bad_value(field, kv_heads, format!("a divisor of {heads} heads")));
    }
    let has_sinks = if has_window {
        config.add_swa_attention_sink_bias
    } else {
        config.add_full_attention_sink_bias
    };
    let own = &config.decoder.rope;
    let base = has_window.then(|| own.with_base(config.swa_rope_theta, None));
    let rope = base.as_ref().unwrap_or(own);
    let rope = rope.spec(rope.rotated_dims(head_dim, None)?, None)?;
    let window = has_window.then(|| dimension("sliding_window_size", config.sliding_window_size));
    let scale = config.attention_value_scale;
    Ok(AttentionSpec {
        value_dim,
        value_scale: scale.map_or(Ok(1.0), |scale| factor("attention_value_scale", scale))?,
        sinks: has_sinks.unwrap_or(false).then_some("attention_sink_bias"),
        window: window.transpose()?,
        ..AttentionSpec::plain(heads, kv_heads, head_dim, rope)
    })
}

pub(super) fn router(config: &Config, num_experts: usize) -> Result<RouterSpec, SpecError> {
    let (field, groups) = ("n_group", Some(config.n_group));
    let is_normalized = config.norm_topk_prob && 1 < config.num_experts_per_tok;
    Ok(RouterSpec {
        scores: RouterScores::Sigmoid,
        groups: router_groups(field, groups, Some(config.topk_group), num_experts)?,
        normalization_eps: is_normalized.then_some(WEIGHTS_EPS),
        scale: config.routed_scaling_factor.unwrap_or(1.0),
        ..RouterSpec::SOFTMAX
    })
}
