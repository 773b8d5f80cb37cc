//! Models with recurrent layers answer the same whatever else runs, and reuse prefixes up to the
//! lengths at which their states were kept. Real processes, random weights.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::{Answer, End, Server, Stream};
use crate::program::{run, run_json, send};

/// A gated delta net with an attention layer after every two recurrent ones, and experts.
fn hybrid() -> &'static Path {
    static HYBRID: OnceLock<PathBuf> = OnceLock::new();
    HYBRID.get_or_init(|| {
        let dir =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hybrid-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let described = dir.join("described.json");
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
        std::fs::write(&described, config.to_string()).unwrap();
        let (out, config) = (dir.join("model"), described.to_str().unwrap());
        let made = run(&["synth", "--config", config, "--out", out.to_str().unwrap(), "--json"]);
        assert!(made.status.success(), "{made:?}");
        out
    })
}

fn generate(ranks: &str) -> Value {
    let model = hybrid().to_str().unwrap();
    let mut args = vec!["generate", "--model", model, "--prompt-ids", "5,600,1200,77,1999"];
    args.extend(["--json", "--ignore-eos", "--max-tokens", "32", "--logprobs", "2"]);
    args.extend(ranks.split(' '));
    let answer = run_json(&args);
    json!([answer["token_ids"], answer["logprobs"]])
}

#[test]
fn a_hybrid_over_any_ranks_generates_what_one_rank_does() {
    let alone = generate("--ranks 1");
    assert_eq!(alone[0].as_array().unwrap().len(), 32);
    for ranks in [
        "--ranks 2",
        "--ranks 3 --share 5,1,2",
        "--ranks 5",
        "--ranks 2 --split pipeline",
        "--ranks 3 --layers 1,3,2",
    ] {
        assert_eq!(generate(ranks), alone, "{ranks}");
    }
}

/// Requests of many lengths that share no prefix.
fn requests() -> Vec<Value> {
    let request = |idx: u64| {
        let prompt: Vec<u64> = (0..5 + idx * 40).map(|at| (at * 37 + idx * 211) % 1999).collect();
        json!({
            "prompt": prompt, "max_tokens": 120, "seed": idx, "ignore_eos": true,
            "temperature": idx % 2, "return_token_ids": true,
        })
    };
    (0..8).map(request).collect()
}

fn cached_tokens(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn a_hybrid_answers_in_a_batch_in_chunks_from_the_cache_and_after_a_killed_rank_as_alone() {
    let requests = requests();
    let server = Server::start(hybrid(), "--ranks 1 --no-prefix-cache");
    let alone: Vec<Answer> = requests.iter().map(|it| server.complete(it)).collect();
    assert!(alone.iter().all(|answer| answer.tokens.len() == 120));
    drop(server);

    for args in ["--ranks 1 --step-tokens 7 --running-max 7", "--ranks 3 --share 3,2,1"] {
        let server = Server::start(hybrid(), args);
        let answered = |what: &str, is_disturbed: bool| {
            let mut streams: Vec<Stream> = requests.iter().map(|it| server.stream(it)).collect();
            if is_disturbed {
                streams.iter_mut().for_each(|stream| stream.read_tokens(5));
                send(server.rank(0), Signal::KILL);
            }
            for (idx, (stream, alone)) in streams.into_iter().zip(&alone).enumerate() {
                let (answer, end) = stream.read_all();
                assert!(end == End::Done && answer == *alone, "{args}, {what}: {idx}: {end:?}");
            }
        };
        answered("in a batch, in chunks", false);
        let again = server.ask("/v1/completions", &requests[7]);
        assert_eq!(cached_tokens(&again), 5 + 7 * 40 - 1, "{args}");
        answered("from the prefix cache, with a killed rank", true);
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
