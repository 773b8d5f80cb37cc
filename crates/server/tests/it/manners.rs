//! What is refused before a body is read, and what errors say of long or doubled names.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Server, Setup, chat_body, merge, post};

const CHAT: &str = "/v1/chat/completions";

/// The answer to raw bytes on a connection of their own.
async fn answer_to(server: &Server, request: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = jackalope_server::serve(listener, server.state.clone(), std::future::pending());
    let asking = async {
        let mut socket = TcpStream::connect(addr).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answer
    };
    tokio::select! {
        () = serving => unreachable!("it goes on"),
        answer = asking => answer,
    }
}

#[tokio::test]
async fn a_request_names_its_host_exactly_once() {
    let server = Setup::says("Hello").start().await;
    for (head, status, said) in [
        ("GET /version HTTP/1.1\r\nhost: a\r\n", "200 OK", ""),
        ("GET /version HTTP/1.0\r\n", "200 OK", ""),
        ("GET /version HTTP/1.1\r\n", "400 Bad Request", "exactly one Host header"),
        ("GET /version HTTP/1.1\r\nhost: a\r\nHost: b\r\n", "400 Bad Request", "this one has 2"),
        ("GET /version HTTP/1.0\r\nhost: a\r\nhost: a\r\n", "400 Bad Request", "this one has 2"),
    ] {
        let answer = answer_to(&server, &format!("{head}connection: close\r\n\r\n")).await;
        let first = answer.lines().next().unwrap();
        assert!(first.contains(status) && answer.contains(said), "{head}: {answer}");
    }
}

#[tokio::test]
async fn a_compressed_body_is_refused_by_its_encoding() {
    let server = Setup::says("Hello").start().await;
    for (encoding, is_taken) in [("gzip", false), ("br", false), ("identity", true)] {
        let mut request = post(CHAT, chat_body(json!({})).to_string());
        request.headers_mut().insert("content-encoding", encoding.parse().unwrap());
        let reply = server.send(request).await;
        if is_taken {
            reply.ok();
            continue;
        }
        assert_eq!(reply.status, 415, "{encoding}: {}", reply.body);
        let error = reply.error();
        assert_eq!(error["code"], "unsupported_encoding");
        assert!(error["message"].as_str().unwrap().contains(encoding), "{error}");
    }
}

#[tokio::test]
async fn long_names_are_cut_in_errors() {
    let server = Setup::says("Hello").start().await;
    let long = "m".repeat(100_000);
    let reply = server.post(CHAT, &chat_body(json!({ "model": long }))).await;
    assert_eq!(reply.status, 404);
    assert!(reply.body.len() < 2000, "{} bytes", reply.body.len());
    let reply = server.post(CHAT, &chat_body(json!({"tool_choice": long}))).await;
    assert_eq!(reply.status, 400);
    assert!(reply.body.len() < 2000, "{} bytes", reply.body.len());
    let reply = server.post("/api/chat", &json!({ "model": long, "messages": [] })).await;
    assert!(reply.body.len() < 2000, "{} bytes", reply.body.len());
}

#[tokio::test]
async fn a_key_that_occurs_twice_is_named() {
    let server = Setup::says("Hello").start().await;
    for (body, param) in [
        (r#"{"model": "x", "model": "y", "messages": []}"#, "model"),
        (r#"{"messages": [{"role": "user", "content": "x", "role": "user"}]}"#, "messages[0].role"),
    ] {
        let request = Request::post(CHAT).header("content-type", "application/json");
        let reply = server.send(request.body(Body::from(body)).unwrap()).await;
        assert_eq!(reply.status, 400, "{}", reply.body);
        let error = reply.error();
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains("twice"), "{error}");
    }
}

#[tokio::test]
async fn errors_have_no_names_of_our_types() {
    let server = Setup::says("Hello").start().await;
    for more in [
        json!({"response_format": {"type": "json_schema", "json_schema": "text"}}),
        json!({"response_format": {"type": "json_schema", "json_schema": []}}),
        json!({"stream_options": "x"}),
        json!({"guided_json": {"$ref": "#"}}),
        json!({"guided_grammar": "start: start"}),
    ] {
        let reply = server.post(CHAT, &chat_body(more.clone())).await;
        assert_eq!(reply.status, 400, "{more}: {}", reply.body);
        for name in ["struct", "NamedSchema", "NoExtensionBias", "StopReason", "ParserTooComplex"] {
            assert!(!reply.body.contains(name), "{more}: {}", reply.body);
        }
    }
}

fn tools(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"type": "function", "function": {"name": name}})).collect()
}

