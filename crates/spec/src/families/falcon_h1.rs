//! Falcon-H1 (Zuo et al. 2025): attention and a state space beside each other, then a dense block.
//!
//! Conversions hold products of the weights with the factors that the configuration states; only the
//! factor of the logits of a shared table is left. Originals are refused.

use serde::Deserialize;
use serde_json::{Value, json};

use super::blocks::mlp;
use super::decoder::{DecoderConfig, DecoderNames, Description, LayerBuilder, Sizes};
use super::state_space::{StateSpaceConfig, StateSpaceLayer};
use crate::config::{bad_value, completed, dimension, factor, parse};
use crate::error::SpecError;
use crate::model::{AttentionSpec, LogitsSpec, MlpSpec};
use crate::modules::{AttentionModules, BlockNorms};

const MODULES: DecoderNames = DecoderNames { norm: "model.final_layernorm", ..DecoderNames::LLAMA };

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    num_key_value_heads: u32,
    head_dim: u32,
    attention_bias: bool,
    mlp_bias: bool,
    projectors_bias: bool,
    mamba_d_ssm: usize,
    mamba_rms_norm: bool,
    mamba_norm_before_gate: bool,
    mamba_use_mlp: bool,
    tie_word_embeddings: bool,
    embedding_multiplier: f32,
    lm_head_multiplier: f32,
    #[serde(flatten)]
    space: StateSpaceConfig,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

/// Returns the values of fields that are absent, as in mlx-lm. The limits of time steps are not
/// read there.
fn defaults() -> Value {
    json!({
        "attention_bias": false,
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
        "num_attention_heads": 8,
        "num_hidden_layers": 36,
        "num_key_value_heads": 2,
        "projectors_bias": false,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e11,
        "tie_word_embeddings": true,
        "time_step_limit": null,
        "vocab_size": 32_784,
    })
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(&completed(config, &[], &defaults()))?;
    let sizes = config.decoder.sizes()?;
    let attention = attention(&config, sizes)?;
    let space = space(&config)?;
    if !config.mamba_use_mlp {
        return Err(bad_value("mamba_use_mlp", false, "true"));
    }
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let dense = MlpSpec { has_bias: config.mlp_bias, ..MlpSpec::plain(inner) };
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("model.layers.{layer_idx}");
        let modules = AttentionModules::at(&format!("{prefix}.self_attn"));
        let attention = AttentionSpec { modules, ..attention.clone() };
        let mixer = space.beside(&format!("{prefix}.mamba"), sizes.hidden, attention);
        let block = mlp(&format!("{prefix}.feed_forward"), sizes.hidden, dense.clone());
        let input = Some(format!("{prefix}.pre_ff_layernorm"));
        let mut layer = LayerBuilder::pre_norm(prefix, sizes.hidden);
        layer.norms.feed_forward = BlockNorms { input, output: None };
        layer.build(mixer, block)
    });
    let layers = layers.collect();
    let head = factor("lm_head_multiplier", config.lm_head_multiplier)?;
    let embedding = factor("embedding_multiplier", config.embedding_multiplier)?;
    let scale = if config.tie_word_embeddings { head / embedding } else { 1.0 };
    Ok(Description {
        modules: MODULES,
        logits: LogitsSpec { scale, soft_cap: None },
        needs_conversion: true,
        ..config.decoder.with_layers(sizes, layers)
    })
}

fn attention(config: &Config, sizes: Sizes) -> Result<AttentionSpec, SpecError> {
    let head_dim = dimension("head_dim", config.head_dim)?;
    let rope = config.decoder.rope.spec(head_dim, None)?;
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    Ok(AttentionSpec {
        has_qkv_bias: config.attention_bias,
        has_output_bias: config.attention_bias,
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    })
}

fn space(config: &Config) -> Result<StateSpaceLayer, SpecError> {
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
