//! What clients of Anthropic's API read.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use jackalope_engine::testing::FakeOrder;
use jackalope_server::ApiKeys;
use serde_json::{Value, json};

use crate::support::{MODEL, Reply, Server, Setup, post};

pub(crate) const MESSAGES: &str = "/v1/messages";
pub(crate) const COUNT: &str = "/v1/messages/count_tokens";

const CALL: &str = "Let me look.\n<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": 1, \"b\": [2.5]}}\n</tool_call>";

/// A conversation of one message; `more` adds to the request.
pub(crate) fn body(more: &Value) -> Value {
    let mut body = json!({
        "model": MODEL, "max_tokens": 1000, "messages": [{"role": "user", "content": "Hello"}],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn ask(server: &Server, more: Value) -> Reply {
    server.post(MESSAGES, &body(&more)).await
}

pub(crate) fn tools() -> Value {
    json!([{
        "name": "sum", "description": "Adds.", "cache_control": {"type": "ephemeral"},
        "input_schema": {"type": "object", "properties": {"a": {"type": "number"}}},
    }])
}

fn large(mut setup: Setup) -> Setup {
    setup.context_tokens = 4096;
    setup
}

/// Names and data of a stream's events, checked to agree.
fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.headers["content-type"], "text/event-stream; charset=utf-8");
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').expect("a name and data");
        let data = data.strip_prefix("data: ").expect("the data is one line");
        let data: Value = serde_json::from_str(data).expect("the data is JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    };
    reply.body.split("\n\n").filter(|it| !it.is_empty()).map(event).collect()
}

/// What the official client makes of a stream: the whole message.
fn accumulate(events: &[Value]) -> Value {
    let mut message = Value::Null;
    let mut open = None;
    let mut json_text = String::new();
    for event in events {
        let index = event["index"].as_u64().map(|it| it as usize);
        match event["type"].as_str().unwrap() {
            "message_start" => message = event["message"].clone(),
            "ping" => {}
            "content_block_start" => {
                assert_eq!(open, None, "blocks come one after the other");
                open = index;
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(index, Some(content.len()));
                content.push(event["content_block"].clone());
                json_text.clear();
            }
            "content_block_delta" => {
                assert_eq!(open, index);
                let block = &mut message["content"][index.unwrap()];
                let delta = &event["delta"];
                let field = match delta["type"].as_str().unwrap() {
                    "text_delta" => "text",
                    "thinking_delta" => "thinking",
                    "signature_delta" => "signature",
                    "input_json_delta" => {
                        json_text.push_str(delta["partial_json"].as_str().unwrap());
                        // The official client reads what is there of it.
                        if let Ok(input) = serde_json::from_str(&json_text) {
                            block["input"] = input;
                        }
                        continue;
                    }
                    other => panic!("unknown delta {other}"),
                };
                let joined =
                    format!("{}{}", block[field].as_str().unwrap(), delta[field].as_str().unwrap());
                block[field] = joined.into();
            }
            "content_block_stop" => assert_eq!(open.take(), index),
            "message_delta" => {
                assert_eq!(open, None);
                for (key, value) in event["delta"].as_object().unwrap() {
                    message[key] = value.clone();
                }
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => {}
            other => panic!("unknown event {other}"),
        }
    }
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    message
}

/// A message without what is drawn anew for each one.
fn anonymous(mut message: Value) -> Value {
    message["id"] = Value::Null;
    for block in message["content"].as_array_mut().unwrap() {
        if block["type"] == "tool_use" {
            block["id"] = Value::Null;
        }
    }
    for count in ["input_tokens", "cache_read_input_tokens"] {
        message["usage"][count] = Value::Null;
    }
    message
}

#[tokio::test]
async fn a_message_reads_like_this() {
    let server = Setup::says("Hello world").start().await;
    insta::assert_snapshot!(ask(&server, json!({})).await.transcript());
}

#[tokio::test]
async fn a_message_stream_reads_like_this() {
    let server = Setup::says("Hello world, \u{1f998}!").start().await;
    insta::assert_snapshot!(ask(&server, json!({"stream": true})).await.transcript());
}

#[tokio::test]
async fn a_message_with_a_tool_use_reads_like_this() {
    let server = large(Setup::says(CALL)).start().await;
    insta::assert_snapshot!(ask(&server, json!({"tools": tools()})).await.transcript());
}

#[tokio::test]
async fn a_streamed_tool_use_reads_like_this() {
    let server = large(Setup::says(CALL)).start().await;
    let options = json!({"tools": tools(), "stream": true});
    insta::assert_snapshot!(ask(&server, options).await.transcript());
}

#[tokio::test]
async fn a_stream_comes_to_the_same_as_the_whole_message() {
    // Bytes that follow from the prompt; many of them are halves of characters.
    let server = Setup::answers(|prompt| {
        let mut state = prompt.iter().fold(7_u32, |state, token| state.wrapping_mul(31) ^ token);
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 24
        };
        (0..60).map(|_| next()).collect()
    })
    .start()
    .await;
    let stops = ["e", "\u{fffd}\u{fffd}", "st", "world"];
    for num_tokens in 1..40 {
        let options = json!({
            "max_tokens": num_tokens, "stop_sequences": stops[..num_tokens % 4],
            "messages": [{"role": "user", "content": format!("Hello {num_tokens}")}],
        });
        let whole = ask(&server, options.clone()).await.ok();
        let mut streamed = options;
        streamed["stream"] = true.into();
        let streamed = accumulate(&events(&ask(&server, streamed).await));
        assert_eq!(anonymous(whole), anonymous(streamed), "{num_tokens} tokens");
    }
    let server = large(Setup::says(&CALL.repeat(2))).start().await;
    let whole = ask(&server, json!({"tools": tools()})).await.ok();
    let streamed = ask(&server, json!({"tools": tools(), "stream": true})).await;
    let streamed = accumulate(&events(&streamed));
    let calls = |message: &Value| {
        let content = message["content"].as_array().unwrap().clone();
        let calls = content.into_iter().filter(|block| block["type"] == "tool_use");
        calls.map(|call| (call["name"].clone(), call["input"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(calls(&whole), calls(&streamed));
    assert_eq!(calls(&whole), vec![(json!("sum"), json!({"a": 1, "b": [2.5]})); 2]);
    assert_eq!(streamed["stop_reason"], "tool_use");
}

#[tokio::test]
async fn every_reason_to_stop_is_reported() {
    let server = Setup::says("Hello world again").start().await;
    let reason = async |more: Value| {
        let whole = ask(&server, more.clone()).await.ok();
        let mut streamed = more;
        streamed["stream"] = true.into();
        let streamed = accumulate(&events(&ask(&server, streamed).await));
        assert_eq!(whole["stop_reason"], streamed["stop_reason"]);
        assert_eq!(whole["stop_sequence"], streamed["stop_sequence"]);
        (whole["stop_reason"].clone(), whole["stop_sequence"].clone(), whole["content"].clone())
    };
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    assert_eq!(
        reason(json!({})).await,
        (json!("end_turn"), Value::Null, text("Hello world again"))
    );
    assert_eq!(
        reason(json!({"max_tokens": 1})).await,
        (json!("max_tokens"), Value::Null, text("Hello"))
    );
    let stops = json!({"stop_sequences": ["zebra", "again", "world"]});
    assert_eq!(reason(stops).await, (json!("stop_sequence"), json!("world"), text("Hello ")));
    // A stop sequence at the very end is still the reason.
    let stops = json!({"stop_sequences": ["again"]});
    assert_eq!(reason(stops).await, (json!("stop_sequence"), json!("again"), text("Hello world ")));
    let server = Setup::answers(|_| vec![33; 1000]).start().await;
    let endless = ask(&server, json!({"max_tokens": 1000})).await.ok();
    assert_eq!(endless["stop_reason"], "model_context_window_exceeded");
    // A model that has nothing to say says nothing.
    let server = Setup::says("").start().await;
    let nothing = ask(&server, json!({})).await.ok();
    assert_eq!(nothing["content"], json!([]));
    assert_eq!(nothing["stop_reason"], "end_turn");
}

#[tokio::test]
async fn one_call_is_the_last_if_calls_may_not_be_parallel() {
    let server = large(Setup::says(&CALL.repeat(2))).start().await;
    let choice = json!({"type": "auto", "disable_parallel_tool_use": true});
    let answer = ask(&server, json!({"tools": tools(), "tool_choice": choice})).await.ok();
    let kinds: Vec<&Value> =
        answer["content"].as_array().unwrap().iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["text", "tool_use"]);
    let none = json!({"tools": tools(), "tool_choice": {"type": "none"}});
    let answer = ask(&server, none).await.ok();
    assert_eq!(answer["content"], json!([{"type": "text", "text": CALL.repeat(2)}]));
    assert_eq!(answer["stop_reason"], "end_turn");
}

/// The text of the prompt that a conversation becomes, recorded by a model that receives it.
async fn prompt_of(more: Value) -> String {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = seen.clone();
    let setup = Setup::answers(move |prompt| {
        *told.lock().unwrap() = prompt.to_vec();
        vec![33]
    });
    let server = large(setup).start().await;
    let answer = ask(&server, more.clone()).await.ok();
    let tokens = seen.lock().unwrap().clone();
    assert_eq!(answer["usage"]["input_tokens"], tokens.len());
    let mut counted = body(&more);
    counted.as_object_mut().unwrap().remove("max_tokens");
    let counted = server.post(COUNT, &counted).await.ok();
    assert_eq!(counted, json!({"input_tokens": tokens.len()}));
    server.text.tokenizer.decode(&tokens, false)
}

#[tokio::test]
async fn the_template_gets_what_the_blocks_say() {
    let turn = |role: &str, text: &str| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
    let answering = "<|im_start|>assistant\n";
    assert_eq!(prompt_of(json!({})).await, format!("{}{answering}", turn("user", "Hello")));
    let system = json!([
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1f2e3;"},
        {"type": "text", "text": "You are kind.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be brief."},
    ]);
    assert_eq!(
        prompt_of(json!({"system": system})).await,
        format!(
            "{}{}{answering}",
            turn("system", "You are kind.\nBe brief."),
            turn("user", "Hello")
        )
    );
    assert_eq!(
        prompt_of(json!({"system": "Be kind.", "thinking": {"type": "adaptive"}})).await,
        format!("{}{}{answering}(thinking)", turn("system", "Be kind."), turn("user", "Hello"))
    );
    let tool_use =
        |id: &str| json!({"type": "tool_use", "id": id, "name": "sum", "input": {"a": 1}});
    let result = |id: &str, more: Value| {
        let mut block = json!({"type": "tool_result", "tool_use_id": id});
        block.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        block
    };
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "Add"}, {"type": "text", "text": "these."}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "I do."}, tool_use("a"), tool_use("b"),
        ]},
        {"role": "user", "content": [
            result("a", json!({"content": "2"})),
            result("b", json!({"content": [{"type": "text", "text": "no"}], "is_error": true})),
            {"type": "text", "text": "Well?", "cache_control": {"type": "ephemeral"}},
        ]},
        {"role": "assistant", "content": [tool_use("c")]},
        {"role": "user", "content": [
            {"type": "text", "text": "Before."},
            result("c", json!({})),
            {"type": "text", "text": "After."},
        ]},
    ]);
    assert_eq!(
        prompt_of(json!({"messages": messages})).await,
        [
            turn("user", "Add\nthese."),
            turn("assistant", "I do."),
            turn("tool", "2"),
            turn("tool", "Error: no"),
            turn("user", "Well?"),
            turn("assistant", ""),
            turn("user", "Before."),
            turn("tool", ""),
            turn("user", "After."),
            answering.to_owned()
        ]
        .concat()
    );
    let told = prompt_of(json!({"tools": tools()})).await;
    let expected = json!([{"type": "function", "function": {
        "name": "sum", "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
    }}]);
    let listed = told.lines().nth(1).unwrap();
    assert_eq!(serde_json::from_str::<Value>(listed).unwrap(), expected);
}

