//! What clients of Ollama's API read.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request};
use futures_util::FutureExt;
use jackalope_engine::testing::{FakeOrder, scripted_model};
use jackalope_server::{ModelDetails, ModelRemoveError, PullProgress, Puller, RemoveFuture};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::model;
use crate::support::{MODEL, Reply, Server, Setup, end_token, post};

pub(crate) const CHAT: &str = "/api/chat";
pub(crate) const GENERATE: &str = "/api/generate";

const CALL: &str = "Let me look.\n<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": 1, \"b\": [2.5]}}\n</tool_call>";

/// A chat of one message, or a prompt; `more` adds to the request.
pub(crate) fn body(path: &str, more: &Value) -> Value {
    let mut body = match path {
        CHAT => json!({"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}),
        _ => json!({"model": MODEL, "prompt": "Hello"}),
    };
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn ask(server: &Server, path: &str, more: Value) -> Reply {
    server.post(path, &body(path, &more)).await
}

async fn whole(server: &Server, path: &str, mut more: Value) -> Value {
    more["stream"] = false.into();
    ask(server, path, more).await.ok()
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}])
}

fn large(mut setup: Setup) -> Setup {
    setup.context_tokens = 4096;
    setup
}

/// The lines of a stream; only the last one is done.
fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.headers["content-type"], "application/x-ndjson");
    assert!(reply.body.ends_with('\n'));
    let lines: Vec<Value> =
        reply.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (idx, line) in lines.iter().enumerate() {
        assert_eq!(line["done"], idx + 1 == lines.len(), "{line}");
    }
    lines
}

/// What the lines come to: text, calls, reason, number of sampled tokens.
fn joined(lines: &[Value]) -> (String, Vec<Value>, Value, Value) {
    let (mut text, mut calls) = (String::new(), Vec::new());
    for line in lines {
        let piece = line["message"]["content"].as_str().or(line["response"].as_str());
        text.push_str(piece.unwrap());
        for call in line["message"]["tool_calls"].as_array().into_iter().flatten() {
            calls.push(call["function"].clone());
        }
    }
    let last = lines.last().unwrap();
    (text, calls, last["done_reason"].clone(), last["eval_count"].clone())
}

#[tokio::test]
async fn a_chat_reads_like_this() {
    let server = Setup::says("Hello world").start().await;
    let options = json!({"stream": false, "logprobs": true, "top_logprobs": 1});
    insta::assert_snapshot!(ask(&server, CHAT, options).await.transcript());
}

#[tokio::test]
async fn a_chat_stream_reads_like_this() {
    let server = large(Setup::says(CALL)).start().await;
    insta::assert_snapshot!(ask(&server, CHAT, json!({"tools": tools()})).await.transcript());
}

#[tokio::test]
async fn a_generated_text_reads_like_this() {
    let server = Setup::says(" world \u{1f998}").start().await;
    let mut told = ask(&server, GENERATE, json!({"stream": false})).await.transcript();
    told.push_str("\n\n");
    told.push_str(&ask(&server, GENERATE, json!({"raw": true})).await.transcript());
    insta::assert_snapshot!(told);
}

#[tokio::test]
async fn models_read_like_this() {
    let mut setup = Setup::says("Hello");
    setup.details = Some(ModelDetails {
        family: "qwen3".to_owned(),
        num_parameters: 8_190_735_360,
        weight_bits: Some(4),
        weights_bytes: 4_607_835_136,
        hidden_size: 4096,
        modified: 1_709_251_199,
    });
    let server = setup.start().await;
    let mut told = String::new();
    for path in ["/api/tags", "/api/ps", "/api/version"] {
        told.push_str(&format!("{path}\n{}\n\n", server.get(path).await.transcript()));
        let head = Request::builder().method(Method::HEAD).uri(path).body(Body::empty()).unwrap();
        let head = server.send(head).await;
        assert_eq!((head.status.as_u16(), head.body.as_str()), (200, ""));
    }
    let shown = server.post("/api/show", &json!({"model": MODEL})).await;
    told.push_str(&format!("/api/show\n{}\n", shown.transcript()));
    for named in [json!({"name": MODEL}), json!({"model": format!("{MODEL}:latest")})] {
        assert_eq!(server.post("/api/show", &named).await.body, shown.body);
    }
    // A time of day would differ; that of the model does not.
    assert_eq!(shown.ok()["modified_at"], "2024-02-29T23:59:59.000000Z");
    insta::assert_snapshot!(told);
}

