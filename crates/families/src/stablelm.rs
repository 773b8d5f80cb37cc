//! `StableLM` 2 (Bellagente et al. 2024): layer norms, rotated in part, perhaps with both blocks reading
//! the same norm. The head has a table of its own. `rope_scaling` is ignored, as in mlx-lm.

use serde::Deserialize;
use serde_json::{Value, json};

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer, LayerModules};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, parse};
use jackalope_spec::{AttentionSpec, HeadTable, NormKind, QkNorm};

const MODULES: LayerModules = LayerModules {
    qk_norms: ["self_attn.q_layernorm.norms", "self_attn.k_layernorm.norms"],
    ..LayerModules::LLAMA
};

const PARALLEL: LayerModules =
    LayerModules { norms: [Some("input_layernorm"), None, None, None], ..MODULES };

#[derive(Debug, Deserialize)]
struct Config {
    use_qkv_bias: bool,
    #[serde(default)]
    use_parallel_residual: bool,
    #[serde(default)]
    qk_layernorm: bool,
    #[serde(flatten)]
    dense: DenseConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let renames = [("layer_norm_eps", "rms_norm_eps")];
    let config: Config = parse(&completed(config, &renames, &json!({})))?;
    let dense = &config.dense;
    let sizes = dense.decoder.sizes()?;
    let rope = &dense.decoder.rope;
    let rope = rope.unscaled(rope.rotated_dims(dense.head_dim(sizes)?, None)?)?;
    let attention = AttentionSpec {
        has_qkv_bias: config.use_qkv_bias,
        has_output_bias: false,
        qk_norm: config.qk_layernorm.then_some(QkNorm::OwnWeights),
        ..dense.attention(sizes, rope)?
    };
    let modules = if config.use_parallel_residual { PARALLEL } else { MODULES };
    let layer = DenseLayer {
        norm_kind: NormKind { is_centred: true, adds_one: false, has_bias: true },
        is_parallel: config.use_parallel_residual,
        ..DenseLayer::new(modules, attention, dense.mlp()?)
    };
    let description = layer.repeated(sizes, &dense.decoder);
    Ok(Description { head_table: HeadTable::Own, ..description })
}
