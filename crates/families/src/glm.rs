//! GLM-4 (GLM team 2024): gate and up in one tensor. Of the earlier `glm` all elements of a head are
//! rotated, whatever the configuration says, as in mlx-lm; `glm4` also normalises what a block adds.
//! `rope_scaling` is ignored, as in mlx-lm.

use serde_json::{Value, json};

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer, Inward, LayerModules};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, parse};
use jackalope_config::rope::RopeSpec;
use jackalope_spec::AttentionSpec;

const GLM: LayerModules =
    LayerModules { inward: Inward::Stacked("mlp.gate_up_proj"), ..LayerModules::LLAMA };

const GLM4: LayerModules = LayerModules {
    norms: [
        Some("input_layernorm"),
        Some("post_self_attn_layernorm"),
        Some("post_attention_layernorm"),
        Some("post_mlp_layernorm"),
    ],
    ..GLM
};

/// Reads `glm`.
pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: DenseConfig = parse(&completed(config, &[], &json!({"rope_theta": 10_000.0})))?;
    let head_dim = config.head_dim(config.decoder.sizes()?)?;
    let rope = config.decoder.rope.unscaled(head_dim)?;
    describe(&config, GLM, RopeSpec { is_traditional: true, ..rope })
}

/// Reads `glm4`.
pub(super) fn read_glm4(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({"rope_traditional": true});
    let config: DenseConfig = parse(&completed(config, &[], &defaults))?;
    let head_dim = config.head_dim(config.decoder.sizes()?)?;
    let rope = &config.decoder.rope;
    let rope = rope.unscaled(rope.rotated_dims(head_dim, None)?)?;
    Ok(describe(&config, GLM4, rope)?.with_stored_head())
}

/// Rotated part of the elements in checkpoints of `glm4v` that do not state it.
const VISION_ROTATED_PART: f64 = 0.5;

/// Reads the text part of `glm4v`, in whose rotations neighbouring elements are a pair. Sections of a
/// rotation have positions of their own on images only; of text, all of them are the token's (mlx-vlm
/// 0.7.10, models/glm4v/language.py, `get_rope_index`), so that the rotation is a plain one.
pub(super) fn read_glm4v(config: &Value) -> Result<Description, SpecError> {
    let config: DenseConfig = parse(&completed(config, &[], &json!({"attention_bias": true})))?;
    let head_dim = config.head_dim(config.decoder.sizes()?)?;
    let rope = &config.decoder.rope;
    rope.require(&["default", "mrope"])?;
    let rope = rope.unscaled(rope.rotated_dims(head_dim, Some(VISION_ROTATED_PART))?)?;
    let rope = RopeSpec { is_traditional: true, ..rope };
    Ok(describe(&config, GLM4, rope)?.with_stored_head())
}

fn describe(
    config: &DenseConfig,
    modules: LayerModules,
    rope: RopeSpec,
) -> Result<Description, SpecError> {
    let sizes = config.decoder.sizes()?;
    let attention = AttentionSpec { has_output_bias: false, ..config.attention(sizes, rope)? };
    Ok(DenseLayer::new(modules, attention, config.mlp()?).repeated(sizes, &config.decoder))
}
