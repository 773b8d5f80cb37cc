//! The fields of GLM-4.5's configurations, and what they say of a layer.

use crate::blocks::router_groups;
use crate::decoder::DecoderConfig;
use jackalope_config::error::SpecError;
use jackalope_config::rope::RopeSpec;
use jackalope_spec::{AttentionSpec, QkNorm, RouterScores, RouterSpec};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub(super) intermediate_size: u32,
    pub(super) num_key_value_heads: u32,
    pub(super) head_dim: Option<u32>,
    #[serde(default)]
    pub(super) attention_bias: bool,
    #[serde(default)]
    pub(super) use_qk_norm: bool,
    pub(super) moe_intermediate_size: u32,
    pub(super) n_routed_experts: u32,
    pub(super) n_shared_experts: Option<u32>,
    pub(super) num_experts_per_tok: u32,
    pub(super) first_k_dense_replace: usize,
    pub(super) norm_topk_prob: bool,
    pub(super) routed_scaling_factor: f32,
    pub(super) n_group: Option<u32>,
    pub(super) topk_group: Option<u32>,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

pub(super) fn attention(
    config: &Config,
    qk_norm: Option<QkNorm>,
    has_qkv_bias: bool,
    rope: RopeSpec,
) -> Result<AttentionSpec, SpecError> {
    let sizes = config.decoder.sizes()?;
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    let head_dim = sizes.head_dim_or(config.head_dim)?;
    Ok(AttentionSpec {
        has_qkv_bias,
        qk_norm,
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    })
}

/// Returns the router: the logistic function, of groups of experts if there are several.
pub(super) fn router(config: &Config, num_experts: usize) -> Result<RouterSpec, SpecError> {
    let is_normalized = config.norm_topk_prob && 1 < config.num_experts_per_tok;
    Ok(RouterSpec {
        scores: RouterScores::Sigmoid,
        groups: router_groups("n_group", config.n_group, config.topk_group, num_experts)?,
        normalization_eps: is_normalized.then_some(0.0),
        scale: config.routed_scaling_factor,
        ..RouterSpec::SOFTMAX
    })
}