/// What an agent like Claude Code sends.
#[tokio::test]
async fn what_agents_send_is_answered() {
    let mut setup = large(Setup::says("Hello"));
    setup.context_tokens = 32_768;
    let server = setup.start().await;
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
        "properties": {"file_path": {"type": "string"}}, "required": ["file_path"],
        "additionalProperties": false,
    });
    let tool =
        |idx| json!({"name": format!("Tool{idx}"), "description": "Does.", "input_schema": schema});
    let agent = body(&json!({
        "max_tokens": 32000, "stream": true, "temperature": 1,
        "system": [
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        ],
        "tools": (0..40).map(tool).collect::<Vec<_>>(),
        "metadata": {"user_id": "user_1_account__session_2"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "xhigh"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "service_tier": "auto", "stop_sequences": [],
    }));
    let request = Request::post("/v1/messages?beta=true")
        .header("content-type", "application/json")
        .header("anthropic-version", "2023-06-01")
        .header("anthropic-beta", "claude-code-20250219,interleaved-thinking-2025-05-14")
        .header("x-api-key", "whatever");
    let reply = server.send(request.body(Body::from(agent.to_string())).unwrap()).await;
    let message = accumulate(&events(&reply));
    assert_eq!(message["content"], json!([{"type": "text", "text": "Hello"}]));
    assert!(reply.headers["request-id"].to_str().unwrap().starts_with("req_"));
    assert_eq!(reply.headers["request-id"], reply.headers["x-request-id"]);
    let counted = server.post("/v1/messages/count_tokens?beta=true", &agent).await.ok();
    assert_eq!(counted["input_tokens"], message["usage"]["input_tokens"]);
}

