//! A model of each kind of cache answers the same whatever else runs: in a batch, in chunks of seven tokens,
//! from the prefix cache, over ranks with unequal shares, in pipelines, after a killed rank. Real processes,
//! random weights. Plain attention is in `metamorphic`, mixtures are in `mixture`, gated delta nets in
//! `hybrid`, and windows in `windows`.

use serde_json::{Value, json};

use crate::http::Server;
use crate::synthetic::{self, Expected};

/// What most configurations have; `own` takes precedence.
fn config(own: Value) -> Value {
    let mut config = json!({
        "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 2000, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048, "rope_theta": 10_000.0, "tie_word_embeddings": false,
    });
    let Value::Object(own) = own else { panic!("an object") };
    config.as_object_mut().expect("an object").extend(own);
    config
}

fn check(name: &str, config: &Value) {
    let model = synthetic::model(name, config);
    let expected = Expected::of(&model);
    let servers = [
        "--ranks 1 --step-tokens 7 --running-max 7",
        "--ranks 3 --share 3,2,1",
        "--ranks 2 --split pipeline",
    ];
    for (idx, args) in servers.into_iter().enumerate() {
        let server = Server::start(&model, args);
        expected.check(&server, &format!("{args}, in a batch"), None);
        let what = format!("{args}, from the prefix cache, with a killed rank");
        expected.check(&server, &what, Some(idx % 2));
        assert_eq!(server.health()["counters"]["recoveries"], 1, "{what}");
    }
}

#[test]
fn states_alone() {
    check(
        "states",
        &config(json!({
            "model_type": "mamba2", "num_hidden_layers": 3, "layer_norm_epsilon": 1e-5,
            "use_conv_bias": true, "use_bias": true, "time_step_rank": "auto", "num_heads": 6,
            "head_dim": 40, "n_groups": 3, "state_size": 24, "conv_kernel": 3,
            "time_step_limit": [0.4, 1.2],
        })),
    );
}

#[test]
fn positions_and_a_state_in_each_layer() {
    check(
        "positions-and-states",
        &config(json!({
            "model_type": "falcon_h1", "num_hidden_layers": 2, "head_dim": 32,
            "mamba_d_ssm": 256, "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_n_groups": 1,
            "mamba_d_state": 48, "mamba_d_conv": 4,
        })),
    );
}

#[test]
fn layers_without_a_cache() {
    check(
        "no-caches",
        &config(json!({
            "model_type": "nemotron_h", "head_dim": 32, "attention_bias": false,
            "mamba_num_heads": 8, "mamba_head_dim": 32, "mamba_proj_bias": false,
            "ssm_state_size": 48, "conv_kernel": 4, "n_groups": 2, "mlp_bias": false,
            "layer_norm_epsilon": 1e-5, "use_bias": false, "use_conv_bias": true,
            "num_hidden_layers": 5, "hybrid_override_pattern": "ME*-M",
            "moe_intermediate_size": 64, "moe_shared_expert_intermediate_size": 192,
            "n_group": 1, "topk_group": 1, "n_routed_experts": 6, "n_shared_experts": 1,
            "num_experts_per_tok": 2, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
        })),
    );
}

#[test]
fn latents() {
    check(
        "latents",
        &config(json!({
            "model_type": "deepseek_v3", "num_hidden_layers": 3, "num_attention_heads": 5,
            "num_key_value_heads": 5, "kv_lora_rank": 88, "q_lora_rank": 72,
            "qk_nope_head_dim": 24, "qk_rope_head_dim": 12, "v_head_dim": 40,
            "n_routed_experts": 12, "n_shared_experts": 2, "num_experts_per_tok": 3,
            "moe_intermediate_size": 128, "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.5, "n_group": 4, "topk_group": 2, "norm_topk_prob": true,
            "topk_method": "noaux_tc", "scoring_func": "sigmoid",
        })),
    );
}

#[test]
fn windows_beside_pools() {
    check(
        "windows-and-pools",
        &config(json!({
            "model_type": "deepseek_v4", "num_hidden_layers": 5, "num_attention_heads": 10,
            "num_key_value_heads": 1, "head_dim": 40, "qk_rope_head_dim": 12, "q_lora_rank": 72,
            "o_groups": 5, "o_lora_rank": 24, "moe_intermediate_size": 104,
            "n_routed_experts": 12, "n_shared_experts": 2, "num_experts_per_tok": 3,
            "routed_scaling_factor": 1.7, "norm_topk_prob": true,
            "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "num_hash_layers": 2,
            "swiglu_limit": 0.7, "compress_ratios": [0, 4, 8, 4, 8],
            "compress_rope_theta": 16_000.0, "sliding_window": 9, "index_n_heads": 3,
            "index_head_dim": 20, "index_topk": 4, "hc_mult": 3, "hc_eps": 1e-5,
            "hc_sinkhorn_iters": 6,
        })),
    );
}

#[test]
fn pools_of_latents_beside_states() {
    check(
        "pools-and-states",
        &config(json!({
            "model_type": "glm5_next", "num_hidden_layers": 5, "num_attention_heads": 5,
            "num_key_value_heads": 5, "q_lora_rank": 72, "kv_lora_rank": 88,
            "qk_nope_head_dim": 24, "qk_rope_head_dim": 0, "v_head_dim": 40,
            "n_routed_experts": 12, "num_experts_per_tok": 3, "n_shared_experts": 2,
            "moe_intermediate_size": 104, "routed_scaling_factor": 1.7, "norm_topk_prob": true,
            "scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 1, "topk_group": 1,
            "first_k_dense_replace": 2, "swiglu_limit": 0.7,
            "layer_types": [
                "linear_attention", "full_attention", "linear_attention",
                "deepseek_sparse_attention", "deepseek_sparse_attention",
            ],
            "indexer_types": ["shared", "full", "full", "shared", "full"], "index_topk": 12,
            "index_kpool": 3, "index_head_dim": 20, "index_n_heads": 7, "linear_head_dim": 24,
            "linear_num_heads": 3, "linear_conv_kernel_dim": 3, "linear_lower_bound": -3.5,
            "hc_mult": 3, "hc_eps": 1e-5, "hc_sinkhorn_iters": 6,
        })),
    );
}

#[test]
fn caches_that_later_layers_read() {
    let (sliding, full) = ("sliding_attention", "full_attention");
    let text = config(json!({
        "model_type": "gemma3n_text", "num_hidden_layers": 5, "head_dim": 32,
        "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 1992, "sliding_window": 16,
        "rope_local_base_freq": 10_000.0, "rope_theta": 1e6, "final_logit_softcapping": 30.0,
        "layer_types": [sliding, full, sliding, sliding, full],
        "activation_sparsity_pattern": [0.8, 0.0, 0.6, 0.0, 0.0],
        "hidden_size_per_layer_input": 32, "altup_num_inputs": 4, "altup_coef_clip": 0.6,
        "altup_correct_scale": true, "altup_active_idx": 0, "laurel_rank": 32,
        "hidden_activation": "gelu_pytorch_tanh",
    }));
    check("shared-caches", &json!({"model_type": "gemma3n", "text_config": text}));
}