#[tokio::test]
async fn a_model_of_which_nothing_is_known_is_listed_all_the_same() {
    let server = Setup::says("Hello").start().await;
    let listed = server.get("/api/tags").await.ok()["models"][0].clone();
    assert_eq!(listed["model"], format!("{MODEL}:latest"));
    assert_eq!(listed["size"], 0);
    assert_eq!(listed["digest"].as_str().unwrap().len(), 64);
    assert_eq!(listed["details"]["family"], "");
    let shown = server.post("/api/show", &json!({"model": MODEL})).await.ok();
    assert_eq!(shown["model_info"], json!({}));
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
}

#[tokio::test]
async fn a_model_that_is_not_loaded_does_not_run() {
    let mut setup = Setup::says("Hello");
    setup.start_time = Duration::from_secs(3600);
    let server = setup.begin();
    assert_eq!(server.get("/api/ps").await.ok(), json!({"models": []}));
    assert_eq!(server.get("/api/tags").await.ok()["models"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_stream_comes_to_the_same_as_the_whole_answer() {
    let server = Setup::babbles().start().await;
    for seed in 0..30 {
        let stops = ["e", "\u{fffd}\u{fffd}", "st", "world"];
        let options = json!({"options": {
            "seed": seed, "num_predict": 20 + seed, "stop": stops[..seed % 4], "num_ctx": 4096,
        }});
        for path in [CHAT, GENERATE] {
            let expected = joined(&[whole(&server, path, options.clone()).await]);
            assert_eq!(joined(&lines(&ask(&server, path, options.clone()).await)), expected);
            assert!(expected.3.as_u64().unwrap() <= 20 + seed as u64);
        }
    }
    let server = large(Setup::says(&CALL.repeat(2))).start().await;
    let expected = joined(&[whole(&server, CHAT, json!({"tools": tools()})).await]);
    assert_eq!(joined(&lines(&ask(&server, CHAT, json!({"tools": tools()})).await)), expected);
    let call = |index| json!({"index": index, "name": "sum", "arguments": {"a": 1, "b": [2.5]}});
    assert_eq!(expected.1, [call(0), call(1)]);
    assert_eq!(expected.2, "stop");
}

#[tokio::test]
async fn options_do_what_they_say() {
    let server = Setup::says("Hello world again and again").start().await;
    let cut = whole(&server, CHAT, json!({"options": {"num_predict": 2}})).await;
    assert_eq!(cut["message"]["content"], "Hello world");
    assert_eq!((&cut["done_reason"], &cut["eval_count"]), (&json!("length"), &json!(2)));
    for stop in [json!("again"), json!(["zebra", "again"])] {
        let cut = whole(&server, CHAT, json!({"options": {"stop": stop}})).await;
        assert_eq!(cut["message"]["content"], "Hello world ");
        assert_eq!(cut["done_reason"], "stop");
    }
    for unbounded in [-1, -2, 0] {
        let all = whole(&server, CHAT, json!({"options": {"num_predict": unbounded}})).await;
        assert_eq!(all["message"]["content"], "Hello world again and again");
    }
    let babbler = Setup::babbles().start().await;
    let draw = async |options: Value| {
        whole(&babbler, CHAT, json!({"options": options})).await["message"]["content"].clone()
    };
    let seeded = draw(json!({"seed": 5, "num_predict": 20})).await;
    assert_eq!(draw(json!({"seed": 5, "num_predict": 20})).await, seeded);
    assert_ne!(draw(json!({"seed": 6, "num_predict": 20})).await, seeded);
    // Two draws may be the same by chance, eight may not.
    let mut drawn = std::collections::BTreeSet::new();
    for _ in 0..8 {
        drawn.insert(draw(json!({"seed": -1, "num_predict": 20})).await.to_string());
    }
    assert!(1 < drawn.len(), "{drawn:?}");
}

#[tokio::test]
async fn empty_and_unknown_fields_are_ignored() {
    let server = Setup::says("Hello").start().await;
    let harmless = json!({
        "format": "", "keep_alive": "5m", "truncate": true, "shift": true, "invented": [1],
        "images": [], "tools": [], "suffix": "", "template": "", "context": [], "think": null,
        "options": {
            "num_ctx": 2048, "num_gpu": 1, "num_thread": 8, "use_mmap": true, "num_keep": 4,
            "typical_p": 1.0, "mirostat": 0, "tfs_z": 1, "invented": "x", "top_k": 40,
            "repeat_last_n": -1, "repeat_penalty": 1.1, "min_p": 0.0, "temperature": 0.8,
        },
    });
    for path in [CHAT, GENERATE] {
        let answer = whole(&server, path, harmless.clone()).await;
        let text = answer["message"]["content"].as_str().or(answer["response"].as_str());
        assert_eq!(text, Some("Hello"));
        assert_eq!(answer["model"], MODEL);
    }
    for name in ["default", "org/fake:latest"] {
        assert_eq!(whole(&server, CHAT, json!({"model": name})).await["model"], name);
    }
    // Clients take names from Ollama's list and talk OpenAI's API.
    let latest = server.chat(json!({"model": format!("{MODEL}:latest")})).await.ok();
    assert_eq!(latest["choices"][0]["message"]["content"], "Hello");
    server.get(&format!("/v1/models/{MODEL}:latest")).await.ok();
    assert_eq!(server.chat(json!({"model": "other:latest"})).await.status, 404);
    // One tag, however many there are.
    let tags = format!("{MODEL}{}", ":latest".repeat(1 << 17));
    assert_eq!(server.chat(json!({"model": tags})).await.status, 404);
}

#[tokio::test]
async fn an_empty_request_asks_for_the_model() {
    let server = Setup::says("Hello").start().await;
    for (path, more) in [
        (CHAT, json!({"messages": []})),
        (CHAT, json!({"messages": null, "keep_alive": -1})),
        (GENERATE, json!({"prompt": ""})),
        (GENERATE, json!({"prompt": null, "keep_alive": "1h"})),
    ] {
        let loaded = ask(&server, path, more.clone()).await.ok();
        assert_eq!((&loaded["done"], &loaded["done_reason"]), (&json!(true), &json!("load")));
        let text = loaded["message"]["content"].as_str().or(loaded["response"].as_str());
        assert_eq!(text, Some(""), "{more}");
    }
}

/// The text of the prompt that a request becomes.
async fn prompt_of(path: &str, more: Value) -> String {
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = seen.clone();
    let setup = Setup::answers(move |prompt| {
        *told.lock().unwrap() = prompt.to_vec();
        vec![33]
    });
    let server = large(setup).start().await;
    let answer = whole(&server, path, more).await;
    let tokens = seen.lock().unwrap().clone();
    assert_eq!(answer["prompt_eval_count"], tokens.len());
    server.text.tokenizer.decode(&tokens, false)
}

#[tokio::test]
async fn the_template_gets_what_the_client_sent() {
    let turn = |role: &str, text: &str| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
    let answering = "<|im_start|>assistant\n";
    let hello = format!("{}{answering}", turn("user", "Hello"));
    assert_eq!(prompt_of(CHAT, json!({})).await, hello);
    assert_eq!(prompt_of(CHAT, json!({"think": true})).await, format!("{hello}(thinking)"));
    assert_eq!(prompt_of(CHAT, json!({"think": "low"})).await, format!("{hello}(thinking)"));
    assert_eq!(prompt_of(CHAT, json!({"think": false})).await, hello);
    assert_eq!(prompt_of(GENERATE, json!({})).await, hello);
    assert_eq!(
        prompt_of(GENERATE, json!({"system": "Be kind.", "think": true})).await,
        format!("{}{hello}(thinking)", turn("system", "Be kind."))
    );
    assert_eq!(prompt_of(GENERATE, json!({"raw": true})).await, "Hello");
    let call = |name: &str| json!({"function": {"name": name, "arguments": {"a": 1}}});
    let messages = json!([
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call("sum"), call("add")]},
        {"role": "tool", "content": "2", "tool_name": "add"},
        {"role": "tool", "content": "3"},
    ]);
    assert_eq!(
        prompt_of(CHAT, json!({"messages": messages})).await,
        [
            turn("system", "Be kind."),
            turn("user", "Add."),
            turn("assistant", ""),
            turn("tool", "2"),
            turn("tool", "3"),
            answering.to_owned(),
        ]
        .concat()
    );
    let told = prompt_of(CHAT, json!({"tools": tools()})).await;
    let listed = told.lines().nth(1).unwrap();
    assert_eq!(serde_json::from_str::<Value>(listed).unwrap(), tools());
}

#[tokio::test]
async fn a_model_without_a_template_goes_on_from_the_prompt() {
    let text = model::text_without_template();
    let answer = text.tokenizer.encode(" world", false).unwrap();
    let model = scripted_model(move |_| answer.clone(), end_token());
    let server = Setup::with(text, model).start().await;
    assert_eq!(whole(&server, GENERATE, json!({})).await["response"], " world");
}

#[tokio::test(start_paused = true)]
async fn silence_is_broken_by_lines_that_say_nothing() {
    let server = Setup::says("Hello").start().await;
    server.control.order(FakeOrder::Hold);
    let mut live = server.open(post(CHAT, body(CHAT, &json!({})).to_string())).await;
    for _ in 0..3 {
        live.next_frame().await;
    }
    for line in live.seen.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["message"], json!({"role": "assistant", "content": ""}));
        assert_eq!(line["done"], false);
    }
    assert_eq!(live.seen.lines().count(), 3);
    server.control.order(FakeOrder::Resume);
    live.read_until("\"done\":true").await;
    assert!(live.seen.contains("\"content\":\"Hello\""));
}