#[tokio::test]
async fn cached_tokens_are_no_input_tokens() {
    let server = Setup::says("Hello").start().await;
    let long = json!({"messages": [{"role": "user", "content": "Hello world ".repeat(20)}]});
    let first = ask(&server, long.clone()).await.ok()["usage"].clone();
    assert_eq!(first["cache_read_input_tokens"], 0);
    let mut streamed = long.clone();
    streamed["stream"] = true.into();
    let events = events(&ask(&server, streamed).await);
    let started = events[0]["message"]["usage"].clone();
    let again = accumulate(&events)["usage"].clone();
    let cached = again["cache_read_input_tokens"].as_u64().unwrap();
    assert!(cached > 0);
    assert_eq!(
        started["cache_read_input_tokens"], cached,
        "known before the first token is returned"
    );
    assert_eq!(
        again["input_tokens"].as_u64().unwrap() + cached,
        first["input_tokens"].as_u64().unwrap()
    );
}

#[tokio::test(start_paused = true)]
async fn pings_keep_a_stream_alive() {
    let server = Setup::says("Hello").start().await;
    server.control.order(FakeOrder::Hold);
    let request = post(MESSAGES, body(&json!({"stream": true})).to_string());
    let mut live = server.open(request).await;
    for _ in 0..3 {
        live.next_frame().await;
    }
    let pings = live.seen.matches("event: ping\ndata: {\"type\":\"ping\"}\n\n").count();
    assert_eq!(pings, 4, "{}", live.seen);
    assert!(live.seen.starts_with("event: message_start\n"), "{}", live.seen);
    server.control.order(FakeOrder::Resume);
    live.read_until("message_stop").await;
}

