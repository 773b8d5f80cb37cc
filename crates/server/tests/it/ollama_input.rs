//! Whatever a client of Ollama's API sends, it gets an error in the API's own words.

use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::{Value, json};

use crate::ollama::{CHAT, GENERATE, body};
use crate::support::{MODEL, Server, Setup};

/// Returns the error for each body, which is refused with status 400.
async fn refusals(server: &Server, path: &str, cases: &[Value]) -> String {
    let mut errors = format!("{path}\n");
    for more in cases {
        let reply = server.post(path, &body(path, more)).await;
        let answer: Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(reply.status, 400, "{more}: {answer}");
        assert_eq!(answer.as_object().unwrap().len(), 1);
        let message = answer["error"].as_str().unwrap();
        let shown: String = more.to_string().chars().take(120).collect();
        errors.push_str(&format!("{shown}\n  {}\n", message.replace('\n', "\n  ")));
    }
    let mut alive = body(CHAT, &json!({"stream": false}));
    alive["model"] = MODEL.into();
    assert_eq!(server.post(CHAT, &alive).await.ok()["message"]["content"], "Hello");
    errors
}

#[tokio::test]
async fn options_are_refused_by_their_path() {
    let server = Setup::says("Hello").start().await;
    let option = |name: &str, value: Value| json!({"options": {name: value}});
    let cases = [
        json!({"options": []}),
        option("temperature", json!("hot")),
        option("temperature", json!(-1)),
        option("top_p", json!(2)),
        option("top_k", json!(-2)),
        option("top_k", json!("all")),
        option("min_p", json!(1.5)),
        option("num_predict", json!("x")),
        option("num_predict", json!(1.5)),
        option("num_predict", json!(1_u64 << 40)),
        option("repeat_penalty", json!(0)),
        option("repeat_last_n", json!(-2)),
        option("presence_penalty", json!(3)),
        option("frequency_penalty", json!(-3)),
        option("seed", json!("x")),
        option("stop", json!(5)),
        option("stop", json!([""])),
        option("stop", json!(["x", 5])),
        option("stop", json!(vec!["x"; 17])),
        option("typical_p", json!(0.5)),
        option("tfs_z", json!(2)),
        option("mirostat", json!(1)),
        json!({"stream": "yes"}),
        json!({"format": "yaml"}),
        json!({"format": {"not": {}}}),
        json!({"keep_alive": "soon"}),
        json!({"keep_alive": [5]}),
        json!({"think": "deeply"}),
        json!({"think": 5}),
        json!({"top_logprobs": 2}),
        json!({"logprobs": true, "top_logprobs": 21}),
    ];
    let mut errors = String::new();
    for path in [CHAT, GENERATE] {
        errors = refusals(&server, path, &cases).await;
    }
    insta::assert_snapshot!(errors);
}

#[tokio::test]
async fn requests_are_refused_with_the_place() {
    let server = Setup::says("Hello").start().await;
    let message = |message: Value| json!({"messages": [{"role": "user", "content": "x"}, message]});
    let chats = [
        json!({"messages": "Hello"}),
        json!({"messages": vec![json!({"role": "user", "content": "x"}); 4097]}),
        json!({"messages": [{"role": "user", "content": "forbidden"}]}),
        json!({"messages": [{"role": "user", "content": "Hello".repeat(300)}]}),
        message(json!(5)),
        message(json!({"content": "x"})),
        message(json!({"role": "pope", "content": "x"})),
        message(json!({"role": "user", "content": [{"type": "text", "text": "x"}]})),
        message(json!({"role": "user", "content": "x", "images": ["AAAA"]})),
        message(json!({"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]})),
        message(
            json!({"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": "{}"}}]}),
        ),
        json!({"tools": [5]}),
        json!({"tools": [{"type": "function"}]}),
        json!({"tools": [{"type": "browser", "function": {"name": "x"}}]}),
        json!({"tools": [{"type": "function", "function": {"name": ""}}]}),
        json!({"tools": vec![json!({"function": {"name": "x"}}); 129]}),
    ];
    let prompts = [
        json!({"prompt": 5}),
        json!({"prompt": "forbidden"}),
        json!({"prompt": "Hello".repeat(300)}),
        json!({"raw": true, "system": "Be kind."}),
        json!({"suffix": "the end"}),
        json!({"template": "{{ .Prompt }}"}),
        json!({"context": [1, 2, 3]}),
        json!({"images": ["AAAA"]}),
    ];
    let errors = [
        refusals(&server, CHAT, &chats).await,
        refusals(&server, GENERATE, &prompts).await,
        refusals(
            &server,
            "/api/embed",
            &[
                json!({"input": ["x", ""]}),
                json!({"input": "x", "dimensions": 0}),
                json!({"input": 5}),
            ],
        )
        .await,
        refusals(&server, "/api/embeddings", &[json!({"prompt": 5})]).await,
        refusals(&server, "/api/pull", &[json!({"model": "org/other"}), json!({"model": null})])
            .await,
        refusals(
            &server,
            "/api/copy",
            &[json!({}), json!({"source": MODEL}), json!({"source": MODEL, "destination": "x"})],
        )
        .await,
        refusals(&server, "/api/create", &[json!({"from": MODEL})]).await,
        refusals(&server, "/api/push", &[json!({})]).await,
        refusals(&server, "/api/blobs/sha256:ab", &[json!({})]).await,
    ];
    insta::assert_snapshot!(errors.join("\n"));
}

