//! Hunyuan with experts (Tencent 2024): queries and keys are normalised after their rotation, whose
//! base grows with the context's extension. Several layers in a row may share keys and values.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{Block, ExpertCounts, ExpertNames, ExpertSizes, attention_of, experts, mlp};
use super::decoder::{DecoderConfig, Description, LayerBuilder};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension, parse};
use jackalope_spec::{AttentionModules, AttentionSpec, HeadTable, MlpSpec, QkNorm, RouterSpec};

const NAMES: ExpertNames =
    ExpertNames { router: "gate.wg", shared: "shared_mlp", ..ExpertNames::QWEN };

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    num_key_value_heads: u32,
    attention_bias: bool,
    moe_topk: PerLayer,
    num_experts: u32,
    num_shared_expert: PerLayer,
    use_mixed_mlp_moe: bool,
    use_qk_norm: bool,
    use_cla: bool,
    cla_share_factor: u32,
    moe_intermediate_size: Option<PerLayer>,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

/// A number of all layers, or one for each.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number or a list of numbers")]
enum PerLayer {
    All(u32),
    Each(Vec<u32>),
}

impl PerLayer {
    fn at(&self, field: &'static str, layer_idx: usize) -> Result<u32, SpecError> {
        match self {
            PerLayer::All(number) => Ok(*number),
            PerLayer::Each(numbers) => numbers
                .get(layer_idx)
                .copied()
                .ok_or_else(|| bad_value(field, numbers.len(), "a number for each layer")),
        }
    }
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let sizes = config.decoder.sizes()?;
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    let head_dim = sizes.head_dim();
    let rope = config.decoder.rope.alpha(head_dim)?;
    // Of so many layers in a row, the first one computes keys and values.
    let num_sharing =
        if config.use_cla { dimension("cla_share_factor", config.cla_share_factor)? } else { 1 };
    let attention = AttentionSpec {
        has_qkv_bias: config.attention_bias,
        has_output_bias: config.attention_bias,
        qk_norm: config.use_qk_norm.then_some(if num_sharing == 1 {
            QkNorm::PerHead
        } else {
            QkNorm::OfSharedKeys
        }),
        norm_follows_rotation: true,
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    };
    let mut layers = Vec::with_capacity(sizes.num_layers);
    for layer_idx in 0..sizes.num_layers {
        let prefix = format!("model.layers.{layer_idx}");
        let module = format!("{prefix}.self_attn");
        let mlp = block(&config, sizes.hidden, layer_idx)?;
        let qk_norms = ["query_layernorm", "key_layernorm"].map(|name| format!("{module}.{name}"));
        let modules = AttentionModules { qk_norms, ..AttentionModules::at(&module) };
        let own_idx = layer_idx - layer_idx % num_sharing;
        let source_layer = (own_idx < layer_idx).then_some(own_idx);
        let heads = AttentionSpec { source_layer, modules, ..attention.clone() };
        let mixer = attention_of(sizes.hidden, heads);
        layers.push(LayerBuilder::pre_norm(prefix, sizes.hidden).build(mixer, mlp));
    }
    let head_table = HeadTable::IfPresent;
    Ok(Description { head_table, ..config.decoder.with_layers(sizes, layers) })
}

/// Returns the experts of a layer, or its dense block if there is a single one, which has no router.
fn block(config: &Config, hidden: usize, layer_idx: usize) -> Result<Block, SpecError> {
    let module = format!("model.layers.{layer_idx}.mlp");
    if config.num_experts == 1 {
        let inner = dimension("intermediate_size", config.intermediate_size)?;
        return Ok(mlp(&module, hidden, MlpSpec::plain(inner)));
    }
    Ok(experts(&module, hidden, &NAMES, expert_sizes(config, layer_idx)?))
}

fn expert_sizes(config: &Config, layer_idx: usize) -> Result<ExpertSizes, SpecError> {
    let per_token = config.moe_topk.at("moe_topk", layer_idx)?;
    let counts = ExpertCounts::new("num_experts", config.num_experts, per_token)?;
    let inner = match &config.moe_intermediate_size {
        Some(inner) => inner.at("moe_intermediate_size", layer_idx)?,
        None => config.intermediate_size,
    };
    let inner = dimension("moe_intermediate_size", inner)?;
    let num_shared = config.num_shared_expert.at("num_shared_expert", layer_idx)? as usize;
    let shared_inner = dimension("intermediate_size", config.intermediate_size)? * num_shared;
    Ok(ExpertSizes {
        shared_inner: (config.use_mixed_mlp_moe && 0 < shared_inner).then_some(shared_inner),
        ..ExpertSizes::plain(counts, inner, RouterSpec::SOFTMAX)
    })
}
