//! The fields of Step 3.5's configurations, and what they say of a layer.

use crate::decoder::DecoderConfig;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension, factor};
use jackalope_config::rope::RopeSpec;
use jackalope_spec::{AttentionSpec, OutputGate, QkNorm};
use serde::Deserialize;

/// Epsilon added to the sum of the chosen experts' weights.
pub(super) const WEIGHTS_EPS: f32 = 1e-20;

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub(super) intermediate_size: u32,
    pub(super) num_attention_groups: u32,
    pub(super) head_dim: u32,
    pub(super) sliding_window: u32,
    pub(super) layer_types: Vec<String>,
    pub(super) yarn_only_types: Option<Vec<String>>,
    /// Base of each layer's rotations.
    pub(super) rope_thetas: Vec<f64>,
    pub(super) partial_rotary_factors: Option<Vec<f64>>,
    pub(super) attention_other_setting: Option<OtherHeads>,
    pub(super) use_head_wise_attn_gate: bool,
    pub(super) moe_num_experts: u32,
    pub(super) moe_top_k: u32,
    pub(super) moe_intermediate_size: u32,
    pub(super) share_expert_dim: u32,
    pub(super) moe_layers_enum: Option<String>,
    pub(super) moe_router_scaling_factor: f32,
    pub(super) moe_router_activation: String,
    pub(super) norm_expert_weight: bool,
    pub(super) swiglu_limits: Option<Vec<Option<f32>>>,
    pub(super) swiglu_limits_shared: Option<Vec<Option<f32>>>,
    #[serde(default)]
    pub(super) num_nextn_predict_layers: usize,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

/// Numbers of heads of the layers with windows, which may differ from those of the others.
#[derive(Debug, Deserialize)]
pub(super) struct OtherHeads {
    pub(super) num_attention_heads: u32,
    pub(super) num_attention_groups: u32,
    pub(super) head_dim: Option<u32>,
}

/// Returns the layers with experts.
pub(super) fn moe_layers(config: &Config, num_layers: usize) -> Result<Vec<usize>, SpecError> {
    let stated = config.moe_layers_enum.as_deref().filter(|stated| !stated.is_empty());
    let Some(stated) = stated else { return Ok((1..num_layers).collect()) };
    let numbers = stated.trim().split(',').map(|number| number.trim().parse());
    let numbers: Result<Vec<usize>, _> = numbers.collect();
    numbers.map_err(|_| bad_value("moe_layers_enum", stated, "numbers of layers"))
}

pub(super) fn attention(
    config: &Config,
    layer_idx: usize,
    window: Option<usize>,
) -> Result<AttentionSpec, SpecError> {
    let other = config.attention_other_setting.as_ref().filter(|_| window.is_some());
    let (heads, kv_heads) = match other {
        Some(other) => (other.num_attention_heads, other.num_attention_groups),
        None => {
            let heads = u32::try_from(config.decoder.sizes()?.heads).unwrap_or(u32::MAX);
            (heads, config.num_attention_groups)
        }
    };
    if let Some(found) = other.and_then(|it| it.head_dim).filter(|it| *it != config.head_dim) {
        let expected = format!("head_dim, {}", config.head_dim);
        return Err(bad_value("attention_other_setting.head_dim", found, expected));
    }
    let heads = dimension("num_attention_heads", heads)?;
    let kv_heads = dimension("num_attention_groups", kv_heads)?;
    if !heads.is_multiple_of(kv_heads) {
        let expected = format!("a divisor of num_attention_heads, {heads}");
        return Err(bad_value("num_attention_groups", kv_heads, expected));
    }
    let head_dim = dimension("head_dim", config.head_dim)?;
    Ok(AttentionSpec {
        qk_norm: Some(QkNorm::PerHead),
        output_gate: config.use_head_wise_attn_gate.then_some(OutputGate::Heads("g_proj")),
        window,
        ..AttentionSpec::plain(heads, kv_heads, head_dim, rope(config, layer_idx, head_dim)?)
    })
}

pub(super) fn rope(
    config: &Config,
    layer_idx: usize,
    head_dim: usize,
) -> Result<RopeSpec, SpecError> {
    let thetas = &config.rope_thetas;
    let Some(theta) = thetas.get(layer_idx) else {
        return Err(bad_value("rope_theta", thetas.len(), "an entry for each layer"));
    };
    let fractions = config.partial_rotary_factors.as_deref().unwrap_or_default();
    let fraction = fractions.get(layer_idx).copied();
    let rope = config.decoder.rope.with_base(*theta, fraction);
    let dims = rope.rotated_dims(head_dim, Some(1.0))?;
    let scaled = config.yarn_only_types.as_ref().filter(|types| !types.is_empty());
    if scaled.is_some_and(|types| !types.contains(&config.layer_types[layer_idx])) {
        return rope.unscaled(dims);
    }
    rope.spec(dims, None)
}

/// Returns the bound of a layer's activations; 0 and absent entries are none.
pub(super) fn limit(
    field: &'static str,
    limits: Option<&[Option<f32>]>,
    layer_idx: usize,
) -> Result<Option<f32>, SpecError> {
    let stated = limits.unwrap_or_default().get(layer_idx).copied().flatten();
    stated.filter(|limit| *limit != 0.0).map(|limit| factor(field, limit)).transpose()
}
