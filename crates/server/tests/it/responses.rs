//! `POST /v1/responses`: what clients read, and what is kept.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request};
use jackalope_engine::testing::FakeOrder;
use serde_json::{Value, json};

use crate::support::{MODEL, Reply, Server, Setup, end_token, merge, post, redact};

const PATH: &str = "/v1/responses";
const CALL: &str =
    "Let me look.\n<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": 1}}\n</tool_call>";

fn tools() -> Value {
    json!([{"type": "function", "name": "sum", "parameters": {"type": "object"}}])
}

async fn respond(server: &Server, more: Value) -> Reply {
    server.post(PATH, &merge(json!({"model": MODEL, "input": "Hello"}), more)).await
}

async fn delete(server: &Server, path: &str) -> Reply {
    let request = Request::builder().method(Method::DELETE).uri(path);
    server.send(request.body(Body::empty()).unwrap()).await
}

/// The events of a stream: each has the name that its data says, and they are numbered.
#[track_caller]
fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    let events = reply.body.split("\n\n").filter(|event| !event.is_empty());
    let events: Vec<Value> = events
        .filter(|event| !event.starts_with(':'))
        .map(|event| {
            let (name, data) = event.split_once('\n').expect("an event has a name and data");
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(name, format!("event: {}", data["type"].as_str().unwrap()));
            data
        })
        .collect();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    events
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

/// What a response says, without the ids that differ from one to the next.
fn told(response: &Value) -> String {
    let mut response = response.clone();
    for field in ["usage", "previous_response_id", "store"] {
        response[field] = Value::Null;
    }
    redact(&response.to_string())
}

#[tokio::test]
async fn a_response_reads_like_this() {
    let server = Setup::says("Hello world").start().await;
    let reply = respond(&server, json!({"instructions": "Be brief", "metadata": {"a": "b"}})).await;
    insta::assert_snapshot!(reply.transcript());
}

#[tokio::test]
async fn a_response_stream_reads_like_this() {
    let server = Setup::says("Hello world").start().await;
    let options = json!({"stream": true, "top_logprobs": 1, "temperature": 0.3});
    let reply = respond(&server, options).await;
    events(&reply);
    insta::assert_snapshot!(reply.transcript());
}

#[tokio::test]
async fn a_response_stream_with_a_call_reads_like_this() {
    let mut setup = Setup::says(CALL);
    setup.context_tokens = 1024;
    let server = setup.start().await;
    let reply = respond(&server, json!({"stream": true, "tools": tools()})).await;
    let events = events(&reply);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    let last: Value = serde_json::from_str(&redact(&last.to_string())).unwrap();
    insta::assert_snapshot!(format!("{}\n{last:#}", types(&events).join("\n")));
}

#[tokio::test]
async fn a_streamed_response_is_the_whole_one() {
    for (answer, more) in [
        ("Hello world", json!({})),
        ("", json!({})),
        ("Hello world again", json!({"max_output_tokens": 2})),
        ("Hello world", json!({"stop": " world"})),
        ("Hello world", json!({"top_logprobs": 2, "temperature": 0})),
        (CALL, json!({"tools": tools()})),
        (CALL, json!({"tools": tools(), "tool_choice": "none"})),
        (CALL, json!({"tools": tools(), "parallel_tool_calls": false, "store": false})),
    ] {
        let mut setup = Setup::says(answer);
        setup.context_tokens = 1024;
        let server = setup.start().await;
        let whole = respond(&server, more.clone()).await.ok();
        let reply = respond(&server, merge(more.clone(), json!({"stream": true}))).await;
        let events = events(&reply);
        let last = events.last().unwrap();
        assert_eq!(told(&last["response"]), told(&whole), "{more}");
        let status = whole["status"].as_str().unwrap();
        assert_eq!(last["type"], format!("response.{status}"));
        let is_cut = more.get("max_output_tokens").is_some();
        assert_eq!(status, if is_cut { "incomplete" } else { "completed" });
        check_pieces(&events, &last["response"]);
    }
}