#[tokio::test]
async fn a_failure_within_a_stream_is_an_error_event() {
    let setup = Setup::says("Hello").limited(|config| {
        config.limits.keep_alive = Duration::from_millis(10);
        config.limits.request_timeout = Some(Duration::from_millis(100));
    });
    let server = setup.start().await;
    server.control.order(FakeOrder::Hold);
    let reply = ask(&server, json!({"stream": true})).await;
    let last = reply.body.trim_end().rsplit("\n\n").next().unwrap().to_owned();
    server.control.order(FakeOrder::Resume);
    assert_eq!(
        last,
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"timeout_error\",\
         \"message\":\"the request was not answered within 0.1 s\"}}"
    );
}

#[tokio::test]
async fn models_have_the_form_of_the_api_that_asks() {
    let server = Setup::says("Hello").start().await;
    let ask = |path: String| {
        let request = Request::get(path).header("anthropic-version", "2023-06-01");
        server.send(request.body(Body::empty()).unwrap())
    };
    let listed = ask("/v1/models?limit=1000".to_owned()).await;
    insta::assert_snapshot!(listed.transcript());
    let card = listed.ok()["data"][0].clone();
    assert_eq!(ask(format!("/v1/models/{MODEL}")).await.ok(), card);
    assert_eq!(ask("/v1/models/default".to_owned()).await.ok(), card);
    assert_eq!(ask("/v1/models/claude-sonnet-4-5".to_owned()).await.ok(), card);
    let unknown = ask("/v1/models/none".to_owned()).await;
    assert_eq!(unknown.status, 404);
    let error: Value = serde_json::from_str(&unknown.body).unwrap();
    assert_eq!(error["error"]["type"], "not_found_error");
    let unknown = ask("/v1/files".to_owned()).await;
    let error: Value = serde_json::from_str(&unknown.body).unwrap();
    assert_eq!((unknown.status.as_u16(), &error["type"]), (404, &json!("error")), "{error}");
    assert_eq!(server.get("/v1/models").await.ok()["object"], "list");
}

