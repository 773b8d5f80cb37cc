//! Whatever a client sends, it gets an error that says what is wrong, and the server lives.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Request};
use serde_json::{Value, json};

use crate::support::{Server, Setup, chat_body, completion_body, post};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// The next request is answered.
async fn check_alive(server: &Server) {
    let answer = server.chat(json!({})).await.ok();
    assert_eq!(answer["choices"][0]["message"]["content"], "Hello");
    server.until("nothing runs", |status| status.running == 0 && status.queued == 0).await;
}

/// Each body is refused with this status, parameter and code; the messages are for people to read.
async fn check_all(path: &str, cases: &[(Value, &str, &str)]) -> String {
    let server = Setup::says("Hello").start().await;
    let mut told = String::new();
    for (more, param, code) in cases {
        let body =
            if path == CHAT { chat_body(more.clone()) } else { completion_body(more.clone()) };
        let reply = server.post(path, &body).await;
        let error = reply.error();
        assert_eq!(reply.status, 400, "{more}: {error}");
        assert_eq!(
            (&error["param"], &error["code"]),
            (&json!(param), &json!(code)),
            "{more}: {error}"
        );
        assert_eq!(error["type"], "invalid_request_error");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains(param.split('[').next().unwrap())
                || code.contains("context")
                || code.contains("prompt"),
            "{error}"
        );
        let shown = more.to_string();
        let shown: String = shown.chars().take(100).collect();
        told.push_str(&format!("{shown}\n  {}\n", message.replace('\n', "\n  ")));
    }
    check_alive(&server).await;
    told
}

