//! Ling and Ring (Ant Group 2025), `bailing_moe`: dense layers first, then experts with one that every
//! token passes; one tensor holds the projections to queries, keys and values.

mod config;

use serde_json::Value;

use super::blocks::{
    Block, ExpertCounts, ExpertNames, ExpertSizes, MixerBlock, attention_of, experts, mlp,
};
use super::decoder::{DecoderNames, Description, Sizes, mixed_layer};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, parse};
use jackalope_config::names::TensorNames;
use jackalope_spec::{AttentionModules, AttentionSpec, LayerSpec, MlpSpec, QkvModules};

pub(super) use self::config::Config;

const NAMES: ExpertNames =
    ExpertNames { router: "gate.gate_proj", shared: "shared_experts", ..ExpertNames::QWEN };

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let sizes = config.sizes()?;
    let attention = config.attention(sizes, sizes.head_dim())?;
    let shared = config.shared_inner() * config.num_shared_experts as usize;
    let mut layers = Vec::with_capacity(sizes.num_layers);
    for layer_idx in 0..sizes.num_layers {
        let prefix = format!("model.layers.{layer_idx}");
        let mixer = attention_at(&format!("{prefix}.attention"), sizes.hidden, &attention);
        let block = feed_forward(&config, sizes, layer_idx, shared)?;
        layers.push(mixed_layer(prefix, sizes.hidden, mixer, block));
    }
    Ok(describe(&config, sizes, layers))
}

/// Returns a decoder of these layers.
pub(super) fn describe(config: &Config, sizes: Sizes, layers: Vec<LayerSpec>) -> Description {
    let modules = DecoderNames { embedding: "model.word_embeddings", ..DecoderNames::LLAMA };
    let names = TensorNames::BAILING;
    Description { modules, names, ..config.decoder.with_layers(sizes, layers) }
}

/// Returns attention at `module`.
pub(super) fn attention_at(module: &str, hidden: usize, spec: &AttentionSpec) -> MixerBlock {
    let at = |name: &str| format!("{module}.{name}");
    let modules = AttentionModules {
        block: module.to_owned(),
        qkv: QkvModules::Stacked(at("query_key_value")),
        output: at("dense"),
        qk_norms: ["query_layernorm", "key_layernorm"].map(at),
    };
    attention_of(hidden, AttentionSpec { modules, ..spec.clone() })
}

/// Returns what a layer does with each position; every token passes experts with `shared` inner
/// elements.
///
/// # Errors
/// Fails if a value is out of bounds.
pub(super) fn feed_forward(
    config: &Config,
    sizes: Sizes,
    layer_idx: usize,
    shared: usize,
) -> Result<Block, SpecError> {
    let module = format!("model.layers.{layer_idx}.mlp");
    if layer_idx < config.first_k_dense_replace {
        let inner = dimension("intermediate_size", config.intermediate_size)?;
        return Ok(mlp(&module, sizes.hidden, MlpSpec::plain(inner)));
    }
    let counts = ExpertCounts::new("num_experts", config.num_experts, config.num_experts_per_tok)?;
    let inner = dimension("moe_intermediate_size", config.moe_intermediate_size)?;
    let has_shared = config.moe_router_enable_shared_expert.unwrap_or(true) && 0 < shared;
    let spec = ExpertSizes {
        shared_inner: has_shared.then_some(shared),
        ..ExpertSizes::plain(counts, inner, config.router(counts.num_experts)?)
    };
    let score_bias = config.moe_router_enable_expert_bias.then_some("gate.expert_bias");
    Ok(experts(&module, sizes.hidden, &ExpertNames { score_bias, ..NAMES }, spec))
}
