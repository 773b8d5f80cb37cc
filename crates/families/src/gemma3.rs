//! Gemma 3 (Gemma team 2025): most layers see only the last positions and have a rotation of their
//! own.

use serde::Deserialize;
use serde_json::{Value, json};

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer};
use super::gemma::{ACTIVATIONS, NORM_KIND, SANDWICH};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, count, dimension, factor, parse};
use jackalope_config::names::TensorNames;
use jackalope_config::rope::{RopeScaling, RopeSpec};
use jackalope_spec::{Activation, AttentionSpec, HeadTable, MlpSpec, QkNorm};

#[derive(Debug, Deserialize)]
struct Config {
    rope_local_base_freq: f64,
    query_pre_attn_scalar: f32,
    sliding_window: u32,
    sliding_window_pattern: u32,
    #[serde(flatten)]
    dense: DenseConfig,
}

/// Reads `gemma3_text`.
pub(super) fn read_text(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({
        "hidden_size": 1152, "num_hidden_layers": 26, "intermediate_size": 6912,
        "num_attention_heads": 4, "head_dim": 256, "rms_norm_eps": 1e-6, "vocab_size": 262_144,
        "num_key_value_heads": 1, "rope_theta": 1e6, "rope_local_base_freq": 10_000.0,
        "query_pre_attn_scalar": 256, "sliding_window": 512, "sliding_window_pattern": 6,
        "max_position_embeddings": 32_768,
    });
    let config: Config = parse(&completed(config, &[], &defaults))?;
    let dense = &config.dense;
    let sizes = dense.decoder.sizes_with(ACTIVATIONS)?;
    let rope = dense.decoder.rope.spec(dense.head_dim(sizes)?, None)?;
    let local = RopeSpec {
        theta: config.rope_local_base_freq,
        scaling: RopeScaling::None,
        is_traditional: false,
        ..rope
    };
    let queries = factor("query_pre_attn_scalar", config.query_pre_attn_scalar)?;
    let full = AttentionSpec {
        scale: f64::from(queries).powf(-0.5) as f32,
        qk_norm: Some(QkNorm::PerHead),
        ..dense.attention(sizes, RopeSpec { is_traditional: false, ..rope })?
    };
    let window = Some(dimension("sliding_window", config.sliding_window)?);
    let sliding = AttentionSpec { window, rope: local, ..full.clone() };
    let mlp = MlpSpec { activation: Activation::GeluTanh, ..dense.mlp()? };
    let pattern = count("sliding_window_pattern", config.sliding_window_pattern)?;
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let is_full = (layer_idx + 1).is_multiple_of(pattern);
        let attention = if is_full { full.clone() } else { sliding.clone() };
        let layer = DenseLayer::new(SANDWICH, attention, mlp.clone());
        DenseLayer { norm_kind: NORM_KIND, ..layer }.at(layer_idx, sizes.hidden)
    });
    let layers = layers.collect();
    Ok(Description {
        norm_kind: NORM_KIND,
        head_table: HeadTable::IfPresent,
        // Rounded to bfloat16, whatever the model is computed in.
        embedding_scale: Some(rounded((sizes.hidden as f64).sqrt() as f32)),
        ..dense.decoder.with_layers(sizes, layers)
    })
}

/// Reads the text part of `gemma3`.
pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let vocab_size = config.get("vocab_size").cloned().unwrap_or_else(|| json!(262_208));
    let defaults = json!({"num_attention_heads": 8, "num_key_value_heads": 4});
    let mut text = completed(config.get("text_config").unwrap_or(&Value::Null), &[], &defaults);
    text["vocab_size"] = vocab_size;
    Ok(read_text(&text)?.with_names(TensorNames::WRAPPED))
}

/// Returns the nearest bfloat16, ties to even.
fn rounded(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits(bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}