#[tokio::test]
async fn errors_have_the_form_of_the_api() {
    let setup = Setup::says("Hello").limited(|config| {
        config.limits.open_streams = 1;
        config.limits.keep_alive = Duration::from_millis(10);
        config.api_keys = ApiKeys::new(["secret"]);
    });
    let server = setup.start().await;
    let send = |key: Option<&str>, path: &str, body: String| {
        let mut request = post(path, body);
        if let Some(key) = key {
            request.headers_mut().insert("x-api-key", key.parse().unwrap());
        }
        request
    };
    let hello = body(&json!({})).to_string();
    let check = |reply: &Reply, status: u16, kind: &str| {
        let error: Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(reply.status, status, "{error}");
        assert_eq!(error["type"], "error");
        assert_eq!(error["error"]["type"], kind);
        assert_eq!(error["request_id"], reply.headers["request-id"].to_str().unwrap());
        assert!(!error["error"]["message"].as_str().unwrap().is_empty());
    };
    let reply = server.send(send(None, MESSAGES, hello.clone())).await;
    check(&reply, 401, "authentication_error");
    let reply = server.send(send(Some("wrong"), MESSAGES, hello.clone())).await;
    check(&reply, 401, "authentication_error");
    let unknown = body(&json!({"model": "none"})).to_string();
    check(&server.send(send(Some("secret"), MESSAGES, unknown)).await, 404, "not_found_error");
    let reply = server.send(send(Some("secret"), "/v1/messages/batches", hello.clone())).await;
    check(&reply, 404, "not_found_error");
    let reply = server.send(send(Some("secret"), MESSAGES, "{".to_owned())).await;
    check(&reply, 400, "invalid_request_error");
    // One request is open, and one is all there may be.
    server.control.order(FakeOrder::Hold);
    let streamed = body(&json!({"stream": true})).to_string();
    let open = server.open(send(Some("secret"), MESSAGES, streamed));
    let (_live, refused) = tokio::join!(open, async {
        server.until("one is open", |status| status.running + status.queued == 1).await;
        server.send(send(Some("secret"), MESSAGES, hello.clone())).await
    });
    check(&refused, 529, "overloaded_error");
    assert!(refused.headers.contains_key("retry-after"));
    server.control.order(FakeOrder::Resume);
}

#[tokio::test]
async fn a_model_that_is_not_loaded_yet_is_overloaded() {
    let mut setup = Setup::says("Hello");
    setup.start_time = Duration::from_secs(3600);
    setup.server.limits.load_wait = Duration::ZERO;
    let server = setup.begin();
    let reply = ask(&server, json!({})).await;
    assert_eq!(reply.status, 529);
    let error: Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(error["error"]["type"], "overloaded_error");
}
