//! Gemma 3n (Google 2025), its text model: several streams with predictions and corrections, a learned
//! residual beside attention, inputs of each layer, blocks of which few elements are active, and last
//! layers that read the caches of earlier ones.

mod config;

use serde_json::{Value, json};

use self::config::{Config, attention, mlp};
use super::altup::{altup, with_altup};
use super::decoder::Description;
use super::dense::DenseLayer;
use super::gemma::SANDWICH;
use super::per_layer::{per_layer_inputs, with_per_layer_input};
use super::windows::{sources, windows};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, factor, parse, unsupported};
use jackalope_config::names::TensorNames;
use jackalope_spec::{AttentionSpec, HeadTable, LayerSpec, LogitsSpec, StreamsSpec};

/// Names of the activation.
const ACTIVATIONS: &[&str] = &["gelu_pytorch_tanh"];

/// Reads the text part of `gemma3n`.
pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let text = config.get("text_config").unwrap_or(&Value::Null);
    let text = completed(text, &[("hidden_activation", "hidden_act")], &json!({}));
    let config: Config = parse(&text)?;
    if config.attention_bias {
        return Err(unsupported("attention_bias", &true, &["false"]));
    }
    config.decoder.rope.require(&["default"])?;
    let sizes = config.decoder.sizes_with(ACTIVATIONS)?;
    let (width, vocab) = (config.hidden_size_per_layer_input, config.vocab_size_per_layer_input);
    let inputs = per_layer_inputs(sizes, width, vocab)?;
    let streams = altup(&config.streams, sizes)?;
    let windows = windows(&config.layer_types, Some(config.sliding_window), sizes.num_layers)?;
    let sources = sources(&config.layer_types, config.num_kv_shared_layers)?;
    let first_shared = sizes.num_layers - config.num_kv_shared_layers;
    let mut layers = Vec::with_capacity(sizes.num_layers);
    for (layer_idx, (window, source_layer)) in windows.into_iter().zip(sources).enumerate() {
        let attention = AttentionSpec { source_layer, ..attention(&config, sizes, window)? };
        let mlp = mlp(&config, sizes, layer_idx)?;
        let layer = DenseLayer::new(SANDWICH, attention, mlp).at(layer_idx, sizes.hidden);
        let layer: LayerSpec = with_per_layer_input(layer, sizes.hidden, inputs.width);
        layers.push(with_altup(layer, &config.streams, sizes)?);
    }
    let cap = config.final_logit_softcapping;
    let cap = cap.map(|cap| factor("final_logit_softcapping", cap)).transpose()?;
    // Projections of layers that read the caches of others are stored, but not used.
    let unused = (first_shared..sizes.num_layers).flat_map(|layer_idx| {
        ["k_proj", "v_proj", "k_norm"]
            .map(|name| format!("model.layers.{layer_idx}.self_attn.{name}."))
    });
    Ok(Description {
        head_table: HeadTable::Tied,
        embedding_scale: Some((sizes.hidden as f64).sqrt() as f32),
        per_layer_inputs: Some(inputs),
        streams: Some(StreamsSpec::AltUp(streams)),
        logits: LogitsSpec { scale: 1.0, soft_cap: cap },
        ..config.decoder.with_layers(sizes, layers).without(unused)
    }
    .with_names(TensorNames::WRAPPED))
}
