//! Apertus (Swiss AI 2025): each query and key head is normalised, and the feed-forward block has no
//! gate; the parameters of its activation are tensors.

use serde::Deserialize;
use serde_json::{Value, json};

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer, Inward, LayerModules};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, parse};
use jackalope_spec::{Activation, AttentionSpec, MlpSpec, QkNorm};

const MODULES: LayerModules = LayerModules {
    inward: Inward::Ungated("mlp.up_proj"),
    norms: [Some("attention_layernorm"), None, Some("feedforward_layernorm"), None],
    ..LayerModules::LLAMA
};

#[derive(Debug, Deserialize)]
struct Config {
    #[serde(default)]
    post_norm: bool,
    #[serde(default = "yes")]
    qk_norm: bool,
    #[serde(flatten)]
    dense: DenseConfig,
}

fn yes() -> bool {
    true
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(&completed(config, &[], &json!({})))?;
    let Config { dense, .. } = &config;
    let refusals = [
        ("post_norm", config.post_norm, false),
        ("qk_norm", config.qk_norm, true),
        ("attention_bias", dense.attention_bias, false),
    ];
    for (what, found, only) in refusals {
        if found != only {
            let supported: &[&str] = if only { &["true"] } else { &["false"] };
            return Err(SpecError::Setting { what, found: found.to_string(), supported });
        }
    }
    let sizes = dense.decoder.sizes_with(&["xielu"])?;
    let rope = dense.decoder.rope.spec(dense.head_dim(sizes)?, None)?;
    let attention =
        AttentionSpec { qk_norm: Some(QkNorm::PerHead), ..dense.attention(sizes, rope)? };
    let mlp = MlpSpec { activation: Activation::Xielu, ..dense.mlp()? };
    Ok(DenseLayer::new(MODULES, attention, mlp).repeated(sizes, &dense.decoder))
}
