//! LFM2 (Liquid AI 2025): gated short convolutions, with attention in some layers.

use serde::Deserialize;
use serde_json::{Value, json};

use super::blocks::{Block, MixerBlock, attention_of, dense};
use super::decoder::{DecoderConfig, DecoderNames, Description, LayerBuilder, Sizes};
use super::short_conv::short_conv;
use crate::config::{bad_value, completed, count, dimension, parse, setting};
use crate::error::SpecError;
use crate::model::{AttentionSpec, HeadTable, LayerSpec, MlpSpec, QkNorm};
use crate::modules::{AttentionModules, BlockNorms, InwardModules, LayerNorms, MlpModules};
use crate::names::TensorNames;

const NAMES: DecoderNames = DecoderNames { norm: "model.embedding_norm", ..DecoderNames::LLAMA };

/// Base of the rotations where it is not stated.
const ROPE_THETA: f64 = 1e6;

#[derive(Debug, Deserialize)]
struct Config {
    num_key_value_heads: Option<u32>,
    conv_bias: bool,
    #[serde(rename = "conv_L_cache")]
    conv_width: u32,
    full_attn_idxs: Option<Vec<usize>>,
    layer_types: Option<Vec<String>>,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

#[derive(Debug, Deserialize)]
struct DenseConfig {
    hidden_size: u32,
    block_dim: Option<u32>,
    block_ff_dim: u32,
    block_multiple_of: u32,
    block_ffn_dim_multiplier: Option<f64>,
    block_auto_adjust_ff_dim: bool,
}

/// Reads `lfm2`.
pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let renames = [("intermediate_size", "block_ff_dim")];
    let inner = inner_size(&parse(&completed(config, &renames, &json!({})))?)?;
    describe(config, |_, prefix, hidden| {
        let at = |name: &str| format!("{prefix}.feed_forward.{name}");
        let inward = InwardModules::Apart(["w1", "w3"].map(at));
        let modules = MlpModules { inward, down: at("w2"), activation: String::new() };
        dense(hidden, MlpSpec { modules, ..MlpSpec::plain(inner) })
    })
}

/// Reads the text part of `lfm2-vl`.
pub(super) fn read_vision(config: &Value) -> Result<Description, SpecError> {
    let text = config.get("text_config").unwrap_or(&Value::Null);
    let kind = text.get("model_type").and_then(Value::as_str);
    setting("text model", kind, &["lfm2"])?;
    Ok(read(text)?.with_names(TensorNames::WRAPPED))
}

/// Returns the inner dimension of the dense blocks, rounded in the steps of mlx-lm.
fn inner_size(config: &DenseConfig) -> Result<usize, SpecError> {
    if let Some(width) = config.block_dim.filter(|width| *width != config.hidden_size) {
        return Err(bad_value("block_dim", width, format!("hidden_size, {}", config.hidden_size)));
    }
    let stated = dimension("block_ff_dim", config.block_ff_dim)?;
    if !config.block_auto_adjust_ff_dim {
        return Ok(stated);
    }
    let multiple = dimension("block_multiple_of", config.block_multiple_of)?;
    let part = (2 * stated) / 3;
    let scaled = config.block_ffn_dim_multiplier.map_or(part, |it| (it * part as f64) as usize);
    let inner = u32::try_from(scaled.next_multiple_of(multiple)).unwrap_or(u32::MAX);
    dimension("adjusted block_ff_dim", inner)
}

/// Returns the decoder; `block` gets a layer's index and prefix, and the width of the stream.
pub(super) fn describe(
    config: &Value,
    block: impl Fn(usize, &str, usize) -> Block,
) -> Result<Description, SpecError> {
    let mut config = completed(config, &[("norm_eps", "rms_norm_eps")], &json!({}));
    // mlx-lm takes the base alone from the parameters.
    if let Some(theta) = config.pointer("/rope_parameters/rope_theta").cloned() {
        config["rope_theta"] = theta;
    }
    let config: Config = parse(&config)?;
    let sizes = config.decoder.sizes()?;
    let heads = attention(&config, sizes)?;
    let width = count("conv_L_cache", config.conv_width)?;
    let has_attention = attention_layers(&config, sizes)?;
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("model.layers.{layer_idx}");
        let mixer = if has_attention[layer_idx] {
            let block = format!("{prefix}.self_attn");
            let at = |name: &str| format!("{block}.{name}");
            let modules = AttentionModules {
                output: at("out_proj"),
                qk_norms: ["q_layernorm", "k_layernorm"].map(at),
                ..AttentionModules::at(&block)
            };
            attention_of(sizes.hidden, AttentionSpec { modules, ..heads.clone() })
        } else {
            short_conv(&format!("{prefix}.conv"), sizes.hidden, width, config.conv_bias)
        };
        let block = block(layer_idx, &prefix, sizes.hidden);
        layer(prefix, sizes.hidden, mixer, block)
    });
    let layers = layers.collect();
    Ok(Description {
        modules: NAMES,
        head_table: HeadTable::IfPresent,
        ..config.decoder.with_layers(sizes, layers)
    })
}

fn attention(config: &Config, sizes: Sizes) -> Result<AttentionSpec, SpecError> {
    let kv_heads = sizes.kv_heads_or_all(config.num_key_value_heads)?;
    config.decoder.rope.require(&["default"])?;
    let rope = config.decoder.rope.spec(sizes.head_dim(), Some(ROPE_THETA))?;
    let plain = AttentionSpec::plain(sizes.heads, kv_heads, sizes.head_dim(), rope);
    Ok(AttentionSpec { qk_norm: Some(QkNorm::PerHead), ..plain })
}

/// Returns which layers have attention.
fn attention_layers(config: &Config, sizes: Sizes) -> Result<Vec<bool>, SpecError> {
    let num_layers = sizes.num_layers;
    if let Some(indices) = &config.full_attn_idxs {
        if let Some(idx) = indices.iter().find(|idx| num_layers <= **idx) {
            return Err(bad_value("full_attn_idxs", idx, format!("less than {num_layers}")));
        }
        return Ok((0..num_layers).map(|idx| indices.contains(&idx)).collect());
    }
    let types = config.layer_types.as_deref().unwrap_or_default();
    if types.len() != num_layers {
        return Err(bad_value("layer_types", types.len(), format!("{num_layers} entries")));
    }
    let is_attention = |kind: &String| {
        setting("layer type", Some(kind), &["conv", "full_attention"])?;
        Ok(kind == "full_attention")
    };
    types.iter().map(is_attention).collect()
}

fn layer(prefix: String, hidden: usize, mixer: MixerBlock, block: Block) -> LayerSpec {
    let input = |name: &str| BlockNorms { input: Some(format!("{prefix}.{name}")), output: None };
    let norms =
        LayerNorms { mixer: input("operator_norm"), feed_forward: input("ffn_norm"), eps: None };
    LayerBuilder { norms, ..LayerBuilder::pre_norm(prefix, hidden) }.build(mixer, block)
}
