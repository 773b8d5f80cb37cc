//! Hunyuan, dense (Tencent 2025): queries and keys are normalised after their rotation, whose base
//! grows with the context's extension.

use serde::Deserialize;
use serde_json::{Value, json};

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer, LayerModules};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, parse};
use jackalope_spec::{AttentionSpec, QkNorm};

const MODULES: LayerModules = LayerModules {
    qk_norms: ["self_attn.query_layernorm", "self_attn.key_layernorm"],
    ..LayerModules::LLAMA
};

#[derive(Debug, Deserialize)]
struct Config {
    use_qk_norm: bool,
    #[serde(flatten)]
    dense: DenseConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    // The block has no biases, whatever the configuration says.
    let defaults = json!({"use_qk_norm": true, "rope_theta": 10_000.0});
    let config: Config = parse(&completed(config, &[], &defaults))?;
    let dense = &config.dense;
    let sizes = dense.decoder.sizes()?;
    let rope = dense.decoder.rope.alpha(dense.head_dim(sizes)?)?;
    let attention = AttentionSpec {
        qk_norm: config.use_qk_norm.then_some(QkNorm::PerHead),
        norm_follows_rotation: true,
        ..dense.attention(sizes, rope)?
    };
    let layer = DenseLayer::new(MODULES, attention, dense.mlp()?);
    Ok(layer.repeated(sizes, &dense.decoder))
}
