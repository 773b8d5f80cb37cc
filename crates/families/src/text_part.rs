//! The text part of models that also see: the fields of `text_config`, and names that begin with
//! `language_model`. Positions of text alone are those of a text model, also for rotations with
//! several axes.

use serde_json::{Value, json};

use super::blocks::{ExpertNames, FusedNames};
use super::decoder::Description;
use super::{glm, glm4_moe, llama, mimo_v2_flash, qwen2, qwen3, qwen3_moe, step3p5};
use jackalope_config::error::SpecError;
use jackalope_config::fields::completed;
use jackalope_config::names::TensorNames;

/// Returns the fields of the text part.
pub(super) fn text_config(config: &Value) -> &Value {
    config.get("text_config").filter(|text| text.is_object()).unwrap_or(config)
}

/// Sets the names of the tensors for checkpoints in which the language model is one of several
/// parts.
fn wrapped(text: Result<Description, SpecError>) -> Result<Description, SpecError> {
    Ok(text?.with_names(TensorNames::WRAPPED))
}

/// Reads `qwen2_vl` and `qwen2_5_vl`.
pub(super) fn read_qwen2(config: &Value) -> Result<Description, SpecError> {
    wrapped(qwen2::read(text_config(config)))
}

/// Reads `qwen3_vl`.
pub(super) fn read_qwen3(config: &Value) -> Result<Description, SpecError> {
    wrapped(qwen3::read(text_config(config)))
}

/// Reads `qwen3_vl_moe`.
pub(super) fn read_qwen3_moe(config: &Value) -> Result<Description, SpecError> {
    const NAMES: ExpertNames = ExpertNames { fused: &[FusedNames::COLUMNS], ..ExpertNames::QWEN };
    wrapped(qwen3_moe::read_with(text_config(config), &NAMES))
}

/// Reads `qwen3_omni_moe`. Only its `thinker` is computed; the talker turns text into speech.
pub(super) fn read_qwen3_omni(config: &Value) -> Result<Description, SpecError> {
    let thinker = config.get("thinker_config").unwrap_or(config);
    Ok(qwen3_moe::read(text_config(thinker))?.with_names(TensorNames::OMNI))
}

/// Reads `step3p7`, whose text part is that of Step 3.5 with other defaults (mlx-vlm 0.7.10).
pub(super) fn read_step3p7(config: &Value) -> Result<Description, SpecError> {
    let sparse: Vec<String> = (3..45).map(|layer_idx: u32| layer_idx.to_string()).collect();
    let defaults = json!({
        "head_dim": 128, "use_head_wise_attn_gate": false, "moe_router_scaling_factor": 1.0,
        "moe_layers_enum": sparse.join(","),
    });
    let mut text =
        completed(text_config(config), &[("share_expert_dims", "share_expert_dim")], &defaults);
    if let Some(stated) = text["moe_layers_enum"].as_array() {
        let stated: Vec<String> = stated.iter().map(Value::to_string).collect();
        text["moe_layers_enum"] = stated.join(",").into();
    }
    Ok(step3p5::read(&text)?.with_names(TensorNames::STEP_VISION))
}

/// Reads `mimo_v2`, whose text part is that of MiMo-V2-Flash with defaults (mlx-vlm 0.7.10).
pub(super) fn read_mimo_v2(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({
        "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128,
        "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_head_dim": 192,
        "swa_v_head_dim": 128, "rope_theta": 1e7, "swa_rope_theta": 1e4,
        "partial_rotary_factor": 0.334, "layernorm_epsilon": 1e-6, "sliding_window_size": 128,
        "add_swa_attention_sink_bias": true, "add_full_attention_sink_bias": false,
        "num_experts_per_tok": 8, "n_routed_experts": 256, "topk_method": "noaux_tc",
        "scoring_func": "sigmoid", "norm_topk_prob": true, "n_group": 1, "topk_group": 1,
        "attention_value_scale": 0.707, "tie_word_embeddings": false,
    });
    let text = completed(text_config(config), &[], &defaults);
    Ok(mimo_v2_flash::read(&text)?.with_names(TensorNames::MIMO_V2))
}

/// Reads `glm4v`.
pub(super) fn read_glm4v(config: &Value) -> Result<Description, SpecError> {
    wrapped(glm::read_glm4v(text_config(config)))
}

/// Reads `glm4v_moe`.
pub(super) fn read_glm4v_moe(config: &Value) -> Result<Description, SpecError> {
    wrapped(glm4_moe::read_vision(text_config(config)))
}

/// Reads `pixtral`, whose text part is that of Mistral.
pub(super) fn read_pixtral(config: &Value) -> Result<Description, SpecError> {
    let mut text = text_config(config).clone();
    if let Some(fields) = text.as_object_mut() {
        fields.insert("tie_word_embeddings".to_owned(), false.into());
        fields.entry("num_attention_heads").or_insert(32.into());
    }
    wrapped(llama::read(&text))
}
