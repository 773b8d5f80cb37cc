//! DeepSeek V4 (DeepSeek-AI 2026): streams with hyper-connections; attention to a window beside pools, of
//! which indexers choose some; experts, which in the first layers the token itself selects.

pub(super) mod config;
mod experts;
mod pools;

use serde_json::{Value, json};

use self::config::Config;
use self::experts::{with_plain_router, with_token_experts};
use super::blocks::{ExpertNames, experts};
use super::decoder::{Description, LayerBuilder};
use super::hyper::{connections, stream_end, with_hyper_connections};
use super::pooled::pooled_attention;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, count, factor, parse};
use jackalope_config::names::TensorNames;
use jackalope_spec::{BlockNorms, ConnectionsEnd, LayerNorms, LayerSpec, PooledSpec, StreamsSpec};

const NAMES: ExpertNames = ExpertNames {
    projections: ["w1", "w3", "w2"],
    score_bias: Some("gate.e_score_correction_bias"),
    shared: "shared_experts",
    ..ExpertNames::QWEN
};

/// Reads `deepseek_v4`. What is not stated has the value of mlx-vlm.
pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let num_layers = config.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(43);
    let last = num_layers.saturating_sub(1);
    let ratios = (0..num_layers).map(|idx| match idx {
        0 => 0,
        idx if idx == last => 0,
        idx if idx % 2 == 0 => 4,
        _ => 128,
    });
    let defaults = json!({
        "vocab_size": 129_280, "hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64,
        "rms_norm_eps": 1e-6, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1024,
        "o_groups": 8, "o_lora_rank": 1024, "attention_bias": false, "sliding_window": 128,
        "compress_ratios": ratios.collect::<Vec<u64>>(), "compress_rope_theta": 160_000.0,
        "max_position_embeddings": 1_048_576, "index_n_heads": 64, "index_head_dim": 128,
        "index_topk": 512, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 6, "norm_topk_prob": true,
        "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
        "swiglu_limit": 10.0, "num_hash_layers": 3, "hc_mult": 4, "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20, "num_nextn_predict_layers": 1, "tie_word_embeddings": false,
    });
    let config: Config = parse(&completed(config, &[], &defaults))?;
    let sizes = config.decoder.sizes()?;
    let attention = config.attention(|_, ratio| config.pools(ratio))?.into_iter().enumerate();
    let layers = attention.map(|(layer_idx, attention)| layer(&config, layer_idx, attention));
    let layers = layers.collect::<Result<_, SpecError>>()?;
    let extra = (0..config.num_nextn_predict_layers.clamp(1, 16))
        .map(|idx| format!("model.layers.{}.", sizes.num_layers + idx));
    let description = config.decoder.with_layers(sizes, layers).with_stored_head().without(extra);
    let num_streams = count("hc_mult", config.hc_mult)?;
    let eps = factor("hc_eps", config.hc_eps)?;
    let end = Box::new(stream_end("model.hc_head", eps, num_streams, sizes.hidden));
    let end = ConnectionsEnd::Weighted(end);
    let streams = Some(StreamsSpec::HyperConnections { num_streams, end });
    Ok(Description { streams, ..description.with_names(TensorNames::DEEPSEEK_V4) })
}

/// Returns the layer with this attention.
pub(super) fn layer(
    config: &Config,
    layer_idx: usize,
    attention: PooledSpec,
) -> Result<LayerSpec, SpecError> {
    let sizes = config.decoder.sizes()?;
    let prefix = format!("model.layers.{layer_idx}");
    let mixer = pooled_attention(&format!("{prefix}.attn"), sizes.hidden, attention);
    let module = format!("{prefix}.ffn");
    let is_named = layer_idx < config.num_hash_layers;
    let score_bias = NAMES.score_bias.filter(|_| !is_named);
    let names = ExpertNames { score_bias, ..NAMES };
    let mut block = with_plain_router(experts(&module, sizes.hidden, &names, config.experts()?));
    if is_named {
        let table = format!("{module}.gate.tid2eid");
        block = with_token_experts(block, sizes.vocab, table);
    }
    let input = |name: &str| BlockNorms { input: Some(format!("{prefix}.{name}")), output: None };
    let norms =
        LayerNorms { mixer: input("attn_norm"), feed_forward: input("ffn_norm"), eps: None };
    let layer = LayerBuilder { norms, ..LayerBuilder::pre_norm(prefix.clone(), sizes.hidden) };
    let connections = connections(&prefix, config.hc_sinkhorn_iters, config.hc_eps)?;
    let num_streams = count("hc_mult", config.hc_mult)?;
    Ok(with_hyper_connections(layer.build(mixer, block), connections, num_streams, sizes.hidden))
}
