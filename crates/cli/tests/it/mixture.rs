//! Mixtures of experts answer the same whatever else runs: over any number of ranks, in a batch, in
//! chunks, from the prefix cache, after a killed rank. Real processes, random weights.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::json;

use crate::http::Server;
use crate::synthetic::{self, Expected};

/// A mixture with a dense layer, in 4 bits, of five layers.
fn mixture() -> &'static Path {
    static MIXTURE: OnceLock<PathBuf> = OnceLock::new();
    MIXTURE.get_or_init(|| {
        let config = json!({
            "model_type": "qwen3_moe", "hidden_size": 256, "intermediate_size": 512,
            "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 64, "vocab_size": 2000, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
            "max_position_embeddings": 4096, "tie_word_embeddings": false, "num_experts": 16,
            "num_experts_per_tok": 4, "moe_intermediate_size": 192, "decoder_sparse_step": 1,
            "mlp_only_layers": [1], "norm_topk_prob": true,
        });
        synthetic::model("mixture", &config)
    })
}

#[test]
fn a_mixture_over_any_ranks_generates_what_one_rank_does() {
    synthetic::check_ranks(mixture(), "1,3,1");
}

/// A norm over all heads needs sums over the ranks in the middle of its block.
#[test]
fn a_mixture_with_norms_over_all_heads_generates_on_any_ranks_what_one_rank_does() {
    let config = json!({
        "model_type": "minimax", "hidden_size": 128, "intermediate_size": 96,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 48, "rotary_dim": 24, "vocab_size": 2000, "rms_norm_eps": 1e-5,
        "rope_theta": 10_000, "max_position_embeddings": 2048, "tie_word_embeddings": false,
        "num_local_experts": 12, "num_experts_per_tok": 3, "shared_intermediate_size": 0,
        "scoring_func": "sigmoid",
    });
    synthetic::check_ranks(&synthetic::model("norms-over-heads", &config), "1,1,1");
}

#[test]
fn a_mixture_answers_in_a_batch_in_chunks_and_after_a_killed_rank_as_alone() {
    let expected = Expected::of(mixture());

    let server = Server::start(mixture(), "--ranks 3 --share 3,2,1 --step-tokens 23");
    expected.check(&server, "in a batch, in chunks", None);
    expected.check(&server, "from the prefix cache, with a killed rank", Some(1));
    assert_eq!(server.health()["counters"]["recoveries"], 1);
}
