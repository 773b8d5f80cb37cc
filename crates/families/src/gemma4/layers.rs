//! The layers of Gemma 4.

use serde_json::{Value, json};

use super::config::Config;
use super::mixture::mixture;
use crate::blocks::{attention, mlp, vector};
use crate::decoder::{LayerBuilder, Sizes};
use crate::per_layer::with_per_layer_input;
use crate::windows::{sources, windows};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, parse, unsupported};
use jackalope_config::rope::{RopeConfig, RopeSpec};
use jackalope_spec::{
    Activation, AttentionSpec, BlockNorms, LayerNorms, LayerSpec, MlpSpec, NormKind, QkNorm,
    TensorCut, TensorRole, ValueKind,
};

/// Base of the rotations of a kind of layers that states none.
const DEFAULT_ROPE_THETA: f64 = 10_000.0;

/// Returns all layers; `width` is that of their inputs beside the stream, if they have any.
pub(super) fn layers(
    config: &Config,
    sizes: Sizes,
    width: Option<usize>,
) -> Result<Vec<LayerSpec>, SpecError> {
    let types = types(config, sizes);
    let windows = windows(&types, Some(config.sliding_window), sizes.num_layers)?;
    let sources = sources(&types, config.num_kv_shared_layers)?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let mut layers = Vec::with_capacity(sizes.num_layers);
    for (layer_idx, (window, source_layer)) in windows.into_iter().zip(sources).enumerate() {
        let prefix = format!("model.layers.{layer_idx}");
        let at = |name: &str| format!("{prefix}.{name}");
        let heads = AttentionSpec { source_layer, ..heads(config, sizes, window)? };
        let mixer = attention(&at("self_attn"), sizes.hidden, heads);
        let is_wide = config.use_double_wide_mlp && source_layer.is_some();
        let inner = if is_wide { 2 * inner } else { inner };
        let dense = MlpSpec { activation: Activation::GeluTanh, ..MlpSpec::plain(inner) };
        let dense = mlp(&at("mlp"), sizes.hidden, dense);
        let block =
            if config.enable_moe_block { mixture(config, sizes, &prefix, dense)? } else { dense };
        let input = (!config.enable_moe_block).then(|| at("pre_feedforward_layernorm"));
        let named = |name: &str| Some(at(name));
        let norms = LayerNorms {
            mixer: BlockNorms {
                input: named("input_layernorm"),
                output: named("post_attention_layernorm"),
            },
            feed_forward: BlockNorms { input, output: named("post_feedforward_layernorm") },
            eps: None,
        };
        let builder = LayerBuilder {
            prefix: prefix.clone(),
            hidden: sizes.hidden,
            norm_kind: NormKind::default(),
            norms,
            is_parallel: false,
            residual_factor: 1.0,
        };
        let mut layer = builder.build(mixer, block);
        let scale = at("layer_scalar");
        layer.tensors.push(vector(&scale, TensorRole::Norm, 1, TensorCut::Replicated));
        layer.stream_scale = Some(scale);
        layers.push(match width {
            Some(width) => with_per_layer_input(layer, sizes.hidden, width),
            None => layer,
        });
    }
    Ok(layers)
}

/// Returns the type of each layer.
fn types(config: &Config, sizes: Sizes) -> Vec<String> {
    let pattern = config.sliding_window_pattern.max(1);
    let of_pattern = |layer_idx: usize| {
        let is_full = (layer_idx + 1).is_multiple_of(pattern);
        if is_full { "full_attention" } else { "sliding_attention" }.to_owned()
    };
    let types = config.layer_types.clone();
    types.unwrap_or_else(|| (0..sizes.num_layers).map(of_pattern).collect())
}

fn heads(config: &Config, sizes: Sizes, window: Option<usize>) -> Result<AttentionSpec, SpecError> {
    let is_full = window.is_none();
    let has_key_values = config.attention_k_eq_v && is_full;
    let kv_heads = match config.num_global_key_value_heads.filter(|_| has_key_values) {
        Some(kv_heads) => kv_heads,
        None => config.num_key_value_heads,
    };
    let global = config.global_head_dim.filter(|dim| is_full && 0 < *dim);
    let head_dim = dimension("head_dim", global.unwrap_or(config.head_dim))?;
    let rope = rope(config, head_dim, is_full)?;
    Ok(AttentionSpec {
        qk_norm: Some(QkNorm::PerHead),
        values: if has_key_values { ValueKind::NormalizedKeys } else { ValueKind::Normalized },
        scale: 1.0,
        window,
        ..AttentionSpec::plain(sizes.heads, sizes.kv_heads(kv_heads)?, head_dim, rope)
    })
}

/// Returns the rotation of a kind of layers.
fn rope(config: &Config, head_dim: usize, is_full: bool) -> Result<RopeSpec, SpecError> {
    let kind = if is_full { "full_attention" } else { "sliding_attention" };
    let parameters = config.rope_parameters.get(kind).cloned().unwrap_or_else(|| json!({}));
    let is_default = parameters.get("rope_type").and_then(Value::as_str) == Some("default");
    let part = parameters.get("partial_rotary_factor").and_then(Value::as_f64);
    if let Some(part) = part.filter(|part| is_default && *part != 1.0) {
        return Err(unsupported("partial_rotary_factor of type `default`", &part, &["1"]));
    }
    let theta = parameters.get("rope_theta").cloned();
    let context = config.decoder.rope.context_tokens();
    let fields = json!({
        "rope_theta": theta, "rope_scaling": parameters, "max_position_embeddings": context,
        "rope_traditional": config.decoder.rope.is_traditional(),
    });
    parse::<RopeConfig>(&fields)?.spec(head_dim, Some(DEFAULT_ROPE_THETA))
}
