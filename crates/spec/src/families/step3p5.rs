//! Step 3.5 (StepFun 2026): windows with heads and rotations of their own, a gate for each head, and
//! experts with bounded activations.

use serde::Deserialize;
use serde_json::{Value, json};

use super::blocks::{Block, ExpertCounts, ExpertNames, ExpertSizes, experts, mlp};
use super::decoder::{DecoderConfig, Description, pre_norm_layer};
use super::windows::windows;
use crate::config::{bad_value, completed, dimension, factor, parse, setting};
use crate::error::SpecError;
use crate::model::{
    Activation, AttentionSpec, ExpertActivation, HeadTable, MlpSpec, OutputGate, QkNorm,
    RouterScores, RouterSpec,
};
use crate::rope::RopeSpec;

const NAMES: ExpertNames = ExpertNames {
    router: "gate.gate",
    score_bias: Some("gate.router_bias"),
    shared: "share_expert",
    ..ExpertNames::QWEN
};

/// Epsilon added to the sum of the chosen experts' weights.
const WEIGHTS_EPS: f32 = 1e-20;

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    num_attention_groups: u32,
    head_dim: u32,
    sliding_window: u32,
    layer_types: Vec<String>,
    yarn_only_types: Option<Vec<String>>,
    /// Base of each layer's rotations.
    rope_thetas: Vec<f64>,
    partial_rotary_factors: Option<Vec<f64>>,
    attention_other_setting: Option<OtherHeads>,
    use_head_wise_attn_gate: bool,
    moe_num_experts: u32,
    moe_top_k: u32,
    moe_intermediate_size: u32,
    share_expert_dim: u32,
    moe_layers_enum: Option<String>,
    moe_router_scaling_factor: f32,
    moe_router_activation: String,
    norm_expert_weight: bool,
    swiglu_limits: Option<Vec<Option<f32>>>,
    swiglu_limits_shared: Option<Vec<Option<f32>>>,
    #[serde(default)]
    num_nextn_predict_layers: usize,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

/// Numbers of heads of the layers with windows, which may differ from those of the others.
#[derive(Debug, Deserialize)]
struct OtherHeads {
    num_attention_heads: u32,
    num_attention_groups: u32,
    head_dim: Option<u32>,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(&with_lists(config))?;
    setting("moe_router_activation", Some(&config.moe_router_activation), &["sigmoid"])?;
    let sizes = config.decoder.sizes()?;
    let num_layers = sizes.num_layers;
    let types = config.layer_types.get(..num_layers).unwrap_or(&config.layer_types);
    let windows = windows(types, Some(config.sliding_window), num_layers)?;
    let moe_layers = moe_layers(&config, num_layers)?;
    let mut layers = Vec::with_capacity(num_layers);
    for (layer_idx, window) in windows.into_iter().enumerate() {
        let attention = attention(&config, layer_idx, window)?;
        let block = block(&config, layer_idx, moe_layers.contains(&layer_idx))?;
        layers.push(pre_norm_layer(layer_idx, sizes.hidden, attention, block));
    }
    let drafting = num_layers..num_layers + config.num_nextn_predict_layers;
    let unused = drafting.map(|layer_idx| format!("model.layers.{layer_idx}."));
    let description = config.decoder.with_layers(sizes, layers).without(unused);
    Ok(Description { head_table: HeadTable::Own, ..description })
}

/// Returns the configuration with an entry for each layer where mlx-lm has a rule for all of them.
fn with_lists(config: &Value) -> Value {
    let defaults = json!({
        "rms_norm_eps": 1e-5, "max_position_embeddings": 262_144, "sliding_window": 512,
        "use_head_wise_attn_gate": true, "moe_num_experts": 288, "moe_top_k": 8,
        "moe_intermediate_size": 1280, "share_expert_dim": 1280,
        "moe_router_scaling_factor": 3.0, "moe_router_activation": "sigmoid",
        "norm_expert_weight": true, "rope_theta": 10_000.0,
    });
    let mut config = completed(config, &[], &defaults);
    let num_layers = config["num_hidden_layers"].as_u64().unwrap_or(0).min(u64::from(u16::MAX));
    if config["layer_types"].as_array().is_none_or(Vec::is_empty) {
        let kind =
            |idx: u64| if idx.is_multiple_of(2) { "sliding_attention" } else { "full_attention" };
        config["layer_types"] = (0..num_layers).map(kind).collect();
        // Without types, all rotations are scaled.
        config["yarn_only_types"] = Value::Null;
    }
    let theta = config["rope_theta"].take();
    let is_list = theta.is_array();
    config["rope_thetas"] =
        if is_list { theta } else { (0..num_layers).map(|_| theta.clone()).collect() };
    config
}

/// Returns the layers with experts.
fn moe_layers(config: &Config, num_layers: usize) -> Result<Vec<usize>, SpecError> {
    let stated = config.moe_layers_enum.as_deref().filter(|stated| !stated.is_empty());
    let Some(stated) = stated else { return Ok((1..num_layers).collect()) };
    let numbers = stated.trim().split(',').map(|number| number.trim().parse());
    let numbers: Result<Vec<usize>, _> = numbers.collect();
    numbers.map_err(|_| bad_value("moe_layers_enum", stated, "numbers of layers"))
}

fn attention(
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

fn rope(config: &Config, layer_idx: usize, head_dim: usize) -> Result<RopeSpec, SpecError> {
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
fn limit(
    field: &'static str,
    limits: Option<&[Option<f32>]>,
    layer_idx: usize,
) -> Result<Option<f32>, SpecError> {
    let stated = limits.unwrap_or_default().get(layer_idx).copied().flatten();
    stated.filter(|limit| *limit != 0.0).map(|limit| factor(field, limit)).transpose()
}

fn block(config: &Config, layer_idx: usize, is_sparse: bool) -> Result<Block, SpecError> {
    let hidden = config.decoder.sizes()?.hidden;
    let module = format!("model.layers.{layer_idx}.mlp");
    let shared = config.swiglu_limits_shared.as_deref();
    let shared = limit("swiglu_limits_shared", shared, layer_idx)?;
    let activation = shared.map_or(Activation::Silu, |limit| Activation::BoundedSilu { limit });
    if !is_sparse {
        let inner = dimension("intermediate_size", config.intermediate_size)?;
        return Ok(mlp(&module, hidden, MlpSpec { activation, ..MlpSpec::plain(inner) }));
    }
    let routed = limit("swiglu_limits", config.swiglu_limits.as_deref(), layer_idx)?;
    let counts = ExpertCounts::new("moe_num_experts", config.moe_num_experts, config.moe_top_k)?;
    let router = RouterSpec {
        scores: RouterScores::Sigmoid,
        normalization_eps: config.norm_expert_weight.then_some(WEIGHTS_EPS),
        scale: config.moe_router_scaling_factor,
        ..RouterSpec::SOFTMAX
    };
    let inner = dimension("moe_intermediate_size", config.moe_intermediate_size)?;
    let plain = ExpertSizes::plain(counts, inner, router);
    let spec = ExpertSizes {
        shared_inner: Some(dimension("share_expert_dim", config.share_expert_dim)?),
        shared_activation: Some(activation),
        activation: routed
            .map_or(plain.activation, |limit| ExpertActivation::BoundedSwiglu { limit }),
        ..plain
    };
    Ok(experts(&module, hidden, &NAMES, spec))
}
