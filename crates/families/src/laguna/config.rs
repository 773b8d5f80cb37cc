//! The fields of Laguna's configurations, and what they say of a layer.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::blocks::{ExpertCounts, ExpertSizes};
use crate::decoder::{DecoderConfig, Sizes};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, completed, dimension, factor, parse};
use jackalope_config::rope::{RopeConfig, RopeSpec};
use jackalope_spec::{AttentionSpec, OutputGate, QkNorm, RouterScores, RouterSpec};

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub(super) intermediate_size: u32,
    pub(super) num_key_value_heads: u32,
    pub(super) head_dim: u32,
    pub(super) attention_bias: bool,
    pub(super) qkv_bias: bool,
    pub(super) gating: bool,
    pub(super) sliding_window: Option<u32>,
    pub(super) layer_types: Vec<String>,
    pub(super) num_attention_heads_per_layer: Vec<u32>,
    pub(super) mlp_layer_types: Vec<String>,
    pub(super) num_experts: u32,
    pub(super) num_experts_per_tok: u32,
    pub(super) moe_intermediate_size: u32,
    pub(super) shared_expert_intermediate_size: u32,
    pub(super) moe_routed_scaling_factor: f32,
    pub(super) moe_router_logit_softcapping: f32,
    pub(super) moe_router_score_func: String,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

/// Returns the configuration with what mlx-lm fills in, and an entry for each layer.
pub(super) fn with_lists(config: &Value) -> Value {
    let sizes = json!({
        "vocab_size": 100_352, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 40, "num_attention_heads": 48, "num_key_value_heads": 8,
        "head_dim": 128,
    });
    let config = &completed(config, &[], &sizes);
    let num_layers = config["num_hidden_layers"].as_u64().unwrap_or(0).min(1 << 12);
    let each = |value: &Value| (0..num_layers).map(|_| value.clone()).collect::<Value>();
    let kind = |idx: u64| if idx == 0 { "dense" } else { "sparse" };
    let defaults = json!({
        "attention_bias": false, "qkv_bias": false, "gating": true, "sliding_window": 512,
        "layer_types": each(&json!("full_attention")), "rms_norm_eps": 1e-6,
        "num_attention_heads_per_layer": each(&config["num_attention_heads"]),
        "mlp_layer_types": (0..num_layers).map(kind).collect::<Value>(),
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "moe_routed_scaling_factor": 1.0,
        "moe_router_logit_softcapping": 0.0, "moe_router_score_func": "sigmoid",
    });
    completed(config, &[], &defaults)
}

impl Config {
    /// Returns the rotation of layers of a type, which has fields of its own.
    pub(super) fn rope(&self, fields: &Value, kind: &str) -> Result<RopeSpec, SpecError> {
        let own = &fields["rope_parameters"][kind];
        let partial = [&own["partial_rotary_factor"], &fields["partial_rotary_factor"]];
        let rope: RopeConfig = parse(&json!({
            "rope_theta": own.get("rope_theta").unwrap_or(&json!(1e4)),
            "rope_scaling": own,
            "partial_rotary_factor": partial.into_iter().find(|it| !it.is_null()),
            "max_position_embeddings": fields["max_position_embeddings"],
        }))?;
        let head_dim = dimension("head_dim", self.head_dim)?;
        rope.spec(rope.rotated_dims(head_dim, Some(1.0))?, None)
    }

    pub(super) fn attention(
        &self,
        sizes: Sizes,
        layer_idx: usize,
        rope: RopeSpec,
    ) -> Result<AttentionSpec, SpecError> {
        let field = "num_attention_heads_per_layer";
        let heads = dimension(field, self.num_attention_heads_per_layer[layer_idx])?;
        let kv_heads = Sizes { heads, ..sizes }.kv_heads(self.num_key_value_heads)?;
        let head_dim = dimension("head_dim", self.head_dim)?;
        Ok(AttentionSpec {
            has_qkv_bias: self.qkv_bias,
            has_output_bias: self.attention_bias,
            qk_norm: Some(QkNorm::PerHead),
            output_gate: self.gating.then_some(OutputGate::SoftplusHeads("g_proj")),
            ..AttentionSpec::plain(heads, kv_heads, head_dim, rope)
        })
    }

    pub(super) fn experts(&self) -> Result<ExpertSizes, SpecError> {
        let counts = ExpertCounts::new("num_experts", self.num_experts, self.num_experts_per_tok)?;
        let inner = dimension("moe_intermediate_size", self.moe_intermediate_size)?;
        let shared = self.shared_expert_intermediate_size;
        let scores = match self.moe_router_score_func.as_str() {
            "sigmoid" => RouterScores::Sigmoid,
            "sqrtsoftplus" => RouterScores::SqrtSoftplus,
            found => {
                let expected = "sigmoid or sqrtsoftplus";
                return Err(bad_value("moe_router_score_func", found, expected));
            }
        };
        let cap = Some(self.moe_router_logit_softcapping).filter(|cap| 0.0 < *cap);
        let router = RouterSpec {
            scores,
            logit_cap: cap.map(|it| factor("moe_router_logit_softcapping", it)).transpose()?,
            normalization_eps: Some(0.0),
            scale: self.moe_routed_scaling_factor,
            ..RouterSpec::SOFTMAX
        };
        Ok(ExpertSizes {
            shared_inner: Some(dimension("shared_expert_intermediate_size", shared)?),
            ..ExpertSizes::plain(counts, inner, router)
        })
    }
}
