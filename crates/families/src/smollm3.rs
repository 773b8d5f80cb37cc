//! SmolLM3 (Bakouch et al. 2025): Llama, of which some layers do not rotate queries and keys.

use serde::Deserialize;
use serde_json::Value;

use super::decoder::Description;
use super::llama;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, count, parse};

/// In checkpoints that do not state it, each layer of this number does not rotate.
const DEFAULT_INTERVAL: u32 = 4;

#[derive(Debug, Deserialize)]
struct Config {
    num_hidden_layers: usize,
    no_rope_layer_interval: Option<u32>,
    /// 1 for each layer that rotates, 0 for the others.
    no_rope_layers: Option<Vec<u8>>,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let Config { num_hidden_layers, no_rope_layer_interval, no_rope_layers } = parse(config)?;
    let interval = no_rope_layer_interval.unwrap_or(DEFAULT_INTERVAL);
    let interval = count("no_rope_layer_interval", interval)?;
    let rotates = match no_rope_layers {
        None => (1..=num_hidden_layers).map(|number| !number.is_multiple_of(interval)).collect(),
        Some(layers) if layers.len() == num_hidden_layers => {
            layers.into_iter().map(|it| it != 0).collect::<Vec<bool>>()
        }
        Some(layers) => {
            let expected = format!("{num_hidden_layers} entries");
            return Err(bad_value("no_rope_layers", layers.len(), expected));
        }
    };
    llama::read_with(config, |layer_idx, mut attention| {
        if !rotates[layer_idx] {
            attention.rope.dims = 0;
        }
        attention
    })
}
