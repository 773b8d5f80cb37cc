//! Llama 1 to 3.x (Touvron et al. 2023, Grattafiori et al. 2024) and Mistral (Jiang et al. 2023).

use serde::Deserialize;

use super::decoder::{DecoderConfig, HeadShape, Sizes};
use super::dense::{DenseFamily, DenseLayers};
use crate::error::LoadError;
use crate::layers::{Bias, Rope};

/// Base of the rotations in checkpoints that predate the field for it.
const LLAMA1_ROPE_THETA: f64 = 10_000.0;

/// Marker type of the Llama family.
#[derive(Debug)]
pub(super) enum Llama {}

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    intermediate_size: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    layer_types: Option<Vec<String>>,
    sliding_window: Option<u32>,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

impl DenseFamily for Llama {
    type Config = Config;

    fn decoder(config: &Config) -> &DecoderConfig {
        &config.decoder
    }

    fn layers(config: &Config, sizes: &Sizes<'_>) -> Result<DenseLayers, LoadError> {
        let kv_heads = match config.num_key_value_heads {
            Some(kv_heads) => sizes.dimension("num_key_value_heads", kv_heads)?,
            None => sizes.heads,
        };
        let head_dim = match config.head_dim {
            Some(head_dim) => sizes.dimension("head_dim", head_dim)?,
            None => sizes.hidden / sizes.heads,
        };
        let (checkpoint, theta) = (sizes.checkpoint, Some(LLAMA1_ROPE_THETA));
        let attention_bias = Bias::when(config.attention_bias);
        Ok(DenseLayers {
            heads: HeadShape { heads: sizes.heads, kv_heads, head_dim },
            inner: sizes.dimension("intermediate_size", config.intermediate_size)?,
            qkv_bias: attention_bias,
            o_bias: attention_bias,
            mlp_bias: Bias::when(config.mlp_bias),
            has_head_norms: false,
            windows: windows(config, sizes)?,
            rope: Rope::new(checkpoint, &config.decoder.rope, head_dim, theta)?,
        })
    }
}

/// Returns the window of each layer. A window without `layer_types` is ignored, as in mlx-lm.
fn windows(config: &Config, sizes: &Sizes<'_>) -> Result<Vec<Option<usize>>, LoadError> {
    let Some(types) = &config.layer_types else { return Ok(vec![None; sizes.num_layers]) };
    if types.len() != sizes.num_layers {
        let expected = format!("{} entries", sizes.num_layers);
        return Err(sizes.checkpoint.bad_value("layer_types", types.len(), &expected));
    }
    let window = |kind: &String| match kind.as_str() {
        "full_attention" => Ok(None),
        "sliding_attention" => {
            sizes.dimension("sliding_window", config.sliding_window.unwrap_or(0)).map(Some)
        }
        other => {
            let supported = &["full_attention", "sliding_attention"];
            Err(sizes.checkpoint.unsupported("layer type", other, supported))
        }
    };
    types.iter().map(window).collect()
}
