//! Ling 3 (Ant Group 2026): Kimi delta attention with bounded decays, and latent attention with a gate for
//! each head.

use serde::Deserialize;
use serde_json::{Value, json};

use super::config::{Hybrid, Latent};
use super::{Mixers, layers};
use crate::bailing_moe::Config;
use crate::decoder::Description;
use crate::gated_delta::{KimiForm, kimi, log_decay_min};
use crate::latent::{ExpansionForm, latent_attention};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, completed, dimension, parse};
use jackalope_spec::{GatedDeltaSizes, LatentSpec};

/// The name by which configurations state this architecture.
pub(super) const ARCHITECTURE: &str = "BailingMoeV3ForCausalLM";

/// Settings of which one value is computed.
const FIXED: [(&str, bool); 6] = [
    ("no_kda_lora", true),
    ("kda_safe_gate", true),
    ("rope_interleave", true),
    ("norm_topk_prob", true),
    ("use_qkv_bias", false),
    ("use_bias", false),
];

#[derive(Debug, Deserialize)]
struct Newest {
    kda_lower_bound: f32,
    short_conv_kernel_size: u32,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    for (field, computed) in FIXED {
        if let Some(found) = config[field].as_bool().filter(|found| *found != computed) {
            return Err(bad_value(field, found, computed.to_string()));
        }
    }
    let defaults = json!({
        "head_dim": 128, "q_lora_rank": 256, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "short_conv_kernel_size": 4,
        "kda_lower_bound": -5.0, "layer_group_size": 4, "group_norm_size": 1,
        "num_key_value_heads": config["num_attention_heads"], "norm_topk_prob": true,
        "num_shared_experts": 1, "moe_shared_expert_intermediate_size": 512,
        "first_k_dense_replace": 1, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5,
        "score_function": "sigmoid", "moe_router_enable_expert_bias": true, "rms_norm_eps": 1e-6,
        "rope_theta": 6e6, "max_position_embeddings": 131072, "tie_word_embeddings": false,
        "num_nextn_predict_layers": 1, "partial_rotary_factor": null, "moe_router_enable_shared_expert": null,
    });
    let mut fields = completed(config, &[], &defaults);
    if config.get("q_lora_rank").is_some_and(Value::is_null) {
        fields["q_lora_rank"] = Value::Null;
    }
    if let Some(found) = fields["score_function"].as_str().filter(|it| *it != "sigmoid") {
        return Err(bad_value("score_function", found, "sigmoid"));
    }
    let mut config: Config = parse(&fields)?;
    config.excluded_score = f32::NEG_INFINITY;
    config.normalizes_one = true;
    let hybrid: Hybrid = parse(&fields)?;
    let newest: Newest = parse(&fields)?;
    let sizes = config.sizes()?;
    let head_dim = sizes.head_dim_or(config.head_dim)?;
    let delta = GatedDeltaSizes {
        key_heads: sizes.heads,
        value_heads: sizes.heads,
        key_dim: head_dim,
        value_dim: head_dim,
        conv_width: dimension("short_conv_kernel_size", newest.short_conv_kernel_size)?,
    };
    let form = KimiForm {
        convolutions: ["q_conv1d", "k_conv1d", "v_conv1d"],
        decays: "f_proj",
        decays_down: None,
        gates: "g_proj",
        gates_down: None,
        log_decay_min: Some(log_decay_min("kda_lower_bound", newest.kda_lower_bound)?),
        ..KimiForm::LINEAR
    };
    let latent = parse::<Latent>(&fields)?.latent(&config, sizes)?;
    let latent = LatentSpec { gate_width: Some(1), ..latent };
    let global = |module: &str| {
        latent_attention(module, sizes.hidden, latent.clone(), ExpansionForm::Either)
    };
    let linear = |module: &str, _| kimi(module, sizes.hidden, delta, form);
    let mixers = Mixers { linear: &linear, global: &global };
    let shared = config.shared_inner() * config.num_shared_experts as usize;
    layers(&config, &hybrid, &mixers, shared)
}
