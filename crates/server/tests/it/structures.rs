//! Structures of answers, and constraints that contradict them.

use axum::http::StatusCode;
use jackalope_engine::Status;
use serde_json::{Value, json};

use crate::support::{MODEL, Server, Setup};

/// The text of an answer with these constraints.
async fn answer(server: &Server, more: Value) -> String {
    let answer = server.chat(more).await.ok();
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_schema_of_a_json_object_is_enforced() {
    let format = |schema: Value| json!({"type": "json_object", "schema": schema});
    let schema = json!({"type": "object", "properties": {"a": {"const": 5}}, "required": ["a"],
        "additionalProperties": false});
    let babbling = Setup::babbles().start().await;
    let constrained = answer(&babbling, json!({"response_format": format(schema)})).await;
    assert_eq!(serde_json::from_str::<Value>(&constrained).unwrap(), json!({"a": 5}));

    let server = Setup::says("{}").start().await;
    for any in [json!({}), json!(null)] {
        assert_eq!(answer(&server, json!({"response_format": format(any)})).await, "{}");
    }
    let refused = server.chat(json!({"response_format": format(json!({"not": {}}))})).await;
    let error = refused.error();
    assert_eq!(error["code"], "invalid_schema");
    assert_eq!(error["param"], "response_format.schema");
    let body = json!({"model": MODEL, "input": "Hello", "text": {"format": format(json!(5))}});
    let error = server.post("/v1/responses", &body).await.error();
    assert_eq!(error["param"], "text.format.schema");
    for (name, param) in [(json!("?"), "text.format.name"), (Value::Null, "text.format")] {
        let format = json!({"type": "json_schema", "name": name, "schema": {}});
        let body = json!({"model": MODEL, "input": "Hello", "text": {"format": format}});
        assert_eq!(server.post("/v1/responses", &body).await.error()["param"], param);
    }
}

#[tokio::test]
async fn choices_that_are_not_a_list_of_strings_are_refused_in_plain_words() {
    let server = Setup::says("yes").start().await;
    for choices in [json!("yes"), json!({"a": 1}), json!(["yes", 5])] {
        let error = server.chat(json!({"guided_choice": choices})).await.error();
        assert_eq!(error["param"], "guided_choice");
        let message = error["message"].as_str().unwrap();
        assert!(message.ends_with("it must be a list of strings, one of which is the answer"));
    }
    assert_eq!(answer(&server, json!({"guided_choice": ["yes", "no"]})).await, "yes");
}

#[tokio::test]
async fn constraints_that_contradict_each_other_are_the_clients_error() {
    let server = Setup::says("yes").start().await;
    let other = server.tokens("Hello")[0];
    let more = json!({"guided_choice": ["yes"], "allowed_token_ids": [other]});
    let refused = server.chat(more).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    let error = refused.error();
    assert_eq!(error["code"], "contradictory_constraints");
    assert_eq!(error["type"], "invalid_request_error");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("contradict each other"), "{message}");
    let is_counted = |status: &Status| status.counters.failed == 1;
    server.until("the request counts as failed", is_counted).await;
    assert_eq!(server.get("/errors").await.ok()["errors"], json!([]));
}

#[tokio::test]
async fn a_function_without_a_schema_gets_no_arguments() {
    let server = Setup::babbles().start().await;
    for function in [json!({"name": "now"}), json!({"name": "now", "parameters": null})] {
        let tool = json!({"type": "function", "function": function});
        let answer = server.chat(json!({"tools": [tool], "tool_choice": "required"})).await.ok();
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!(call, &json!({"name": "now", "arguments": "{}"}), "{answer}");
    }
}

#[tokio::test]
async fn parameters_of_tools_that_are_not_objects_are_refused() {
    let server = Setup::says("Hello").start().await;
    let user = json!([{"role": "user", "content": "Hello"}]);
    for schema in [json!({"type": "string"}), json!({"type": ["object", "null"]})] {
        let function = json!({"name": "x", "strict": true, "parameters": schema});
        let nested = json!([{"type": "function", "function": function}]);
        let flat = json!([{"type": "function", "name": "x", "parameters": schema}]);
        let custom = json!([{"name": "x", "input_schema": schema}]);
        let cases = [
            ("/v1/chat/completions", json!({"messages": user, "tools": nested})),
            ("/v1/responses", json!({"input": "Hello", "tools": flat})),
            ("/v1/messages", json!({"messages": user, "max_tokens": 5, "tools": custom})),
            ("/api/chat", json!({"messages": user, "tools": nested})),
        ];
        for (path, mut body) in cases {
            body["model"] = MODEL.into();
            let refused = server.post(path, &body).await;
            assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{path}: {}", refused.body);
            assert!(refused.body.contains(".type is"), "{path}: {}", refused.body);
        }
    }
}

#[tokio::test]
async fn an_error_in_the_schema_of_an_answer_does_not_name_the_tools() {
    let server = Setup::says("Hello").start().await;
    let tools = json!([{"type": "function", "function": {"name": "x", "parameters": {}}}]);
    // Only grammars of tool calls may mark a schema as lenient.
    for schema in [
        json!({"type": "array", "uniqueItems": true}),
        json!({"x-guidance": {"lenient": true}, "type": "array", "uniqueItems": true}),
    ] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
        for tools in [json!(null), tools.clone()] {
            let refused = server.chat(json!({"response_format": format, "tools": tools})).await;
            assert_eq!(refused.status, StatusCode::BAD_REQUEST);
            assert_eq!(refused.error()["param"], "response_format.json_schema.schema");
            assert_eq!(refused.error()["code"], "invalid_schema");
        }
    }
}

#[tokio::test]
async fn a_text_of_many_contexts_is_not_tokenised() {
    let server = Setup::says("Hello").start().await;
    let tokenize = |text: String| json!({"model": MODEL, "prompt": text});
    let within = server.post("/tokenize", &tokenize("Hello ".repeat(300))).await.ok();
    assert!(within["max_model_len"].as_u64() < within["count"].as_u64(), "{within}");
    let conversation =
        json!({"model": MODEL, "messages": [{"role": "user", "content": "Hello ".repeat(9000)}]});
    for body in [tokenize("Hello ".repeat(9000)), conversation] {
        let refused = server.post("/tokenize", &body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.body.contains("maximum context length is 256 tokens"), "{}", refused.body);
    }
}

/// The compiler visits each remainder of such multiples, which takes long enough for other requests.
#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_structure_do_not_wait_while_others_are_compiled() {
    let setup = Setup::babbles().limited(|config| config.limits.prompt_workers = 1);
    let server = setup.start().await;
    let compiled = |first: u64| {
        let multiple = |idx: u64| json!({"type": "integer", "multipleOf": first + 2 * idx});
        let members = (0..8).map(|idx| (idx.to_string(), multiple(idx)));
        let schema = json!({"type": "object", "properties": members.collect::<Value>()});
        let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
        server.chat(json!({"response_format": format, "max_tokens": 1}))
    };
    let plain = server.chat(json!({"max_tokens": 1}));
    // With the slot held, the first would be answered while the second is compiled.
    tokio::select! {
        biased;
        reply = compiled(19_961) => panic!("answered first: {}", reply.body),
        reply = compiled(19_981) => panic!("answered first: {}", reply.body),
        reply = plain => drop(reply.ok()),
    }
}
