//! Models with layers that see only the last positions answer the same whatever else runs, although
//! these layers free what no row reads any more. Real processes, random weights.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::http::{End, Server, Stream};
use crate::program::Program;
use crate::synthetic::{self, Expected};

/// Numbers of tokens of prompts that share their beginnings: many windows of 48, several KV blocks.
const LENGTHS: [u64; 3] = [1500, 1111, 700];

/// Number of tokens of an answer.
const NUM_TOKENS: u64 = 120;

/// Number of tokens of a KV block.
const BLOCK_TOKENS: u64 = 256;

/// The same for MLX's operations, which are slow on CPUs.
const STOCK_LENGTHS: [u64; 3] = [1100, 700, 300];
const NUM_STOCK_TOKENS: u64 = 20;

fn request(len: u64, max_tokens: u64) -> Value {
    let prompt: Vec<u64> = (0..len).map(|at| (at * 41 + at / 7) % 1999).collect();
    json!({
        "prompt": prompt, "max_tokens": max_tokens, "seed": 3, "ignore_eos": true, "temperature": 1,
        "return_token_ids": true,
    })
}

fn cached_tokens(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// Checks that the cache of a request and its answer, the only one so far, keeps little of the layers with
/// windows.
fn check_memory(server: &Server, num_tokens: u64) {
    let is_kept = |health: &Value| health["kv"]["kept_bytes"] != 0;
    let kv = server.wait_for_health("a kept cache", is_kept)["kv"].clone();
    let bytes = |field: &str| kv[field].as_u64().unwrap_or_else(|| panic!("{field} in {kv}"));
    let num_blocks = num_tokens.div_ceil(BLOCK_TOKENS);
    let whole = num_blocks * BLOCK_TOKENS * bytes("bytes_per_token");
    let window_blocks =
        (bytes("kept_bytes") - whole) / BLOCK_TOKENS / bytes("window_bytes_per_token");
    // The end of the prompt and the end of the answer.
    assert!((1..=3).contains(&window_blocks), "{window_blocks} of {num_blocks} blocks: {kv}");
}

fn check(model: &Path) {
    let mut expected =
        Expected::of_requests(model, LENGTHS.map(|len| request(len, NUM_TOKENS)).to_vec());
    let server = Server::start(model, "--ranks 1");
    server.complete(&expected.requests[0]);
    check_memory(&server, LENGTHS[0] + NUM_TOKENS);
    drop(server);
    expected.append(Expected::of(model));
    for args in [
        "--ranks 1 --step-tokens 7 --running-max 7",
        "--ranks 3 --share 3,2,1",
        "--ranks 2 --split pipeline",
    ] {
        let server = Server::start(model, args);
        expected.check(&server, &format!("{args}, in a batch, in chunks"), None);
        let again = server.ask("/v1/completions", &expected.requests[0]);
        assert_eq!(cached_tokens(&again), LENGTHS[0] - 1, "{args}");
        expected.check(
            &server,
            &format!("{args}, from the prefix cache, with a killed rank"),
            Some(0),
        );
        assert_eq!(server.health()["counters"]["recoveries"], 1);
    }
}

/// Checks that layers with windows keep as little with MLX's operations, as on GPUs, and that prefixes are reused.
/// Which of two tokens is the likelier one of random weights in bf16 depends there on what else a step computes;
/// the tests of the models compare values.
fn check_stock(model: &Path) {
    let requests = STOCK_LENGTHS.map(|len| request(len, NUM_STOCK_TOKENS));
    for args in ["--ranks 1", "--ranks 2 --share 2,1", "--ranks 2 --split pipeline"] {
        let words = ["serve", "--model", model.to_str().unwrap(), "--port", "0", "--json"];
        let words: Vec<&str> = words.into_iter().chain(args.split(' ')).collect();
        let server = Server::of(Program::start_with(&words, "", &[("JACKALOPE_CPU", "stock")]));
        server.complete(&requests[0]);
        if args == "--ranks 1" {
            check_memory(&server, STOCK_LENGTHS[0] + NUM_STOCK_TOKENS);
        }
        let again = server.ask("/v1/completions", &requests[0]);
        assert_eq!(cached_tokens(&again), STOCK_LENGTHS[0] - 1, "{args}");
        let streams: Vec<Stream> = requests.iter().map(|it| server.stream(it)).collect();
        for stream in streams {
            let (answer, end) = stream.read_all();
            assert!(
                end == End::Done && answer.tokens.len() as u64 == NUM_STOCK_TOKENS,
                "{args}: {end:?}"
            );
        }
    }
}

#[test]
fn windows_in_every_other_layer_with_sinks_and_experts_change_no_answer() {
    check(&gpt_oss("gpt-oss-windows"));
}

#[test]
fn windows_free_what_they_have_passed_with_mlx_too() {
    check_stock(&gpt_oss("gpt-oss-windows-mlx"));
}

fn gpt_oss(name: &str) -> PathBuf {
    let config = json!({
        "model_type": "gpt_oss", "hidden_size": 128, "intermediate_size": 128,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 32, "sliding_window": 48, "vocab_size": 2000, "rms_norm_eps": 1e-5,
        "num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 150_000,
        "max_position_embeddings": 4096, "tie_word_embeddings": false,
    });
    synthetic::model(name, &config)
}

#[test]
fn windows_in_all_layers_change_no_answer() {
    let config = json!({
        "model_type": "gemma3_text", "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 32, "sliding_window": 48, "sliding_window_pattern": 9, "vocab_size": 2000,
        "query_pre_attn_scalar": 32, "max_position_embeddings": 4096,
    });
    check(&synthetic::model("gemma-windows", &config));
}
