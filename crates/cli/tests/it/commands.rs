//! The output of each command, and which rank holds which part of a model.

use std::io::{Read, Write};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::checkpoint::{Copy, exact, shipped};
use crate::http::Server;
use crate::ports::free_port;
use crate::program::{Program, run, run_json, wait_for};

fn model() -> String {
    shipped().to_str().unwrap().to_owned()
}

#[test]
fn generate_prints_one_object_with_text_tokens_and_usage() {
    let args = ["generate", "--model", &model(), "--ranks", "2", "--prompt", "Once upon a time"];
    let args = [&args[..], &["--max-tokens", "12", "--ignore-eos", "--logprobs", "3", "--json"]];
    let answer = run_json(&args.concat());
    let num_of = |value: &Value| value.as_array().unwrap().len() as u64;
    assert_eq!(num_of(&answer["token_ids"]), 12);
    assert_eq!(answer["finish_reason"], "length");
    assert!(!answer["text"].as_str().unwrap().is_empty());
    assert_eq!(answer["usage"]["completion_tokens"], 12);
    assert_eq!(answer["usage"]["prompt_tokens"], num_of(&answer["prompt_token_ids"]));
    assert_eq!(num_of(&answer["logprobs"]), 12);
    for logprob in answer["logprobs"].as_array().unwrap() {
        assert!(logprob["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(num_of(&logprob["top"]), 3);
    }
    assert!(0.0 < answer["timings"]["total_ms"].as_f64().unwrap());
}

#[test]
fn generate_answers_a_chat_message_as_the_server_does() {
    let model = exact().to_str().unwrap();
    let said = "What is the capital of France?";
    let args = ["generate", "--model", model, "--ranks", "2", "--chat", "--prompt", said, "--json"];
    let args = [&args[..], &["--system", "Your name is Poppy.", "--max-tokens", "40"]].concat();
    let generated = run_json(&args);
    let server = Server::start(exact(), "--ranks 2");
    let messages = json!([
        {"role": "system", "content": "Your name is Poppy."}, {"role": "user", "content": said},
    ]);
    let body = json!({"messages": messages, "temperature": 0, "max_tokens": 40,
                      "return_token_ids": true});
    let served = server.ask("/v1/chat/completions", &body);
    assert_eq!(generated["token_ids"], served["choices"][0]["token_ids"]);
    assert_eq!(generated["prompt_token_ids"], served["choices"][0]["prompt_token_ids"]);
}

#[test]
fn generate_without_json_prints_the_text_alone() {
    let args = ["generate", "--model", &model(), "--prompt-ids", "1,293,205,383"];
    let args = [&args[..], &["--max-tokens", "10"]].concat();
    let (text, object) = (run(&args), run_json(&[&args[..], &["--json"]].concat()));
    assert!(text.status.success(), "{text:?}");
    assert_eq!(text.stdout.trim_end_matches('\n'), object["text"].as_str().unwrap());
}

#[test]
fn bench_reports_speeds_and_where_the_time_goes_for_each_concurrency() {
    let args = ["bench", "--model", &model(), "--ranks", "2", "--prompt-tokens", "32"];
    let args = [&args[..], &["--gen-tokens", "8", "--concurrency", "1,2"]].concat();
    let report = run_json(&[&args[..], &["--runs", "2", "--json"]].concat());
    assert_eq!(report["ranks"].as_array().unwrap().len(), 2);
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4);
    for (at, concurrency) in [1, 2].into_iter().enumerate() {
        let summary = &report["summary"][at];
        assert_eq!(summary["concurrency"], concurrency);
        assert_eq!((&summary["prompt_tokens"], &summary["gen_tokens"]), (&json!(32), &json!(8)));
        let speed = |run: &Value| run["decode_tokens_per_s"].as_f64().unwrap();
        let mean = (speed(&runs[2 * at]) + speed(&runs[2 * at + 1])) / 2.0;
        let told = summary["decode_tokens_per_s"]["mean"].as_f64().unwrap();
        assert!((mean - told).abs() < 1e-6 * mean, "{report}");
    }
    for (run, concurrency) in runs.iter().zip([1, 1, 2, 2]) {
        assert_eq!(run["concurrency"], concurrency);
        for speed in ["prefill_tokens_per_s", "decode_tokens_per_s"] {
            assert!(0.0 < run[speed].as_f64().unwrap(), "{speed}: {run}");
        }
        for time in ["first_token_ms", "inter_token_ms"] {
            let at = |quantile: &str| run[time][quantile].as_f64().unwrap();
            assert!(0.0 < at("p50") && at("p50") <= at("p99"), "{time}: {run}");
        }
    }
}

#[test]
fn a_profile_accounts_for_the_whole_of_a_step() {
    let args = ["bench", "--model", &model(), "--ranks", "2", "--prompt-tokens", "40"];
    let args = [&args[..], &["--gen-tokens", "64", "--concurrency", "1"]].concat();
    let plain = run_json(&[&args[..], &["--json"]].concat());
    assert_eq!(plain["runs"][0]["step_us"]["kernels"], serde_json::json!([]), "not asked for");
    let report = run_json(&[&args[..], &["--json", "--profile"]].concat());
    // When the first token arrives, the next steps may have been computed already.
    let steps = |phase: &str| report["runs"][0][phase]["steps"].as_u64().unwrap();
    assert_eq!(steps("prefill_step_us") + steps("step_us"), 64);
    for phase in ["prefill_step_us", "step_us"] {
        let step = &report["runs"][0][phase];
        let kernels = step["kernels"].as_array().unwrap();
        let of = |name: &str| kernels.iter().find(|it| it["name"] == name);
        let us = |name: &str| of(name).map_or(0.0, |it| it["us"].as_f64().unwrap());
        let whole = us("primitives");
        let inside: f64 = kernels.iter().map(|it| it["us"].as_f64().unwrap()).sum::<f64>() - whole;
        assert!(0.0 < inside && inside <= whole, "{step}");
        // Sums over ranks inside primitives are collectives.
        assert!(whole - us("sums over ranks") <= step["compute"].as_f64().unwrap(), "{step}");
        assert!(us("sums over ranks") <= whole && of("sums over ranks").is_some(), "{step}");
        let products = of("quantized_matmul").or(of("matmul")).unwrap();
        assert!(0.0 < products["weight_bytes"].as_f64().unwrap(), "{step}");
        assert!(of("attention").is_some() && of("kv_cache").is_some(), "{step}");
    }
    let text = Program::start(&[&args[..], &["--profile"]].concat(), "").end().stdout;
    for line in ["prefill: ", "decode: ", "MLX: dispatch", "collectives", "GB/s of weights"] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn chat_reads_a_conversation_from_a_pipe_and_answers_alike_with_a_server_and_a_model() {
    let conversation = "Hello! Who are you?\n\nWhat is the capital of France?\n";
    let server = Server::start(exact(), "--ranks 2");
    let limits = ["--temperature", "0", "--max-tokens", "40"];
    let at_server = [&["chat", "--url", &server.url][..], &limits].concat();
    let at_server = Program::start(&at_server, conversation).end();
    assert!(at_server.status.success(), "{at_server:?}");
    assert!(!at_server.stdout.trim().is_empty(), "{at_server:?}");
    assert_eq!(server.health()["counters"]["requests"], 2);

    let model = exact().to_str().unwrap();
    let at_model = [&["chat", "--model", model, "--ranks", "2"][..], &limits].concat();
    let at_model = Program::start(&at_model, conversation).end();
    assert!(at_model.status.success(), "{at_model:?}");
    assert_eq!(at_model.stdout, at_server.stdout);
}

/// Two real processes: every operation is checked and timed, on every backend there is, beside a
/// bare exchange over a socket.
#[test]
fn link_checks_and_times_every_backend_and_names_those_that_are_not_there() {
    let args = ["link", "--sizes", "4096", "--budget-ms", "20", "--json"];
    let ended = run(&args);
    assert!(ended.status.success(), "{ended:?}");
    let rows: Vec<Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str, backend: &str| -> Vec<&Value> {
        rows.iter().filter(|row| row["row"] == kind && row["backend"] == backend).collect()
    };
    for backend in ["tcp", "ring"] {
        let checks = of("check", backend);
        for operation in ["all_sum", "all_gather", "send_recv"] {
            let is_checked = |row: &&&Value| row["op"] == operation && row["ok"] == true;
            assert!(checks.iter().any(|row| is_checked(&row)), "{backend} {operation}: {ended:?}");
        }
        assert!(checks.iter().all(|row| row["ok"] == true), "{checks:?}");
        assert!(!of("time", backend).is_empty(), "{ended:?}");
    }
    assert!(of("check", "tcp").iter().any(|row| row["op"] == "same_bits"), "{ended:?}");
    assert!(!of("time", "bare").is_empty(), "{ended:?}");
    for row in rows.iter().filter(|row| row["row"] == "time") {
        assert!(0.0 < row["median_us"].as_f64().unwrap(), "{row}");
        assert!(row["median_us"].as_f64() <= row["p99_us"].as_f64(), "{row}");
    }
    for row in rows.iter().filter(|row| row["row"] == "refused") {
        assert!(row["reason"].as_str().unwrap().contains("hint:"), "{row}");
    }
    assert_eq!(rows.last().unwrap()["row"], "done");
}

#[test]
fn shells_get_completion_scripts() {
    for shell in ["bash", "zsh", "fish"] {
        let ended = run(&["completions", shell]);
        assert!(ended.status.success(), "{ended:?}");
        assert!(ended.stdout.contains("models-from") && ended.stdout.contains("autoconfig"));
    }
    assert!(!run(&["completions", "nothing"]).status.success());
}

#[test]
fn link_reports_each_round() {
    let args = ["link", "--sizes", "4096", "--rounds", "7", "--backend", "ring", "--every-round"];
    let ended = run(&[&args[..], &["--json"]].concat());
    assert!(ended.status.success(), "{ended:?}");
    let rows = ended.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let times: Vec<Value> = rows.filter(|row| row["row"] == "time").collect();
    assert!(!times.is_empty());
    for row in times {
        let rounds: Vec<f64> =
            row["rounds_us"].as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect();
        assert_eq!(rounds.len(), 7, "{row}");
        assert!(rounds.contains(&row["median_us"].as_f64().unwrap()), "{row}");
    }
    let people = run(&args);
    assert!(people.stdout.contains("round 7"), "{people:?}");
}

#[test]
fn a_reader_that_has_had_enough_ends_a_command_quietly() {
    let mut program = Program::start(&["link", "--sizes", "4096", "--json"], "");
    program.line();
    let ended = program.end_unread();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(ended.stderr, "");
    let mut serving = Server::start(exact(), "--ranks 2");
    serving.program.close_output();
    assert_eq!(serving.get("/health/ready").0, 200);
}

#[test]
fn chat_without_a_server_says_how_to_start_one() {
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let ended = Program::start(&["chat", "--url", &url], "hello\n").end();
    assert!(!ended.status.success(), "{ended:?}");
    assert!(ended.stderr.contains("hint: start a server"), "{ended:?}");
}

#[test]
fn a_server_with_a_key_refuses_a_chat_without_it() {
    let server = Server::start(exact(), "--api-key secret");
    // A home without a key of this server.
    let home = [("JACKALOPE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-such-home"))];
    let without = Program::start_with(&["chat", "--url", &server.url], "hello\n", &home).end();
    assert!(!without.status.success());
    assert!(without.stderr.contains("401"), "{without:?}");
    let args = ["chat", "--url", &server.url, "--api-key", "secret", "--max-tokens", "5"];
    let with = Program::start(&args, "hello\n").end();
    assert!(with.status.success(), "{with:?}");
}

/// Every byte of the checkpoint is read by the rank that holds it, and only what all of them hold
/// is read more than once.
#[test]
fn two_ranks_read_no_more_than_one_and_what_is_replicated() {
    let announced = |args: &str| Server::start(&shipped(), args).announced["ranks"].clone();
    let sum = |ranks: &Value, key: &str| -> u64 {
        ranks.as_array().unwrap().iter().map(|rank| rank[key].as_u64().unwrap()).sum()
    };
    let alone = announced("--ranks 1");
    let all_read = sum(&alone, "bytes_read");
    assert!(0 < all_read);
    for args in ["--ranks 2", "--ranks 2 --share 3,1", "--ranks 3"] {
        let ranks = announced(args);
        let read = sum(&ranks, "bytes_read");
        let replicated = sum(&ranks, "replicated_bytes");
        assert!(read <= all_read + replicated, "{args}: {ranks}, alone {alone}");
        assert!(replicated < all_read / 4, "{args}: {ranks}");
        for rank in ranks.as_array().unwrap() {
            assert!(rank["bytes_read"].as_u64().unwrap() < all_read, "{args}: {ranks}");
        }
    }
}

#[test]
fn an_interrupted_start_is_no_success() {
    let (http, control) = (free_port(), free_port().to_string());
    let port = http.to_string();
    let args = ["serve", "--model", &model(), "--hosts", "127.0.0.1", "--by-hand"];
    let ports = ["--port", &port, "--control-port", &control];
    let program = Program::start(&[&args[..], &ports].concat(), "");
    // The server waits for a rank that is never started. Once its HTTP port answers, its signal
    // handlers are installed.
    wait_for("answer", || {
        let mut socket = std::net::TcpStream::connect(("127.0.0.1", http)).ok()?;
        socket.write_all(b"GET /health/live HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        answer.contains(" 200 ").then_some(())
    });
    program.signal(Signal::INT);
    let ended = program.end();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert!(ended.stderr.ends_with("interrupted\n"), "{ended:?}");
}

#[test]
fn a_taken_port_is_reported_once_and_before_the_hint() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let args = ["serve", "--model", &model(), "--port", &addr.port().to_string()];
    let ended = Program::start(&args, "").end();
    let expected = format!(
        "error: cannot listen on {addr}: address already in use\n\
         hint: another program has the port; choose one with `--port`\n"
    );
    assert_eq!(ended.stderr, expected);
}

#[test]
fn a_prompt_can_come_from_standard_input() {
    let args = ["generate", "--model", &model(), "--max-tokens", "5", "--prompt"];
    let typed = Program::start(&[&args[..], &["Who are"]].concat(), "").end();
    let piped = Program::start(&[&args[..], &["-"]].concat(), "Who are").end();
    assert!(typed.status.success() && piped.status.success(), "{piped:?}");
    assert_eq!(typed.stdout, piped.stdout);
}

#[test]
fn a_mistyped_command_of_a_chat_is_not_sent() {
    let ended = Program::start(&["chat", "--url", "http://127.0.0.1:1"], "/clera\n").end();
    assert!(!ended.status.success());
    assert!(ended.stderr.contains("there is no command /clera\nhint: "), "{ended:?}");
}

#[test]
fn a_chat_names_the_model_of_a_server() {
    let server = Server::start(exact(), "");
    let args = ["chat", "--url", &server.url, "--model", "no-such-model"];
    let ended = Program::start(&args, "hello\n").end();
    assert!(!ended.status.success());
    assert!(ended.stderr.contains("the model no-such-model does not exist"), "{ended:?}");
}

#[test]
fn a_model_with_a_broken_template_is_served_with_a_warning_and_named_by_a_check() {
    let copy = Copy::new();
    let broken = "{{ messages }}\n{% for message in %}";
    std::fs::write(copy.path().join("chat_template.jinja"), broken).unwrap();
    let server = Server::start(copy.path(), "");
    let prompt = json!({"prompt": "Once", "max_tokens": 2});
    assert_eq!(server.post("/v1/completions", &prompt).0, 200);
    let chat = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2});
    let (status, answer) = server.post("/v1/chat/completions", &chat);
    assert_eq!(status, 400, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("chat_template.jinja"));
    server.program.signal(Signal::TERM);
    let log = server.program.end().stderr;
    let warning = log.lines().find(|line| line.contains("WARN") && line.contains("chat template"));
    let warning = warning.unwrap_or_else(|| panic!("no warning in {log}"));
    for part in [copy.path().to_str().unwrap(), "(in chat template:2)", "hint: "] {
        assert!(warning.contains(part), "no {part:?} in {warning}");
    }

    let model = copy.path().to_str().unwrap();
    let checked = run(&["models", "check", model]);
    assert!(checked.status.success(), "{checked:?}");
    assert!(
        checked.stdout.contains("its chat template cannot be used: chat template of "),
        "{checked:?}"
    );
    let checked = run_json(&["models", "check", model, "--json"]);
    assert!(checked["template_error"].as_str().unwrap().contains("chat_template.jinja"));
    let sound = run_json(&["models", "check", shipped().to_str().unwrap(), "--json"]);
    assert_eq!(sound["template_error"], Value::Null);
}