#[tokio::test]
async fn names_of_tools_are_checked_in_every_protocol() {
    let server = Setup::says("Hello").start().await;
    let long = "n".repeat(129);
    for (names, param) in [
        (&["a", "b", "a"][..], "tools[2]"),
        (&["a b"], "tools[0]"),
        (&["a", "<|im_end|>"], "tools[1]"),
        (&[""], "tools[0]"),
        (&[&*long], "tools[0]"),
    ] {
        let reply = server.post(CHAT, &chat_body(json!({"tools": tools(names)}))).await;
        assert_eq!(reply.status, 400, "{names:?}: {}", reply.body);
        assert_eq!(reply.error()["param"], format!("{param}.function.name"));
        let flat: Value = names.iter().map(|it| json!({"type": "function", "name": it})).collect();
        let reply = server.post("/v1/responses", &json!({"input": "x", "tools": flat})).await;
        assert_eq!(reply.error()["param"], format!("{param}.name"), "{}", reply.body);
        let theirs: Value =
            names.iter().map(|it| json!({"name": it, "input_schema": {}})).collect();
        let body = json!({
            "max_tokens": 4, "messages": [{"role": "user", "content": "x"}], "tools": theirs,
        });
        let reply = server.post("/v1/messages", &body).await;
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert!(reply.body.contains(&format!("{param}.name")), "{}", reply.body);
        let body = json!({"messages": [{"role": "user", "content": "x"}], "tools": tools(names)});
        let reply = server.post("/api/chat", &body).await;
        assert_eq!(reply.status, 400, "{}", reply.body);
    }
}

#[tokio::test]
async fn only_allowed_tools_are_given_to_the_model() {
    let setup = Setup { context_tokens: 1024, ..Setup::says("Hello") };
    let server = setup.start().await;
    let choice = |mode: &str, names: &[&str]| json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools(names)}});
    let with = |choice: Value| json!({"tools": tools(&["sum", "product"]), "tool_choice": choice});
    let usage = async |more: Value| {
        server.chat(more).await.ok()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let alone = usage(json!({"tools": tools(&["sum"])})).await;
    assert_eq!(usage(with(choice("auto", &["sum"]))).await, alone);
    assert!(alone < usage(with(json!("auto"))).await);
    for wrong in [choice("sometimes", &["sum"]), choice("auto", &[]), choice("auto", &["other"])] {
        let reply = server.chat(with(wrong.clone())).await;
        assert_eq!(reply.status, 400, "{wrong}: {}", reply.body);
        assert_eq!(reply.error()["param"], "tool_choice");
    }
    let flat = json!([{"type": "function", "name": "sum"}, {"type": "function", "name": "other"}]);
    let allowed = json!({
        "type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "sum"}],
    });
    let body = json!({"input": "x", "tools": flat, "tool_choice": allowed});
    let told = server.post("/v1/responses", &body).await.ok();
    assert_eq!(told["tool_choice"], allowed);
    let unknown = merge(allowed, json!({"tools": [{"type": "function", "name": "x"}]}));
    let reply = server.post("/v1/responses", &merge(body, json!({"tool_choice": unknown}))).await;
    assert_eq!(reply.status, 400, "{}", reply.body);
}

#[tokio::test]
async fn a_budget_of_thought_leaves_tokens_for_the_answer() {
    let server = Setup::says("Hello").start().await;
    let body = |max_tokens: u32| {
        json!({
            "max_tokens": max_tokens, "messages": [{"role": "user", "content": "x"}],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        })
    };
    for max_tokens in [512, 1024] {
        let reply = server.post("/v1/messages", &body(max_tokens)).await;
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert!(reply.body.contains("less than max_tokens"), "{}", reply.body);
    }
    server.post("/v1/messages", &body(1025)).await.ok();
}
