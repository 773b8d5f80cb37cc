//! EXAONE with experts (LG AI 2026): windows with a rotation, other layers without one; experts with some
//! that every token passes.

use serde::Deserialize;
use serde_json::{Value, json};

use super::blocks::{
    ExpertCounts, ExpertNames, ExpertSizes, experts, mlp, router_groups, shared_inner,
};
use super::decoder::{DecoderConfig, Description, pre_norm_layer};
use super::windows::windows;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, completed, dimension, parse, setting};
use jackalope_config::names::TensorNames;
use jackalope_config::rope_parameters::with_base_of_parameters;
use jackalope_spec::{AttentionSpec, MlpSpec, QkNorm, RouterScores, RouterSpec};

const NAMES: ExpertNames = ExpertNames {
    score_bias: Some("gate.e_score_correction_bias"),
    shared: "shared_experts",
    ..ExpertNames::QWEN
};

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    moe_intermediate_size: u32,
    num_key_value_heads: u32,
    head_dim: u32,
    num_experts: u32,
    num_experts_per_tok: u32,
    num_shared_experts: Option<u32>,
    sliding_window: u32,
    layer_types: Vec<String>,
    is_moe_layer: Vec<bool>,
    n_group: Option<u32>,
    topk_group: Option<u32>,
    routed_scaling_factor: f32,
    norm_topk_prob: bool,
    scoring_func: String,
    topk_method: String,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({
        "routed_scaling_factor": 2.5, "norm_topk_prob": true, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "rope_theta": 1e6,
    });
    let is_scaled = !config["rope_scaling"].is_null();
    let config = with_base_of_parameters(config);
    let config: Config = parse(&completed(&config, &[], &defaults))?;
    setting("scoring_func", Some(&config.scoring_func), &["sigmoid"])?;
    setting("topk_method", Some(&config.topk_method), &["noaux_tc"])?;
    let rope = &config.decoder.rope;
    if !is_scaled {
        // mlx-lm reads only the base in `rope_parameters`.
        rope.require(&["default"])?;
    }
    let sizes = config.decoder.sizes()?;
    let head_dim = dimension("head_dim", config.head_dim)?;
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    let rope = rope.spec(head_dim, None)?;
    let attention = AttentionSpec {
        qk_norm: Some(QkNorm::PerHead),
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    };
    let windows = windows(&config.layer_types, Some(config.sliding_window), sizes.num_layers)?;
    if config.is_moe_layer.len() != sizes.num_layers {
        let expected = format!("{} entries", sizes.num_layers);
        return Err(bad_value("is_moe_layer", config.is_moe_layer.len(), expected));
    }
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let sparse = config.experts()?;
    let has_windows = windows.iter().any(Option::is_some);
    let layers = windows.iter().enumerate().map(|(layer_idx, &window)| {
        let module = format!("model.layers.{layer_idx}.mlp");
        let block = if config.is_moe_layer[layer_idx] {
            experts(&module, sizes.hidden, &NAMES, sparse)
        } else {
            mlp(&module, sizes.hidden, MlpSpec::plain(inner))
        };
        let mut attention = AttentionSpec { window, ..attention.clone() };
        if has_windows && window.is_none() {
            attention.rope.dims = 0;
        }
        pre_norm_layer(layer_idx, sizes.hidden, attention, block)
    });
    let layers = layers.collect();
    Ok(config.decoder.with_layers(sizes, layers).with_names(TensorNames::EXAONE_MOE))
}

impl Config {
    fn experts(&self) -> Result<ExpertSizes, SpecError> {
        let counts = ExpertCounts::new("num_experts", self.num_experts, self.num_experts_per_tok)?;
        let inner = dimension("moe_intermediate_size", self.moe_intermediate_size)?;
        let shared_inner = shared_inner(inner, self.num_shared_experts.unwrap_or(0))?;
        let is_normalized = self.norm_topk_prob && 1 < counts.experts_per_token;
        let (groups, chosen) = (self.n_group, self.topk_group);
        let router = RouterSpec {
            scores: RouterScores::Sigmoid,
            groups: router_groups("n_group", groups, chosen, counts.num_experts)?,
            normalization_eps: is_normalized.then_some(1e-20),
            scale: self.routed_scaling_factor,
            ..RouterSpec::SOFTMAX
        };
        Ok(ExpertSizes { shared_inner, ..ExpertSizes::plain(counts, inner, router) })
    }
}
