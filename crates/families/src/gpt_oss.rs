//! gpt-oss (OpenAI 2025): biases everywhere, attention sinks, windows in every other layer, and
//! experts with bounded gates.

use serde::Deserialize;
use serde_json::{Value, json};

use super::blocks::{ExpertCounts, ExpertNames, ExpertSizes, FusedNames, experts};
use super::decoder::{DecoderConfig, Description, Sizes, pre_norm_layer};
use super::windows::windows;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, defaulted, dimension, parse};
use jackalope_spec::{Activation, AttentionSpec, RouterScores, RouterSpec};

const NAMES: ExpertNames = ExpertNames {
    router: "router",
    stacked: "experts",
    fused: &[FusedNames::BLOCKS, FusedNames::COLUMNS_IN_TURN],
    ..ExpertNames::QWEN
};

/// Factor in the logistic function of the gates.
const ALPHA: f32 = 1.702;

/// Base of the rotations that are not stated.
const DEFAULT_ROPE_THETA: f64 = 150_000.0;

/// Bound of the gates.
const LIMIT: f32 = 7.0;

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    num_key_value_heads: u32,
    head_dim: u32,
    num_local_experts: u32,
    num_experts_per_tok: u32,
    sliding_window: u32,
    layer_types: Option<Vec<String>>,
    swiglu_limit: Option<f32>,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({
        "num_hidden_layers": 36, "num_local_experts": 128, "num_experts_per_tok": 4,
        "vocab_size": 201_088, "rms_norm_eps": 1e-5, "hidden_size": 2880, "intermediate_size": 2880,
        "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "sliding_window": 128,
    });
    let config: Config = parse(&defaulted(config, &defaults))?;
    let sizes = config.decoder.sizes()?;
    if let Some(limit) = config.swiglu_limit.filter(|limit| *limit != LIMIT) {
        return Err(bad_value("swiglu_limit", limit, LIMIT.to_string()));
    }
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    let head_dim = dimension("head_dim", config.head_dim)?;
    let rope = config.decoder.rope.spec(head_dim, Some(DEFAULT_ROPE_THETA))?;
    let attention = AttentionSpec {
        has_qkv_bias: true,
        has_output_bias: true,
        sinks: Some("sinks"),
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    };
    let counts = ExpertCounts::local(config.num_local_experts, config.num_experts_per_tok)?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let router =
        RouterSpec { has_bias: true, scores: RouterScores::SoftmaxOfChosen, ..RouterSpec::SOFTMAX };
    let spec = ExpertSizes {
        activation: Activation::ClampedSilu { alpha: ALPHA, limit: LIMIT },
        has_bias: true,
        ..ExpertSizes::plain(counts, inner, router)
    };
    let types = config.layer_types.clone().unwrap_or_else(|| alternating(sizes));
    let windows = windows(&types, Some(config.sliding_window), sizes.num_layers)?;
    let layers = windows.into_iter().enumerate().map(|(layer_idx, window)| {
        let module = format!("model.layers.{layer_idx}.mlp");
        let block = experts(&module, sizes.hidden, &NAMES, spec);
        let attention = AttentionSpec { window, ..attention.clone() };
        pre_norm_layer(layer_idx, sizes.hidden, attention, block)
    });
    let layers = layers.collect();
    Ok(config.decoder.with_layers(sizes, layers).with_stored_head())
}

/// Returns the types of the layers of a checkpoint that does not state them.
fn alternating(sizes: Sizes) -> Vec<String> {
    let types = ["sliding_attention", "full_attention"].into_iter().cycle();
    types.take(sizes.num_layers).map(str::to_owned).collect()
}
