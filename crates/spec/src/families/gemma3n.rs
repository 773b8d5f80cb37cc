//! Gemma 3n (Google 2025), its text model: several streams with predictions and corrections, a learned
//! residual beside attention, inputs of each layer, blocks of which few elements are active, and last
//! layers that read the caches of earlier ones.

use serde::Deserialize;
use serde_json::{Value, json};

use super::altup::{StreamsConfig, altup, with_altup};
use super::decoder::{DecoderConfig, Description, Sizes};
use super::dense::DenseLayer;
use super::gemma::SANDWICH;
use super::per_layer::{per_layer_inputs, with_per_layer_input};
use super::windows::{sources, windows};
use crate::config::{bad_value, completed, dimension, factor, parse, unsupported};
use crate::error::SpecError;
use crate::model::{
    Activation, AttentionSpec, HeadTable, LayerSpec, LogitsSpec, MlpSpec, QkNorm, ValueKind,
};
use crate::names::TensorNames;
use crate::normal::quantile;
use crate::rope::RopeSpec;

/// Names of the activation.
const ACTIVATIONS: &[&str] = &["gelu_pytorch_tanh"];

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: OneOrEach,
    num_key_value_heads: u32,
    head_dim: u32,
    num_kv_shared_layers: usize,
    vocab_size_per_layer_input: u32,
    hidden_size_per_layer_input: u32,
    sliding_window: u32,
    rope_local_base_freq: f64,
    final_logit_softcapping: Option<f32>,
    layer_types: Vec<String>,
    activation_sparsity_pattern: Option<Vec<f64>>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(flatten)]
    streams: StreamsConfig,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

/// A number for all layers, or one for each.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrEach {
    One(u32),
    Each(Vec<u32>),
}

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
        altup: Some(streams),
        logits: LogitsSpec { scale: 1.0, soft_cap: cap },
        ..config.decoder.with_layers(sizes, layers).without(unused)
    }
    .with_names(TensorNames::WRAPPED))
}

fn attention(
    config: &Config,
    sizes: Sizes,
    window: Option<usize>,
) -> Result<AttentionSpec, SpecError> {
    let head_dim = dimension("head_dim", config.head_dim)?;
    let global = config.decoder.rope.spec(head_dim, None)?;
    let theta = if window.is_some() { config.rope_local_base_freq } else { global.theta };
    let rope = RopeSpec { theta, is_traditional: false, ..global };
    Ok(AttentionSpec {
        qk_norm: Some(QkNorm::PerHead),
        values: ValueKind::Normalized,
        scale: 1.0,
        window,
        ..AttentionSpec::plain(
            sizes.heads,
            sizes.kv_heads(config.num_key_value_heads)?,
            head_dim,
            rope,
        )
    })
}

/// Returns the dense block of a layer.
fn mlp(config: &Config, sizes: Sizes, layer_idx: usize) -> Result<MlpSpec, SpecError> {
    let of_layer = |field: &'static str, len: usize| {
        let expected = format!("{} numbers", sizes.num_layers);
        if len == sizes.num_layers { Ok(()) } else { Err(bad_value(field, len, expected)) }
    };
    let inner = match &config.intermediate_size {
        OneOrEach::One(inner) => *inner,
        OneOrEach::Each(each) => {
            of_layer("intermediate_size", each.len())?;
            each[layer_idx]
        }
    };
    let inner = dimension("intermediate_size", inner)?;
    let field = "activation_sparsity_pattern";
    let sparsity = match &config.activation_sparsity_pattern {
        None => 0.0,
        Some(pattern) => {
            of_layer(field, pattern.len())?;
            pattern[layer_idx]
        }
    };
    if !(0.0..1.0).contains(&sparsity) {
        return Err(bad_value(field, sparsity, "numbers from 0 to less than 1"));
    }
    // The part of a normal distribution that lies below the cutoff.
    let cutoff = (0.0 < sparsity).then(|| quantile(sparsity) as f32);
    Ok(MlpSpec { activation: Activation::GeluTanh, cutoff, ..MlpSpec::plain(inner) })
}
