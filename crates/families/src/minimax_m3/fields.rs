//! The fields of `MiniMax` M3's configurations with their defaults, and those that have one value only.

use serde_json::{Value, json};

use crate::text_part::text_config;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, setting};

/// Settings of which one value is computed.
const SETTINGS: [(&str, &[&str]); 8] = [
    ("scoring_func", &["sigmoid"]),
    ("qk_norm_type", &["per_head"]),
    ("attention_output_gate", &["false"]),
    ("use_routing_bias", &["true"]),
    ("swiglu_beta", &["1.0", "1"]),
    ("use_sparse_attention", &["true"]),
    ("sparse_score_type", &["max"]),
    ("sparse_init_block", &["0"]),
];

/// Returns the fields of the text part with what mlx-lm fills in. Fields of `sparse_attention_config` and
/// `rope_parameters` replace those of the text part.
pub(super) fn completed_text(config: &Value) -> Value {
    let defaults = json!({
        "hidden_size": 6144, "intermediate_size": 3072, "dense_intermediate_size": 12288,
        "shared_intermediate_size": 3072, "num_attention_heads": 64, "num_key_value_heads": 4,
        "num_hidden_layers": 60, "num_local_experts": 128, "num_experts_per_tok": 4,
        "max_position_embeddings": 1_048_576, "rms_norm_eps": 1e-6, "rope_theta": 5e6,
        "head_dim": 128, "partial_rotary_factor": 0.5, "vocab_size": 200_064,
        "tie_word_embeddings": false, "routed_scaling_factor": 2.0, "use_qk_norm": true,
        "use_gemma_norm": true, "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "index_local_blocks": 1,
    });
    let mut text = completed(text_config(config), &[], &Value::Null);
    let own = text["sparse_attention_config"].take();
    for (theirs, ours) in [
        ("sparse_num_index_heads", "index_n_heads"),
        ("sparse_index_dim", "index_head_dim"),
        ("sparse_block_size", "index_block_size"),
        ("sparse_topk_blocks", "index_topk_blocks"),
        ("sparse_local_block", "index_local_blocks"),
        ("sparse_attention_freq", "sparse_attention_freq"),
        ("use_sparse_attention", "use_sparse_attention"),
        ("sparse_score_type", "sparse_score_type"),
        ("sparse_init_block", "sparse_init_block"),
    ] {
        if let Some(value) = own.get(theirs) {
            text[ours] = value.clone();
        }
    }
    for field in ["rope_theta", "partial_rotary_factor"] {
        if let Some(value) = text["rope_parameters"].get(field).cloned() {
            text[field] = value;
        }
    }
    completed(&text, &[], &defaults)
}

/// Checks that nothing is set that is not computed.
pub(super) fn check(text: &Value) -> Result<(), SpecError> {
    for (what, supported) in SETTINGS {
        let stated = Some(&text[what]).filter(|it| !it.is_null());
        let stated = stated.map(|it| it.as_str().map_or(it.to_string(), str::to_owned));
        setting(what, stated.as_deref(), supported)?;
    }
    Ok(())
}
