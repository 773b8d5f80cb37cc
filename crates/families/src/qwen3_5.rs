//! Qwen3.5, 3.6 and 3.8, dense and with experts: the layers of Qwen3-Next with other names. The
//! language model of a checkpoint that may have a vision encoder.

use serde::Deserialize;
use serde_json::{Value, json};

use super::blocks::{
    Block, ExpertCounts, ExpertNames, ExpertSizes, FusedNames, attention, experts, mlp,
};
use super::decoder::{DecoderConfig, Description, mixed_layer};
use super::gated_delta::{GatedDeltaConfig, shifted_norms, split};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{count, defaulted, dimension, parse};
use jackalope_config::names::TensorNames;
use jackalope_config::rope_parameters::from_parameters_alone;
use jackalope_spec::{AttentionSpec, MlpSpec, OutputGate, QkNorm, RouterSpec};

/// Base of the rotations, and fraction of a head that is rotated, where they are not stated.
const DEFAULT_ROPE_THETA: f64 = 1e5;
const DEFAULT_ROTARY_FACTOR: f64 = 0.25;

const NAMES: ExpertNames = ExpertNames { fused: &[FusedNames::ROWS], ..super::qwen3_next::NAMES };

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: Option<u32>,
    num_key_value_heads: u32,
    head_dim: Option<u32>,
    #[serde(default)]
    attention_bias: bool,
    full_attention_interval: u32,
    #[serde(default)]
    num_experts: u32,
    #[serde(default)]
    num_experts_per_tok: u32,
    #[serde(default)]
    moe_intermediate_size: u32,
    #[serde(default)]
    shared_expert_intermediate_size: u32,
    norm_topk_prob: bool,
    #[serde(flatten)]
    delta: GatedDeltaConfig,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let text = config.get("text_config").unwrap_or(config);
    // Without `rope_parameters` mlx-lm takes its own ones; if they are empty or `null`, the fields
    // outside of them.
    let defaults = json!({
        "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "rms_norm_eps": 1e-6, "vocab_size": 151_936,
        "num_key_value_heads": 8, "linear_num_value_heads": 64, "linear_num_key_heads": 16,
        "linear_key_head_dim": 192, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4, "norm_topk_prob": true,
        "rope_parameters": {"rope_theta": DEFAULT_ROPE_THETA},
    });
    let text = from_parameters_alone(&defaulted(text, &defaults), Some(DEFAULT_ROPE_THETA));
    let config: Config = parse(&text)?;
    let sizes = config.decoder.sizes()?;
    let delta = config.delta.sizes()?;
    let head_dim = sizes.head_dim_or(config.head_dim)?;
    let rope = &config.decoder.rope;
    let dims = rope.rotated_dims(head_dim, Some(DEFAULT_ROTARY_FACTOR))?;
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    let rope = rope.spec(dims, Some(DEFAULT_ROPE_THETA))?;
    let gated = AttentionSpec {
        has_qkv_bias: config.attention_bias,
        has_output_bias: config.attention_bias,
        output_gate: Some(OutputGate::Elements),
        qk_norm: Some(QkNorm::PerHead),
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    };
    let interval = count("full_attention_interval", config.full_attention_interval)?;
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("model.layers.{layer_idx}");
        let mixer = if (layer_idx + 1).is_multiple_of(interval) {
            attention(&format!("{prefix}.self_attn"), sizes.hidden, gated.clone())
        } else {
            split(&format!("{prefix}.linear_attn"), sizes.hidden, delta)
        };
        let block = feed_forward(&config, &format!("{prefix}.mlp"), sizes.hidden)?;
        Ok(mixed_layer(prefix, sizes.hidden, mixer, block))
    });
    let layers = layers.collect::<Result<Vec<_>, SpecError>>()?;
    let original_numbers = shifted_norms(&layers);
    let description = config.decoder.with_layers(sizes, layers).with_names(TensorNames::WRAPPED);
    Ok(Description { original_numbers, ..description })
}

/// Returns a dense block, or experts in every layer if there are any.
fn feed_forward(config: &Config, module: &str, hidden: usize) -> Result<Block, SpecError> {
    if config.num_experts == 0 {
        let field = "intermediate_size";
        let inner = dimension(field, config.intermediate_size.unwrap_or(0))?;
        return Ok(mlp(module, hidden, MlpSpec::plain(inner)));
    }
    let counts = ExpertCounts::new("num_experts", config.num_experts, config.num_experts_per_tok)?;
    let field = "shared_expert_intermediate_size";
    let inner = dimension("moe_intermediate_size", config.moe_intermediate_size)?;
    let normalization_eps = config.norm_topk_prob.then_some(0.0);
    let router = RouterSpec { normalization_eps, ..RouterSpec::SOFTMAX };
    let sizes = ExpertSizes {
        shared_inner: Some(dimension(field, config.shared_expert_intermediate_size)?),
        ..ExpertSizes::plain(counts, inner, router)
    };
    Ok(experts(module, hidden, &NAMES, sizes))
}
