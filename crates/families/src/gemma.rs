//! Gemma 1 and 2 (Gemma team 2024): norms whose factor is one more than the weight, scaled
//! embeddings, and in Gemma 2 caps of scores and logits and norms of what a block adds. Sliding windows
//! of Gemma 2 are ignored, as in mlx-lm.

use serde::Deserialize;
use serde_json::{Value, json};

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer, LayerModules};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, factor, parse};
use jackalope_spec::{Activation, AttentionSpec, HeadTable, LogitsSpec, MlpSpec, NormKind};

/// The norms of all models of this family.
pub(super) const NORM_KIND: NormKind =
    NormKind { is_centred: false, adds_one: true, has_bias: false };

/// Modules of a layer whose blocks have norms on both sides.
pub(super) const SANDWICH: LayerModules = LayerModules {
    norms: [
        Some("input_layernorm"),
        Some("post_attention_layernorm"),
        Some("pre_feedforward_layernorm"),
        Some("post_feedforward_layernorm"),
    ],
    ..LayerModules::LLAMA
};

/// The names under which configurations state the activation; mlx-lm does not read them.
pub(super) const ACTIVATIONS: &[&str] = &["gelu", "gelu_pytorch_tanh"];

#[derive(Debug, Deserialize)]
struct Config {
    attn_logit_softcapping: f32,
    final_logit_softcapping: f32,
    query_pre_attn_scalar: f32,
    #[serde(flatten)]
    dense: DenseConfig,
}

/// Reads `gemma`.
pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({"rope_theta": 10_000.0});
    let config: DenseConfig = parse(&completed(config, &[], &defaults))?;
    let sizes = config.decoder.sizes_with(ACTIVATIONS)?;
    let rope = config.decoder.rope.unscaled(config.head_dim(sizes)?)?;
    let mlp = MlpSpec { activation: Activation::Gelu, ..config.mlp()? };
    let layer = DenseLayer {
        norm_kind: NORM_KIND,
        ..DenseLayer::new(LayerModules::LLAMA, config.attention(sizes, rope)?, mlp)
    };
    Ok(Description {
        head_table: HeadTable::Tied,
        embedding_scale: Some((sizes.hidden as f64).sqrt() as f32),
        ..layer.repeated(sizes, &config.decoder)
    })
}

/// Reads `gemma2`.
pub(super) fn read2(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({
        "rope_theta": 10_000.0, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 144.0,
    });
    let config: Config = parse(&completed(config, &[], &defaults))?;
    let dense = &config.dense;
    let sizes = dense.decoder.sizes_with(ACTIVATIONS)?;
    let rope = dense.decoder.rope.unscaled(dense.head_dim(sizes)?)?;
    let queries = factor("query_pre_attn_scalar", config.query_pre_attn_scalar)?;
    let attention = AttentionSpec {
        scale: f64::from(queries).powf(-0.5) as f32,
        soft_cap: Some(factor("attn_logit_softcapping", config.attn_logit_softcapping)?),
        ..dense.attention(sizes, rope)?
    };
    let mlp = MlpSpec { activation: Activation::GeluTanh, ..dense.mlp()? };
    let layer = DenseLayer { norm_kind: NORM_KIND, ..DenseLayer::new(SANDWICH, attention, mlp) };
    let cap = factor("final_logit_softcapping", config.final_logit_softcapping)?;
    Ok(Description {
        head_table: HeadTable::Tied,
        embedding_scale: Some((sizes.hidden as f64).sqrt() as f32),
        logits: LogitsSpec { scale: 1.0, soft_cap: Some(cap) },
        ..layer.repeated(sizes, &dense.decoder)
    })
}
