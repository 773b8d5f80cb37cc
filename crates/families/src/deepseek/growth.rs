//! How Mistral 4's queries grow.

use serde::Deserialize;
use serde_json::Value;

use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, parse};
use jackalope_config::rope::QueryGrowth;

/// The fields of Mistral 4 that do not concern the rotation.
#[derive(Deserialize)]
pub(super) struct Growth {
    pub(super) rope_parameters: Parameters,
}

#[derive(Deserialize)]
pub(super) struct Parameters {
    pub(super) llama_4_scaling_beta: f32,
    pub(super) original_max_position_embeddings: u32,
}

/// Returns how Mistral 4's queries grow with their position.
pub(super) fn growth(config: &Value) -> Result<QueryGrowth, SpecError> {
    let Growth { rope_parameters: parameters } = parse(config)?;
    let field = "rope_parameters.original_max_position_embeddings";
    let period = dimension(field, parameters.original_max_position_embeddings)?;
    Ok(QueryGrowth { beta: parameters.llama_4_scaling_beta, period, offset: 0 })
}
