//! Step 3.5 (StepFun 2026): windows with heads and rotations of their own, a gate for each head, and
//! experts with bounded activations.

mod config;

use serde_json::{Value, json};

use self::config::{Config, WEIGHTS_EPS, attention, limit, moe_layers};
use super::blocks::{Block, ExpertCounts, ExpertNames, ExpertSizes, experts, mlp};
use super::decoder::{Description, pre_norm_layer};
use super::windows::windows;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, dimension, parse, setting};
use jackalope_config::names::TensorNames;
use jackalope_spec::{
    Activation, HeadTable, MlpSpec, NumberEdit, OriginalNumbers, OriginalSign, RouterScores,
    RouterSpec,
};

const NAMES: ExpertNames = ExpertNames {
    router: "gate.gate",
    score_bias: Some("gate.router_bias"),
    shared: "share_expert",
    ..ExpertNames::QWEN
};

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
    let num_predicting = Some(config.num_nextn_predict_layers);
    let description = config.decoder.with_layers(sizes, layers);
    let description = description.without_prediction(num_layers, num_predicting);
    let numbers = OriginalNumbers {
        sign: OriginalSign::Names,
        edits: vec![("norm.weight", NumberEdit::AddOne)],
    };
    let description = Description { original_numbers: Some(numbers), ..description };
    Ok(Description { head_table: HeadTable::Own, ..description }.with_names(TensorNames::STEP))
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
    let theta = match config["rope_theta"].take() {
        Value::Null => config["rope_parameters"]["rope_theta"].take(),
        theta => theta,
    };
    let is_list = theta.is_array();
    config["rope_thetas"] =
        if is_list { theta } else { (0..num_layers).map(|_| theta.clone()).collect() };
    config
}

fn block(config: &Config, layer_idx: usize, is_sparse: bool) -> Result<Block, SpecError> {
    let hidden = config.decoder.sizes()?.hidden;
    let module = format!("model.layers.{layer_idx}.mlp");
    let shared = config.swiglu_limits_shared.as_deref();
    let bounded = |limit: Option<f32>| {
        limit.map_or(Activation::Silu, |limit| Activation::BoundedSilu { bound: limit, limit })
    };
    let activation = bounded(limit("swiglu_limits_shared", shared, layer_idx)?);
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
    let spec = ExpertSizes {
        shared_inner: Some(dimension("share_expert_dim", config.share_expert_dim)?),
        shared_activation: Some(activation),
        activation: bounded(routed),
        ..ExpertSizes::plain(counts, inner, router)
    };
    Ok(experts(&module, hidden, &NAMES, spec))
}
