//! Answers must not depend on the number of ranks and their shares, other requests, the cache
//! or the size of a step.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::checkpoint::{exact, shipped};
use crate::http::{Answer, Server};
use crate::program::{Program, run_json, send};

/// The beginnings of texts, as tokens.
const PROMPTS: [&str; 5] =
    ["1,293,205,383", "5,6,7,8,9,10", "622,397,682", "100,200,300,400,500,600,700", "1047"];

fn generate(model: &Path, ranks: &str, prompt: &str) -> Value {
    let model = model.to_str().unwrap();
    let mut args = vec!["generate", "--model", model, "--prompt-ids", prompt, "--json"];
    args.extend(["--ignore-eos", "--max-tokens", "48", "--logprobs", "2"]);
    args.extend(ranks.split(' '));
    run_json(&args)
}

/// Sums over ranks are exact: in f32 and bfloat16, for sampled and greedy tokens, and to the last
/// digit of the log-probabilities.
#[test]
fn any_number_of_ranks_and_any_shares_generate_the_same_tokens() {
    const RANKS: [&str; 4] =
        ["--ranks 2", "--ranks 3 --share 5,1,2", "--ranks 2 --share 1,40", "--ranks 5"];
    for model in [exact(), &shipped()] {
        for (idx, prompt) in PROMPTS.into_iter().enumerate() {
            let drawn = format!(" --temperature 1 --seed {idx}");
            for options in ["", &drawn] {
                let alone = generate(model, &format!("--ranks 1{options}"), prompt);
                assert_eq!(alone["token_ids"].as_array().unwrap().len(), 48);
                // Two splits for each prompt, and several prompts for each split.
                for ranks in [RANKS[idx % 4], RANKS[(idx + 1) % 4]] {
                    let cut = generate(model, &format!("{ranks}{options}"), prompt);
                    for what in ["token_ids", "text", "logprobs"] {
                        assert_eq!(cut[what], alone[what], "{prompt}: {what} over {ranks}");
                    }
                }
            }
        }
    }
}

/// The option of ranks that round their parts reaches every rank.
#[test]
fn rounded_sums_depend_on_the_split_but_not_on_the_run() {
    let rounded = |ranks| generate(exact(), &format!("{ranks} --no-exact-sums"), PROMPTS[0]);
    let [alone, cut, again] =
        ["--ranks 1", "--ranks 3 --share 5,1,2", "--ranks 3 --share 5,1,2"].map(rounded);
    assert_ne!(cut["logprobs"], alone["logprobs"]);
    assert_eq!(cut["logprobs"], again["logprobs"]);
}

/// A pipeline has no sums over ranks.
#[test]
fn a_pipeline_generates_what_one_rank_does() {
    for prompt in PROMPTS {
        let alone = generate(&shipped(), "--ranks 1", prompt);
        for ranks in ["--ranks 2 --split pipeline", "--ranks 3 --layers 1,1,2"] {
            let stages = generate(&shipped(), ranks, prompt);
            assert_eq!(stages["token_ids"], alone["token_ids"], "{prompt} over {ranks}");
            assert_eq!(stages["logprobs"], alone["logprobs"], "{prompt} over {ranks}");
        }
    }
    let ring = generate(&shipped(), "--ranks 2 --split pipeline --backend ring", PROMPTS[0]);
    let alone = generate(&shipped(), "--ranks 1", PROMPTS[0]);
    assert_eq!(ring["logprobs"], alone["logprobs"]);
}

