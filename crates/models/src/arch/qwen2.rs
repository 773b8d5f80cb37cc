//! Qwen2 and Qwen2.5, dense (Yang et al. 2024): biases on queries, keys and values. Sliding windows
//! are ignored, as in mlx-lm; no published checkpoint uses them.

use serde::Deserialize;

use super::decoder::{DecoderConfig, HeadShape, Sizes};
use super::dense::{DenseFamily, DenseLayers};
use crate::error::LoadError;
use crate::layers::{Bias, Rope};

/// Marker type of the Qwen2 family.
#[derive(Debug)]
pub(super) enum Qwen2 {}

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    intermediate_size: u32,
    num_key_value_heads: u32,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

impl DenseFamily for Qwen2 {
    type Config = Config;

    fn decoder(config: &Config) -> &DecoderConfig {
        &config.decoder
    }

    fn layers(config: &Config, sizes: &Sizes<'_>) -> Result<DenseLayers, LoadError> {
        let kv_heads = sizes.dimension("num_key_value_heads", config.num_key_value_heads)?;
        let head_dim = sizes.hidden / sizes.heads;
        Ok(DenseLayers {
            heads: HeadShape { heads: sizes.heads, kv_heads, head_dim },
            inner: sizes.dimension("intermediate_size", config.intermediate_size)?,
            qkv_bias: Bias::Present,
            o_bias: Bias::Absent,
            mlp_bias: Bias::Absent,
            has_head_norms: false,
            windows: vec![None; sizes.num_layers],
            rope: Rope::new(sizes.checkpoint, &config.decoder.rope, head_dim, None)?,
        })
    }
}