#[tokio::test]
async fn numbers_out_of_range_are_refused_by_name() {
    let cases = [
        (json!({"temperature": -0.1}), "temperature", "invalid_value"),
        (json!({"temperature": 2.01}), "temperature", "invalid_value"),
        (json!({"temperature": 1e300}), "temperature", "invalid_value"),
        (json!({"top_p": 1.5}), "top_p", "invalid_value"),
        (json!({"top_p": -1}), "top_p", "invalid_value"),
        (json!({"min_p": 2}), "min_p", "invalid_value"),
        (json!({"top_k": -2}), "top_k", "invalid_value"),
        (json!({"top_k": 1e10 as u64}), "top_k", "invalid_value"),
        (json!({"repetition_penalty": 0}), "repetition_penalty", "invalid_value"),
        (json!({"repetition_penalty": 11}), "repetition_penalty", "invalid_value"),
        (json!({"presence_penalty": 2.5}), "presence_penalty", "invalid_value"),
        (json!({"frequency_penalty": -2.5}), "frequency_penalty", "invalid_value"),
        (json!({"max_tokens": 0}), "max_tokens", "invalid_value"),
        (json!({"max_tokens": -1}), "max_tokens", "invalid_type"),
        (json!({"max_tokens": u64::MAX}), "max_tokens", "invalid_type"),
        (json!({"max_tokens": 1e30}), "max_tokens", "invalid_type"),
        (json!({"max_completion_tokens": 0}), "max_completion_tokens", "invalid_value"),
        (json!({"n": 0}), "n", "invalid_value"),
        (json!({"n": 17}), "n", "invalid_value"),
        (json!({"n": 4_294_967_296_u64}), "n", "invalid_type"),
        (json!({"seed": 1e30}), "seed", "invalid_type"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs", "invalid_value"),
        (json!({"top_logprobs": 2}), "top_logprobs", "invalid_value"),
        (json!({"logit_bias": {"5": 101}}), "logit_bias.5", "invalid_value"),
        (json!({"logit_bias": {"Hello": 1}}), "logit_bias", "invalid_value"),
        (json!({"logit_bias": {"-5": 1}}), "logit_bias", "invalid_value"),
        (json!({"logit_bias": {"99999": 1}}), "logit_bias", "invalid_value"),
        (json!({"stop_token_ids": [99999]}), "stop_token_ids", "invalid_value"),
        (json!({"stop": ""}), "stop[0]", "empty_value"),
        (json!({"stop": vec!["x"; 17]}), "stop", "too_many_entries"),
        (json!({"stop": "x".repeat(1025)}), "stop[0]", "invalid_value"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options", "invalid_value"),
    ];
    insta::assert_snapshot!(check_all(CHAT, &cases).await);
}

#[tokio::test]
async fn wrong_types_are_refused_with_the_path_of_the_field() {
    let message = |message: Value| json!({"messages": [{"role": "user", "content": "x"}, message]});
    let cases = [
        (json!({"temperature": "hot"}), "temperature", "invalid_type"),
        (json!({"model": 5}), "model", "invalid_type"),
        (json!({"stream": "yes"}), "stream", "invalid_type"),
        (json!({"stop": 5}), "stop", "invalid_type"),
        (json!({"stop": ["x", 5]}), "stop[1]", "invalid_type"),
        (json!({"logit_bias": [1]}), "logit_bias", "invalid_type"),
        (json!({"logit_bias": {"5": "x"}}), "logit_bias.5", "invalid_type"),
        (
            json!({"stream_options": {"include_usage": 1}}),
            "stream_options.include_usage",
            "invalid_type",
        ),
        (json!({"messages": "hello"}), "messages", "invalid_type"),
        (json!({"messages": [5]}), "messages[0]", "invalid_type"),
        (message(json!({"content": "x"})), "messages[1]", "invalid_type"),
        (message(json!({"role": "pope", "content": "x"})), "messages[1].role", "invalid_type"),
        (message(json!({"role": "user", "content": 5})), "messages[1].content", "invalid_type"),
        (
            message(json!({"role": "user", "content": [{"text": "x"}]})),
            "messages[1].content[0]",
            "invalid_type",
        ),
        (
            message(json!({"role": "user", "content": [{"type": "text"}]})),
            "messages[1].content[0]",
            "invalid_type",
        ),
        (
            message(json!({"role": "assistant", "tool_calls": [{"id": 1}]})),
            "messages[1].tool_calls[0].id",
            "invalid_type",
        ),
        (json!({"tools": [5]}), "tools[0]", "invalid_type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0]", "invalid_type"),
        (json!({"tools": [{"type": "browser"}]}), "tools[0].type", "invalid_value"),
        (
            json!({"tools": [{"type": "function", "function": {"name": ""}}]}),
            "tools[0].function.name",
            "empty_value",
        ),
        (json!({"chat_template_kwargs": []}), "chat_template_kwargs", "invalid_type"),
    ];
    insta::assert_snapshot!(check_all(CHAT, &cases).await);
}

#[tokio::test]
async fn what_is_not_supported_is_refused_by_name() {
    let image = json!({"type": "image_url", "image_url": {"url": "data:,"}});
    let tool = json!({"type": "function", "function": {"name": "sum"}});
    let unsupported = "unsupported_parameter";
    let cases = [
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, image]}]}),
            "messages[0].content[1]",
            unsupported,
        ),
        (json!({"response_format": {"type": "xml"}}), "response_format.type", "invalid_value"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}}),
            "response_format.json_schema.schema",
            "invalid_schema",
        ),
        (json!({"guided_json": {"uniqueItems": true}}), "guided_json", "invalid_schema"),
        (
            json!({"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "other"}}}),
            "tool_choice",
            "invalid_value",
        ),
        (json!({"tool_choice": "required"}), "tool_choice", "invalid_value"),
        (json!({"tools": [tool], "tool_choice": "maybe"}), "tool_choice", "invalid_value"),
        (json!({"tool_choice": "auto"}), "tool_choice", "invalid_value"),
        (json!({"functions": [{"name": "sum"}], "tools": [tool]}), "functions", "invalid_value"),
        (json!({"functions": {"name": "sum"}}), "functions", "invalid_type"),
        (json!({"function_call": {"name": "sum"}}), "function_call", "invalid_value"),
        (json!({"modalities": ["text", "audio"]}), "modalities", unsupported),
        (json!({"min_tokens": 99999}), "min_tokens", "invalid_value"),
        (json!({"chat_template": "{{ messages }}"}), "chat_template", unsupported),
        (json!({"truncate_prompt_tokens": 0}), "truncate_prompt_tokens", "invalid_value"),
        (json!({"truncate_prompt_tokens": -2}), "truncate_prompt_tokens", "invalid_value"),
        (json!({"continue_final_message": true}), "messages[0]", "invalid_value"),
        (
            json!({"continue_final_message": true, "add_generation_prompt": true}),
            "continue_final_message",
            "invalid_value",
        ),
        (
            json!({"chat_template_kwargs": {"messages": []}}),
            "chat_template_kwargs.messages",
            "invalid_prompt",
        ),
    ];
    insta::assert_snapshot!(check_all(CHAT, &cases).await);
}