#[tokio::test]
async fn a_failure_within_a_stream_is_a_line() {
    let setup = Setup::says("Hello").limited(|config| {
        config.limits.keep_alive = Duration::from_millis(10);
        config.limits.request_timeout = Some(Duration::from_millis(100));
    });
    let server = setup.start().await;
    server.control.order(FakeOrder::Hold);
    let reply = ask(&server, CHAT, json!({})).await;
    server.control.order(FakeOrder::Resume);
    let last: Value = serde_json::from_str(reply.body.lines().last().unwrap()).unwrap();
    assert_eq!(last, json!({"error": "the request was not answered within 0.1 s"}));
}

/// Knows one model.
#[derive(Debug)]
struct OneModel;

impl Puller for OneModel {
    fn pull(&self, name: &str) -> mpsc::Receiver<PullProgress> {
        let (sender, progress) = mpsc::channel(4);
        let working = |digest: Option<&str>, bytes| PullProgress::Working {
            status: "fetching".to_owned(),
            digest: digest.map(str::to_owned),
            bytes,
        };
        let heard = match name {
            "org/other" => vec![
                working(None, None),
                working(Some("sha256:ab"), Some((10, 5))),
                PullProgress::Done,
            ],
            _ => vec![PullProgress::Failed { reason: format!("there is no {name}") }],
        };
        heard.into_iter().for_each(|it| sender.try_send(it).unwrap());
        progress
    }

