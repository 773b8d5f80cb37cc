//! `InternLM` 2 (Cai et al. 2024), with queries, keys and values in one tensor, and `InternLM` 3.

use serde::Deserialize;
use serde_json::{Value, json};

use super::decoder::{DecoderNames, Description};
use super::dense::{DenseConfig, DenseLayer, Inward, LayerModules, Qkv};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, parse};
use jackalope_spec::{AttentionSpec, MlpSpec};

/// Base of the rotations in checkpoints that do not state one.
const DEFAULT_ROPE_THETA: f64 = 10_000.0;

/// Extensions of the context that these families know.
const SCALINGS: &[&str] = &["default", "linear", "dynamic"];

const MODULES2: LayerModules = LayerModules {
    qkv: Qkv::Grouped("attention.wqkv"),
    output: "attention.wo",
    inward: Inward::Apart(["feed_forward.w1", "feed_forward.w3"]),
    down: "feed_forward.w2",
    norms: [Some("attention_norm"), None, Some("ffn_norm"), None],
    ..LayerModules::LLAMA
};

const NAMES2: DecoderNames =
    DecoderNames { embedding: "model.tok_embeddings", norm: "model.norm", head: "output" };

#[derive(Debug, Deserialize)]
struct Config {
    bias: bool,
    #[serde(default)]
    qkv_bias: bool,
    #[serde(flatten)]
    dense: DenseConfig,
}

/// Reads `internlm2`.
pub(super) fn read2(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(&completed(config, &[], &json!({"bias": true})))?;
    let description = describe(&config, MODULES2, [config.bias, false])?;
    Ok(Description { modules: NAMES2, ..description })
}

/// Reads `internlm3`.
pub(super) fn read3(config: &Value) -> Result<Description, SpecError> {
    // mlx-lm does not read a width of heads.
    let defaults = json!({"bias": false, "head_dim": null});
    let config: Config = parse(&completed(config, &[], &defaults))?;
    describe(&config, LayerModules::LLAMA, [config.qkv_bias, config.bias])
}

fn describe(
    config: &Config,
    modules: LayerModules,
    [attention_bias, mlp_bias]: [bool; 2],
) -> Result<Description, SpecError> {
    let dense = &config.dense;
    let sizes = dense.decoder.sizes()?;
    dense.decoder.rope.require(SCALINGS)?;
    let rope = dense.decoder.rope.spec(dense.head_dim(sizes)?, Some(DEFAULT_ROPE_THETA))?;
    let attention = AttentionSpec {
        has_qkv_bias: attention_bias,
        has_output_bias: attention_bias,
        ..dense.attention(sizes, rope)?
    };
    let mlp = MlpSpec { has_bias: mlp_bias, ..dense.mlp()? };
    Ok(DenseLayer::new(modules, attention, mlp).repeated(sizes, &dense.decoder))
}