/// Prompts so long that a step is computed in parts; scored, sampled and constrained by a grammar, at
/// once and next to one another.
#[test]
fn stages_that_compute_a_step_in_parts_answer_as_one_rank() {
    let prompt = |idx: u64| -> Vec<u64> {
        (0..120 + idx * 330).map(|at| (at * at * 31 + at * 7 + idx) % 1900 + 20).collect()
    };
    let request = |idx: u64| {
        let mut body = json!({
            "prompt": prompt(idx), "max_tokens": 24, "seed": idx, "temperature": idx % 2,
            "ignore_eos": true, "return_token_ids": true,
        });
        match idx {
            1 => body["logprobs"] = json!(2),
            2 => body["structured_outputs"] = json!({"regex": "[a-z ]{12,20}"}),
            3 => {
                body["echo"] = json!(true);
                body["logprobs"] = json!(1);
            }
            _ => {}
        }
        body
    };
    let requests: Vec<Value> = (0..5).map(request).collect();
    let ask = |args: &str| -> Vec<Value> {
        let server = Server::start(&shipped(), args);
        let asked = |body: &Value| server.ask("/v1/completions", body)["choices"].clone();
        let answers = std::thread::scope(|scope| {
            let asking: Vec<_> =
                requests.iter().map(|body| scope.spawn(move || asked(body))).collect();
            asking.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert_eq!(server.health()["counters"]["failed"], 0);
        answers
    };
    let alone = ask("--ranks 1");
    for args in ["--ranks 2 --split pipeline", "--ranks 4 --split pipeline --step-tokens 1024"] {
        assert_eq!(ask(args), alone, "{args}");
    }
}

/// Eight different requests; every other one is random.
fn requests() -> Vec<Value> {
    let request = |idx: u64| {
        let prompt: Vec<u64> =
            (0..3 + idx * 5).map(|at| (at * 37 + idx * 211) % 1900 + 20).collect();
        json!({
            "prompt": prompt, "max_tokens": 48, "seed": idx, "ignore_eos": true,
            "temperature": idx % 2, "return_token_ids": true,
        })
    };
    (0..8).map(request).collect()
}

#[test]
fn a_request_is_answered_in_a_batch_of_eight_as_it_is_alone() {
    alone_and_in_a_batch("--ranks 2");
}

#[test]
fn a_pipeline_answers_a_request_in_a_batch_of_eight_as_alone() {
    alone_and_in_a_batch("--ranks 3 --split pipeline");
}

fn alone_and_in_a_batch(ranks: &str) {
    let server = Server::start(exact(), &format!("{ranks} --no-prefix-cache"));
    let requests = requests();
    let alone: Vec<Answer> = requests.iter().map(|it| server.complete(it)).collect();
    assert!(alone.iter().all(|answer| answer.tokens.len() == 48));

    // While one rank is stopped, all eight requests arrive; then they continue together.
    let rank = server.rank(1);
    send(rank, Signal::STOP);
    let streams: Vec<_> = requests.iter().map(|it| server.stream(it)).collect();
    server.wait_for_health("batch", |health| health["open_streams"].as_u64() == Some(8));
    send(rank, Signal::CONT);
    for (idx, (stream, alone)) in streams.into_iter().zip(alone).enumerate() {
        assert_eq!(stream.read_all().0, alone, "request {idx}");
    }
}

#[test]
fn a_seed_draws_its_text_again_and_another_seed_another() {
    let server = Server::start(exact(), "--ranks 2");
    let ask = |seed: u64| {
        server.complete(&json!({
            "prompt": "Once", "max_tokens": 40, "temperature": 1, "seed": seed,
            "ignore_eos": true, "return_token_ids": true,
        }))
    };
    assert_eq!(ask(7), ask(7));
    assert_ne!(ask(7), ask(8));
}

#[test]
fn a_conversation_goes_on_from_the_cache_as_if_it_was_computed_anew() {
    let caching = Server::start(exact(), "--ranks 2");
    let forgetting = Server::start(exact(), "--ranks 2 --no-prefix-cache");
    let said = ["Hello! Who are you?", "What is the capital of France?", "Tell me a story."];
    let mut messages = Vec::new();
    for (turn, said) in said.into_iter().enumerate() {
        messages.push(json!({"role": "user", "content": said}));
        let body = json!({"messages": messages, "temperature": 0, "max_tokens": 60});
        let cached = caching.ask("/v1/chat/completions", &body);
        let computed = forgetting.ask("/v1/chat/completions", &body);
        let num_cached = |answer: &Value| {
            answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
        };
        assert_eq!(cached["choices"], computed["choices"], "turn {turn}");
        assert_eq!(num_cached(&computed), 0);
        assert_eq!(0 < num_cached(&cached), 0 < turn, "turn {turn}: {cached}");
        messages.push(cached["choices"][0]["message"].clone());
    }
}

#[test]
fn a_long_prompt_in_many_chunks_is_answered_as_in_one() {
    let prompt: Vec<u64> = (0..300).map(|at| (at * at * 31 + at * 7) % 1900 + 20).collect();
    let body = json!({
        "prompt": prompt, "max_tokens": 48, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true,
    });
    let answer = |args: &str| {
        let server = Server::start(exact(), args);
        let answer = server.complete(&body);
        (answer, server.health()["steps"]["steps"].as_u64().unwrap())
    };
    let (whole, num_whole) = answer("--ranks 2 --step-tokens 512");
    let (chunks, num_chunks) = answer("--ranks 2 --step-tokens 16 --running-max 8");
    assert_eq!(chunks, whole);
    assert_eq!(whole.tokens.len(), 48);
    assert!(num_whole + 17 <= num_chunks, "{num_whole} steps, {num_chunks} in chunks");
}

/// With MLX's own operations, as on GPUs: ranks compute their first steps before they serve, however the model
/// is split, and the tokens are those of one rank.
#[test]
fn ranks_that_compute_with_mlx_warm_up_and_answer_as_one() {
    let body = json!({"prompt": [20, 21, 22], "max_tokens": 6, "ignore_eos": true,
        "temperature": 0, "return_token_ids": true});
    let answers = ["--ranks 1", "--ranks 2", "--ranks 2 --split pipeline"].map(|args| {
        let words = ["serve", "--model", exact().to_str().unwrap(), "--port", "0", "--json"];
        let words: Vec<&str> = words.into_iter().chain(args.split(' ')).collect();
        let env = [("JACKALOPE_CPU", "stock")];
        let server = Server::of(Program::start_with(&words, "", &env));
        let lines = server.get("/v1/logs").1["lines"].as_array().unwrap().clone();
        let is_warm =
            |line: &&Value| line["text"].as_str().unwrap().contains("computing its first steps");
        assert_eq!(lines.iter().filter(is_warm).count(), server.ranks().len(), "{args}: {lines:?}");
        server.complete(&body)
    });
    assert!(answers.iter().all(|it| *it == answers[0]), "{answers:?}");
}
