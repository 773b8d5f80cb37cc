//! AFM with experts (Arcee 2025): windows with a rotation, other layers without one, gates of attention's
//! results, norms before and after each block, and experts with some that every token passes.

use serde::Deserialize;
use serde_json::{Value, json};

use super::blocks::{
    ExpertCounts, ExpertNames, ExpertSizes, attention, experts, mlp, router_groups, shared_inner,
};
use super::decoder::{DecoderConfig, Description, LayerBuilder};
use super::windows::windows;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, completed, dimension, parse};
use jackalope_spec::{
    AttentionSpec, BlockNorms, LayerNorms, MlpSpec, OutputGate, QkNorm, RouterScores, RouterSpec,
};

const NAMES: ExpertNames = ExpertNames {
    router: "router.gate",
    stacked: "experts",
    score_bias: Some("expert_bias"),
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
    num_shared_experts: u32,
    num_dense_layers: usize,
    sliding_window: u32,
    layer_types: Vec<String>,
    n_group: Option<u32>,
    topk_group: Option<u32>,
    route_norm: bool,
    route_scale: f32,
    score_func: String,
    mup_enabled: bool,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({
        "vocab_size": 200_192, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 1024,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 64,
        "num_experts": 128, "num_experts_per_tok": 8, "num_shared_experts": 1, "num_dense_layers": 2,
        "sliding_window": 2048, "route_norm": true, "route_scale": 2.826, "mup_enabled": true,
        "score_func": "sigmoid", "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    });
    let is_scaled = !config["rope_scaling"].is_null();
    let config: Config = parse(&completed(config, &[], &defaults))?;
    let rope = &config.decoder.rope;
    if !is_scaled {
        // mlx-lm does not read `rope_parameters`.
        rope.require(&["default"])?;
    }
    let sizes = config.decoder.sizes()?;
    let (hidden, head_dim) = (sizes.hidden, dimension("head_dim", config.head_dim)?);
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    let plain = AttentionSpec {
        qk_norm: Some(QkNorm::PerHead),
        output_gate: Some(OutputGate::Apart("gate_proj")),
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope.spec(head_dim, None)?)
    };
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let sparse = config.experts()?;
    let windows = windows(&config.layer_types, Some(config.sliding_window), sizes.num_layers)?;
    let layers = windows.into_iter().enumerate().map(|(layer_idx, window)| {
        let prefix = format!("model.layers.{layer_idx}");
        let mut spec = AttentionSpec { window, ..plain.clone() };
        if window.is_none() {
            spec.rope.dims = 0;
        }
        let module = format!("{prefix}.mlp");
        let block = if layer_idx < config.num_dense_layers {
            mlp(&module, hidden, MlpSpec::plain(inner))
        } else {
            experts(&module, hidden, &NAMES, sparse)
        };
        let mixer = attention(&format!("{prefix}.self_attn"), hidden, spec);
        let named = |name: &str| Some(format!("{prefix}.{name}_layernorm"));
        let norms = LayerNorms {
            mixer: BlockNorms { input: named("input"), output: named("post_attention") },
            feed_forward: BlockNorms { input: named("pre_mlp"), output: named("post_mlp") },
            eps: None,
        };
        LayerBuilder { norms, ..LayerBuilder::pre_norm(prefix, hidden) }.build(mixer, block)
    });
    let embedding_scale = config.mup_enabled.then(|| (hidden as f64).sqrt() as f32);
    Ok(Description { embedding_scale, ..config.decoder.with_layers(sizes, layers.collect()) })
}

impl Config {
    fn experts(&self) -> Result<ExpertSizes, SpecError> {
        let counts = ExpertCounts::new("num_experts", self.num_experts, self.num_experts_per_tok)?;
        let inner = dimension("moe_intermediate_size", self.moe_intermediate_size)?;
        let shared_inner = shared_inner(inner, self.num_shared_experts)?;
        let scores = match self.score_func.as_str() {
            "sigmoid" => RouterScores::Sigmoid,
            "softmax" => RouterScores::Softmax,
            found => return Err(bad_value("score_func", found, "sigmoid or softmax")),
        };
        let is_normalized = self.route_norm && 1 < counts.experts_per_token;
        let number = counts.num_experts;
        let router = RouterSpec {
            scores,
            groups: router_groups("n_group", self.n_group, self.topk_group, number)?,
            normalization_eps: is_normalized.then_some(0.0),
            scale: self.route_scale,
            ..RouterSpec::SOFTMAX
        };
        Ok(ExpertSizes { shared_inner, ..ExpertSizes::plain(counts, inner, router) })
    }
}
