//! The text part of models that also see: the fields of `text_config`, and names that begin with
//! `language_model`. Positions of text alone are those of a text model, also for rotations with
//! several axes.

use serde_json::Value;

use super::blocks::{ExpertNames, FusedNames};
use super::decoder::Description;
use super::{glm, glm4_moe, llama, qwen2, qwen3, qwen3_moe};
use jackalope_config::error::SpecError;
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
