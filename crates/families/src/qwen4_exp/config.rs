//! The fields of Qwen4's configurations, and what they say of a layer.

mod attention;
mod tables;

use serde::Deserialize;

use crate::blocks::{ExpertCounts, ExpertSizes};
use crate::decoder::DecoderConfig;
use crate::gated_delta::GatedDeltaConfig;
use crate::gates::GateSizes;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, count, dimension, setting};
use jackalope_spec::RouterSpec;

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    num_key_value_heads: u32,
    head_dim: Option<u32>,
    #[serde(default)]
    attention_bias: bool,
    layer_types: Option<Vec<String>>,
    full_attention_interval: Option<u32>,
    output_gate_type: Option<String>,
    num_experts: u32,
    num_experts_per_tok: u32,
    moe_intermediate_size: u32,
    shared_expert_intermediate_size: u32,
    norm_topk_prob: Option<bool>,
    hc_count: Option<u32>,
    hc_lowrank: Option<u32>,
    indexer_n_heads: Option<u32>,
    indexer_kv_heads: Option<u32>,
    indexer_head_dim: Option<u32>,
    indexer_budget: Option<u32>,
    indexer_compress_ratio: Option<u32>,
    #[serde(flatten)]
    tables: tables::TableConfig,
    #[serde(flatten)]
    pub(super) delta: GatedDeltaConfig,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

const KINDS: &[&str] = &["linear_attention", "full_attention", "qwen_sparse_attention"];

impl Config {
    /// Returns which layers attend.
    pub(super) fn attend(&self, num_layers: usize) -> Result<Vec<bool>, SpecError> {
        let Some(types) = &self.layer_types else {
            let field = "full_attention_interval";
            let interval = count(field, self.full_attention_interval.unwrap_or(4))?;
            return Ok((1..=num_layers).map(|number| number.is_multiple_of(interval)).collect());
        };
        if types.len() != num_layers {
            let expected = format!("{num_layers} entries");
            return Err(bad_value("layer_types", types.len(), expected));
        }
        let attends = |kind: &String| {
            setting("layer type", Some(kind), KINDS)?;
            Ok(kind != KINDS[0])
        };
        types.iter().map(attends).collect()
    }

    /// Whether the gates of delta nets are logistic functions.
    pub(super) fn has_logistic_gates(&self) -> Result<bool, SpecError> {
        let gate = self.output_gate_type.as_deref();
        setting("gate of delta nets", gate, &["sigmoid", "silu"])?;
        Ok(gate != Some("silu"))
    }

    /// Returns the sizes of the streams and their gates.
    pub(super) fn gates(&self, hidden: usize) -> Result<GateSizes, SpecError> {
        let num_streams = count("hc_count", self.hc_count.unwrap_or(4))?;
        if num_streams < 2 {
            return Err(bad_value("hc_count", num_streams, "at least 2"));
        }
        let rank = dimension("hc_lowrank", self.hc_lowrank.unwrap_or(320))?;
        Ok(GateSizes { num_streams, hidden, rank })
    }

    /// Returns the experts of all layers.
    pub(super) fn experts(&self) -> Result<ExpertSizes, SpecError> {
        let counts = ExpertCounts::new("num_experts", self.num_experts, self.num_experts_per_tok)?;
        let inner = dimension("moe_intermediate_size", self.moe_intermediate_size)?;
        let normalization_eps = self.norm_topk_prob.unwrap_or(true).then_some(0.0);
        let router = RouterSpec { normalization_eps, ..RouterSpec::SOFTMAX };
        let field = "shared_expert_intermediate_size";
        let shared_inner = Some(dimension(field, self.shared_expert_intermediate_size)?);
        Ok(ExpertSizes { shared_inner, ..ExpertSizes::plain(counts, inner, router) })
    }
}
