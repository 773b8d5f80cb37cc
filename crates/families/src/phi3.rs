//! Phi-3, Phi-3.5 and Phi-4 (Abdin et al. 2024): projections in one tensor, rotated in part. Sliding
//! windows are ignored, as in mlx-lm.

use serde_json::{Value, json};

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer, Inward, LayerModules, Qkv};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, parse};

const MODULES: LayerModules = LayerModules {
    qkv: Qkv::Stacked("self_attn.qkv_proj"),
    inward: Inward::Stacked("mlp.gate_up_proj"),
    ..LayerModules::LLAMA
};

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({
        "rope_theta": 10_000.0, "original_max_position_embeddings": 4096,
        "max_position_embeddings": 131_072,
    });
    let config: DenseConfig = parse(&completed(config, &[], &defaults))?;
    let sizes = config.decoder.sizes()?;
    let rope = &config.decoder.rope;
    rope.require(&["default", "linear", "longrope", "su"])?;
    let rope = rope.spec(rope.rotated_dims(config.head_dim(sizes)?, Some(1.0))?, None)?;
    let layer = DenseLayer::new(MODULES, config.attention(sizes, rope)?, config.mlp()?);
    Ok(layer.repeated(sizes, &config.decoder))
}
