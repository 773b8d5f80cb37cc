//! Models with recurrent layers answer the same whatever else runs, and reuse prefixes up to the
//! lengths at which their states were kept. Real processes, random weights.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::http::Server;
use crate::synthetic::{self, Expected};

/// A gated delta net with an attention layer after every two recurrent ones, and experts.
fn hybrid() -> &'static Path {
    static HYBRID: OnceLock<PathBuf> = OnceLock::new();
    HYBRID.get_or_init(|| {
        let config = json!({
            "model_type": "qwen3_next", "hidden_size": 256, "intermediate_size": 512,
            "num_hidden_layers": 6, "full_attention_interval": 3, "num_attention_heads": 8,
            "num_key_value_heads": 2, "head_dim": 64, "partial_rotary_factor": 0.25,
            "linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_key_head_dim": 32,
            "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4, "vocab_size": 2000,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 4096,
            "tie_word_embeddings": false, "num_experts": 16, "num_experts_per_tok": 4,
            "moe_intermediate_size": 192, "shared_expert_intermediate_size": 192,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true,
        });
        synthetic::model("hybrid", &config)
    })
}

#[test]
fn a_hybrid_over_any_ranks_generates_what_one_rank_does() {
    synthetic::check_ranks(hybrid(), "1,3,2");
}

fn cached_tokens(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn a_hybrid_answers_in_a_batch_in_chunks_from_the_cache_and_after_a_killed_rank_as_alone() {
    let expected = Expected::of(hybrid());

    for args in ["--ranks 1 --step-tokens 7 --running-max 7", "--ranks 3 --share 3,2,1"] {
        let server = Server::start(hybrid(), args);
        expected.check(&server, &format!("{args}, in a batch, in chunks"), None);
        let again = server.ask("/v1/completions", &expected.requests[7]);
        assert_eq!(cached_tokens(&again), 5 + 7 * 40 - 1, "{args}");
        expected.check(&server, &format!("{args}, from the prefix cache"), Some(0));
        assert_eq!(server.health()["counters"]["recoveries"], 1);
    }
}

#[test]
fn a_conversation_and_a_shared_document_start_from_kept_states() {
    let caching = Server::start(hybrid(), "--ranks 3 --share 3,2,1");
    let forgetting = Server::start(hybrid(), "--ranks 1 --no-prefix-cache");
    let ask = |messages: &Value| {
        let body = json!({"messages": messages, "max_tokens": 40, "temperature": 0});
        let cached = caching.ask("/v1/chat/completions", &body);
        let computed = forgetting.ask("/v1/chat/completions", &body);
        assert_eq!(cached["choices"], computed["choices"], "{messages}");
        assert_eq!(cached_tokens(&computed), 0);
        cached
    };
    let details = |answer: &Value| answer["usage"]["prompt_tokens_details"].clone();
    let user = |text: &str| json!({"role": "user", "content": text});
    let document = "It was a dark and stormy night. ".repeat(20);

    let first = ask(&json!([user(&format!("{document}Why?"))]));
    let first_tokens = first["usage"]["prompt_tokens"].as_u64().unwrap();
    let answer = json!({"role": "assistant", "content": "Nobody knows."});
    let next = ask(&json!([user(&format!("{document}Why?")), answer, user("And then?")]));
    // The prompt is the beginning of the next turn but for the answer, and the last token is computed.
    let reused = cached_tokens(&next);
    assert!(first_tokens - 16 <= reused && reused < first_tokens, "{reused} of {first_tokens}");

    let second = ask(&json!([user(&format!("{document}Who was there?"))]));
    let shared = details(&second)["diverged_at"].as_u64().unwrap();
    assert_eq!(details(&second)["miss_reason"], "state_not_kept", "{second}");
    assert!(document.len() as u64 <= shared, "{second}");
    let third = ask(&json!([user(&format!("{document}What time was it?"))]));
    assert_eq!(cached_tokens(&third), shared, "{third}");
}
