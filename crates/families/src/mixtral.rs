//! Mixtral (Jiang et al. 2024). `rope_scaling` is ignored, as in mlx-lm.

use serde::Deserialize;
use serde_json::{Value, json};

use super::blocks::{ExpertCounts, ExpertNames, ExpertSizes, experts};
use super::decoder::{DecoderConfig, Description};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{defaulted, dimension, parse};
use jackalope_spec::{AttentionSpec, RouterScores, RouterSpec};

pub(super) const NAMES: ExpertNames =
    ExpertNames { projections: ["w1", "w3", "w2"], ..ExpertNames::QWEN };

/// Base of the rotations that are not stated.
const DEFAULT_ROPE_THETA: f64 = 1e6;

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    num_key_value_heads: Option<u32>,
    num_local_experts: u32,
    num_experts_per_tok: u32,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({
        "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_experts_per_tok": 2,
        "num_key_value_heads": 8, "num_local_experts": 8, "rms_norm_eps": 1e-5,
    });
    let config: Config = parse(&defaulted(config, &defaults))?;
    let sizes = config.decoder.sizes()?;
    let head_dim = sizes.head_dim();
    let kv_heads = sizes.kv_heads_or_all(config.num_key_value_heads)?;
    let rope = config.decoder.rope.unscaled_or(head_dim, Some(DEFAULT_ROPE_THETA))?;
    let attention = AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope);
    let counts = ExpertCounts::local(config.num_local_experts, config.num_experts_per_tok)?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let router = RouterSpec { scores: RouterScores::SoftmaxOfChosen, ..RouterSpec::SOFTMAX };
    let spec = ExpertSizes::plain(counts, inner, router);
    Ok(config.decoder.repeated(sizes, &attention, |_, prefix| {
        experts(&format!("{prefix}.block_sparse_moe"), sizes.hidden, &NAMES, spec)
    }))
}