#[tokio::test]
async fn fields_of_other_servers_are_refused_with_the_name_here() {
    let server = Setup::says("Hello").start().await;
    let schema = json!({"type": "object"});
    let cases = [
        (json!({"json_schema": schema}), "json_schema", "response_format"),
        (json!({"format": "json"}), "format", "response_format"),
        (json!({"system": "Be kind."}), "system", "a message"),
        (json!({"stop_sequences": ["\n"]}), "stop_sequences", "stop"),
        (json!({"n_predict": 7}), "n_predict", "max_tokens"),
        (json!({"max_new_tokens": 7}), "max_new_tokens", "max_tokens"),
        (json!({"min_new_tokens": 7}), "min_new_tokens", "min_tokens"),
    ];
    for (body, param, ours) in cases {
        let reply = server.chat(body).await;
        let error = reply.error();
        assert_eq!((reply.status.as_u16(), &error["param"]), (400, &json!(param)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(ours), "{error}");
    }
    let harmless = json!({
        "json_schema": null, "format": "", "n_predict": -1, "min_new_tokens": 0, "stop_sequences": [],
    });
    server.chat(harmless).await.ok();
}

#[tokio::test]
async fn empty_and_unknown_fields_are_ignored() {
    let server = Setup::says("Hello").start().await;
    let harmless = json!({
        "response_format": {"type": "text"}, "functions": [], "function_call": "none",
        "modalities": ["text"], "min_tokens": 0, "use_beam_search": false, "length_penalty": 1.0,
        "skip_special_tokens": true, "guided_json": null, "tools": [], "user": "me", "store": false,
        "metadata": {"a": "b"}, "service_tier": "auto", "invented": [1, {"x": 2}], "stop": null,
        "stop_token_ids": null, "logit_bias": null, "temperature": null, "top_p": 0, "top_k": -1,
    });
    assert_eq!(server.chat(harmless).await.ok()["choices"][0]["message"]["content"], "Hello");
}

#[tokio::test]
async fn impossible_conversations_are_refused() {
    let say = |content: &str| json!([{"role": "user", "content": content}]);
    let many: Vec<Value> = vec![json!({"role": "user", "content": "x"}); 4097];
    let cases = [
        (json!({"messages": null}), "messages", "missing_required_parameter"),
        (json!({"messages": []}), "messages", "empty_value"),
        (json!({"messages": many}), "messages", "too_many_entries"),
        (json!({"messages": say("forbidden")}), "messages", "invalid_prompt"),
        (json!({"messages": say(&"Hello".repeat(300))}), "messages", "context_length_exceeded"),
        (
            json!({"tools": vec![json!({"type": "function", "function": {"name": "x"}}); 129]}),
            "tools",
            "too_many_entries",
        ),
    ];
    insta::assert_snapshot!(check_all(CHAT, &cases).await);
}

#[tokio::test]
async fn impossible_completions_are_refused() {
    let cases = [
        (json!({"prompt": null}), "prompt", "missing_required_parameter"),
        (json!({"prompt": ""}), "prompt", "empty_value"),
        (json!({"prompt": []}), "prompt", "empty_value"),
        (json!({"prompt": [""]}), "prompt", "empty_value"),
        (json!({"prompt": [[]]}), "prompt", "empty_value"),
        (json!({"prompt": ["x", [1]]}), "prompt", "invalid_type"),
        (json!({"prompt": [1, "x"]}), "prompt", "invalid_type"),
        (json!({"prompt": [1.5]}), "prompt[0]", "invalid_type"),
        (json!({"prompt": [-1]}), "prompt[0]", "invalid_type"),
        (json!({"prompt": [[1, "x"]]}), "prompt[0][1]", "invalid_type"),
        (json!({"prompt": {"text": "x"}}), "prompt", "invalid_type"),
        (json!({"prompt": [99999]}), "prompt", "invalid_value"),
        (json!({"prompt": vec!["x"; 65]}), "prompt", "too_many_entries"),
        (json!({"prompt": vec![1; 256]}), "prompt", "context_length_exceeded"),
        (json!({"suffix": "the end"}), "suffix", "unsupported_parameter"),
        (json!({"suffix": "the end", "echo": true}), "suffix", "invalid_value"),
        (json!({"max_tokens": 0}), "max_tokens", "invalid_value"),
        (json!({"logprobs": 21}), "logprobs", "invalid_value"),
        (json!({"logprobs": true}), "logprobs", "invalid_type"),
        (json!({"best_of": 1, "n": 2}), "best_of", "invalid_value"),
        (json!({"best_of": 17}), "best_of", "invalid_value"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type", "invalid_value"),
    ];
    insta::assert_snapshot!(check_all(COMPLETIONS, &cases).await);
}

#[tokio::test]
async fn a_body_that_is_no_request_is_refused_with_the_place() {
    let server = Setup::says("Hello").start().await;
    let deep = "[".repeat(100_000);
    let bodies: [(&[u8], &str); 14] = [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"{\"model\": \"default\",\n \"messages\": [}", "invalid_json"),
        (b"{\"temperature\": NaN}", "invalid_json"),
        (b"{\"temperature\": Infinity}", "invalid_json"),
        (b"{\"temperature\": 1e999}", "invalid_json"),
        (b"{} {}", "invalid_json"),
        (b"{'model': 'x'}", "invalid_json"),
        (b"not json", "invalid_json"),
        (b"[1, 2]", "invalid_type"),
        (b"\"text\"", "invalid_type"),
        (b"null", "invalid_type"),
        (b"{\"model\": \"\xff\xfe\"}", "invalid_utf8"),
        (deep.as_bytes(), "invalid_json"),
    ];
    let mut told = String::new();
    for (body, code) in bodies {
        for path in [CHAT, COMPLETIONS] {
            let reply = server.send(post(path, body.to_vec())).await;
            let error = reply.error();
            assert_eq!((reply.status.as_u16(), &error["code"]), (400, &json!(code)), "{error}");
            if path == CHAT {
                let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
                told.push_str(&format!("{shown:?}\n  {}\n", error["message"].as_str().unwrap()));
            }
        }
    }
    insta::assert_snapshot!(told);
    check_alive(&server).await;
}

#[tokio::test]
async fn a_field_that_is_nested_too_deeply_is_refused() {
    let server = Setup::says("Hello").start().await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for field in ["tools", "chat_template_kwargs", "response_format", "messages", "invented"] {
        let body = chat_body(json!({})).to_string();
        let body = body.replacen('{', &format!("{{\"{field}\": {{\"x\": {deep}}}, "), 1);
        let status = server.send(post(CHAT, body)).await.status;
        assert_eq!(status, if field == "invented" { 200 } else { 400 }, "{field}");
    }
    check_alive(&server).await;
}

#[tokio::test]
async fn only_json_is_taken() {
    let server = Setup::says("Hello").start().await;
    let types = [
        (None, 415),
        (Some("text/plain"), 415),
        (Some("application/x-www-form-urlencoded"), 415),
        (Some("application/json-seq"), 415),
        (Some("application/json"), 200),
        (Some("Application/JSON; charset=utf-8"), 200),
    ];
    for (content_type, status) in types {
        let mut request = Request::builder().method(Method::POST).uri(CHAT);
        if let Some(content_type) = content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        let body = Body::from(chat_body(json!({})).to_string());
        let reply = server.send(request.body(body).unwrap()).await;
        assert_eq!(reply.status, status, "{content_type:?}: {}", reply.body);
        if status == 415 {
            assert_eq!(reply.error()["code"], "not_json");
        }
    }
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let setup = Setup::says("Hello").limited(|config| config.limits.body_bytes = 200);
    let server = setup.start().await;
    let fits = chat_body(json!({"user": ""})).to_string();
    let padded = |bytes: usize| {
        let body = chat_body(json!({"user": "x".repeat(bytes - fits.len())}));
        server.send(post(CHAT, body.to_string()))
    };
    padded(200).await.ok();
    let reply = padded(201).await;
    assert_eq!(reply.status, 413);
    assert_eq!(reply.error()["code"], "body_too_large");
    check_alive(&server).await;
}

#[tokio::test]
async fn wrong_addresses_are_distinguished() {
    let server = Setup::says("Hello").start().await;
    let unknown = server.chat(json!({"model": "gpt-5"})).await;
    assert_eq!(unknown.status, 404);
    let error = unknown.error();
    assert_eq!((&error["param"], &error["code"]), (&json!("model"), &json!("model_not_found")));
    for path in ["/v1/models/gpt-5", "/v1/models/%ff", "/v1/rerank", "//", "/v2/chat/completions"] {
        let reply = server.get(path).await;
        assert_eq!(reply.status, 404, "{path}");
        reply.error();
    }
    for (method, path, allowed) in [
        (Method::GET, CHAT, "POST"),
        (Method::DELETE, COMPLETIONS, "POST"),
        (Method::POST, "/v1/models", "GET, HEAD"),
        (Method::PUT, "/health", "GET, HEAD"),
    ] {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let reply = server.send(request).await;
        assert_eq!(
            (reply.status.as_u16(), &reply.headers["allow"]),
            (405, &allowed.parse().unwrap())
        );
        reply.error();
    }
    check_alive(&server).await;
}

/// The number of bytes alone shows that the text cannot fit, so it is rejected before tokenising.
#[tokio::test]
async fn a_text_that_can_never_fit_is_refused_by_its_bytes() {
    let server = Setup::says("Hello").start().await;
    let text = "Hello world. ".repeat(50_000);
    for (path, body) in [
        (CHAT, json!({"messages": [{"role": "user", "content": text}]})),
        ("/v1/completions", json!({"prompt": text})),
        ("/v1/embeddings", json!({"input": text})),
    ] {
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status, 400, "{path}");
        let error = reply.error();
        assert_eq!(error["code"], "context_length_exceeded", "{path}");
        assert!(error["message"].as_str().unwrap().contains("bytes"), "{path}: {error}");
    }
    let cut = json!({"prompt": text, "truncate_prompt_tokens": 3, "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &cut).await.status, 200);
    check_alive(&server).await;
}

#[tokio::test]
async fn samplers_that_are_not_here_and_misspelled_fields_are_refused_by_name() {
    let server = Setup::says("Hello").start().await;
    for (field, value, hint) in [
        ("mirostat", json!(2), "use top_p, top_k or min_p"),
        ("repeat_penalty", json!(1.2), "use repetition_penalty"),
        ("typical_p", json!(0.9), "use top_p, top_k or min_p"),
        ("xtc_probability", json!(0.5), "use top_p, top_k or min_p"),
        ("dry_multiplier", json!(0.8), "use repetition_penalty"),
        ("max_token", json!(5), "did you mean max_tokens?"),
        ("temprature", json!(0.5), "did you mean temperature?"),
    ] {
        for reply in
            [server.chat(json!({field: value})).await, server.complete(json!({field: value})).await]
        {
            assert_eq!(reply.status, 400, "{field}");
            let error = reply.error();
            assert_eq!(error["param"], field);
            assert!(error["message"].as_str().unwrap().contains(hint), "{error}");
        }
    }
    let off = json!({"repeat_penalty": 1.0, "mirostat": 0, "mirostat_tau": 5, "typical_p": 1.0, "xtc_probability": 0,
        "xtc_threshold": 0.1, "dry_multiplier": 0.0, "dry_base": 1.75, "top_n_sigma": -1});
    assert_eq!(server.chat(off).await.ok()["choices"][0]["message"]["content"], "Hello");
}
