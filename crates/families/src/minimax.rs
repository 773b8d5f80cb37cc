//! `MiniMax` M2: queries and keys are normalised over all heads together, and rotated in part.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{ExpertCounts, ExpertNames, ExpertSizes, experts};
use super::decoder::{DecoderConfig, Description};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, parse};
use jackalope_spec::{AttentionSpec, QkNorm, RouterScores, RouterSpec};

const NAMES: ExpertNames = ExpertNames {
    projections: ["w1", "w3", "w2"],
    score_bias: Some("e_score_correction_bias"),
    ..ExpertNames::QWEN
};

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    num_key_value_heads: u32,
    head_dim: Option<u32>,
    rotary_dim: u32,
    #[serde(default = "yes")]
    use_qk_norm: bool,
    scoring_func: Option<String>,
    num_local_experts: u32,
    num_experts_per_tok: u32,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

fn yes() -> bool {
    true
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let sizes = config.decoder.sizes()?;
    if let Some(found) = config.scoring_func.clone().filter(|found| found != "sigmoid") {
        return Err(SpecError::Setting { what: "scoring_func", found, supported: &["sigmoid"] });
    }
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    let head_dim = sizes.head_dim_or(config.head_dim)?;
    let rope = config.decoder.rope.unscaled(dimension("rotary_dim", config.rotary_dim)?)?;
    let attention = AttentionSpec {
        qk_norm: config.use_qk_norm.then_some(QkNorm::AllHeads),
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    };
    let counts = ExpertCounts::local(config.num_local_experts, config.num_experts_per_tok)?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let router = RouterSpec {
        scores: RouterScores::Sigmoid,
        normalization_eps: Some(1e-20),
        ..RouterSpec::SOFTMAX
    };
    let spec = ExpertSizes::plain(counts, inner, router);
    Ok(config.decoder.repeated(sizes, &attention, |_, prefix| {
        experts(&format!("{prefix}.block_sparse_moe"), sizes.hidden, &NAMES, spec)
    }))
}
