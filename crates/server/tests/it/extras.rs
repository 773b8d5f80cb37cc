//! Fields that only some clients send: functions of old, and what vLLM has added.

use jackalope_protocol::TokenId;
use serde_json::{Value, json};

use crate::model;
use crate::support::{Server, Setup, merge};

const CALL: &str = "<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": 1}}\n</tool_call>";

async fn server_that_says(answer: &str) -> Server {
    let mut setup = Setup::says(answer);
    setup.context_tokens = 1024;
    setup.start().await
}

/// The prompt of a chat, special tokens included.
async fn prompt_of(server: &Server, more: Value) -> String {
    let more = merge(more, json!({"return_token_ids": true, "max_tokens": 1}));
    let answer = server.chat(more).await.ok();
    let tokens = answer["choices"][0]["prompt_token_ids"].clone();
    let text = server.post("/detokenize", &json!({"tokens": tokens})).await.ok();
    text["prompt"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn functions_are_answered_in_their_own_words() {
    let server = server_that_says(CALL).await;
    let functions = json!([{"name": "sum", "parameters": {"type": "object"}}]);
    let answer = server.chat(json!({"functions": functions})).await.ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "function_call");
    let call = json!({"name": "sum", "arguments": "{\"a\": 1}"});
    assert_eq!(choice["message"]["function_call"], call);
    assert!(choice["message"].get("tool_calls").is_none(), "{choice}");
    let chunks = server.chat(json!({"functions": functions, "stream": true})).await.chunks();
    let mut streamed = json!({"name": "", "arguments": ""});
    for more in chunks.iter().filter_map(|it| it["choices"][0]["delta"].get("function_call")) {
        for (field, piece) in more.as_object().unwrap() {
            let joined =
                format!("{}{}", streamed[field].as_str().unwrap(), piece.as_str().unwrap());
            streamed[field] = joined.into();
        }
    }
    assert_eq!(streamed, call);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "function_call");
    let answer = server.chat(json!({"functions": functions, "function_call": "none"})).await.ok();
    assert_eq!(answer["choices"][0]["message"]["content"], CALL);
}

#[tokio::test]
async fn functions_are_passed_to_the_model_like_tools() {
    let server = server_that_says("Hello").await;
    let function = json!({"name": "sum", "parameters": {"type": "object"}});
    let user = json!({"role": "user", "content": "Hello"});
    let old = json!({
        "functions": [function],
        "messages": [
            user,
            {"role": "assistant", "content": null, "function_call": {"name": "sum", "arguments": "{}"}},
            {"role": "function", "name": "sum", "content": "5"},
        ],
    });
    let call =
        json!({"id": "x", "type": "function", "function": {"name": "sum", "arguments": "{}"}});
    let new = json!({
        "tools": [{"type": "function", "function": function}],
        "messages": [
            user,
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "x", "content": "5"},
        ],
    });
    assert_eq!(prompt_of(&server, old).await, prompt_of(&server, new).await);
}

#[tokio::test]
async fn the_last_message_is_continued() {
    let server = server_that_says(" world").await;
    let messages = |content: Value| {
        let user = json!({"role": "user", "content": " end"});
        json!([user, {"role": "assistant", "content": content}])
    };
    let continuing = |content: Value| json!({"messages": messages(content), "continue_final_message": true, "add_generation_prompt": false});
    let parts = json!([{"type": "text", "text": "Hello"}]);
    for (content, end) in [(json!("Hello"), "Hello"), (parts, "Hello"), (json!("Hello "), "Hello ")]
    {
        let prompt = prompt_of(&server, continuing(content)).await;
        let begun = format!("<|im_start|>user\n end<|im_end|>\n<|im_start|>assistant\n{end}");
        assert_eq!(prompt, begun);
    }
    let answer = server.chat(continuing(json!("Hello"))).await.ok();
    assert_eq!(answer["choices"][0]["message"]["content"], " world");
}

#[tokio::test]
async fn the_stop_string_can_be_included() {
    let server = server_that_says("Hello world again").await;
    for stream in [false, true] {
        for (told, text) in [(false, "Hello"), (true, "Hello wor")] {
            let options = json!({
                "stop": ["never", " wor"], "include_stop_str_in_output": told, "stream": stream,
            });
            let reply = server.chat(options).await;
            let found = match stream {
                false => {
                    reply.ok()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
                }
                true => reply
                    .chunks()
                    .iter()
                    .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
                    .collect(),
            };
            assert_eq!(found, text);
        }
    }
}

#[tokio::test]
async fn special_tokens_can_be_included() {
    let server = server_that_says("Hello<|im_start|> world").await;
    for (skipped, text) in [(true, "Hello world"), (false, "Hello<|im_start|> world")] {
        let answer = server.chat(json!({"skip_special_tokens": skipped})).await.ok();
        assert_eq!(answer["choices"][0]["message"]["content"], text);
        let answer = server.complete(json!({"skip_special_tokens": skipped})).await.ok();
        assert_eq!(answer["choices"][0]["text"], text);
    }
}

#[tokio::test]
async fn only_the_end_of_a_prompt_is_taken_if_wished() {
    let server = Setup::says("Hello").start().await;
    let prompt: Vec<TokenId> = (0..300).map(|idx| idx % 200).collect();
    for (most, num_tokens) in [(json!(5), 5), (json!(-1), 255)] {
        let options = json!({
            "prompt": prompt, "truncate_prompt_tokens": most, "return_token_ids": true,
        });
        let answer = server.complete(options).await.ok();
        let taken = &prompt[prompt.len() - num_tokens..];
        assert_eq!(answer["choices"][0]["prompt_token_ids"], json!(taken));
        assert_eq!(answer["usage"]["prompt_tokens"], num_tokens);
    }
    let options = json!({"prompt": "Hello world again", "truncate_prompt_tokens": 2, "echo": true});
    let answer = server.complete(options).await.ok();
    assert_eq!(answer["choices"][0]["text"], " world againHello");
}

#[tokio::test]
async fn the_middle_is_filled_in_by_models_that_can() {
    let mut setup = Setup::says("Hello");
    setup.text = model::text_with_infill();
    let server = setup.start().await;
    let options = json!({"prompt": "Hello", "suffix": " end", "return_token_ids": true});
    let answer = server.complete(options).await.ok();
    let tokens = answer["choices"][0]["prompt_token_ids"].clone();
    let text = server.post("/detokenize", &json!({"tokens": tokens})).await.ok();
    assert_eq!(text["prompt"], "<|fim_prefix|>Hello<|fim_suffix|> end<|fim_middle|>");
}

#[tokio::test]
async fn verbosity_is_noted() {
    let server = Setup::says("Hello").start().await;
    for stream in [false, true] {
        let reply = server.chat(json!({"verbosity": "low", "stream": stream})).await;
        assert_eq!(reply.headers["x-jackalope-note"], "verbosity is ignored");
    }
    assert!(server.chat(json!({})).await.headers.get("x-jackalope-note").is_none());
}
