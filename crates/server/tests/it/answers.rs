//! Whole answers, and what goes into the prompt.

use serde_json::{Value, json};

use crate::model;
use crate::support::{MODEL, Setup, end_token};

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}])
}

fn calls(num: usize) -> String {
    let call = |idx| {
        format!("<tool_call>\n{{\"name\": \"sum\", \"arguments\": {{\"a\": {idx}}}}}\n</tool_call>")
    };
    (0..num).map(call).collect()
}

#[tokio::test]
async fn a_chat_reads_like_this() {
    let server = Setup::says("Hello world").start().await;
    let options = json!({"logprobs": true, "top_logprobs": 1, "return_token_ids": true});
    insta::assert_snapshot!(server.chat(options).await.transcript());
}

#[tokio::test]
async fn a_conversation_has_a_name_to_go_on_with() {
    let server = Setup::says("Hello world").start().await;
    let first = server.chat(json!({})).await.ok()["conversation_id"].clone();
    assert_eq!(first.as_str().unwrap().len(), 36, "a UUID: {first}");
    assert_ne!(server.chat(json!({})).await.ok()["conversation_id"], first);
    let second = server.chat(json!({"conversation_id": first})).await.ok();
    assert_eq!(second["conversation_id"], first);
    let chunks = server.chat(json!({"conversation_id": "mine", "stream": true})).await.chunks();
    assert!(chunks.iter().all(|chunk| chunk["conversation_id"] == "mine"), "{chunks:?}");
}

#[tokio::test]
async fn a_chat_with_tool_calls_reads_like_this() {
    let mut setup = Setup::says(&calls(2));
    setup.context_tokens = 1024;
    let server = setup.start().await;
    insta::assert_snapshot!(server.chat(json!({"tools": tools()})).await.transcript());
}

#[tokio::test]
async fn a_completion_reads_like_this() {
    let server = Setup::says(" world again").start().await;
    let options = json!({"logprobs": 2, "echo": true, "return_token_ids": true});
    insta::assert_snapshot!(server.complete(options).await.transcript());
}

#[tokio::test]
async fn the_model_reads_like_this() {
    let server = Setup::says("Hello").start().await;
    let reply = server.get("/v1/models").await;
    insta::assert_snapshot!(reply.transcript());
    let listed = reply.ok()["data"][0].clone();
    for name in [MODEL, "default"] {
        assert_eq!(server.get(&format!("/v1/models/{name}")).await.ok(), listed);
    }
}

#[tokio::test]
async fn every_name_of_the_model_is_answered() {
    let mut setup = Setup::says("Hello");
    setup.aliases.push("gpt-4o".to_owned());
    let server = setup.start().await;
    for name in [json!(MODEL), json!("default"), json!("gpt-4o"), Value::Null] {
        let answer = server.chat(json!({"model": name})).await.ok();
        assert_eq!(answer["model"], MODEL, "{name}");
    }
}

/// The text of the prompt that a chat becomes.
async fn prompt_of(more: Value) -> String {
    let server = Setup::says("Hello").start().await;
    let mut options = more;
    options["return_token_ids"] = true.into();
    let answer = server.chat(options).await.ok();
    let tokens: Vec<u32> =
        serde_json::from_value(answer["choices"][0]["prompt_token_ids"].clone()).unwrap();
    assert_eq!(answer["usage"]["prompt_tokens"], tokens.len());
    server.text.tokenizer.decode(&tokens, false)
}

