//! The memory of a rank's process, and the behaviour of a rank that gets no more memory.

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

use crate::checkpoint::{Copy, Weights, exact};
use crate::http::{Answer, Server};

/// Maximum memory of a rank besides its shard and the budget of its KV cache.
const OVERHEAD_BYTES_MAX: u64 = 300 << 20;

/// Vocabulary size of large models.
const VOCAB_SIZE: u64 = 151_936;

/// Makes the system refuse this process any further memory, even memory that it has reserved but
/// not used.
pub(crate) fn forbid_growth(pid: u32) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    for resource in [Resource::As, Resource::Data] {
        let limit = Rlimit { current: Some(0), maximum: Some(0) };
        prlimit(Some(pid), resource, limit).unwrap();
    }
}

/// Returns the peak memory of the process, in bytes.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// Extends the vocabulary to `VOCAB_SIZE` by repeating its tokens.
fn widen_vocabulary(weights: &mut Weights) {
    for part in ["weight", "scales", "biases"] {
        let tensor = weights.tensor(&format!("model.embed_tokens.{part}"));
        let len = tensor.data.len() / tensor.shape[0] as usize * VOCAB_SIZE as usize;
        tensor.data = tensor.data.iter().copied().cycle().take(len).collect();
        tensor.shape[0] = VOCAB_SIZE;
    }
}

/// More memory than any machine has.
const BEYOND: &str = "8000TiB";

#[test]
fn a_server_that_is_short_of_memory_answers_the_same_one_by_one_and_keeps_nothing() {
    let body = |prompt: u32| {
        json!({"prompt": [20, 21, prompt], "max_tokens": 12, "temperature": 0,
                                    "return_token_ids": true, "ignore_eos": true})
    };
    let answers = |args: &str| {
        let server = Server::start(exact(), &format!("--ranks 2 {args}"));
        server.wait_for_health("reading of the memory", |it| {
            !it["memory_pressure"]["host"].is_null()
        });
        let streams: Vec<_> = (30..36).map(|prompt| server.stream(&body(prompt))).collect();
        let answers: Vec<Answer> = streams.into_iter().map(|it| it.read_all().0).collect();
        (answers, server.health())
    };
    let (wanted, _) = answers("--memory-warn 0 --memory-critical 0");
    let (found, warned) = answers(&format!("--memory-warn {BEYOND} --memory-critical 0"));
    assert_eq!(found, wanted);
    assert_eq!(warned["memory_pressure"]["tier"], "warn");
    assert_eq!(warned["kv"]["num_kept"], 0);
    let (found, critical) = answers(&format!("--memory-critical {BEYOND}"));
    assert_eq!(found, wanted);
    let told = &critical["memory_pressure"];
    assert_eq!(
        (told["tier"].as_str(), told["host"].as_str()),
        (Some("critical"), Some("this machine"))
    );
    assert!(0 < told["free_bytes"].as_u64().unwrap());
}

#[test]
fn however_many_logits_are_asked_for_a_rank_stays_within_its_memory() {
    let copy = Copy::new();
    copy.edit_weights(widen_vocabulary);
    copy.edit_config(|config| config["vocab_size"] = json!(VOCAB_SIZE));
    let server = Server::start(copy.path(), "--ranks 2 --step-tokens 2048");
    let prompt: Vec<u64> = (0..1200).map(|at| (at * 53 + 7) % 1900 + 20).collect();
    let answer = server.ask(
        "/v1/completions",
        &json!({"prompt": prompt, "max_tokens": 2, "echo": true, "logprobs": 1}),
    );
    let logprobs = answer["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    assert!(prompt.len() < logprobs.len(), "{} logprobs", logprobs.len());
    let health = server.health();
    for process in server.ranks() {
        let rank = &health["ranks"][process.rank];
        let shard = rank["facts"]["weights_bytes"].as_u64().unwrap();
        let kv = rank["memory"]["kv_bytes"].as_u64().unwrap();
        let peak = peak_bytes(process.pid);
        assert!(
            peak <= shard + kv + OVERHEAD_BYTES_MAX,
            "rank {} took {} MB for {} MB of weights and {} MB of keys and values",
            process.rank,
            peak >> 20,
            shard >> 20,
            kv >> 20
        );
    }
}
