//! Whatever a client of Anthropic's API sends, it gets an error in the API's own words.

use serde_json::{Value, json};

use crate::anthropic::{COUNT, MESSAGES, body, tools};
use crate::support::{Server, Setup};

/// What the message says of each body, which is refused with status 400.
async fn refusals(server: &Server, path: &str, cases: &[Value]) -> String {
    let mut told = String::new();
    for more in cases {
        let reply = server.post(path, &body(more)).await;
        let answer: Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(reply.status, 400, "{more}: {answer}");
        assert_eq!(answer["error"]["type"], "invalid_request_error");
        let message = answer["error"]["message"].as_str().unwrap();
        let shown: String = more.to_string().chars().take(120).collect();
        told.push_str(&format!("{shown}\n  {}\n", message.replace('\n', "\n  ")));
    }
    let alive = server.post(MESSAGES, &body(&json!({}))).await.ok();
    assert_eq!(alive["content"][0]["text"], "Hello");
    told
}

fn block(block: &Value) -> Value {
    json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, block]}]})
}

fn said(block: &Value) -> Value {
    json!({"messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": "y"},
    ]})
}

#[tokio::test]
async fn fields_are_refused_in_the_words_of_the_api() {
    let server = Setup::says("Hello").start().await;
    let cases = [
        json!({"max_tokens": null}),
        json!({"max_tokens": 0}),
        json!({"max_tokens": -1}),
        json!({"max_tokens": "64"}),
        json!({"temperature": 1.5}),
        json!({"temperature": -0.5}),
        json!({"temperature": "hot"}),
        json!({"top_p": 2}),
        json!({"top_k": -2}),
        json!({"stop_sequences": "x"}),
        json!({"stop_sequences": [""]}),
        json!({"stop_sequences": ["x", 5]}),
        json!({"stop_sequences": ["x".repeat(1025)]}),
        json!({"stop_sequences": vec!["x"; 17]}),
        json!({"stream": "yes"}),
        json!({"metadata": {"user_id": 5}}),
        json!({"thinking": {"type": "always"}}),
        json!({"thinking": {"type": "enabled"}}),
        json!({"thinking": {"type": "enabled", "budget_tokens": 5}}),
        json!({"output_config": {"effort": "some"}}),
        json!({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}),
        json!({"output_config": {"format": {"type": "json_schema", "schema": 5}}}),
        json!({"output_config": {"format": {"type": "poem"}}}),
        json!({"output_format": {"type": "json_schema"}}),
        json!({"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}),
        json!({"container": "container_1"}),
    ];
    insta::assert_snapshot!(refusals(&server, MESSAGES, &cases).await);
}

#[tokio::test]
async fn conversations_are_refused_with_the_place() {
    let server = Setup::says("Hello").start().await;
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}});
    let cases = [
        json!({"messages": null}),
        json!({"messages": []}),
        json!({"messages": "Hello"}),
        json!({"messages": vec![json!({"role": "user", "content": "x"}); 4097]}),
        json!({"messages": [{"role": "user", "content": "forbidden"}]}),
        json!({"messages": [{"role": "user", "content": "Hello".repeat(300)}]}),
        json!({"messages": [{"role": "tool", "content": "x"}]}),
        json!({"messages": [{"role": "user"}]}),
        json!({"messages": [{"role": "user", "content": 5}]}),
        json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]}),
        json!({"system": 5}),
        json!({"system": [image.clone()]}),
        block(&image),
        block(&json!({"type": "document", "source": {"type": "text", "data": "x"}})),
        block(&json!({"type": "poem"})),
        block(&json!({"text": "x"})),
        block(&json!({"type": "text"})),
        block(&json!({"type": "tool_result", "content": "x"})),
        block(&json!({"type": "tool_result", "tool_use_id": "a", "content": [image]})),
        block(&json!({"type": "tool_result", "tool_use_id": "a", "content": 5})),
        block(&json!({"type": "tool_use", "id": "a", "name": "sum", "input": {}})),
        said(&json!({"type": "tool_use", "id": "a", "name": "sum"})),
        said(&json!({"type": "tool_use", "id": "a", "name": "sum", "input": "x"})),
        said(&json!({"type": "tool_use", "name": "sum", "input": {}})),
        said(&json!({"type": "thinking"})),
        said(&json!({"type": "tool_result", "tool_use_id": "a"})),
        said(&json!({"type": "server_tool_use", "id": "a", "name": "web_search", "input": {}})),
    ];
    insta::assert_snapshot!(refusals(&server, MESSAGES, &cases).await);
}

#[tokio::test]
async fn tools_are_refused_with_the_place() {
    let server = Setup::says("Hello").start().await;
    let tool = |tool: Value| json!({"tools": [tool]});
    let choice = |choice: Value| json!({"tools": tools(), "tool_choice": choice});
    let cases = [
        tool(json!(5)),
        tool(json!({"name": "", "input_schema": {}})),
        tool(json!({"name": "sum"})),
        tool(json!({"name": "sum", "input_schema": "x"})),
        tool(json!({"input_schema": {}})),
        tool(json!({"type": "web_search_20250305", "name": "web_search"})),
        tool(json!({"type": "bash_20250124", "name": "bash"})),
        json!({"tools": vec![json!({"name": "x", "input_schema": {}}); 129]}),
        json!({"tool_choice": {"type": "auto"}}),
        choice(json!("auto")),
        choice(json!({"type": "maybe"})),
        choice(json!({"type": "tool"})),
        choice(json!({"type": "tool", "name": "none"})),
    ];
    insta::assert_snapshot!(refusals(&server, MESSAGES, &cases).await);
}

#[tokio::test]
async fn what_cannot_be_answered_can_still_be_counted() {
    let server = Setup::says("Hello").start().await;
    for more in [
        json!({"max_tokens": null}),
        json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}),
        json!({"messages": [{"role": "user", "content": "Hello ".repeat(300)}]}),
        json!({"tools": tools(), "tool_choice": {"type": "any"}}),
    ] {
        let counted = server.post(COUNT, &body(&more)).await.ok();
        assert!(counted["input_tokens"].as_u64().unwrap() > 3, "{more}: {counted}");
    }
    let cases = [json!({"messages": []}), json!({"system": 5}), block(&json!({"type": "image"}))];
    insta::assert_snapshot!(refusals(&server, COUNT, &cases).await);
}