#[tokio::test]
async fn the_template_gets_what_the_client_sent() {
    let message = |role, content: Value| json!({"role": role, "content": content});
    let parts = json!([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]);
    let messages = json!([
        message("developer", json!("Be kind.")),
        message("user", parts),
        message("assistant", Value::Null),
    ]);
    assert_eq!(
        prompt_of(json!({"messages": messages})).await,
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n\
         <|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n"
    );
    let refused =
        json!([{"type": "refusal", "refusal": "I can"}, {"type": "text", "text": "not."}]);
    let refused = prompt_of(json!({"messages": [message("assistant", refused)]})).await;
    assert!(refused.contains("<|im_start|>assistant\nI cannot.<|im_end|>"), "{refused}");
    let asked = "<|im_start|>user\nHello<|im_end|>\n";
    let answering = "<|im_start|>assistant\n";
    let with_tools = prompt_of(json!({"tools": tools(), "tool_choice": "auto"})).await;
    assert!(with_tools.contains("\"name\": \"sum\""), "{with_tools}");
    assert_eq!(
        prompt_of(json!({"tools": tools(), "tool_choice": "none"})).await,
        format!("{asked}{answering}")
    );
    assert_eq!(prompt_of(json!({"add_generation_prompt": false})).await, asked);
    let kwargs = json!({"chat_template_kwargs": {"mood": "glad"}});
    assert_eq!(prompt_of(kwargs).await, format!("{asked}{answering}(glad)"));
}

