//! Ling and Ring (Ant Group 2025), `bailing_moe`: dense layers first, then experts with one that every
//! token passes; one tensor holds the projections to queries, keys and values.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{Block, ExpertCounts, ExpertNames, ExpertSizes, attention_of, experts, mlp};
use super::decoder::{DecoderConfig, DecoderNames, Description, LayerBuilder, Sizes};
use crate::config::{bad_value, count, dimension, parse};
use crate::error::SpecError;
use crate::model::{AttentionSpec, MlpSpec, QkNorm, RouterGroups, RouterScores, RouterSpec};
use crate::modules::{AttentionModules, QkvModules};
use crate::names::TensorNames;

const NAMES: ExpertNames =
    ExpertNames { router: "gate.gate_proj", shared: "shared_experts", ..ExpertNames::QWEN };

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    moe_intermediate_size: u32,
    num_key_value_heads: u32,
    num_experts: u32,
    num_experts_per_tok: u32,
    num_shared_experts: u32,
    norm_topk_prob: bool,
    first_k_dense_replace: usize,
    #[serde(default)]
    use_bias: bool,
    #[serde(default)]
    use_qkv_bias: bool,
    #[serde(default)]
    norm_head: bool,
    #[serde(default)]
    use_qk_norm: bool,
    rotary_dim: Option<u32>,
    #[serde(default)]
    moe_router_enable_expert_bias: bool,
    moe_router_enable_shared_expert: Option<bool>,
    moe_shared_expert_intermediate_size: Option<u32>,
    routed_scaling_factor: Option<f32>,
    score_function: Option<String>,
    n_group: Option<u32>,
    topk_group: Option<u32>,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let sizes = config.decoder.sizes()?;
    for (what, is_set) in [("use_bias", config.use_bias), ("norm_head", config.norm_head)] {
        if is_set {
            let found = "true".to_owned();
            return Err(SpecError::Setting { what, found, supported: &["false"] });
        }
    }
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    let head_dim = sizes.head_dim();
    let rotated = match config.rotary_dim {
        Some(dims) => dimension("rotary_dim", dims)?,
        None => config.decoder.rope.rotated_dims(head_dim, Some(1.0))?,
    };
    let rope = config.decoder.rope.spec(rotated, None)?;
    let attention = AttentionSpec {
        has_qkv_bias: config.use_qkv_bias,
        qk_norm: config.use_qk_norm.then_some(QkNorm::PerHead),
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    };
    let mut layers = Vec::with_capacity(sizes.num_layers);
    for layer_idx in 0..sizes.num_layers {
        let prefix = format!("model.layers.{layer_idx}");
        let at = |name: &str| format!("{prefix}.attention.{name}");
        let modules = AttentionModules {
            block: format!("{prefix}.attention"),
            qkv: QkvModules::Stacked(at("query_key_value")),
            output: at("dense"),
            qk_norms: ["query_layernorm", "key_layernorm"].map(at),
        };
        let block = feed_forward(&config, sizes, &prefix, layer_idx)?;
        let mixer = attention_of(sizes.hidden, AttentionSpec { modules, ..attention.clone() });
        layers.push(LayerBuilder::pre_norm(prefix, sizes.hidden).build(mixer, block));
    }
    let modules = DecoderNames { embedding: "model.word_embeddings", ..DecoderNames::LLAMA };
    let names = TensorNames::BAILING;
    Ok(Description { modules, names, ..config.decoder.with_layers(sizes, layers) })
}

fn feed_forward(
    config: &Config,
    sizes: Sizes,
    prefix: &str,
    layer_idx: usize,
) -> Result<Block, SpecError> {
    let module = format!("{prefix}.mlp");
    if layer_idx < config.first_k_dense_replace {
        let inner = dimension("intermediate_size", config.intermediate_size)?;
        return Ok(mlp(&module, sizes.hidden, MlpSpec::plain(inner)));
    }
    let counts = ExpertCounts::new("num_experts", config.num_experts, config.num_experts_per_tok)?;
    let inner = dimension("moe_intermediate_size", config.moe_intermediate_size)?;
    let shared = config.moe_shared_expert_intermediate_size.filter(|inner| *inner != 0);
    let shared = shared.map_or(inner, |inner| inner as usize) * config.num_shared_experts as usize;
    let has_shared = config.moe_router_enable_shared_expert.unwrap_or(true) && 0 < shared;
    let spec = ExpertSizes {
        shared_inner: has_shared.then_some(shared),
        ..ExpertSizes::plain(counts, inner, router(config, counts.num_experts)?)
    };
    let score_bias = config.moe_router_enable_expert_bias.then_some("gate.expert_bias");
    Ok(experts(&module, sizes.hidden, &ExpertNames { score_bias, ..NAMES }, spec))
}

fn router(config: &Config, num_experts: usize) -> Result<RouterSpec, SpecError> {
    let scores = match config.score_function.as_deref() {
        Some("sigmoid") => RouterScores::Sigmoid,
        None | Some("softmax") => RouterScores::Softmax,
        Some(other) => {
            let (what, found) = ("score_function", other.to_owned());
            return Err(SpecError::Setting { what, found, supported: &["softmax", "sigmoid"] });
        }
    };
    let num_groups = count("n_group", config.n_group.unwrap_or(1))?;
    let chosen = count("topk_group", config.topk_group.unwrap_or(4))?;
    if !num_experts.is_multiple_of(num_groups) {
        let expected = format!("a divisor of {num_experts} experts");
        return Err(bad_value("n_group", num_groups, expected));
    }
    let groups = RouterGroups { count: num_groups, chosen, best: 2 };
    let is_normalized = config.norm_topk_prob && 1 < config.num_experts_per_tok;
    Ok(RouterSpec {
        scores,
        groups: (1 < num_groups && chosen < num_groups).then_some(groups),
        normalization_eps: is_normalized.then_some(1e-20),
        scale: config.routed_scaling_factor.unwrap_or(1.0),
        ..RouterSpec::SOFTMAX
    })
}
