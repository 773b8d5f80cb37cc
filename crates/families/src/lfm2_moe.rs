//! LFM2 with experts (Liquid AI 2025): dense blocks first, then experts.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{ExpertCounts, ExpertNames, ExpertSizes, experts, mlp};
use super::decoder::Description;
use super::lfm2::describe;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, parse};
use jackalope_config::names::TensorNames;
use jackalope_spec::{MlpSpec, RouterScores, RouterSpec};

/// Epsilon added to the sum of the chosen experts' weights.
const WEIGHTS_EPS: f32 = 1e-6;

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    moe_intermediate_size: u32,
    num_dense_layers: usize,
    num_experts: u32,
    num_experts_per_tok: u32,
    norm_topk_prob: bool,
    use_expert_bias: bool,
    routed_scaling_factor: Option<f32>,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let moe: Config = parse(config)?;
    let dense_inner = dimension("intermediate_size", moe.intermediate_size)?;
    let inner = dimension("moe_intermediate_size", moe.moe_intermediate_size)?;
    let counts = ExpertCounts::new("num_experts", moe.num_experts, moe.num_experts_per_tok)?;
    let router = RouterSpec {
        scores: RouterScores::Sigmoid,
        normalization_eps: moe.norm_topk_prob.then_some(WEIGHTS_EPS),
        scale: moe.routed_scaling_factor.unwrap_or(1.0),
        ..RouterSpec::SOFTMAX
    };
    let sizes = ExpertSizes::plain(counts, inner, router);
    let score_bias = moe.use_expert_bias.then_some("expert_bias");
    let names = ExpertNames { score_bias, ..ExpertNames::QWEN };
    let description = describe(config, |layer_idx, prefix, hidden| {
        let module = format!("{prefix}.feed_forward");
        if layer_idx < moe.num_dense_layers {
            mlp(&module, hidden, MlpSpec::plain(dense_inner))
        } else {
            experts(&module, hidden, &names, sizes)
        }
    })?;
    Ok(description.with_names(TensorNames::LFM2_MOE))
}
