//! The fields of Falcon-H1's configurations, and what they say of a layer.

use crate::decoder::{DecoderConfig, Sizes};
use crate::state_space::{StateSpaceConfig, StateSpaceLayer};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension};
use jackalope_spec::AttentionSpec;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub(super) intermediate_size: u32,
    pub(super) num_key_value_heads: u32,
    pub(super) head_dim: u32,
    pub(super) attention_bias: bool,
    pub(super) mlp_bias: bool,
    pub(super) projectors_bias: bool,
    pub(super) mamba_d_ssm: usize,
    pub(super) mamba_rms_norm: bool,
    pub(super) mamba_norm_before_gate: bool,
    pub(super) mamba_use_mlp: bool,
    pub(super) tie_word_embeddings: bool,
    pub(super) embedding_multiplier: f32,
    pub(super) lm_head_multiplier: f32,
    pub(super) attention_in_multiplier: f32,
    pub(super) attention_out_multiplier: f32,
    pub(super) mlp_multipliers: [f32; 2],
    pub(super) ssm_in_multiplier: f32,
    pub(super) ssm_multipliers: [f32; 5],
    pub(super) ssm_out_multiplier: f32,
    #[serde(flatten)]
    pub(super) space: StateSpaceConfig,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

/// Returns the values of fields that are absent, as in mlx-lm. The limits of time steps are not
/// read there.
pub(super) fn defaults() -> Value {
    json!({
        "attention_bias": false,
        "attention_in_multiplier": 1.0,
        "attention_out_multiplier": 0.9375,
        "embedding_multiplier": 5.656_854_249_492_381,
        "head_dim": 64,
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "lm_head_multiplier": 0.039_062_5,
        "mamba_conv_bias": true,
        "mamba_d_conv": 4,
        "mamba_d_head": 64,
        "mamba_d_ssm": 1536,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "mamba_n_heads": 24,
        "mamba_norm_before_gate": false,
        "mamba_proj_bias": false,
        "mamba_rms_norm": false,
        "mamba_use_mlp": true,
        "max_position_embeddings": 131_072,
        "mlp_bias": false,
        "mlp_multipliers": [0.883_883_476_483_184_4, 0.585_937_5],
        "num_attention_heads": 8,
        "num_hidden_layers": 36,
        "num_key_value_heads": 2,
        "projectors_bias": false,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e11,
        "ssm_in_multiplier": 1.25,
        "ssm_multipliers": [0.353_553_390_593_273_8, 0.25, 0.353_553_390_593_273_8, 0.5, 0.353_553_390_593_273_8],
        "ssm_out_multiplier": 0.235_702_260_395_515_87,
        "tie_word_embeddings": true,
        "time_step_limit": null,
        "vocab_size": 32_784,
    })
}

pub(super) fn attention(config: &Config, sizes: Sizes) -> Result<AttentionSpec, SpecError> {
    let head_dim = dimension("head_dim", config.head_dim)?;
    let rope = config.decoder.rope.spec(head_dim, None)?;
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    Ok(AttentionSpec {
        has_qkv_bias: config.attention_bias,
        has_output_bias: config.attention_bias,
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    })
}

pub(super) fn space(config: &Config) -> Result<StateSpaceLayer, SpecError> {
    let layer = config.space.layer(config.decoder.rms_norm_eps, [0.0, f64::INFINITY])?;
    let width = layer.sizes.heads * layer.sizes.head_dim;
    if config.mamba_d_ssm != width {
        return Err(bad_value("mamba_d_ssm", config.mamba_d_ssm, format!("all heads, {width}")));
    }
    if config.attention_bias && config.projectors_bias {
        return Err(bad_value("projectors_bias", true, "false, with attention_bias"));
    }
    let mut norm = layer.norm.filter(|_| config.mamba_rms_norm);
    if let Some(norm) = &mut norm {
        norm.precedes_gate = config.mamba_norm_before_gate;
    }
    Ok(StateSpaceLayer { norm, has_output_bias: config.projectors_bias, ..layer })
}
