//! Command R7B and Command A (Cohere 2024): like Command R; three of four layers see a window, the
//! others all positions without a rotation.

use serde::Deserialize;
use serde_json::{Value, json};

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer, LayerModules};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, count, dimension, factor, parse};
use jackalope_config::rope::RopeSpec;
use jackalope_spec::{AttentionSpec, HeadTable, LogitsSpec, NormKind};

const MODULES: LayerModules =
    LayerModules { norms: [Some("input_layernorm"), None, None, None], ..LayerModules::LLAMA };

#[derive(Debug, Deserialize)]
struct Config {
    logit_scale: f32,
    #[serde(default)]
    layer_norm_bias: bool,
    sliding_window: u32,
    sliding_window_pattern: u32,
    #[serde(flatten)]
    dense: DenseConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({
        "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14_336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 256_000,
        "rope_theta": 5e4, "rms_norm_eps": 1e-5, "logit_scale": 0.0625, "head_dim": 128,
        "sliding_window": 4096, "sliding_window_pattern": 4,
    });
    let renames = [("layer_norm_eps", "rms_norm_eps")];
    let config: Config = parse(&completed(config, &renames, &defaults))?;
    let dense = &config.dense;
    let sizes = dense.decoder.sizes()?;
    let rope = dense.decoder.rope.unscaled(dense.head_dim(sizes)?)?;
    let attention = dense.attention(sizes, RopeSpec { is_traditional: true, ..rope })?;
    let mlp = dense.mlp()?;
    let window = dimension("sliding_window", config.sliding_window)?;
    let interval = count("sliding_window_pattern", config.sliding_window_pattern)?;
    let norm_kind =
        NormKind { is_centred: true, adds_one: false, has_bias: config.layer_norm_bias };
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let mut attention = AttentionSpec { window: Some(window), ..attention.clone() };
        if (layer_idx + 1).is_multiple_of(interval) {
            (attention.window, attention.rope.dims) = (None, 0);
        }
        let layer = DenseLayer::new(MODULES, attention, mlp.clone());
        DenseLayer { norm_kind, is_parallel: true, ..layer }.at(layer_idx, sizes.hidden)
    });
    let layers = layers.collect();
    let scale = factor("logit_scale", config.logit_scale)?;
    Ok(Description {
        norm_kind,
        head_table: HeadTable::Tied,
        logits: LogitsSpec { scale, soft_cap: None },
        ..dense.decoder.with_layers(sizes, layers)
    })
}
