//! Phi-3.5-MoE (Abdin et al. 2024): layer norms, biases of attention and of the logits, and experts
//! that are chosen one after the other. Sliding windows are ignored, as in mlx-lm.

use serde::Deserialize;
use serde_json::{Value, json};

use super::blocks::{ExpertCounts, ExpertSizes, attention, experts};
use super::decoder::{DecoderConfig, Description, LayerBuilder};
use super::mixtral::NAMES;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, dimension, parse, setting};
use jackalope_spec::{AttentionSpec, HeadTable, NormKind, RouterScores, RouterSpec};

const NORM_KIND: NormKind = NormKind { is_centred: true, adds_one: false, has_bias: true };

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    num_key_value_heads: u32,
    num_local_experts: u32,
    num_experts_per_tok: u32,
    router_jitter_noise: f32,
    attention_bias: bool,
    lm_head_bias: bool,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({
        "vocab_size": 32_064, "hidden_size": 4096, "intermediate_size": 6400,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131_072, "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6, "num_local_experts": 16, "num_experts_per_tok": 2,
        "rope_theta": 10_000.0, "router_jitter_noise": 0.01, "attention_bias": true,
        "lm_head_bias": true,
    });
    let config: Config = parse(&completed(config, &[], &defaults))?;
    for (what, has_bias) in
        [("attention_bias", config.attention_bias), ("lm_head_bias", config.lm_head_bias)]
    {
        setting(what, Some(if has_bias { "true" } else { "false" }), &["true"])?;
    }
    let sizes = config.decoder.sizes()?;
    let head_dim = sizes.head_dim();
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    let rope = config.decoder.rope.with_stated_magnitude(head_dim)?;
    let heads = AttentionSpec {
        has_qkv_bias: true,
        has_output_bias: true,
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    };
    let counts = ExpertCounts::local(config.num_local_experts, config.num_experts_per_tok)?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let scores = RouterScores::SparseMixer { jitter: config.router_jitter_noise };
    let spec = ExpertSizes::plain(counts, inner, RouterSpec { scores, ..RouterSpec::SOFTMAX });
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("model.layers.{layer_idx}");
        let block = experts(&format!("{prefix}.block_sparse_moe"), sizes.hidden, &NAMES, spec);
        let mixer = attention(&format!("{prefix}.self_attn"), sizes.hidden, heads.clone());
        let builder = LayerBuilder::pre_norm(prefix, sizes.hidden);
        LayerBuilder { norm_kind: NORM_KIND, ..builder }.build(mixer, block)
    });
    let layers = layers.collect();
    Ok(Description {
        norm_kind: NORM_KIND,
        head_table: HeadTable::Own,
        has_head_bias: true,
        ..config.decoder.with_layers(sizes, layers)
    })
}
