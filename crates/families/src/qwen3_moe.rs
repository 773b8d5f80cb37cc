//! Qwen3 with experts (Yang et al. 2025): the attention of Qwen3, and experts instead of the dense
//! block of most layers. `rope_scaling` is ignored, as in mlx-lm.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{ExpertCounts, ExpertNames, ExpertSizes, experts, mlp};
use super::decoder::{DecoderConfig, Description};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{count, dimension, parse};
use jackalope_spec::{AttentionSpec, MlpSpec, QkNorm, RouterSpec};

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    num_key_value_heads: u32,
    head_dim: u32,
    num_experts: u32,
    num_experts_per_tok: u32,
    moe_intermediate_size: u32,
    decoder_sparse_step: u32,
    mlp_only_layers: Vec<usize>,
    norm_topk_prob: bool,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    read_with(config, &ExpertNames::QWEN)
}

/// Reads a family whose experts have other names.
pub(super) fn read_with(config: &Value, names: &ExpertNames) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let sizes = config.decoder.sizes()?;
    let head_dim = dimension("head_dim", config.head_dim)?;
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    let rope = config.decoder.rope.unscaled(head_dim)?;
    let attention = AttentionSpec {
        qk_norm: Some(QkNorm::PerHead),
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    };
    let dense = MlpSpec::plain(dimension("intermediate_size", config.intermediate_size)?);
    let normalization_eps = config.norm_topk_prob.then_some(0.0);
    let counts = ExpertCounts::new("num_experts", config.num_experts, config.num_experts_per_tok)?;
    let inner = dimension("moe_intermediate_size", config.moe_intermediate_size)?;
    let router = RouterSpec { normalization_eps, ..RouterSpec::SOFTMAX };
    let sparse = ExpertSizes::plain(counts, inner, router);
    let step = count("decoder_sparse_step", config.decoder_sparse_step)?;
    Ok(config.decoder.repeated(sizes, &attention, |layer_idx, prefix| {
        let module = format!("{prefix}.mlp");
        if !config.mlp_only_layers.contains(&layer_idx) && (layer_idx + 1).is_multiple_of(step) {
            experts(&module, sizes.hidden, names, sparse)
        } else {
            mlp(&module, sizes.hidden, dense.clone())
        }
    }))
}
