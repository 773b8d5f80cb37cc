//! Models with random weights, and checks that one answers the same whatever else runs: over any
//! number of ranks, in a batch, in chunks, from the prefix cache, after a killed rank.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::{Answer, End, Server, Stream};
use crate::program::{run, run_json, send};

/// Writes a model of this configuration, and returns its directory.
pub(crate) fn model(name: &str, config: &Value) -> PathBuf {
    let name = format!("{name}-{}", std::process::id());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let described = dir.join("described.json");
    std::fs::write(&described, config.to_string()).unwrap();
    let (out, config) = (dir.join("model"), described.to_str().unwrap());
    let made = run(&["synth", "--config", config, "--out", out.to_str().unwrap(), "--json"]);
    assert!(made.status.success(), "{made:?}");
    out
}

fn generate(model: &Path, ranks: &str) -> Value {
    let model = model.to_str().unwrap();
    let mut args = vec!["generate", "--model", model, "--prompt-ids", "5,600,1200,77,1999"];
    args.extend(["--json", "--ignore-eos", "--max-tokens", "32", "--logprobs", "2"]);
    args.extend(ranks.split(' '));
    let answer = run_json(&args);
    json!([answer["token_ids"], answer["logprobs"]])
}

/// Checks that a model generates over several ranks what it generates on one. `layers` is a split
/// into three stages.
pub(crate) fn check_ranks(model: &Path, layers: &str) {
    let alone = generate(model, "--ranks 1");
    assert_eq!(alone[0].as_array().unwrap().len(), 32);
    let stages = format!("--ranks 3 --layers {layers}");
    for ranks in [
        "--ranks 2",
        "--ranks 3 --share 5,1,2",
        "--ranks 5",
        "--ranks 2 --split pipeline",
        &stages,
        // MLX's own groups sum only arrays: each block is a node of the graph, and here a rank has none
        // of most blocks.
        "--ranks 2 --backend ring",
        "--ranks 3 --share 1,90,2 --backend ring",
    ] {
        assert_eq!(generate(model, ranks), alone, "{ranks}");
    }
}

/// Requests of many lengths that share no prefix, with the answers that each gets alone.
pub(crate) struct Expected {
    pub(crate) requests: Vec<Value>,
    alone: Vec<Answer>,
}

impl Expected {
    /// Computes the answers of a model on one rank.
    pub(crate) fn of(model: &Path) -> Expected {
        let request = |idx: u64| {
            let prompt: Vec<u64> =
                (0..5 + idx * 40).map(|at| (at * 37 + idx * 211) % 1999).collect();
            json!({
                "prompt": prompt, "max_tokens": 120, "seed": idx, "ignore_eos": true,
                "temperature": idx % 2, "return_token_ids": true,
            })
        };
        Expected::of_requests(model, (0..8).map(request).collect())
    }

    /// Computes the answers to requests for 120 tokens each.
    pub(crate) fn of_requests(model: &Path, requests: Vec<Value>) -> Expected {
        let server = Server::start(model, "--ranks 1 --no-prefix-cache");
        let alone: Vec<Answer> = requests.iter().map(|it| server.complete(it)).collect();
        assert!(alone.iter().all(|answer| answer.tokens.len() == 120));
        Expected { requests, alone }
    }

    pub(crate) fn append(&mut self, others: Expected) {
        self.requests.extend(others.requests);
        self.alone.extend(others.alone);
    }

    /// Sends all requests at once, and checks their answers. `killed` is a rank to kill meanwhile.
    pub(crate) fn check(&self, server: &Server, what: &str, killed: Option<usize>) {
        let mut streams: Vec<Stream> = self.requests.iter().map(|it| server.stream(it)).collect();
        if let Some(rank) = killed {
            streams.iter_mut().for_each(|stream| stream.read_tokens(5));
            send(server.rank(rank), Signal::KILL);
        }
        for (idx, (stream, alone)) in streams.into_iter().zip(&self.alone).enumerate() {
            let (answer, end) = stream.read_all();
            assert!(end == End::Done && answer == *alone, "{what}: request {idx}: {end:?}");
        }
    }
}
