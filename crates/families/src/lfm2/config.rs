//! The fields of LFM2's configurations, and what they say of a layer.

use crate::decoder::{DecoderConfig, Sizes};
use crate::windows;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension};
use jackalope_spec::{AttentionSpec, QkNorm};
use serde::Deserialize;

/// Base of the rotations where it is not stated.
pub(super) const ROPE_THETA: f64 = 1e6;

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub(super) num_key_value_heads: Option<u32>,
    pub(super) conv_bias: bool,
    #[serde(rename = "conv_L_cache")]
    pub(super) conv_width: u32,
    pub(super) full_attn_idxs: Option<Vec<usize>>,
    pub(super) layer_types: Option<Vec<String>>,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

#[derive(Debug, Deserialize)]
pub(super) struct DenseConfig {
    pub(super) hidden_size: u32,
    pub(super) block_dim: Option<u32>,
    pub(super) block_ff_dim: Option<u32>,
    pub(super) intermediate_size: Option<u32>,
    pub(super) block_multiple_of: u32,
    pub(super) block_ffn_dim_multiplier: Option<f64>,
    pub(super) block_auto_adjust_ff_dim: bool,
}

/// Returns the inner dimension of the dense blocks, rounded in the steps of mlx-lm.
pub(super) fn inner_size(config: &DenseConfig) -> Result<usize, SpecError> {
    if let Some(width) = config.block_dim.filter(|width| *width != config.hidden_size) {
        return Err(bad_value("block_dim", width, format!("hidden_size, {}", config.hidden_size)));
    }
    let Some(stated) = config.block_ff_dim.or(config.intermediate_size) else {
        return Err(bad_value("block_ff_dim", "absent", "a number"));
    };
    let stated = dimension("block_ff_dim", stated)?;
    if !config.block_auto_adjust_ff_dim {
        return Ok(stated);
    }
    let multiple = dimension("block_multiple_of", config.block_multiple_of)?;
    let part = (2 * stated) / 3;
    let scaled = config.block_ffn_dim_multiplier.map_or(part, |it| (it * part as f64) as usize);
    let inner = u32::try_from(scaled.next_multiple_of(multiple)).unwrap_or(u32::MAX);
    dimension("adjusted block_ff_dim", inner)
}

pub(super) fn attention(config: &Config, sizes: Sizes) -> Result<AttentionSpec, SpecError> {
    let kv_heads = sizes.kv_heads_or_all(config.num_key_value_heads)?;
    config.decoder.rope.require(&["default"])?;
    let rope = config.decoder.rope.spec(sizes.head_dim(), Some(ROPE_THETA))?;
    let plain = AttentionSpec::plain(sizes.heads, kv_heads, sizes.head_dim(), rope);
    Ok(AttentionSpec { qk_norm: Some(QkNorm::PerHead), ..plain })
}

/// Returns which layers have attention.
pub(super) fn attention_layers(config: &Config, sizes: Sizes) -> Result<Vec<bool>, SpecError> {
    let num_layers = sizes.num_layers;
    if let Some(indices) = &config.full_attn_idxs {
        if let Some(idx) = indices.iter().find(|idx| num_layers <= **idx) {
            return Err(bad_value("full_attn_idxs", idx, format!("less than {num_layers}")));
        }
        return Ok((0..num_layers).map(|idx| indices.contains(&idx)).collect());
    }
    let types = config.layer_types.as_deref().unwrap_or_default();
    windows::attention_layers(types, &["conv", "full_attention"], num_layers)
}
