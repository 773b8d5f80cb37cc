//! Mixtral (Jiang et al. 2024). `rope_scaling` is ignored, as in mlx-lm.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{ExpertCounts, ExpertNames, ExpertSizes, experts};
use super::decoder::{DecoderConfig, Description};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, parse};
use jackalope_spec::{AttentionSpec, RouterScores, RouterSpec};

pub(super) const NAMES: ExpertNames =
    ExpertNames { projections: ["w1", "w3", "w2"], ..ExpertNames::QWEN };

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
    let config: Config = parse(config)?;
    let sizes = config.decoder.sizes()?;
    let head_dim = sizes.head_dim();
    let kv_heads = sizes.kv_heads_or_all(config.num_key_value_heads)?;
    let rope = config.decoder.rope.unscaled(head_dim)?;
    let attention = AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope);
    let counts = ExpertCounts::local(config.num_local_experts, config.num_experts_per_tok)?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let router = RouterSpec { scores: RouterScores::SoftmaxOfChosen, ..RouterSpec::SOFTMAX };
    let spec = ExpertSizes::plain(counts, inner, router);
    Ok(config.decoder.repeated(sizes, &attention, |_, prefix| {
        experts(&format!("{prefix}.block_sparse_moe"), sizes.hidden, &NAMES, spec)
    }))
}
