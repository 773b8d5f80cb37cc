//! LFM2 (Liquid AI 2025): gated short convolutions, with attention in some layers.

mod config;

use serde_json::{Value, json};

use self::config::{Config, attention, attention_layers, inner_size};
use super::blocks::{Block, MixerBlock, attention_of, dense};
use super::decoder::{DecoderNames, Description, LayerBuilder};
use super::short_conv::short_conv;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, count, parse, setting};
use jackalope_config::names::TensorNames;
use jackalope_config::rope_parameters::with_base_of_parameters;
use jackalope_spec::{
    AttentionModules, AttentionSpec, BlockNorms, HeadTable, InwardModules, LayerNorms, LayerSpec,
    MlpModules, MlpSpec,
};

const NAMES: DecoderNames = DecoderNames { norm: "model.embedding_norm", ..DecoderNames::LLAMA };

/// Reads `lfm2`.
pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let inner = inner_size(&parse(config)?)?;
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

/// Returns the decoder; `block` gets a layer's index and prefix, and the width of the stream.
pub(super) fn describe(
    config: &Value,
    block: impl Fn(usize, &str, usize) -> Block,
) -> Result<Description, SpecError> {
    let config = completed(config, &[("norm_eps", "rms_norm_eps")], &json!({}));
    let config: Config = parse(&with_base_of_parameters(&config))?;
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

fn layer(prefix: String, hidden: usize, mixer: MixerBlock, block: Block) -> LayerSpec {
    let input = |name: &str| BlockNorms { input: Some(format!("{prefix}.{name}")), output: None };
    let norms =
        LayerNorms { mixer: input("operator_norm"), feed_forward: input("ffn_norm"), eps: None };
    LayerBuilder { norms, ..LayerBuilder::pre_norm(prefix, hidden) }.build(mixer, block)
}
