//! `POST /tokenize` and `POST /detokenize`.

use serde_json::json;

use crate::model;
use crate::support::{CONTEXT_TOKENS, Setup, chat_body};

#[tokio::test]
async fn a_prompt_becomes_its_tokens_and_back() {
    let server = Setup::says("Hello").start().await;
    let text = "Hello world \u{1f998}<|im_end|>";
    let tokens = server.tokens(text);
    let found = server.post("/tokenize", &json!({"prompt": text})).await.ok();
    let expected = json!({
        "count": tokens.len(), "max_model_len": CONTEXT_TOKENS, "tokens": tokens, "token_strs": null,
    });
    assert_eq!(found, expected);
    let back = server.post("/detokenize", &json!({"tokens": tokens})).await.ok();
    assert_eq!(back, json!({"prompt": text}));
    let options = json!({"prompt": "Hello world", "return_token_strs": true});
    let found = server.post("/tokenize", &options).await.ok();
    assert_eq!(found["token_strs"], json!(["Hello", " world"]));
}

#[tokio::test]
async fn special_tokens_around_a_prompt_can_be_left_out() {
    let mut setup = Setup::says("Hello");
    setup.text = model::text_with_bos();
    let server = setup.start().await;
    for (more, count) in [(json!(null), 2), (json!(true), 2), (json!(false), 1)] {
        let body = json!({"prompt": "Hello", "add_special_tokens": more});
        assert_eq!(server.post("/tokenize", &body).await.ok()["count"], count);
    }
}

#[tokio::test]
async fn a_conversation_has_as_many_tokens_as_its_answer_is_charged_for() {
    let mut setup = Setup::says("Hello");
    setup.context_tokens = 1024;
    let server = setup.start().await;
    let tools = json!([{"type": "function", "function": {"name": "sum"}}]);
    for more in [
        json!({}),
        json!({"add_generation_prompt": false}),
        json!({"tools": tools}),
        json!({"chat_template_kwargs": {"mood": "calm"}}),
    ] {
        let found = server.post("/tokenize", &chat_body(more.clone())).await.ok();
        let usage = server.chat(more).await.ok()["usage"]["prompt_tokens"].clone();
        assert_eq!(found["count"], usage);
    }
}

#[tokio::test]
async fn impossible_tokenizations_are_refused() {
    let server = Setup::says("Hello").start().await;
    for (path, body, param, code) in [
        ("/tokenize", json!({}), "messages", "missing_required_parameter"),
        ("/tokenize", json!({"prompt": 5}), "prompt", "invalid_type"),
        ("/tokenize", json!({"messages": []}), "messages", "empty_value"),
        ("/tokenize", chat_body(json!({"prompt": "x"})), "prompt", "invalid_value"),
        (
            "/tokenize",
            chat_body(json!({"add_special_tokens": true})),
            "add_special_tokens",
            "unsupported_parameter",
        ),
        ("/tokenize", json!({"prompt": "x", "model": "gpt-5"}), "model", "model_not_found"),
        ("/detokenize", json!({}), "tokens", "missing_required_parameter"),
        ("/detokenize", json!({"tokens": ["x"]}), "tokens[0]", "invalid_type"),
        ("/detokenize", json!({"tokens": [1, 99999]}), "tokens", "invalid_value"),
    ] {
        let error = server.post(path, &body).await.error();
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!(code)), "{error}");
    }
}
