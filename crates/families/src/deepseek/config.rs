//! The fields of DeepSeek's configurations, and what they say of a layer.

use serde::Deserialize;

use super::variants::Variant;
use crate::blocks::{ExpertCounts, ExpertSizes, router_groups};
use crate::decoder::{DecoderConfig, Sizes};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, count, dimension, setting};
use jackalope_config::rope::QueryGrowth;
use jackalope_spec::{LatentSpec, RouterGroups, RouterScores, RouterSpec};

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub(super) intermediate_size: u32,
    kv_lora_rank: u32,
    q_lora_rank: Option<u32>,
    qk_nope_head_dim: u32,
    qk_rope_head_dim: u32,
    v_head_dim: u32,
    #[serde(default)]
    attention_bias: bool,
    rope_interleave: Option<bool>,
    pub(super) moe_intermediate_size: Option<u32>,
    pub(super) n_routed_experts: Option<u32>,
    n_shared_experts: Option<u32>,
    pub(super) num_experts_per_tok: Option<u32>,
    pub(super) moe_layer_freq: Option<u32>,
    #[serde(default)]
    pub(super) first_k_dense_replace: usize,
    n_group: Option<u32>,
    topk_group: Option<u32>,
    pub(super) norm_topk_prob: Option<bool>,
    pub(super) routed_scaling_factor: Option<f32>,
    topk_method: Option<String>,
    scoring_func: Option<String>,
    pub(super) num_nextn_predict_layers: Option<usize>,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

impl Config {
    pub(super) fn latent(
        &self,
        sizes: &Sizes,
        variant: &Variant,
        growth: Option<QueryGrowth>,
    ) -> Result<LatentSpec, SpecError> {
        let nope_dim = dimension("qk_nope_head_dim", self.qk_nope_head_dim)?;
        let rope_dim = dimension("qk_rope_head_dim", self.qk_rope_head_dim)?;
        let rope = self.decoder.rope.spec(rope_dim, Some(variant.default_theta))?;
        // Only Mistral 4's rotations may differ.
        let (is_traditional, score_factor) = if growth.is_some() {
            let is_traditional = self.rope_interleave.unwrap_or(true);
            (is_traditional, self.decoder.rope.score_factor_of_extension())
        } else {
            (true, self.decoder.rope.score_factor())
        };
        Ok(LatentSpec {
            heads: sizes.heads,
            nope_dim,
            rope_dim,
            value_dim: dimension("v_head_dim", self.v_head_dim)?,
            kv_rank: dimension("kv_lora_rank", self.kv_lora_rank)?,
            q_rank: self.q_lora_rank.map(|rank| dimension("q_lora_rank", rank)).transpose()?,
            has_bias: self.attention_bias,
            norm_eps: variant.norm_eps.unwrap_or(self.decoder.rms_norm_eps),
            scale: score_factor / ((nope_dim + rope_dim) as f64).sqrt(),
            latent_factor: 1.0,
            rope: Some(rope.with_pairs(is_traditional)),
            query_growth: growth,
            may_join_down: false,
            choice: None,
            gate_width: None,
            module: String::new(),
            output: "o_proj".to_owned(),
        })
    }

    /// Returns the experts; `None` if all layers are dense.
    pub(super) fn experts(&self, variant: &Variant) -> Result<Option<ExpertSizes>, SpecError> {
        let Some(num_experts) = self.n_routed_experts else { return Ok(None) };
        let chosen = self.num_experts_per_tok.unwrap_or(0);
        let counts = ExpertCounts::new("n_routed_experts", num_experts, chosen)?;
        let inner = dimension("moe_intermediate_size", self.moe_intermediate_size.unwrap_or(0))?;
        let shared = self.n_shared_experts.map(|number| count("n_shared_experts", number));
        let shared_inner = shared.transpose()?.map(|number| inner * number);
        let router = self.router(variant, counts.num_experts)?;
        Ok(Some(ExpertSizes { shared_inner, ..ExpertSizes::plain(counts, inner, router) }))
    }

    fn router(&self, variant: &Variant, num_experts: usize) -> Result<RouterSpec, SpecError> {
        if let (Some(supported), Some(found)) = (variant.scoring, &self.scoring_func)
            && found != supported
        {
            return Err(bad_value("scoring_func", found, supported));
        }
        setting("expert choice", self.topk_method.as_deref(), variant.methods)?;
        if variant.normalization_eps.is_none() && self.norm_topk_prob == Some(true) {
            return Err(bad_value("norm_topk_prob", true, "false for this architecture"));
        }
        // One expert's weight is not divided by itself, except in Mistral 4.
        let is_normalized = self.norm_topk_prob.unwrap_or(true)
            && (1 < self.num_experts_per_tok.unwrap_or(0) || variant.scoring.is_none());
        let is_greedy = matches!(self.topk_method.as_deref(), None | Some("greedy"));
        let has_choice = !(variant.scoring == Some("softmax") && is_greedy);
        let groups = router_groups("n_group", self.n_group, self.topk_group, num_experts)?;
        let best = variant.group_best;
        Ok(RouterSpec {
            scores: match variant.scoring {
                Some("sigmoid") => RouterScores::Sigmoid,
                _ => RouterScores::Softmax,
            },
            groups: groups.filter(|_| has_choice).map(|it| RouterGroups { best, ..it }),
            normalization_eps: variant.normalization_eps.filter(|_| is_normalized),
            scale: self.routed_scaling_factor.unwrap_or(1.0),
            ..RouterSpec::SOFTMAX
        })
    }
}
