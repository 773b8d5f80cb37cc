//! Qwen3-Next (Qwen team 2025): gated delta nets, with attention in every fourth layer, whose heads
//! have gates; experts, one of which every token passes.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{Block, ExpertCounts, ExpertNames, ExpertSizes, attention, experts, mlp};
use super::decoder::{DecoderConfig, Description, mixed_layer};
use super::gated_delta::{GatedDeltaConfig, fused, shifted_norms};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{count, dimension, parse};
use jackalope_config::names::TensorNames;
use jackalope_spec::{AttentionSpec, MlpSpec, OutputGate, QkNorm, RouterSpec};

pub(super) const NAMES: ExpertNames =
    ExpertNames { shared_gate: Some("shared_expert_gate"), ..ExpertNames::QWEN };

/// Distance between layers with attention, where it is not stated.
const DEFAULT_INTERVAL: u32 = 4;

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    num_key_value_heads: u32,
    head_dim: u32,
    #[serde(default)]
    attention_bias: bool,
    full_attention_interval: Option<u32>,
    num_experts: u32,
    num_experts_per_tok: u32,
    moe_intermediate_size: u32,
    shared_expert_intermediate_size: u32,
    decoder_sparse_step: u32,
    mlp_only_layers: Vec<usize>,
    #[serde(default)]
    norm_topk_prob: bool,
    #[serde(flatten)]
    delta: GatedDeltaConfig,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let sizes = config.decoder.sizes()?;
    let delta = config.delta.sizes()?;
    let gated = gated_attention(&config)?;
    let interval = config.full_attention_interval.unwrap_or(DEFAULT_INTERVAL);
    let interval = count("full_attention_interval", interval)?;
    let blocks = feed_forward(&config)?;
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("model.layers.{layer_idx}");
        let mixer = if (layer_idx + 1).is_multiple_of(interval) {
            attention(&format!("{prefix}.self_attn"), sizes.hidden, gated.clone())
        } else {
            fused(&format!("{prefix}.linear_attn"), sizes.hidden, delta)
        };
        mixed_layer(prefix, sizes.hidden, mixer, blocks(layer_idx))
    });
    let layers: Vec<_> = layers.collect();
    let original_numbers = shifted_norms(&layers);
    let description = config.decoder.with_layers(sizes, layers).with_names(TensorNames::DRAFTING);
    Ok(Description { original_numbers, ..description })
}

fn gated_attention(config: &Config) -> Result<AttentionSpec, SpecError> {
    let sizes = config.decoder.sizes()?;
    let head_dim = dimension("head_dim", config.head_dim)?;
    let rope = &config.decoder.rope;
    let rope = rope.spec(rope.rotated_dims(head_dim, None)?, None)?;
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    Ok(AttentionSpec {
        has_qkv_bias: config.attention_bias,
        has_output_bias: config.attention_bias,
        output_gate: Some(OutputGate::Elements),
        qk_norm: Some(QkNorm::PerHead),
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    })
}

/// Returns what gives each layer its feed-forward block.
fn feed_forward(config: &Config) -> Result<impl Fn(usize) -> Block + use<'_>, SpecError> {
    let hidden = config.decoder.sizes()?.hidden;
    let dense = dimension("intermediate_size", config.intermediate_size)?;
    let field = "shared_expert_intermediate_size";
    let counts = ExpertCounts::new("num_experts", config.num_experts, config.num_experts_per_tok)?;
    let inner = dimension("moe_intermediate_size", config.moe_intermediate_size)?;
    let normalization_eps = config.norm_topk_prob.then_some(0.0);
    let router = RouterSpec { normalization_eps, ..RouterSpec::SOFTMAX };
    let sparse = ExpertSizes {
        shared_inner: Some(dimension(field, config.shared_expert_intermediate_size)?),
        ..ExpertSizes::plain(counts, inner, router)
    };
    let step = count("decoder_sparse_step", config.decoder_sparse_step)?;
    Ok(move |layer_idx: usize| {
        let module = format!("model.layers.{layer_idx}.mlp");
        let is_sparse = (layer_idx + 1).is_multiple_of(step);
        if is_sparse && !config.mlp_only_layers.contains(&layer_idx) {
            experts(&module, hidden, &NAMES, sparse)
        } else {
            mlp(&module, hidden, MlpSpec::plain(dense))
        }
    })
}
