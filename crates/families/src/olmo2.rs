//! OLMo 2 (OLMo team 2024): blocks read the stream itself, and what they add is normalised; queries
//! and keys are normalised over all heads together.

use serde_json::Value;

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer, LayerModules};
use jackalope_config::error::SpecError;
use jackalope_config::fields::parse;
use jackalope_spec::{AttentionSpec, QkNorm};

/// Base of the rotations in checkpoints that do not state one.
const DEFAULT_ROPE_THETA: f64 = 10_000.0;

const MODULES: LayerModules = LayerModules {
    norms: [None, Some("post_attention_layernorm"), None, Some("post_feedforward_layernorm")],
    ..LayerModules::LLAMA
};

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: DenseConfig = parse(config)?;
    let sizes = config.decoder.sizes()?;
    let rope = config.decoder.rope.spec(config.head_dim(sizes)?, Some(DEFAULT_ROPE_THETA))?;
    let attention =
        AttentionSpec { qk_norm: Some(QkNorm::AllHeads), ..config.attention(sizes, rope)? };
    Ok(DenseLayer::new(MODULES, attention, config.mlp()?).repeated(sizes, &config.decoder))
}