/// The pieces come to the items, and each item opens and closes once.
fn check_pieces(events: &[Value], response: &Value) {
    let of = |kind: &str, index: usize| -> Vec<&Value> {
        let is_it = |event: &&Value| event["type"] == kind && event["output_index"] == json!(index);
        events.iter().filter(is_it).collect()
    };
    let output = response["output"].as_array().unwrap();
    assert_eq!(
        events.iter().filter(|it| it["type"] == "response.output_item.added").count(),
        output.len()
    );
    for (index, item) in output.iter().enumerate() {
        let [added] = of("response.output_item.added", index)[..] else { panic!("{item}") };
        assert_eq!(added["item"]["id"], item["id"]);
        assert_eq!(added["item"]["status"], "in_progress");
        let [done] = of("response.output_item.done", index)[..] else { panic!("{item}") };
        assert_eq!(&done["item"], item);
        let (delta, field, text) = match item["type"].as_str().unwrap() {
            "message" => ("response.output_text", "text", &item["content"][0]["text"]),
            "function_call" => {
                ("response.function_call_arguments", "arguments", &item["arguments"])
            }
            other => panic!("{other}"),
        };
        let pieces: String = of(&format!("{delta}.delta"), index)
            .iter()
            .map(|event| event["delta"].as_str().unwrap())
            .collect();
        assert_eq!(pieces, text.as_str().unwrap());
        let [done] = of(&format!("{delta}.done"), index)[..] else { panic!("{item}") };
        assert_eq!(&done[field], text);
        assert_eq!(done["item_id"], item["id"]);
    }
}

#[tokio::test]
async fn a_continued_conversation_is_answered_like_the_whole_one() {
    let mut setup = Setup::babbles();
    setup.context_tokens = 1024;
    let server = setup.start().await;
    let options = json!({"max_output_tokens": 8, "seed": 3});
    let ask = async |more: Value| respond(&server, merge(options.clone(), more)).await.ok();
    let said = |response: &Value| {
        let output = response["output"].as_array().unwrap();
        output.iter().map(|item| item["content"][0]["text"].clone()).collect::<Vec<_>>()
    };
    let mut whole = vec![json!({"role": "user", "content": "Hello"})];
    let mut previous = ask(json!({"instructions": "not carried over"})).await;
    for question in [" world", " again", " end"] {
        whole.extend(previous["output"].as_array().unwrap().iter().cloned());
        whole.push(json!({"role": "user", "content": question}));
        let continued =
            ask(json!({"input": question, "previous_response_id": previous["id"]})).await;
        let at_once = ask(json!({"input": whole})).await;
        assert_eq!(said(&continued), said(&at_once));
        assert_eq!(continued["usage"]["input_tokens"], at_once["usage"]["input_tokens"]);
        assert_eq!(continued["previous_response_id"], previous["id"]);
        previous = continued;
    }
}