#[tokio::test]
async fn whether_a_model_thinks_is_said_by_the_request_else_by_the_server() {
    let prompt_tokens = async |setting: Option<bool>, extra: Value| -> u64 {
        let mut setup = Setup::says("Hello");
        setup.enable_thinking = setting;
        let answer = setup.start().await.chat(extra).await.ok();
        answer["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let usual = prompt_tokens(None, json!({})).await;
    let thinking = prompt_tokens(None, json!({"enable_thinking": true})).await;
    assert!(usual < thinking, "the template says that it is on");
    assert_eq!(prompt_tokens(Some(true), json!({})).await, thinking);
    assert_eq!(prompt_tokens(Some(true), json!({"enable_thinking": false})).await, usual);
    assert_eq!(prompt_tokens(Some(false), json!({})).await, usual);
}

#[tokio::test]
async fn tool_calls_are_looked_for_only_if_tools_were_offered() {
    let mut setup = Setup::says(&calls(2));
    setup.context_tokens = 1024;
    let server = setup.start().await;
    let choice = |answer: Value| answer["choices"][0].clone();
    let plain = choice(server.chat(json!({})).await.ok());
    assert_eq!(plain["message"]["content"], calls(2));
    assert_eq!(plain["finish_reason"], "stop");
    let offered = choice(server.chat(json!({"tools": tools()})).await.ok());
    assert_eq!(offered["message"]["content"], Value::Null);
    assert_eq!(offered["message"]["tool_calls"].as_array().unwrap().len(), 2);
    assert_eq!(offered["finish_reason"], "tool_calls");
    let one = json!({"tools": tools(), "parallel_tool_calls": false});
    let one = choice(server.chat(one).await.ok());
    assert_eq!(one["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(one["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn an_answer_that_is_cut_off_says_so() {
    let server = Setup::says("Hello world again and again").start().await;
    for field in ["max_tokens", "max_completion_tokens"] {
        let answer = server.chat(json!({field: 2})).await.ok();
        assert_eq!(answer["choices"][0]["message"]["content"], "Hello world");
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 2);
    }
}

#[tokio::test]
async fn the_defaults_of_the_api_hold() {
    let server = Setup::answers(|_| vec![33; 1000]).start().await;
    let completion = server.complete(json!({})).await.ok();
    assert_eq!(completion["usage"]["completion_tokens"], 16);
    // A chat goes on to the end of the context.
    let chat = server.chat(json!({})).await.ok();
    assert_eq!(chat["usage"]["total_tokens"], 256);
    assert_eq!(chat["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn the_token_that_ends_an_answer_is_counted_but_not_read() {
    let end = end_token();
    let server = Setup::says("Hello").start().await;
    let answer = server.chat(json!({"return_token_ids": true, "logprobs": true})).await.ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "Hello");
    assert_eq!(choice["token_ids"].as_array().unwrap().last(), Some(&json!(end)));
    assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), 1);
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    // So is an ordinary token that the client calls a stop token.
    let world = server.tokens(" world")[0];
    let server = Setup::says("Hello world again").start().await;
    let answer = server.chat(json!({"stop_token_ids": [world]})).await.ok();
    assert_eq!(answer["choices"][0]["message"]["content"], "Hello");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    // With `ignore_eos` the model goes on.
    let answer = server.chat(json!({"ignore_eos": true, "max_tokens": 9})).await.ok();
    assert_eq!(answer["usage"]["completion_tokens"], 9);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn cached_tokens_are_reported() {
    let server = Setup::says("Hello").start().await;
    let cached = |answer: Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let long = json!({"messages": [{"role": "user", "content": "Hello world ".repeat(20)}]});
    let first = server.chat(long.clone()).await.ok();
    assert_eq!(cached(first.clone()), 0);
    let again = cached(server.chat(long.clone()).await.ok()).as_u64().unwrap();
    let prompt_tokens = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(again > 0 && again < prompt_tokens, "{again} of {prompt_tokens}");
    // A prompt counts once, however many choices it has.
    let mut several = long;
    several["n"] = 3.into();
    let several = server.chat(several).await.ok();
    assert_eq!(cached(several.clone()), again);
    assert_eq!(several["usage"]["prompt_tokens"], prompt_tokens);
}

/// A model with states restarts only where these were kept.
#[tokio::test]
async fn a_model_with_states_reuses_the_stable_prefix_and_a_shared_document() {
    let server = Setup::says("Hello").with_states().start().await;
    let cached = |answer: &Value| {
        let details = &answer["usage"]["prompt_tokens_details"];
        let reason = details["miss_reason"].as_str().unwrap_or_default().to_owned();
        let number = |field: &str| details[field].as_u64().unwrap_or_default();
        (number("cached_tokens"), reason, number("diverged_at"))
    };
    let user = |text: &str| json!({"role": "user", "content": text});
    let ask = async |messages: Value| server.chat(json!({"messages": messages})).await.ok();
    let document = "Hello world ".repeat(40);

    let first = ask(json!([user(&format!("{document} one"))])).await;
    assert_eq!(cached(&first), (0, "not_cached".to_owned(), 0));
    let first_tokens = first["usage"]["prompt_tokens"].as_u64().unwrap();
    let answer = json!({"role": "assistant", "content": "Hello"});
    let next = json!([user(&format!("{document} one")), answer, user("two")]);
    let (reused, reason, diverged_at) = cached(&ask(next).await);
    assert_eq!(reason, "diverged");
    assert!(first_tokens - 8 <= reused && reused <= diverged_at, "{reused} of {first_tokens}");

    let other = ask(json!([user(&format!("{document} two"))])).await;
    let (reused, reason, shared) = cached(&other);
    assert_eq!((reused, reason.as_str()), (0, "state_not_kept"));
    assert!(first_tokens / 2 < shared && shared < first_tokens, "{shared} of {first_tokens}");
    let third = ask(json!([user(&format!("{document} three times"))])).await;
    let (reused, reason, diverged_at) = cached(&third);
    assert_eq!((reused, reason.as_str()), (shared, "diverged"));
    assert!(shared <= diverged_at);
    // The same prompt again is computed from its stable prefix on.
    let again = ask(json!([user(&format!("{document} three times"))])).await;
    let tokens = again["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens - 8 <= cached(&again).0, "{again}");

    let metrics = server.get("/metrics").await.body;
    let count = |reason: &str, count: u32| {
        let counts = |line: &&str| {
            line.starts_with("jackalope_prefix_misses_total")
                && line.contains(&format!("reason=\"{reason}\""))
                && line.ends_with(&format!(" {count}.0"))
        };
        assert!(metrics.lines().any(|line| counts(&line)), "{reason}: {metrics}");
    };
    count("not_cached", 1);
    count("state_not_kept", 1);
    count("no_memory", 0);
}

#[tokio::test]
async fn a_model_without_a_template_still_completes() {
    let text = model::text_without_template();
    let answer = text.tokenizer.encode(" world", false).unwrap();
    let model = jackalope_engine::testing::scripted_model(move |_| answer.clone(), end_token());
    let server = Setup::with(text, model).start().await;
    let error = server.chat(json!({})).await.error();
    assert!(error["message"].as_str().unwrap().contains("/v1/completions"), "{error}");
    let answer = server.complete(json!({})).await.ok();
    assert_eq!(answer["choices"][0]["text"], " world");
}

#[tokio::test]
async fn a_model_with_a_broken_template_completes_and_says_why_it_does_not_chat() {
    let text = model::text_with_broken_template();
    let answer = text.tokenizer.encode(" world", false).unwrap();
    let model = jackalope_engine::testing::scripted_model(move |_| answer.clone(), end_token());
    let server = Setup::with(text, model).start().await;
    let user = json!([{"role": "user", "content": "Hello"}]);
    let chat = json!({"model": MODEL, "messages": user, "max_tokens": 5});
    let prompt = json!({"model": MODEL, "prompt": "Hello", "stream": false});
    for (path, body) in [
        ("/v1/chat/completions", &chat),
        ("/v1/messages", &chat),
        ("/v1/responses", &json!({"model": MODEL, "input": "Hello"})),
        ("/api/chat", &chat),
        // It does not go on from the prompt, as a model without a template does.
        ("/api/generate", &prompt),
        ("/tokenize", &chat),
    ] {
        let reply = server.post(path, body).await;
        assert_eq!(reply.status, 400, "{path}: {}", reply.body);
        for part in ["chat_template.jinja", "(in chat template:2)", "hint: ", "/v1/completions"] {
            assert!(reply.body.contains(part), "{path}: no {part:?} in {}", reply.body);
        }
    }
    let answer = server.complete(json!({})).await.ok();
    assert_eq!(answer["choices"][0]["text"], " world");
    let raw = json!({"model": MODEL, "prompt": "Hello", "raw": true, "stream": false});
    assert_eq!(server.post("/api/generate", &raw).await.ok()["response"], " world");
}

/// In every protocol a length beyond the context is cut to what fits, and the answer says so.
#[tokio::test]
async fn a_length_beyond_the_context_is_cut_and_the_answer_says_so() {
    let server = Setup::says(&" again".repeat(400)).start().await;
    let user = json!([{"role": "user", "content": "Hello"}]);
    let chat = json!({"model": MODEL, "messages": user, "max_tokens": 5_000});
    let cases = [
        ("/v1/chat/completions", chat.clone(), "/choices/0/finish_reason", "length"),
        ("/v1/messages", chat, "/stop_reason", "model_context_window_exceeded"),
        (
            "/v1/responses",
            json!({"model": MODEL, "input": "Hello", "max_output_tokens": 5_000}),
            "/status",
            "incomplete",
        ),
        (
            "/api/chat",
            json!({"model": MODEL, "messages": user, "stream": false, "options": {"num_predict": 5_000}}),
            "/done_reason",
            "length",
        ),
    ];
    for (path, mut body, reason, expected) in cases {
        let reply = server.post(path, &body).await;
        assert_eq!(reply.ok().pointer(reason), Some(&json!(expected)), "{path}: {}", reply.body);
        let note = reply.headers["x-jackalope-note"].to_str().unwrap().to_owned();
        assert!(note.contains("not 5000: the context has room for no more"), "{path}: {note}");
        body["stream"] = true.into();
        let streamed = server.post(path, &body).await;
        assert_eq!(streamed.headers["x-jackalope-note"], note.as_str(), "{path}");
    }
    let fits = server.chat(json!({"max_tokens": 5})).await;
    assert!(fits.headers.get("x-jackalope-note").is_none());
}
