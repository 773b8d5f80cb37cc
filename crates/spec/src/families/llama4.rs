//! Llama 4 (Meta 2025), its language model: most layers see chunks of positions, every fourth one all
//! of them without a rotation; some layers have experts, whose input the router weighs.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{self, ExpertCounts, ExpertNames, ExpertSizes, FusedNames, experts, mlp};
use super::decoder::{DecoderConfig, Description, LayerBuilder};
use crate::config::{bad_value, count, dimension, parse};
use crate::error::SpecError;
use crate::model::{AttentionSpec, MlpSpec, QkNorm, RouterScores, RouterSpec};
use crate::names::TensorNames;
use crate::rope::QueryGrowth;

const NAMES: ExpertNames = ExpertNames {
    router: "router",
    stacked: "experts",
    fused: &[FusedNames::COLUMNS],
    ..ExpertNames::QWEN
};

/// Every layer of this number sees all positions.
const GLOBAL_INTERVAL: usize = 4;

/// Epsilon of the norms of queries and keys, added to the mean of their squares.
const QK_EPS: f32 = 1e-6;

#[derive(Debug, Deserialize)]
struct Wrapper {
    text_config: Config,
}

#[derive(Debug, Deserialize)]
struct Config {
    #[serde(default)]
    attention_bias: bool,
    attention_chunk_size: u32,
    head_dim: Option<u32>,
    interleave_moe_layer_step: u32,
    intermediate_size: u32,
    intermediate_size_mlp: u32,
    num_key_value_heads: u32,
    num_local_experts: u32,
    num_experts_per_tok: u32,
    use_qk_norm: bool,
    attn_temperature_tuning: Option<Switch>,
    floor_scale: Option<f64>,
    attn_scale: Option<f32>,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

/// A switch that older checkpoints state as a number.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Switch {
    Flag(bool),
    Number(f64),
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let Wrapper { text_config: config } = parse(config)?;
    let sizes = config.decoder.sizes()?;
    if config.num_experts_per_tok != 1 {
        return Err(bad_value("num_experts_per_tok", config.num_experts_per_tok, "1"));
    }
    let step = count("interleave_moe_layer_step", config.interleave_moe_layer_step)?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let dense_inner = dimension("intermediate_size_mlp", config.intermediate_size_mlp)?;
    let counts = ExpertCounts::new("num_local_experts", config.num_local_experts, 1)?;
    let router = RouterSpec {
        scores: RouterScores::SigmoidOfChosen,
        weighs_input: true,
        ..RouterSpec::SOFTMAX
    };
    let sparse =
        ExpertSizes { shared_inner: Some(inner), ..ExpertSizes::plain(counts, inner, router) };
    let mut layers = Vec::with_capacity(sizes.num_layers);
    for layer_idx in 0..sizes.num_layers {
        let prefix = format!("model.layers.{layer_idx}");
        let module = format!("{prefix}.feed_forward");
        let block = if layer_idx % step == step - 1 {
            experts(&module, sizes.hidden, &NAMES, sparse)
        } else {
            mlp(&module, sizes.hidden, MlpSpec::plain(dense_inner))
        };
        let module = format!("{prefix}.self_attn");
        let mixer = blocks::attention(&module, sizes.hidden, attention(&config, layer_idx)?);
        layers.push(LayerBuilder::pre_norm(prefix, sizes.hidden).build(mixer, block));
    }
    Ok(config.decoder.with_layers(sizes, layers).with_names(TensorNames::WRAPPED))
}

fn attention(config: &Config, layer_idx: usize) -> Result<AttentionSpec, SpecError> {
    let sizes = config.decoder.sizes()?;
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    let head_dim = sizes.head_dim_or(config.head_dim)?;
    let mut rope = config.decoder.rope.spec(head_dim, None)?;
    rope.is_traditional = true;
    let bias = config.attention_bias;
    let local = AttentionSpec {
        has_qkv_bias: bias,
        has_output_bias: bias,
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    };
    if !(layer_idx + 1).is_multiple_of(GLOBAL_INTERVAL) {
        let chunk = Some(dimension("attention_chunk_size", config.attention_chunk_size)?);
        let qk_norm = config.use_qk_norm.then_some(QkNorm::RotatedUnweighted { eps: QK_EPS });
        return Ok(AttentionSpec { chunk, qk_norm, ..local });
    }
    let is_growing = match config.attn_temperature_tuning {
        None => true,
        Some(Switch::Flag(flag)) => flag,
        Some(Switch::Number(number)) => number != 0.0,
    };
    let period = dimension("floor_scale", config.floor_scale.unwrap_or(8192.0) as u32)?;
    let beta = config.attn_scale.unwrap_or(0.1);
    let query_growth = is_growing.then_some(QueryGrowth { beta, period, offset: 1 });
    let mut global = AttentionSpec { query_growth, ..local };
    global.rope.dims = 0;
    Ok(global)
}
