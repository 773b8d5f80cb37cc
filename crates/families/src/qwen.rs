//! Qwen, the first (Bai et al. 2023). Queries, keys and values always have biases.

use serde::Deserialize;
use serde_json::{Value, json};

use super::decoder::{DecoderNames, Description};
use super::dense::{DenseConfig, DenseLayer, Inward, LayerModules, Qkv};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, completed, parse};
use jackalope_spec::{AttentionSpec, HeadTable, MlpSpec};

const MODULES: LayerModules = LayerModules {
    layers: "transformer.h",
    qkv: Qkv::Stacked("attn.c_attn"),
    output: "attn.c_proj",
    // The second one is the gate.
    inward: Inward::Apart(["mlp.w2", "mlp.w1"]),
    down: "mlp.c_proj",
    norms: [Some("ln_1"), None, Some("ln_2"), None],
    ..LayerModules::LLAMA
};

const NAMES: DecoderNames =
    DecoderNames { embedding: "transformer.wte", norm: "transformer.ln_f", head: "lm_head" };

#[derive(Debug, Deserialize)]
struct Config {
    no_bias: bool,
    kv_channels: usize,
    #[serde(flatten)]
    dense: DenseConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let renames = [("layer_norm_epsilon", "rms_norm_eps")];
    let defaults = json!({
        "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 24,
        "intermediate_size": 11_008, "vocab_size": 151_936, "rms_norm_eps": 1e-6,
        "no_bias": true, "kv_channels": 128, "rope_theta": 10_000.0,
        "num_key_value_heads": null, "head_dim": null,
    });
    let config: Config = parse(&completed(config, &renames, &defaults))?;
    let dense = &config.dense;
    let sizes = dense.decoder.sizes()?;
    if config.kv_channels * sizes.heads != sizes.hidden {
        let expected = format!("hidden_size / num_attention_heads, {}", sizes.head_dim());
        return Err(bad_value("kv_channels", config.kv_channels, expected));
    }
    let rope = dense.decoder.rope.unscaled(sizes.head_dim())?;
    let has_bias = !config.no_bias;
    let attention = AttentionSpec {
        has_qkv_bias: true,
        has_output_bias: has_bias,
        ..dense.attention(sizes, rope)?
    };
    let stated = dense.mlp()?;
    let mlp = MlpSpec { inner: stated.inner / 2, has_bias, ..stated };
    Ok(Description {
        modules: NAMES,
        head_table: HeadTable::Own,
        has_head_bias: has_bias,
        ..DenseLayer::new(MODULES, attention, mlp).repeated(sizes, &dense.decoder)
    })
}
