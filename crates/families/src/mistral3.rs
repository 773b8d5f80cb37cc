//! Mistral 3 and later as published, with a part for images that is not used: the text part is a
//! Llama or a Mistral 4.

use serde_json::Value;

use super::decoder::Description;
use super::{deepseek, llama, ministral3};
use jackalope_config::error::SpecError;
use jackalope_config::names::TensorNames;

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let Some(Value::Object(text)) = config.get("text_config") else {
        return Err(SpecError::Malformed { reason: "missing field `text_config`".to_owned() });
    };
    let mut text = text.clone();
    text.entry("tie_word_embeddings").or_insert(Value::Bool(false));
    let model_type = text.get("model_type").and_then(Value::as_str).unwrap_or("llama").to_owned();
    let text = Value::Object(text);
    let description = match model_type.as_str() {
        "llama" | "mistral" => llama::read(&text)?,
        "ministral3" => ministral3::read(&text)?,
        "mistral4" => deepseek::read_mistral(&text)?,
        _ => {
            let (what, supported) = ("text model", &["llama", "mistral", "ministral3", "mistral4"]);
            return Err(SpecError::Setting { what, found: model_type, supported });
        }
    };
    Ok(description.with_names(TensorNames::WRAPPED))
}