    fn remove(&self, id: &str) -> RemoveFuture {
        let reason = format!("{id} is loaded\nhint: unload it");
        Box::pin(async { Err(ModelRemoveError::Refused { reason }) })
    }
}

#[tokio::test]
async fn a_model_is_fetched_with_lines_of_progress() {
    let setup = Setup::says("Hello").limited(|config| config.puller = Some(Arc::new(OneModel)));
    let server = setup.start().await;
    let pull = async |name: &str, stream: bool| {
        let reply = server.post("/api/pull", &json!({"model": name, "stream": stream})).await;
        (reply.status.as_u16(), reply.body)
    };
    let success = "{\"status\":\"success\"}";
    assert_eq!(pull(MODEL, true).await, (200, format!("{success}\n")));
    assert_eq!(pull("org/fake:latest", false).await, (200, success.to_owned()));
    let told = format!(
        "{{\"status\":\"fetching\"}}\n\
         {{\"status\":\"fetching\",\"digest\":\"sha256:ab\",\"total\":10,\"completed\":5}}\n{success}\n"
    );
    assert_eq!(pull("org/other", true).await, (200, told));
    assert_eq!(pull("org/other:latest", false).await, (200, success.to_owned()));
    let failed = "{\"error\":\"there is no org/none\"}";
    assert_eq!(pull("org/none", true).await, (200, format!("{failed}\n")));
    assert_eq!(pull("org/none", false).await, (500, failed.to_owned()));
}

/// All tasks have one thread here, so nothing is read while the engine answers.
#[tokio::test]
async fn times_are_those_of_the_engine_however_late_an_answer_is_read() {
    let server = Setup::says("Hello, how are you today?").start().await;
    server.control.order(FakeOrder::Hold);
    let step_time = Duration::from_millis(2);
    server.control.order(FakeOrder::Pace(step_time));
    let body = json!({"model": MODEL, "prompt": "Hi", "raw": true, "stream": false});
    let mut asking = std::pin::pin!(server.post("/api/generate", &body));
    let is_open = async || !server.engine.open_requests().await.is_empty();
    while !is_open().await {
        assert!((&mut asking).now_or_never().is_none(), "the ranks answer nothing");
    }
    server.control.order(FakeOrder::Resume);
    while server.engine.status().counters.finished == 0 {
        std::thread::sleep(step_time);
    }
    let answer = asking.await.ok();
    let [total, prompt, eval, count] =
        ["total_duration", "prompt_eval_duration", "eval_duration", "eval_count"]
            .map(|field| answer[field].as_u64().unwrap());
    assert!(2 < count && step_time.as_nanos() as u64 * (count - 2) <= eval, "{answer}");
    assert!(prompt + eval <= total, "{answer}");
}
