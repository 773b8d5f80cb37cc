//! The fields of Gemma 4's configurations.

use serde::Deserialize;
use serde_json::Value;

use crate::decoder::DecoderConfig;
use jackalope_config::error::SpecError;
use jackalope_config::fields::unsupported;

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub(super) intermediate_size: u32,
    pub(super) num_key_value_heads: u32,
    pub(super) num_global_key_value_heads: Option<u32>,
    pub(super) head_dim: u32,
    #[serde(default = "global_head_dim")]
    pub(super) global_head_dim: Option<u32>,
    pub(super) sliding_window: u32,
    pub(super) sliding_window_pattern: usize,
    pub(super) layer_types: Option<Vec<String>>,
    pub(super) rope_parameters: Value,
    pub(super) num_kv_shared_layers: usize,
    #[serde(default = "per_layer_width")]
    pub(super) hidden_size_per_layer_input: Option<u32>,
    pub(super) vocab_size_per_layer_input: u32,
    pub(super) attention_k_eq_v: bool,
    pub(super) attention_bias: bool,
    pub(super) use_bidirectional_attention: Option<Value>,
    pub(super) use_double_wide_mlp: bool,
    #[serde(default = "soft_cap")]
    pub(super) final_logit_softcapping: Option<f32>,
    pub(super) enable_moe_block: bool,
    pub(super) num_experts: Option<u32>,
    pub(super) top_k_experts: Option<u32>,
    pub(super) moe_intermediate_size: Option<u32>,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

// Of fields that may also be null, which is not their default.
fn global_head_dim() -> Option<u32> {
    Some(512)
}

fn per_layer_width() -> Option<u32> {
    Some(256)
}

fn soft_cap() -> Option<f32> {
    Some(30.0)
}

/// Refuses what mlx-lm does not compute either.
pub(super) fn refuse(config: &Config) -> Result<(), SpecError> {
    if config.attention_bias {
        return Err(unsupported("attention_bias", &true, &["false"]));
    }
    match &config.use_bidirectional_attention {
        None | Some(Value::Null | Value::Bool(false)) => Ok(()),
        // Only images see what follows them.
        Some(Value::String(kind)) if kind == "vision" => Ok(()),
        Some(found) => {
            let supported = &["false", "\"vision\""];
            Err(unsupported("use_bidirectional_attention", found, supported))
        }
    }
}