/// The prompt of a request, returned by the model itself.
async fn prompt_of(input: Value, more: Value) -> String {
    let mut setup = Setup::answers(|prompt| {
        let end = prompt.iter().rposition(|token| *token == end_token()).unwrap();
        prompt[..end].iter().copied().filter(|it| *it != end_token()).collect()
    });
    setup.context_tokens = 2048;
    let server = setup.start().await;
    let reply = respond(&server, merge(json!({"input": input}), more)).await.ok();
    reply["output"][0]["content"][0]["text"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn items_become_the_messages_of_a_chat() {
    let parts =
        json!([{"type": "input_text", "text": "Hello"}, {"type": "text", "text": " world"}]);
    let prompt = prompt_of(
        json!([
            {"role": "developer", "content": "Be brief"},
            {"type": "message", "role": "user", "content": parts},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": " end"}]},
            {"type": "function_call", "call_id": "c1", "name": "sum", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "5"},
            {"type": "function_call_output", "call_id": "c1", "output": parts},
        ]),
        json!({"instructions": "Count"}),
    )
    .await;
    insta::assert_snapshot!(prompt);
}

#[tokio::test]
async fn a_stored_response_is_returned_until_it_is_deleted() {
    let server = Setup::says("Hello world").start().await;
    let streamed = respond(&server, json!({"stream": true})).await;
    let streamed = events(&streamed).pop().unwrap()["response"].clone();
    for response in [respond(&server, json!({})).await.ok(), streamed] {
        let id = response["id"].as_str().unwrap();
        let path = format!("{PATH}/{id}");
        assert_eq!(server.get(&path).await.ok(), response);
        assert_eq!(
            delete(&server, &path).await.ok(),
            json!({"id": id, "object": "response", "deleted": true})
        );
        for gone in [server.get(&path).await, delete(&server, &path).await] {
            assert_eq!(gone.status, 404);
            assert_eq!(gone.error()["code"], "response_not_found");
        }
        let reply = respond(&server, json!({"previous_response_id": id})).await;
        assert_eq!(reply.status, 400);
        let error = reply.error();
        assert_eq!(error["code"], "previous_response_not_found");
        assert_eq!(error["param"], "previous_response_id");
        assert!(error["message"].as_str().unwrap().contains(id), "{error}");
    }
}

#[tokio::test]
async fn a_kept_response_streams_as_it_was_made() {
    for (answer, more) in [
        ("Hello", json!({"top_logprobs": 1, "temperature": 0})),
        (CALL, json!({"tools": tools()})),
        ("Hello world again", json!({"max_output_tokens": 2})),
    ] {
        let mut setup = Setup::says(answer);
        setup.context_tokens = 1024;
        let server = setup.start().await;
        let made = respond(&server, merge(more.clone(), json!({"stream": true}))).await;
        let made = events(&made);
        let last = made.last().unwrap();
        let path = format!("{PATH}/{}", last["response"]["id"].as_str().unwrap());
        let replayed = events(&server.get(&format!("{path}?stream=true")).await);
        let mut expected = types(&made);
        // Each text comes in one piece.
        expected.dedup();
        assert_eq!(types(&replayed), expected, "{more}");
        assert_eq!(replayed.last().unwrap()["response"], last["response"], "{more}");
        for (name, field) in [("output_item.done", "item"), ("content_part.done", "part")] {
            let of = |events: &[Value]| -> Vec<Value> {
                let name = format!("response.{name}");
                events.iter().filter(|it| it["type"] == *name).map(|it| it[field].clone()).collect()
            };
            assert_eq!(of(&replayed), of(&made), "{more}");
        }
        let rest = server.get(&format!("{path}?stream=true&starting_after=1")).await;
        assert!(rest.body.contains("\"sequence_number\":2"), "{}", rest.body);
        assert!(!rest.body.contains("response.created"), "{}", rest.body);
        assert_eq!(server.get(&format!("{path}?stream=maybe")).await.status, 400);
    }
}

#[tokio::test]
async fn verbs_that_are_not_here_are_unknown_paths() {
    let server = Setup::says("Hello").start().await;
    let id = respond(&server, json!({})).await.ok()["id"].as_str().unwrap().to_owned();
    for path in [format!("{PATH}/compact"), format!("{PATH}/{id}/cancel")] {
        let reply = server.post(&path, &json!({})).await;
        assert_eq!((reply.status.as_u16(), &reply.error()["code"]), (404, &json!("unknown_path")));
    }
    assert_eq!(server.post(&format!("{PATH}/{id}"), &json!({})).await.status, 405);
}

#[tokio::test]
async fn what_shall_not_be_stored_is_not_kept() {
    let server = Setup::says("Hello").start().await;
    let response = respond(&server, json!({"store": false})).await.ok();
    assert_eq!(response["store"], false);
    let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
    assert_eq!(server.get(&path).await.status, 404);
}

#[tokio::test]
async fn a_deleted_response_can_still_be_behind_a_later_one() {
    let server = Setup::says("Hello").start().await;
    let first = respond(&server, json!({})).await.ok();
    let second = respond(&server, json!({"previous_response_id": first["id"]})).await.ok();
    delete(&server, &format!("{PATH}/{}", first["id"].as_str().unwrap())).await.ok();
    let third = respond(&server, json!({"previous_response_id": second["id"]})).await.ok();
    let items = format!("{PATH}/{}/input_items", third["id"].as_str().unwrap());
    assert_eq!(server.get(&items).await.ok()["data"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn only_so_many_responses_are_kept() {
    let setup = Setup::says("Hello").limited(|config| config.limits.kept_responses = 2);
    let server = setup.start().await;
    let mut paths = Vec::new();
    for _ in 0..3 {
        let response = respond(&server, json!({})).await.ok();
        paths.push(format!("{PATH}/{}", response["id"].as_str().unwrap()));
    }
    let mut statuses = Vec::new();
    for path in &paths {
        statuses.push(server.get(path).await.status.as_u16());
    }
    assert_eq!(statuses, [404, 200, 200]);
}

#[tokio::test]
async fn input_items_are_listed_in_pages() {
    let server = Setup::says("Hello").start().await;
    let input = json!([
        {"id": "m1", "role": "user", "content": "Hello"},
        {"id": "m2", "role": "assistant", "content": " world"},
        {"id": "m3", "role": "user", "content": " end"},
    ]);
    let response = respond(&server, json!({"input": input})).await.ok();
    let path = format!("{PATH}/{}/input_items", response["id"].as_str().unwrap());
    for (query, ids, has_more) in [
        ("", vec!["m3", "m2", "m1"], false),
        ("?order=asc", vec!["m1", "m2", "m3"], false),
        ("?order=asc&limit=2", vec!["m1", "m2"], true),
        ("?limit=2&after=m3", vec!["m2", "m1"], false),
        ("?after=m1", vec![], false),
    ] {
        let list = server.get(&format!("{path}{query}")).await.ok();
        let data = list["data"].as_array().unwrap();
        let found: Vec<&str> = data.iter().map(|item| item["id"].as_str().unwrap()).collect();
        assert_eq!((found, &list["has_more"]), (ids.clone(), &json!(has_more)), "{query}");
        assert_eq!(list["first_id"], json!(ids.first()));
    }
    for (query, param) in [
        ("?limit=0", "limit"),
        ("?limit=x", "query"),
        ("?order=up", "order"),
        ("?after=m9", "after"),
    ] {
        let reply = server.get(&format!("{path}{query}")).await;
        assert_eq!((reply.status.as_u16(), &reply.error()["param"]), (400, &json!(param)));
    }
}

/// A request and what is said of it, for people.
fn refusal(more: &Value, error: &Value) -> String {
    let message = error["message"].as_str().unwrap();
    let shown: String = more.to_string().chars().take(100).collect();
    format!("{shown}\n  {}\n", message.replace('\n', "\n  "))
}

#[tokio::test]
async fn what_a_response_cannot_be_is_refused_by_name() {
    let server = Setup::says("Hello").start().await;
    let (unsupported, wrong) = ("unsupported_parameter", "invalid_value");
    let not_found = "previous_response_not_found";
    let image =
        json!([{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]);
    let item = |item: Value| json!({"input": [item]});
    let call = json!({"type": "function_call", "call_id": "x", "name": "sum"});
    let output = json!({"type": "function_call_output", "call_id": "x", "output": "5"});
    let named = json!({"type": "function", "name": "other"});
    let odd = json!({"type": "json_schema", "name": "x", "schema": {"not": {}}});
    let cases = [
        (json!({"input": null}), "input", "missing_required_parameter"),
        (json!({"input": []}), "input", "empty_value"),
        (json!({"input": 5}), "input", "invalid_type"),
        (json!({"input": [5]}), "input[0]", "invalid_type"),
        (
            json!({"input": vec![json!({"role": "user", "content": "x"}); 4097]}),
            "input",
            "too_many_entries",
        ),
        (item(json!({"role": "pope", "content": "x"})), "input[0].role", "invalid_type"),
        (item(json!({"role": "tool", "content": "x"})), "input[0].role", wrong),
        (item(json!({"role": "user"})), "input[0]", "invalid_type"),
        (item(json!({"content": "x"})), "input[0]", "invalid_type"),
        (json!({"input": image}), "input[0].content[0]", unsupported),
        (
            item(json!({"role": "user", "content": [{"type": "input_text"}]})),
            "input[0].content[0]",
            "invalid_type",
        ),
        (item(call), "input[0]", "invalid_type"),
        (item(output), "input[0].call_id", wrong),
        (item(json!({"type": "item_reference", "id": "x"})), "input[0]", unsupported),
        (json!({"input": "Hello".repeat(300)}), "input", "context_length_exceeded"),
        (json!({"input": "forbidden"}), "input", "invalid_prompt"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0]", unsupported),
        (json!({"tools": [{"type": "function"}]}), "tools[0].name", "empty_value"),
        (json!({"tools": tools(), "tool_choice": "maybe"}), "tool_choice", wrong),
        (json!({"tools": tools(), "tool_choice": named}), "tool_choice", wrong),
        (
            json!({"tools": tools(), "tool_choice": {"type": "file_search"}}),
            "tool_choice",
            unsupported,
        ),
        (json!({"tool_choice": "required"}), "tool_choice", wrong),
        (json!({"max_output_tokens": 0}), "max_output_tokens", wrong),
        (json!({"temperature": 3}), "temperature", wrong),
        (json!({"top_logprobs": 21}), "top_logprobs", wrong),
        (json!({"background": true}), "background", unsupported),
        (json!({"return_token_ids": true}), "return_token_ids", unsupported),
        (json!({"conversation": "conv_1"}), "conversation", unsupported),
        (json!({"prompt": {"id": "pmpt_1"}}), "prompt", unsupported),
        (json!({"truncation": "auto"}), "truncation", unsupported),
        (json!({"text": {"format": {"type": "poem"}}}), "text.format.type", wrong),
        (json!({"text": {"format": odd}}), "text.format.schema", "invalid_schema"),
        (json!({"metadata": {"a": 1}}), "metadata.a", "invalid_type"),
        (json!({"previous_response_id": "resp_0"}), "previous_response_id", not_found),
    ];
    let mut messages = String::new();
    for (more, param, code) in cases {
        let reply = respond(&server, more.clone()).await;
        let error = reply.error();
        assert_eq!(reply.status, 400, "{more}: {error}");
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!(code)), "{error}");
        messages.push_str(&refusal(&more, &error));
    }
    insta::assert_snapshot!(messages);
    respond(&server, json!({})).await.ok();
}

#[tokio::test]
async fn what_is_passed_over_is_noted() {
    let server = Setup::says("Hello").start().await;
    let options = json!({
        "text": {"format": {"type": "text"}, "verbosity": "low"}, "tool_choice": "auto",
        "include": ["reasoning.encrypted_content"], "service_tier": "auto", "user": "me",
        "safety_identifier": "x", "prompt_cache_key": "x", "truncation": "disabled", "n": 3,
        "stream_options": {"include_obfuscation": false}, "background": false, "store": null,
    });
    let reply = respond(&server, options).await;
    reply.ok();
    let notes: Vec<_> = reply.headers.get_all("x-jackalope-note").iter().collect();
    assert_eq!(notes, ["text.verbosity is ignored", "include is ignored except for logprobs"]);
    let reply = respond(&server, json!({})).await;
    assert!(reply.headers.get("x-jackalope-note").is_none());
}

#[tokio::test]
async fn a_failure_within_a_stream_ends_it() {
    let setup = Setup::babbles().engine(|config| {
        config.retry.standstill_max = Duration::from_millis(10);
    });
    let server = setup.start().await;
    server.control.order(FakeOrder::Pace(Duration::from_millis(20)));
    let body = json!({"model": MODEL, "input": "Hello", "stream": true});
    let mut live = server.open(post(PATH, body.to_string())).await;
    live.read_until("response.output_text.delta").await;
    server.control.order(FakeOrder::CrashAgain { rank: 1, attempts: 4 });
    while live.next_frame().await.is_some() {}
    let reply = Reply { status: live.status, headers: live.headers, body: live.seen };
    let events = events(&reply);
    let [.., error, failed] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("rank_failed")));
    assert_eq!(failed["response"]["status"], "failed");
    assert_eq!(failed["response"]["error"]["code"], "server_error");
    assert_eq!(failed["response"]["error"]["message"], error["message"]);
}
