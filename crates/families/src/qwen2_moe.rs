//! Qwen1.5 and Qwen2 with experts (Yang et al. 2024), and one expert that every token passes, behind a
//! gate of its own.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{ExpertCounts, ExpertNames, ExpertSizes, experts};
use super::decoder::{DecoderConfig, Description};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, parse};
use jackalope_config::rope::RopeScaling;
use jackalope_spec::{AttentionSpec, RouterSpec};

const NAMES: ExpertNames =
    ExpertNames { shared_gate: Some("shared_expert_gate"), ..ExpertNames::QWEN };

/// Base of the rotations in checkpoints that do not state one.
const DEFAULT_ROPE_THETA: f64 = 1e6;

#[derive(Debug, Deserialize)]
struct Config {
    num_key_value_heads: Option<u32>,
    num_experts: u32,
    num_experts_per_tok: u32,
    moe_intermediate_size: u32,
    shared_expert_intermediate_size: u32,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let sizes = config.decoder.sizes()?;
    let head_dim = sizes.head_dim();
    let kv_heads = sizes.kv_heads_or_all(config.num_key_value_heads)?;
    let mut rope = config.decoder.rope.spec(head_dim, Some(DEFAULT_ROPE_THETA))?;
    if matches!(rope.scaling, RopeScaling::Linear { .. }) {
        // mlx-lm accepts this type, but does not apply it.
        rope.scaling = RopeScaling::None;
    }
    let attention = AttentionSpec {
        has_qkv_bias: true,
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    };
    let field = "shared_expert_intermediate_size";
    let counts = ExpertCounts::new("num_experts", config.num_experts, config.num_experts_per_tok)?;
    let inner = dimension("moe_intermediate_size", config.moe_intermediate_size)?;
    let router = RouterSpec::SOFTMAX;
    let spec = ExpertSizes {
        shared_inner: Some(dimension(field, config.shared_expert_intermediate_size)?),
        ..ExpertSizes::plain(counts, inner, router)
    };
    let description = config.decoder.repeated(sizes, &attention, |_, prefix| {
        experts(&format!("{prefix}.mlp"), sizes.hidden, &NAMES, spec)
    });
    Ok(description.with_stored_head())
}
