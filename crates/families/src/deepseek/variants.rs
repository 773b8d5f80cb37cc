//! What differs between the families that are built like DeepSeek V2 and V3.

use serde_json::{Value, json};

use crate::blocks::FusedNames;
use crate::latent::ExpansionForm;
use jackalope_config::fields::defaulted;

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
    /// Whether `tie_word_embeddings` counts even if there is a head.
    pub(super) may_be_tied: bool,
}

pub(super) const V3: Variant = Variant {
    scoring: Some("sigmoid"),
    methods: &["noaux_tc"],
    group_best: 2,
    has_score_bias: true,
    normalization_eps: Some(0.0),
    norm_eps: Some(1e-6),
    form: ExpansionForm::Either,
    default_theta: 10_000.0,
    fused: &[],
    indexer: None,
    may_be_tied: false,
};

pub(super) const V32: Variant = Variant { indexer: Some(false), ..V3 };

pub(super) const GLM_DSA: Variant = Variant { indexer: Some(true), ..V3 };

pub(super) const V2: Variant = Variant {
    scoring: Some("softmax"),
    methods: &["greedy", "group_limited_greedy"],
    group_best: 1,
    has_score_bias: false,
    normalization_eps: None,
    form: ExpansionForm::Joint,
    ..V3
};

pub(super) const GLM_LITE: Variant =
    Variant { normalization_eps: Some(1e-20), norm_eps: None, default_theta: 1e6, ..V3 };

pub(super) const MISTRAL: Variant = Variant {
    scoring: None,
    methods: &[],
    has_score_bias: false,
    normalization_eps: Some(1e-20),
    default_theta: 1e5,
    fused: &[FusedNames::ROWS],
    may_be_tied: true,
    ..V3
};

/// Returns `config` with mlx-lm's defaults of DeepSeek V2 and V3, and those of `own`.
pub(super) fn with_defaults(config: &Value, own: &Value) -> Value {
    let shared = json!({
        "vocab_size": 102_400, "hidden_size": 4096, "intermediate_size": 11_008,
        "moe_intermediate_size": 1407, "num_hidden_layers": 30, "num_attention_heads": 32,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "qk_nope_head_dim": 128, "rms_norm_eps": 1e-6,
    });
    defaulted(&defaulted(config, &shared), own)
}

/// Returns mlx-lm's defaults of GLM-4.7 Flash.
pub(super) fn glm_lite_defaults() -> Value {
    json!({
        "vocab_size": 154_880, "hidden_size": 2048, "intermediate_size": 10_240,
        "moe_intermediate_size": 1536, "num_hidden_layers": 47, "num_attention_heads": 20,
        "n_shared_experts": 1, "n_routed_experts": 64, "routed_scaling_factor": 1.8,
        "kv_lora_rank": 512, "q_lora_rank": 768, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192,
        "v_head_dim": 256, "num_experts_per_tok": 4, "first_k_dense_replace": 1,
        "rms_norm_eps": 1e-5,
    })
}
