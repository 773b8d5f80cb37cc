//! Command R and Aya (Cohere 2024): attention and feed-forward block read the same norm, and their
//! sum is added to the stream. `rope_scaling` is ignored, as in mlx-lm.

use serde::Deserialize;
use serde_json::{Value, json};

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer, LayerModules};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, factor, parse};
use jackalope_config::rope::RopeSpec;
use jackalope_spec::{AttentionSpec, HeadTable, LogitsSpec, NormKind, QkNorm};

const MODULES: LayerModules =
    LayerModules { norms: [Some("input_layernorm"), None, None, None], ..LayerModules::LLAMA };

#[derive(Debug, Deserialize)]
struct Config {
    logit_scale: f32,
    #[serde(default)]
    layer_norm_bias: bool,
    #[serde(default)]
    use_qk_norm: bool,
    #[serde(flatten)]
    dense: DenseConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({
        "hidden_size": 8192, "num_hidden_layers": 40, "intermediate_size": 22_528,
        "num_attention_heads": 64, "num_key_value_heads": 64, "rope_theta": 8e6,
        "vocab_size": 256_000, "rms_norm_eps": 1e-5, "logit_scale": 0.0625,
    });
    let renames = [("layer_norm_eps", "rms_norm_eps")];
    let config: Config = parse(&completed(config, &renames, &defaults))?;
    let dense = &config.dense;
    let sizes = dense.decoder.sizes()?;
    let rope = dense.decoder.rope.unscaled(dense.head_dim(sizes)?)?;
    let rope = RopeSpec { is_traditional: true, ..rope };
    let attention = AttentionSpec {
        qk_norm: config.use_qk_norm.then_some(QkNorm::OwnWeights),
        ..dense.attention(sizes, rope)?
    };
    let layer = DenseLayer {
        norm_kind: NormKind { is_centred: true, adds_one: false, has_bias: config.layer_norm_bias },
        is_parallel: true,
        ..DenseLayer::new(MODULES, attention, dense.mlp()?)
    };
    let scale = factor("logit_scale", config.logit_scale)?;
    Ok(Description {
        head_table: HeadTable::Tied,
        logits: LogitsSpec { scale, soft_cap: None },
        ..layer.repeated(sizes, &dense.decoder)
    })
}