#[tokio::test]
async fn missing_things_are_reported_in_the_words_that_clients_know() {
    let server = Setup::says("Hello").start().await;
    for path in [CHAT, GENERATE, "/api/show", "/api/embed", "/api/copy"] {
        let mut body = body(path, &json!({"source": "llama3", "destination": "x"}));
        body["model"] = "llama3".into();
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status, 404, "{path}: {}", reply.body);
        let error: Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(
            error,
            json!({"error": format!("model 'llama3' not found\nhint: this server serves {MODEL}; its option `--alias NAME=MODEL` adds names")})
        );
    }
    let delete = async |name: &str| {
        let request = Request::builder().method(Method::DELETE).uri("/api/delete");
        let request = request.header("content-type", "application/json");
        let body = Body::from(json!({"model": name}).to_string());
        server.send(request.body(body).unwrap()).await
    };
    assert_eq!(delete("llama3").await.status, 404);
    let served = delete(MODEL).await;
    assert_eq!(served.status, 400);
    assert!(served.body.contains("jackalope models rm org/fake"), "{}", served.body);
    let unknown = server.get("/api/nothing").await;
    assert_eq!(
        (unknown.status.as_u16(), unknown.body.as_str()),
        (404, "{\"error\":\"there is no /api/nothing here\"}")
    );
    let wrong = server.get(CHAT).await;
    assert_eq!((wrong.status.as_u16(), &wrong.headers["allow"]), (405, &"POST".parse().unwrap()));
    let wrong = server.get("/api/delete").await;
    assert_eq!((wrong.status.as_u16(), &wrong.headers["allow"]), (405, &"DELETE".parse().unwrap()));
}

/// Programs such as curl may omit or mislabel the content type; browsers must declare JSON.
#[tokio::test]
async fn programs_need_no_content_type_and_pages_do() {
    let server = Setup::says("Hello").start().await;
    let form = "application/x-www-form-urlencoded";
    for (path, content_type, browser, status) in [
        (CHAT, None, None, 200),
        (GENERATE, None, None, 200),
        (GENERATE, Some(form), None, 200),
        (GENERATE, Some("text/plain"), None, 415),
        (GENERATE, Some("multipart/form-data; boundary=x"), None, 415),
        (GENERATE, None, Some(("origin", "null")), 415),
        (GENERATE, Some(form), Some(("sec-fetch-site", "cross-site")), 415),
        (GENERATE, None, Some(("sec-fetch-mode", "no-cors")), 415),
    ] {
        let mut request = Request::builder().method(Method::POST).uri(path);
        for (name, value) in content_type.map(|it| ("content-type", it)).into_iter().chain(browser)
        {
            request = request.header(name, value);
        }
        let body = body(path, &json!({"stream": false})).to_string();
        let reply = server.send(request.body(Body::from(body)).unwrap()).await;
        assert_eq!(reply.status, status, "{path} {content_type:?} {browser:?}: {}", reply.body);
    }
}

/// A request cannot unload the only model.
#[tokio::test]
async fn the_only_model_stays_whatever_a_request_says_of_keeping_it() {
    let server = Setup::says("Hello").start().await;
    let nothing = [
        (CHAT, json!({"messages": [], "keep_alive": 0})),
        (GENERATE, json!({"prompt": "", "keep_alive": "0s"})),
    ];
    for (path, more) in nothing {
        let mut request = body(path, &more);
        request["stream"] = false.into();
        let reply = server.post(path, &request).await.ok();
        assert_eq!(reply["done"], true, "{reply}");
    }
    for keep_alive in [json!(0), json!("1s"), json!("1ns"), json!(-1)] {
        for path in [CHAT, GENERATE] {
            let request = body(path, &json!({"keep_alive": keep_alive, "stream": false}));
            assert_eq!(server.post(path, &request).await.status, 200, "{keep_alive}");
        }
    }
}
