//! Granite 3 (Granite team 2024): factors of embeddings, of what a block adds, of scores and of
//! logits.

use serde::Deserialize;
use serde_json::Value;

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer, LayerModules};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{factor, parse};
use jackalope_spec::{AttentionSpec, LogitsSpec};

#[derive(Debug, Deserialize)]
struct Config {
    logits_scaling: f32,
    attention_multiplier: f32,
    embedding_multiplier: f32,
    residual_multiplier: f32,
    #[serde(flatten)]
    dense: DenseConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let Config { dense, .. } = &config;
    let sizes = dense.decoder.sizes()?;
    let rope = dense.decoder.rope.spec(dense.head_dim(sizes)?, None)?;
    let attention = AttentionSpec {
        scale: factor("attention_multiplier", config.attention_multiplier)?,
        ..dense.attention(sizes, rope)?
    };
    let layer = DenseLayer {
        residual_factor: factor("residual_multiplier", config.residual_multiplier)?,
        ..DenseLayer::new(LayerModules::LLAMA, attention, dense.mlp()?)
    };
    let scale = 1.0 / factor("logits_scaling", config.logits_scaling)?;
    Ok(Description {
        embedding_scale: Some(factor("embedding_multiplier", config.embedding_multiplier)?),
        logits: LogitsSpec { scale, soft_cap: None },
        ..layer.repeated(sizes, &dense.decoder)
    })
}
