//! What a client reads of a stream, byte by byte.

use std::time::Duration;

use axum::http::StatusCode;
use jackalope_engine::testing::FakeOrder;
use serde_json::{Value, json};

use crate::support::{Setup, chat_body, events, post};

const CALL: &str =
    "Let me look.\n<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": 1}}\n</tool_call>";

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}])
}

#[tokio::test]
async fn a_chat_stream_reads_like_this() {
    let server = Setup::says("Hello world, \u{1f998}!").start().await;
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let reply = server.chat(options).await;
    assert_eq!(reply.headers["cache-control"], "no-cache");
    insta::assert_snapshot!(reply.transcript());
}

#[tokio::test]
async fn a_chat_stream_with_every_extra_reads_like_this() {
    let server = Setup::says("Hello world").start().await;
    let options = json!({
        "stream": true, "logprobs": true, "top_logprobs": 2, "return_token_ids": true, "n": 2,
        "temperature": 0,
    });
    let reply = server.chat(options).await;
    // Two choices come in any order; each of them in its own.
    let mut chunks = events(&crate::support::redact(&reply.body));
    chunks.sort_by_key(|chunk| chunk.contains("\"index\":1"));
    insta::assert_snapshot!(chunks.join("\n"));
}

#[tokio::test]
async fn a_streamed_tool_call_reads_like_this() {
    let mut setup = Setup::says(CALL);
    setup.context_tokens = 1024;
    let server = setup.start().await;
    let reply = server.chat(json!({"stream": true, "tools": tools()})).await;
    insta::assert_snapshot!(reply.transcript());
}

#[tokio::test]
async fn a_completion_stream_reads_like_this() {
    let server = Setup::says(" world again").start().await;
    let options = json!({
        "stream": true, "stream_options": {"include_usage": true}, "echo": true, "logprobs": 1,
        "return_token_ids": true,
    });
    let reply = server.complete(options).await;
    insta::assert_snapshot!(reply.transcript());
}

#[tokio::test]
async fn usage_is_reported_only_if_it_was_requested() {
    let server = Setup::says("Hello").start().await;
    for chunk in server.chat(json!({"stream": true})).await.chunks() {
        assert!(chunk.get("usage").is_none(), "{chunk}");
    }
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let mut chunks = server.chat(options).await.chunks();
    let last = chunks.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 2);
    for chunk in chunks {
        assert_eq!(chunk["usage"], Value::Null);
        assert!(chunk.get("usage").is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_kept_alive_while_a_long_prompt_computes() {
    let server = Setup::says("Hello").start().await;
    server.control.order(FakeOrder::Hold);
    let body = chat_body(json!({"stream": true})).to_string();
    let mut live = server.open(post("/v1/chat/completions", body)).await;
    assert_eq!(live.status, StatusCode::OK);
    for _ in 0..3 {
        live.next_frame().await;
    }
    assert_eq!(live.seen, ": keep-alive\n\n".repeat(3));
    server.control.order(FakeOrder::Resume);
    live.read_until("[DONE]").await;
    assert!(live.seen.contains("\"content\":\"Hello\""), "{}", live.seen);
}

#[tokio::test(start_paused = true)]
async fn silence_is_never_longer_than_the_limit() {
    let keep_alive = Duration::from_millis(700);
    let setup = Setup::says("Hello").limited(|config| config.limits.keep_alive = keep_alive);
    let server = setup.start().await;
    server.control.order(FakeOrder::Hold);
    let body = chat_body(json!({"stream": true})).to_string();
    let mut before = tokio::time::Instant::now();
    let mut live = server.open(post("/v1/chat/completions", body)).await;
    for _ in 0..5 {
        live.next_frame().await;
        let now = tokio::time::Instant::now();
        assert!(now - before <= keep_alive + Duration::from_millis(5), "{:?}", now - before);
        before = now;
    }
    server.control.order(FakeOrder::Resume);
    live.read_until("[DONE]").await;
}

/// What the chunks of choice `index` come to: text, finish reason, token ids.
fn joined(chunks: &[Value], index: u64) -> (String, Value, Vec<Value>) {
    let (mut text, mut finish, mut tokens) = (String::new(), Value::Null, Vec::new());
    for chunk in chunks {
        for choice in chunk["choices"].as_array().unwrap() {
            if choice["index"] != index {
                continue;
            }
            assert_eq!(finish, Value::Null, "nothing comes after the finish reason");
            let piece = choice["delta"]["content"].as_str().or(choice["text"].as_str());
            text.push_str(piece.unwrap_or_default());
            finish = choice["finish_reason"].clone();
            tokens.extend(choice["token_ids"].as_array().cloned().unwrap_or_default());
        }
    }
    (text, finish, tokens)
}

#[tokio::test]
async fn a_stream_comes_to_the_same_as_the_whole_answer() {
    let server = Setup::babbles().start().await;
    for seed in 0..40 {
        // Single letters and halves of characters make for many stops in odd places.
        let stops = ["e", "\u{fffd}\u{fffd}", "st", "world"];
        let options = json!({
            "seed": seed, "n": 1 + seed % 3, "max_tokens": 60, "return_token_ids": true,
            "stop": stops[..seed % 4],
        });
        let streamed = |options: &Value| {
            let mut options = options.clone();
            options["stream"] = true.into();
            options
        };
        let whole = server.chat(options.clone()).await.ok();
        let chunks = server.chat(streamed(&options)).await.chunks();
        for choice in whole["choices"].as_array().unwrap() {
            let (text, finish, tokens) = joined(&chunks, choice["index"].as_u64().unwrap());
            assert_eq!(choice["message"]["content"], text, "seed {seed}");
            assert_eq!(choice["finish_reason"], finish);
            assert_eq!(choice["token_ids"].as_array().unwrap(), &tokens);
        }
        let whole = server.complete(options.clone()).await.ok();
        let chunks = server.complete(streamed(&options)).await.chunks();
        for choice in whole["choices"].as_array().unwrap() {
            let (text, finish, tokens) = joined(&chunks, choice["index"].as_u64().unwrap());
            assert_eq!(choice["text"], text, "seed {seed}");
            assert_eq!(choice["finish_reason"], finish);
            assert_eq!(choice["token_ids"].as_array().unwrap(), &tokens);
        }
    }
}
