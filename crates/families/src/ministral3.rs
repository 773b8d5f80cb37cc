//! Ministral 3 (Mistral 2025): Llama, whose queries grow with their position.

use serde::Deserialize;
use serde_json::Value;

use super::decoder::Description;
use super::llama;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, parse};
use jackalope_config::rope::QueryGrowth;
use jackalope_config::rope_parameters::from_parameters_alone;
use jackalope_spec::AttentionSpec;

#[derive(Debug, Deserialize)]
struct Config {
    rope_parameters: Parameters,
}

#[derive(Debug, Deserialize)]
struct Parameters {
    llama_4_scaling_beta: f32,
    original_max_position_embeddings: u32,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let Config { rope_parameters: parameters } = parse(config)?;
    let field = "rope_parameters.original_max_position_embeddings";
    let period = dimension(field, parameters.original_max_position_embeddings)?;
    let growth = QueryGrowth { beta: parameters.llama_4_scaling_beta, period, offset: 0 };
    llama::read_with(&from_parameters_alone(config, None), |_, attention| AttentionSpec {
        query_growth: Some(growth),
        ..attention
    })
}
