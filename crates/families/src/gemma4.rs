//! Gemma 4 (Google 2026), its text model: layers of two kinds with heads, rotations and windows of
//! their own; values that are normalised, in some models by themselves the keys' projections; last
//! layers that read the caches of earlier ones; inputs of each layer beside the stream; experts beside
//! the dense block.

mod config;
mod layers;
mod mixture;

use serde_json::{Value, json};

use self::config::{Config, refuse};
use self::layers::layers;
use super::decoder::Description;
use super::per_layer::per_layer_inputs;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, completed, factor, parse};
use jackalope_config::names::TensorNames;
use jackalope_spec::LogitsSpec;

/// Names of the activation.
const ACTIVATIONS: &[&str] = &["gelu_pytorch_tanh"];

/// Reads `gemma4_text`.
pub(super) fn read_text(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({
        "hidden_size": 1536, "num_hidden_layers": 35, "intermediate_size": 6144,
        "num_attention_heads": 8, "head_dim": 256, "rms_norm_eps": 1e-6, "vocab_size": 262_144,
        "vocab_size_per_layer_input": 262_144, "num_key_value_heads": 1,
        "num_kv_shared_layers": 20, "sliding_window": 512, "sliding_window_pattern": 5,
        "max_position_embeddings": 131_072, "attention_k_eq_v": false, "attention_bias": false,
        "use_double_wide_mlp": true, "enable_moe_block": false, "tie_word_embeddings": true,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional",
            },
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
    });
    // The rotations of both kinds of layers are read by their own names.
    let mut fields = completed(config, &[("hidden_activation", "hidden_act")], &defaults);
    let rotations = fields["rope_parameters"].take();
    let mut config: Config = parse(&fields)?;
    config.rope_parameters = rotations;
    refuse(&config)?;
    let sizes = config.decoder.sizes_with(ACTIVATIONS)?;
    let width = config.hidden_size_per_layer_input.filter(|width| 0 < *width);
    let vocab = config.vocab_size_per_layer_input;
    let inputs = width.map(|width| per_layer_inputs(sizes, width, vocab)).transpose()?;
    if let Some(inputs) = inputs.as_ref().filter(|inputs| inputs.vocab_size < sizes.vocab) {
        let (found, least) = (inputs.vocab_size, sizes.vocab);
        return Err(bad_value("vocab_size_per_layer_input", found, format!("at least {least}")));
    }
    let cap = config.final_logit_softcapping;
    let cap = cap.map(|cap| factor("final_logit_softcapping", cap)).transpose()?;
    let layers = layers(&config, sizes, inputs.as_ref().map(|inputs| inputs.width))?;
    Ok(Description {
        embedding_scale: Some((sizes.hidden as f64).sqrt() as f32),
        per_layer_inputs: inputs,
        logits: LogitsSpec { scale: 1.0, soft_cap: cap },
        ..config.decoder.with_layers(sizes, layers)
    })
}

/// Reads the text part of `gemma4`.
pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let text = config.get("text_config").unwrap_or(&Value::Null);
    let mut text = completed(text, &[], &json!({}));
    // The size of the vocabulary beside the text part counts.
    if let Some(vocab_size) = config.get("vocab_size").filter(|size| !size.is_null()) {
        text["vocab_size"] = vocab_size.clone();
    }
    Ok(read_text(&text)?.with_names(TensorNames::WRAPPED))
}
