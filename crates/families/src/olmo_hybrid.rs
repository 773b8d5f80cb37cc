//! OLMo Hybrid (Ai2 2026): gated delta nets whose eigenvalues may be negative, and OLMo's attention in
//! every fourth layer.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{attention, mlp};
use super::decoder::{Description, LayerBuilder, mixed_layer};
use super::dense::DenseConfig;
use super::gated_delta::{GatedDeltaConfig, GatedDeltaSettings, apart};
use super::windows;
use jackalope_config::error::SpecError;
use jackalope_config::fields::parse;
use jackalope_spec::{
    AttentionSpec, BlockNorms, GatedDeltaSizes, LayerNorms, LayerSpec, MlpSpec, QkNorm,
};

/// In checkpoints that do not state it, each layer of this number has attention.
const ATTENTION_INTERVAL: usize = 4;

/// Default epsilon of the norms of gated delta nets, added to the mean square.
const NET_NORM_EPS: f32 = 1e-5;

/// Base of the rotations, where it is not stated.
const ROPE_THETA: f64 = 10_000.0;

#[derive(Debug, Deserialize)]
struct Config {
    linear_allow_neg_eigval: bool,
    layer_norm_epsilon: Option<f32>,
    layer_types: Option<Vec<String>>,
    #[serde(flatten)]
    delta: GatedDeltaConfig,
    #[serde(flatten)]
    dense: DenseConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let has_rope = has_rope(config);
    let mut config = config.clone();
    // The base among the parameters is taken, if there are any.
    if let Some(parameters) = config.get("rope_parameters").filter(|it| it.is_object()) {
        config["rope_theta"] = parameters.get("rope_theta").cloned().unwrap_or(Value::Null);
    }
    let config: Config = parse(&config)?;
    let decoder = &config.dense.decoder;
    let sizes = decoder.sizes()?;
    decoder.rope.require(&["default"])?;
    let mut rope = decoder.rope.spec(config.dense.head_dim(sizes)?, Some(ROPE_THETA))?;
    if !has_rope {
        rope.dims = 0;
    }
    let heads = config.dense.attention(sizes, rope)?;
    let heads = AttentionSpec { qk_norm: Some(QkNorm::AllHeads), ..heads };
    let net = config.delta.sizes()?;
    let settings = GatedDeltaSettings {
        norm_eps: config.layer_norm_epsilon.unwrap_or(NET_NORM_EPS),
        rate_max: 1 + u8::from(config.linear_allow_neg_eigval),
    };
    let spec = config.dense.mlp()?;
    let layers = attention_layers(&config, sizes.num_layers)?.into_iter().enumerate();
    let layers = layers.map(|(layer_idx, has_attention)| {
        if has_attention {
            attention_layer(layer_idx, sizes.hidden, heads.clone(), spec.clone())
        } else {
            net_layer(layer_idx, sizes.hidden, Net { sizes: net, settings }, spec.clone())
        }
    });
    let layers = layers.collect();
    Ok(decoder.with_layers(sizes, layers))
}

/// Whether queries and keys are rotated: unless the base is stated to be `null`.
fn has_rope(config: &Value) -> bool {
    let parameters = config.get("rope_parameters").filter(|it| it.is_object());
    parameters.unwrap_or(config).get("rope_theta").is_none_or(|theta| !theta.is_null())
}

/// Returns which layers have attention.
fn attention_layers(config: &Config, num_layers: usize) -> Result<Vec<bool>, SpecError> {
    let Some(types) = &config.layer_types else {
        let has_attention = |number: usize| number.is_multiple_of(ATTENTION_INTERVAL);
        return Ok((1..=num_layers).map(has_attention).collect());
    };
    windows::attention_layers(types, &["linear_attention", "full_attention"], num_layers)
}

/// A gated delta net.
#[derive(Clone, Copy)]
struct Net {
    sizes: GatedDeltaSizes,
    settings: GatedDeltaSettings,
}

/// Returns a layer whose blocks each follow a norm.
fn net_layer(layer_idx: usize, hidden: usize, net: Net, spec: MlpSpec) -> LayerSpec {
    let prefix = format!("model.layers.{layer_idx}");
    let mixer = apart(&format!("{prefix}.linear_attn"), hidden, net.sizes, net.settings);
    let block = mlp(&format!("{prefix}.mlp"), hidden, spec);
    mixed_layer(prefix, hidden, mixer, block)
}

/// Returns a layer whose blocks read the stream itself, and what they add is normalised.
fn attention_layer(
    layer_idx: usize,
    hidden: usize,
    heads: AttentionSpec,
    spec: MlpSpec,
) -> LayerSpec {
    let prefix = format!("model.layers.{layer_idx}");
    let mixer = attention(&format!("{prefix}.self_attn"), hidden, heads);
    let block = mlp(&format!("{prefix}.mlp"), hidden, spec);
    let output = |name: &str| BlockNorms { input: None, output: Some(format!("{prefix}.{name}")) };
    let norms = LayerNorms {
        mixer: output("post_attention_layernorm"),
        feed_forward: output("post_feedforward_layernorm"),
        eps: None,
    };
    LayerBuilder { norms, ..LayerBuilder::pre_norm(prefix, hidden) }.build(mixer, block)
}
