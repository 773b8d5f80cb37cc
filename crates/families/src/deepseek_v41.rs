//! DeepSeek V4.1 (DeepSeek-AI 2026): DeepSeek V4 with pools and choices that later layers share, rounded keys,
//! streams that each block reads with weights of the block before it, and tables of n-grams.

mod config;
mod engram;
mod table;

use serde_json::{Value, json};

use self::config::Config;
use super::decoder::Description;
use super::deepseek_v4::layer;
use super::text_part::text_config;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, count, parse};
use jackalope_config::names::TensorNames;
use jackalope_spec::{ConnectionsEnd, LayerSpec, PooledSpec, StreamsSpec};

/// Reads `deepseek_v41`. What is not stated has the value of mlx-vlm.
pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let ratios = [vec![0; 2], vec![2; 18], vec![1; 20]].concat();
    let defaults = json!({
        "vocab_size": 129_280, "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 64,
        "rms_norm_eps": 1e-20, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1280,
        "o_groups": 8, "o_lora_rank": 1024, "attention_bias": false, "sliding_window": 128,
        "compress_ratios": ratios, "compress_rope_theta": 160_000.0,
        "max_position_embeddings": 1_048_576, "index_n_heads": 32, "index_head_dim": 128,
        "index_topk": 512, "moe_intermediate_size": 2304, "n_routed_experts": 384,
        "n_shared_experts": 1, "num_experts_per_tok": 6, "norm_topk_prob": true,
        "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "swiglu_limit": 10.0,
        "gate_temp": 1.0, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20,
        "tie_word_embeddings": false, "topk_method": "noaux_tc", "num_nextn_predict_layers": 1,
        "kv_source_layer_ids": [2, 8, 14, 20],
        "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
        "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048, "candidate_block_size": 8,
    });
    let stated = completed(text_config(config), &[], config);
    let stated = completed(&stated, &[], &defaults);
    let mut stated = completed(&stated, &[], &engram::defaults());
    // DeepSeek V4 has such layers.
    stated["num_hash_layers"] = 0.into();
    let mut config: Config = parse(&stated)?;
    // The score of a single expert is not normalised, unlike in DeepSeek V4 (mlx-lm 0.32.2,
    // models/deepseek_v41.py, line 690).
    config.base.norm_topk_prob &= 1 < config.base.num_experts_per_tok;
    let sizes = config.base.decoder.sizes()?;
    let num_streams = count("hc_mult", config.base.hc_mult)?;
    config.check()?;
    let mut tables = config.engram.tables(sizes, num_streams)?.into_iter();
    let attention = config.base.attention(|layer_idx, ratio| config.pools(layer_idx, ratio))?;
    let layers = attention.into_iter().enumerate().map(|(layer_idx, attention)| {
        let attention = PooledSpec { has_query_norm: false, is_rounded: true, ..attention };
        let layer = layer(&config.base, layer_idx, attention)?;
        if !config.engram.has_table(layer_idx) {
            return Ok(layer);
        }
        let (ngrams, tensors) = tables.next().expect("a table for each such layer");
        let tensors = [layer.tensors, tensors].concat();
        Ok(LayerSpec { tensors, ngrams: Some(ngrams), ..layer })
    });
    let layers = layers.collect::<Result<_, SpecError>>()?;
    let end = ConnectionsEnd::OfLastBlock;
    let streams = Some(StreamsSpec::HyperConnections { num_streams, end });
    let description = config.base.decoder.with_layers(sizes, layers).with_stored_head();
    Ok(Description { streams, ..description.with_names(TensorNames::DEEPSEEK_V41) })
}
