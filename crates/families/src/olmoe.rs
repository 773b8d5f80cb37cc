//! `OLMoE` (Muennighoff et al. 2024): queries and keys are normalised over all heads together.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{ExpertCounts, ExpertNames, ExpertSizes, experts};
use super::decoder::{DecoderConfig, Description};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, parse};
use jackalope_spec::{AttentionSpec, QkNorm, RouterSpec};

/// Base of the rotations in checkpoints that do not state one.
const DEFAULT_ROPE_THETA: f64 = 10_000.0;

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    num_experts: u32,
    num_experts_per_tok: u32,
    #[serde(default)]
    norm_topk_prob: bool,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let sizes = config.decoder.sizes()?;
    let head_dim = sizes.head_dim_or(config.head_dim)?;
    let kv_heads = sizes.kv_heads_or_all(config.num_key_value_heads)?;
    let rope = config.decoder.rope.spec(head_dim, Some(DEFAULT_ROPE_THETA))?;
    let attention = AttentionSpec {
        has_qkv_bias: config.attention_bias,
        has_output_bias: config.attention_bias,
        qk_norm: Some(QkNorm::AllHeads),
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    };
    let normalization_eps = config.norm_topk_prob.then_some(0.0);
    let counts = ExpertCounts::new("num_experts", config.num_experts, config.num_experts_per_tok)?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let router = RouterSpec { normalization_eps, ..RouterSpec::SOFTMAX };
    let spec =
        ExpertSizes { has_bias: config.mlp_bias, ..ExpertSizes::plain(counts, inner, router) };
    Ok(config.decoder.repeated(sizes, &attention, |_, prefix| {
        experts(&format!("{prefix}.mlp"), sizes.hidden, &ExpertNames::QWEN, spec)
    }))
}
