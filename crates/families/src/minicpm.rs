//! `MiniCPM` (Hu et al. 2024): factors of embeddings, of what a block adds, and of what the head reads.

use serde::Deserialize;
use serde_json::Value;

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer, LayerModules};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{factor, parse};
use jackalope_spec::{HeadTable, LogitsSpec};

/// Base of the rotations in checkpoints that do not state one.
const DEFAULT_ROPE_THETA: f64 = 1e6;

#[derive(Debug, Deserialize)]
struct Config {
    dim_model_base: f32,
    scale_depth: f32,
    scale_emb: f32,
    #[serde(flatten)]
    dense: DenseConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let Config { dense, .. } = &config;
    let sizes = dense.decoder.sizes()?;
    let rope = dense.decoder.rope.spec(dense.head_dim(sizes)?, Some(DEFAULT_ROPE_THETA))?;
    let depth = factor("scale_depth", config.scale_depth)?;
    let layer = DenseLayer {
        residual_factor: depth / (sizes.num_layers as f32).sqrt(),
        ..DenseLayer::new(LayerModules::LLAMA, dense.attention(sizes, rope)?, dense.mlp()?)
    };
    let base = factor("dim_model_base", config.dim_model_base)?;
    let description = layer.repeated(sizes, &dense.decoder);
    // Without a table of its own the head still scales, unless the configuration says that it is the
    // embedding.
    let (head_table, scale) = match description.head_table {
        HeadTable::Tied => (HeadTable::Tied, 1.0),
        HeadTable::Own | HeadTable::IfPresent => (HeadTable::IfPresent, base / sizes.hidden as f32),
    };
    Ok(Description {
        head_table,
        embedding_scale: Some(factor("scale_emb", config.scale_emb)?),
        logits: LogitsSpec { scale, soft_cap: None },
        ..description
    })
}
