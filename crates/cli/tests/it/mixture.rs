//! Mixtures of experts answer the same whatever else runs: over any number of ranks, in a batch, in
//! chunks, from the prefix cache, after a killed rank. Real processes, random weights.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::{Answer, End, Server, Stream};
use crate::program::{run, run_json, send};

/// A mixture with a dense layer, in 4 bits, of five layers.
fn mixture() -> &'static Path {
    static MIXTURE: OnceLock<PathBuf> = OnceLock::new();
    MIXTURE.get_or_init(|| {
        let dir =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mixture-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let described = dir.join("described.json");
        let config = json!({
            "model_type": "qwen3_moe", "hidden_size": 256, "intermediate_size": 512,
            "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 64, "vocab_size": 2000, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
            "max_position_embeddings": 4096, "tie_word_embeddings": false, "num_experts": 16,
            "num_experts_per_tok": 4, "moe_intermediate_size": 192, "decoder_sparse_step": 1,
            "mlp_only_layers": [1], "norm_topk_prob": true,
        });
        std::fs::write(&described, config.to_string()).unwrap();
        let (out, config) = (dir.join("model"), described.to_str().unwrap());
        let made = run(&["synth", "--config", config, "--out", out.to_str().unwrap(), "--json"]);
        assert!(made.status.success(), "{made:?}");
        out
    })
}

fn generate(ranks: &str) -> Value {
    let model = mixture().to_str().unwrap();
    let mut args = vec!["generate", "--model", model, "--prompt-ids", "5,600,1200,77,1999"];
    args.extend(["--json", "--ignore-eos", "--max-tokens", "32", "--logprobs", "2"]);
    args.extend(ranks.split(' '));
    let answer = run_json(&args);
    json!([answer["token_ids"], answer["logprobs"]])
}

#[test]
fn a_mixture_over_any_ranks_generates_what_one_rank_does() {
    let alone = generate("--ranks 1");
    assert_eq!(alone[0].as_array().unwrap().len(), 32);
    for ranks in [
        "--ranks 2",
        "--ranks 3 --share 5,1,2",
        "--ranks 5",
        "--ranks 2 --split pipeline",
        "--ranks 3 --layers 1,3,1",
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

#[test]
fn a_mixture_answers_in_a_batch_in_chunks_and_after_a_killed_rank_as_alone() {
    let requests = requests();
    let server = Server::start(mixture(), "--ranks 1 --no-prefix-cache");
    let alone: Vec<Answer> = requests.iter().map(|it| server.complete(it)).collect();
    assert!(alone.iter().all(|answer| answer.tokens.len() == 120));
    drop(server);

    let server = Server::start(mixture(), "--ranks 3 --share 3,2,1 --step-tokens 23");
    let answered = |what: &str, is_disturbed: bool| {
        let mut streams: Vec<Stream> = requests.iter().map(|it| server.stream(it)).collect();
        if is_disturbed {
            streams.iter_mut().for_each(|stream| stream.read_tokens(5));
            send(server.rank(1), Signal::KILL);
        }
        for (idx, (stream, alone)) in streams.into_iter().zip(&alone).enumerate() {
            let (answer, end) = stream.read_all();
            assert!(end == End::Done && answer == *alone, "{what}: request {idx}: {end:?}");
        }
    };
    answered("in a batch, in chunks", false);
    answered("from the prefix cache, with a killed rank", true);
    assert_eq!(server.health()["counters"]["recoveries"], 1);
}
