//! MiMo-V2-Flash (Xiaomi 2025): windows with heads, rotations and sinks of their own, values that are
//! narrower than keys, and experts.

use serde::Deserialize;
use serde_json::{Value, json};

use super::blocks::{Block, ExpertCounts, ExpertNames, ExpertSizes, experts, mlp};
use super::decoder::{DecoderConfig, Description, pre_norm_layer};
use crate::config::{bad_value, completed, count, dimension, factor, parse, setting};
use crate::error::SpecError;
use crate::model::{AttentionSpec, HeadTable, MlpSpec, RouterGroups, RouterScores, RouterSpec};

const NAMES: ExpertNames = ExpertNames {
    score_bias: Some("gate.e_score_correction_bias"),
    shared: "shared_experts",
    ..ExpertNames::QWEN
};

/// Epsilon added to the sum of the chosen experts' weights.
const WEIGHTS_EPS: f32 = 1e-20;

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    /// 1 for layers with windows, 0 for the others.
    hybrid_layer_pattern: Vec<u8>,
    /// 1 for layers with experts, 0 for the others.
    moe_layer_freq: Vec<u8>,
    add_swa_attention_sink_bias: Option<bool>,
    add_full_attention_sink_bias: Option<bool>,
    sliding_window_size: u32,
    num_key_value_heads: u32,
    head_dim: u32,
    v_head_dim: u32,
    swa_rope_theta: f64,
    swa_num_attention_heads: u32,
    swa_num_key_value_heads: u32,
    swa_head_dim: u32,
    swa_v_head_dim: u32,
    attention_value_scale: Option<f32>,
    #[serde(default)]
    attention_bias: bool,
    moe_intermediate_size: u32,
    n_shared_experts: Option<u32>,
    n_routed_experts: u32,
    num_experts_per_tok: u32,
    routed_scaling_factor: Option<f32>,
    topk_method: String,
    scoring_func: String,
    norm_topk_prob: bool,
    n_group: u32,
    topk_group: u32,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let renames = [("layernorm_epsilon", "rms_norm_eps")];
    let config: Config = parse(&completed(config, &renames, &json!({})))?;
    setting("topk_method", Some(&config.topk_method), &["noaux_tc"])?;
    setting("scoring_func", Some(&config.scoring_func), &["sigmoid"])?;
    setting("attention_bias", config.attention_bias.then_some("true"), &["false"])?;
    config.decoder.rope.require(&["default"])?;
    let sizes = config.decoder.sizes()?;
    let lists = [
        ("hybrid_layer_pattern", &config.hybrid_layer_pattern),
        ("moe_layer_freq", &config.moe_layer_freq),
    ];
    for (field, list) in lists {
        if list.len() < sizes.num_layers {
            let expected = format!("{} entries", sizes.num_layers);
            return Err(bad_value(field, list.len(), expected));
        }
    }
    let [full, sliding] = [attention(&config, false)?, attention(&config, true)?];
    let mut layers = Vec::with_capacity(sizes.num_layers);
    for layer_idx in 0..sizes.num_layers {
        let has_window = config.hybrid_layer_pattern[layer_idx] == 1;
        let attention = if has_window { sliding.clone() } else { full.clone() };
        let block = block(&config, layer_idx)?;
        layers.push(pre_norm_layer(layer_idx, sizes.hidden, attention, block));
    }
    let description = config.decoder.with_layers(sizes, layers);
    let description = description.without(["model.mtp".to_owned()]);
    Ok(Description { head_table: HeadTable::Own, ..description })
}

fn attention(config: &Config, has_window: bool) -> Result<AttentionSpec, SpecError> {
    let sizes = config.decoder.sizes()?;
    let [heads, kv_heads, head_dim, value_dim] = if has_window {
        [
            dimension("swa_num_attention_heads", config.swa_num_attention_heads)?,
            dimension("swa_num_key_value_heads", config.swa_num_key_value_heads)?,
            dimension("swa_head_dim", config.swa_head_dim)?,
            dimension("swa_v_head_dim", config.swa_v_head_dim)?,
        ]
    } else {
        [
            sizes.heads,
            dimension("num_key_value_heads", config.num_key_value_heads)?,
            dimension("head_dim", config.head_dim)?,
            dimension("v_head_dim", config.v_head_dim)?,
        ]
    };
    if !heads.is_multiple_of(kv_heads) {
        let field = if has_window { "swa_num_key_value_heads" } else { "num_key_value_heads" };
        return Err(bad_value(field, kv_heads, format!("a divisor of {heads} heads")));
    }
    let has_sinks = if has_window {
        config.add_swa_attention_sink_bias
    } else {
        config.add_full_attention_sink_bias
    };
    let own = &config.decoder.rope;
    let base = has_window.then(|| own.with_base(config.swa_rope_theta, None));
    let rope = base.as_ref().unwrap_or(own);
    let rope = rope.spec(rope.rotated_dims(head_dim, None)?, None)?;
    let window = has_window.then(|| dimension("sliding_window_size", config.sliding_window_size));
    let scale = config.attention_value_scale;
    Ok(AttentionSpec {
        value_dim,
        value_scale: scale.map_or(Ok(1.0), |scale| factor("attention_value_scale", scale))?,
        sinks: has_sinks.unwrap_or(false).then_some("attention_sink_bias"),
        window: window.transpose()?,
        ..AttentionSpec::plain(heads, kv_heads, head_dim, rope)
    })
}

fn block(config: &Config, layer_idx: usize) -> Result<Block, SpecError> {
    let hidden = config.decoder.sizes()?.hidden;
    let module = format!("model.layers.{layer_idx}.mlp");
    if config.moe_layer_freq[layer_idx] != 1 {
        let inner = dimension("intermediate_size", config.intermediate_size)?;
        return Ok(mlp(&module, hidden, MlpSpec::plain(inner)));
    }
    let counts =
        ExpertCounts::new("n_routed_experts", config.n_routed_experts, config.num_experts_per_tok)?;
    let inner = dimension("moe_intermediate_size", config.moe_intermediate_size)?;
    let plain = ExpertSizes::plain(counts, inner, router(config, counts.num_experts)?);
    let shared_inner = match config.n_shared_experts {
        Some(number) => Some(inner * count("n_shared_experts", number)?),
        None => None,
    };
    Ok(experts(&module, hidden, &NAMES, ExpertSizes { shared_inner, ..plain }))
}

fn router(config: &Config, num_experts: usize) -> Result<RouterSpec, SpecError> {
    let num_groups = count("n_group", config.n_group)?;
    let chosen = count("topk_group", config.topk_group)?;
    if !num_experts.is_multiple_of(num_groups) {
        return Err(bad_value("n_group", num_groups, format!("a divisor of {num_experts}")));
    }
    let groups = RouterGroups { count: num_groups, chosen, best: 2 };
    let is_normalized = config.norm_topk_prob && 1 < config.num_experts_per_tok;
    Ok(RouterSpec {
        scores: RouterScores::Sigmoid,
        groups: (chosen < num_groups).then_some(groups),
        normalization_eps: is_normalized.then_some(WEIGHTS_EPS),
        scale: config.routed_scaling_factor.unwrap_or(1.0),
        ..RouterSpec::SOFTMAX
    })
}
