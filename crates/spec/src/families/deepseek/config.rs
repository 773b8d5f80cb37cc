//! The fields of DeepSeek's configurations, and what they say of a layer.

use serde::Deserialize;
use serde_json::Value;

use crate::config::{bad_value, count, dimension, parse, setting};
use crate::error::SpecError;
use crate::families::blocks::{ExpertCounts, ExpertSizes, FusedNames};
use crate::families::decoder::{DecoderConfig, Sizes};
use crate::families::latent::ExpansionForm;
use crate::latent::LatentSpec;
use crate::model::{RouterGroups, RouterScores, RouterSpec};
use crate::rope::{QueryGrowth, RopeSpec};

/// What differs between the families.
pub(super) struct Variant {
    /// `scoring_func`; the field is ignored if there is none.
    pub(super) scoring: Option<&'static str>,
    /// Known values of `topk_method`; it is ignored if there are none.
    pub(super) methods: &'static [&'static str],
    /// Number of a group's best scores whose sum ranks the group.
    pub(super) group_best: usize,
    pub(super) has_score_bias: bool,
    /// Epsilon added to the sum by which weights are divided; `None` if they are not divided.
    pub(super) normalization_eps: Option<f32>,
    /// Epsilon of the norms of low-rank vectors; `None` if it is that of all norms.
    pub(super) norm_eps: Option<f32>,
    pub(super) form: ExpansionForm,
    pub(super) default_theta: f64,
    /// How original checkpoints may fuse gate and up of all experts.
    pub(super) fused: &'static [FusedNames],
    /// Whether the pairs of elements that an indexer rotates are neighbours, if that is not stated;
    /// `None` if there is no indexer.
    pub(super) indexer: Option<bool>,
}

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

/// The fields of Mistral 4 that do not concern the rotation.
#[derive(Deserialize)]
struct Growth {
    rope_parameters: Parameters,
}

#[derive(Deserialize)]
struct Parameters {
    llama_4_scaling_beta: f32,
    original_max_position_embeddings: u32,
}

/// Returns how Mistral 4's queries grow with their position.
pub(super) fn growth(config: &Value) -> Result<QueryGrowth, SpecError> {
    let Growth { rope_parameters: parameters } = parse(config)?;
    let field = "rope_parameters.original_max_position_embeddings";
    let period = dimension(field, parameters.original_max_position_embeddings)?;
    Ok(QueryGrowth { beta: parameters.llama_4_scaling_beta, period, offset: 0 })
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
        let is_traditional = growth.is_none() || self.rope_interleave.unwrap_or(true);
        Ok(LatentSpec {
            heads: sizes.heads,
            nope_dim,
            rope_dim,
            value_dim: dimension("v_head_dim", self.v_head_dim)?,
            kv_rank: dimension("kv_lora_rank", self.kv_lora_rank)?,
            q_rank: self.q_lora_rank.map(|rank| dimension("q_lora_rank", rank)).transpose()?,
            has_bias: self.attention_bias,
            norm_eps: variant.norm_eps.unwrap_or(self.decoder.rms_norm_eps),
            scale: self.decoder.rope.score_factor() / ((nope_dim + rope_dim) as f64).sqrt(),
            latent_factor: 1.0,
            rope: Some(RopeSpec { is_traditional, ..rope }),
            query_growth: growth,
            indexer: None,
            module: String::new(),
            output: String::new(),
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
        let groups = count("n_group", self.n_group.unwrap_or(1))?;
        let chosen = count("topk_group", self.topk_group.unwrap_or(1))?;
        if !num_experts.is_multiple_of(groups) {
            let expected = format!("a divisor of {num_experts} experts");
            return Err(bad_value("n_group", groups, expected));
        }
        // One expert's weight is not divided by itself, except in Mistral 4.
        let is_normalized = self.norm_topk_prob.unwrap_or(true)
            && (1 < self.num_experts_per_tok.unwrap_or(0) || variant.scoring.is_none());
        let is_greedy = matches!(self.topk_method.as_deref(), None | Some("greedy"));
        let has_choice = chosen < groups && !(variant.scoring == Some("softmax") && is_greedy);
        Ok(RouterSpec {
            has_bias: false,
            weighs_input: false,
            scores: match variant.scoring {
                Some("sigmoid") => RouterScores::Sigmoid,
                _ => RouterScores::Softmax,
            },
            groups: has_choice.then_some(RouterGroups {
                count: groups,
                chosen,
                best: variant.group_best,
            }),
            normalization_eps: variant.normalization_eps.filter(|_| is_normalized),
            scale: self.routed_scaling_factor.unwrap_or(1.0),
        })
    }
}
