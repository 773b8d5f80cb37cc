//! Answers that their length cuts, at every token, a stop string or a stop token: whatever protocol,
//! streamed or whole, content never holds markup, and an incomplete call never looks complete.

use serde_json::{Value, json};

use crate::support::{MODEL, Reply, Server, Setup, merge};

const CONTENT: &str = "Let me look.";
const ARGUMENTS: &str = "{\"a\": [1, {\"b\": \"}\"}], \"text\": \"two words\"}";

/// A call in the model's own form.
fn written_call() -> String {
    format!("<tool_call>\n{{\"name\": \"sum\", \"arguments\": {ARGUMENTS}}}\n</tool_call>")
}

/// What ends an answer early.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// A maximum number of tokens.
    Length(u64),
    /// A stop string.
    Stop(&'static str),
    /// A stop token, in protocols that have them.
    StopToken(u64),
}

impl Cut {
    /// The fields of a request, under the protocol's names.
    fn fields(self, length: &str, stop: &str) -> Value {
        match self {
            Cut::Length(num_tokens) => json!({length: num_tokens}),
            Cut::Stop(string) => json!({stop: [string]}),
            Cut::StopToken(token) => json!({"stop_token_ids": [token]}),
        }
    }
}

/// A model that calls a tool, and how many tokens that takes.
async fn server() -> (Server, u64) {
    let call = format!("{CONTENT}\n{}", written_call());
    let mut setup = Setup::says(&call);
    setup.context_tokens = 1024;
    let server = setup.start().await;
    let num_tokens = server.tokens(&call).len() as u64;
    (server, num_tokens)
}

/// What an answer comes to.
#[derive(Debug, Default, PartialEq)]
struct Said {
    content: String,
    /// Names of calls.
    names: Vec<String>,
    /// What the arguments of all of them say, as they are written or as an object.
    arguments: Vec<Value>,
    reason: String,
}

impl Said {
    fn checked(self, shown: &str) -> Said {
        assert!(CONTENT.starts_with(self.content.trim_end()), "{shown}: {self:?}");
        assert!(self.names.iter().all(|name| name == "sum"), "{shown}: {self:?}");
        assert_eq!(self.names.len(), self.arguments.len());
        for arguments in &self.arguments {
            let is_part = match arguments {
                Value::String(part) => ARGUMENTS.starts_with(part.as_str()),
                object => object.is_object() && object.get("arguments").is_none(),
            };
            assert!(is_part, "{shown}: {arguments}");
        }
        self
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// The data of events, their names left out.
fn data(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    let data = reply.body.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter_map(|data| serde_json::from_str(data).ok()).collect()
}

async fn ask(server: &Server, path: &str, mut body: Value, tool: Value) -> Reply {
    body["model"] = MODEL.into();
    body["tools"] = json!([tool]);
    server.post(path, &body).await
}

fn function() -> Value {
    json!({"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}})
}

fn user() -> Value {
    json!([{"role": "user", "content": "Hello"}])
}

async fn chat(server: &Server, cut: Cut, is_stream: bool) -> Said {
    let body = json!({"messages": user(), "stream": is_stream});
    let body = merge(body, cut.fields("max_tokens", "stop"));
    let reply = ask(server, "/v1/chat/completions", body, function()).await;
    let mut said = Said::default();
    if !is_stream {
        let choice = &reply.ok()["choices"][0];
        said.content = text(&choice["message"]["content"]);
        said.reason = text(&choice["finish_reason"]);
        for call in list(&choice["message"]["tool_calls"]) {
            said.names.push(text(&call["function"]["name"]));
            said.arguments.push(call["function"]["arguments"].clone());
        }
        return said;
    }
    let chunks = reply.chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    for chunk in chunks {
        let choice = &chunk["choices"][0];
        said.content.push_str(&text(&choice["delta"]["content"]));
        said.reason.push_str(&text(&choice["finish_reason"]));
        for call in list(&choice["delta"]["tool_calls"]) {
            let more = text(&call["function"]["arguments"]);
            if call.get("id").is_some() {
                said.names.push(text(&call["function"]["name"]));
                said.arguments.push(more.into());
            } else {
                assert_eq!(call["index"], said.names.len() - 1);
                let joined = text(said.arguments.last().unwrap()) + &more;
                *said.arguments.last_mut().unwrap() = joined.into();
            }
        }
    }
    said
}

async fn messages(server: &Server, cut: Cut, is_stream: bool) -> Said {
    let body = json!({"messages": user(), "max_tokens": 500, "stream": is_stream});
    let body = merge(body, cut.fields("max_tokens", "stop_sequences"));
    let tool = json!({"name": "sum", "input_schema": {"type": "object"}});
    let reply = ask(server, "/v1/messages", body, tool).await;
    let mut said = Said::default();
    if !is_stream {
        let message = reply.ok();
        said.reason = text(&message["stop_reason"]);
        for block in list(&message["content"]) {
            said.content.push_str(&text(&block["text"]));
            if block["type"] == "tool_use" {
                said.names.push(text(&block["name"]));
                said.arguments.push(block["input"].clone());
            }
        }
        return said;
    }
    for event in data(&reply) {
        said.content.push_str(&text(&event["delta"]["text"]));
        said.reason.push_str(&text(&event["delta"]["stop_reason"]));
        if event["content_block"]["type"] == "tool_use" {
            said.names.push(text(&event["content_block"]["name"]));
            said.arguments.push("".into());
        }
        if let Some(more) = event["delta"]["partial_json"].as_str() {
            let joined = text(said.arguments.last().unwrap()) + more;
            *said.arguments.last_mut().unwrap() = joined.into();
        }
    }
    said
}

async fn responses(server: &Server, cut: Cut, is_stream: bool) -> Said {
    let body = json!({"input": "Hello", "stream": is_stream});
    let body = merge(body, cut.fields("max_output_tokens", "stop"));
    let tool = json!({"type": "function", "name": "sum", "parameters": {"type": "object"}});
    let reply = ask(server, "/v1/responses", body, tool).await;
    let mut said = Said::default();
    let mut streamed = String::new();
    let response = if is_stream {
        let events = data(&reply);
        for event in &events {
            if event["type"] == "response.function_call_arguments.delta" {
                streamed.push_str(&text(&event["delta"]));
            }
        }
        events.last().unwrap()["response"].clone()
    } else {
        reply.ok()
    };
    said.reason = text(&response["status"]);
    for item in list(&response["output"]) {
        said.content.push_str(&text(&item["content"][0]["text"]));
        if item["type"] == "function_call" {
            said.names.push(text(&item["name"]));
            assert!(!is_stream || item["arguments"] == streamed);
            let is_whole = item["arguments"] == ARGUMENTS;
            assert_eq!(item["status"], if is_whole { "completed" } else { "incomplete" });
            said.arguments.push(item["arguments"].clone());
        }
    }
    said
}

async fn ollama(server: &Server, cut: Cut, is_stream: bool) -> Said {
    let options = cut.fields("num_predict", "stop");
    let body = json!({"messages": user(), "options": options, "stream": is_stream});
    let reply = ask(server, "/api/chat", body, function()).await;
    let mut said = Said::default();
    for line in reply.body.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        said.content.push_str(&text(&line["message"]["content"]));
        said.reason.push_str(&text(&line["done_reason"]));
        for call in list(&line["message"]["tool_calls"]) {
            said.names.push(text(&call["function"]["name"]));
            said.arguments.push(call["function"]["arguments"].clone());
        }
    }
    said
}

#[tokio::test]
async fn a_call_that_is_cut_is_a_part_of_a_call_in_every_protocol() {
    let (server, num_tokens) = server().await;
    let mut num_calls = 0;
    for max_tokens in 1..=num_tokens {
        let cut = Cut::Length(max_tokens);
        let shown = |protocol: &str| format!("{protocol} with {max_tokens} tokens");
        let whole = chat(&server, cut, false).await.checked(&shown("chat"));
        assert_eq!(whole, chat(&server, cut, true).await);
        assert_eq!(whole.reason, "length");
        assert!(whole.names.len() >= num_calls, "{whole:?}");
        num_calls = whole.names.len();

        let response = responses(&server, cut, false).await.checked(&shown("responses"));
        assert_eq!(response, responses(&server, cut, true).await);
        assert_eq!((&response.names, &response.arguments), (&whole.names, &whole.arguments));
        assert_eq!(response.reason, "incomplete");

        let message = messages(&server, cut, false).await.checked(&shown("messages"));
        let streamed = messages(&server, cut, true).await.checked(&shown("messages"));
        assert_eq!((&streamed.names, &streamed.arguments), (&whole.names, &whole.arguments));
        assert_eq!((&message.names, &message.content), (&whole.names, &streamed.content));
        assert_eq!([&*message.reason, &*streamed.reason], ["max_tokens"; 2]);

        let line = ollama(&server, cut, false).await.checked(&shown("ollama"));
        assert_eq!(line, ollama(&server, cut, true).await);
        assert_eq!((&line.names, &line.arguments), (&whole.names, &message.arguments));
        assert_eq!(line.reason, "length");
    }
    assert_eq!(num_calls, 1);
}

#[tokio::test]
async fn a_call_that_a_stop_string_cuts_does_not_look_complete() {
    let (server, _) = server().await;
    for stop in
        ["tool_call", "{", "name", "sum", "arguments", "[1", "text", " words", "\"}}", "</tool"]
    {
        let shown = |protocol: &str| format!("{protocol} with the stop string {stop:?}");
        let cut = Cut::Stop(stop);
        let is_whole = stop == "</tool";
        let whole = chat(&server, cut, false).await.checked(&shown("chat"));
        assert_eq!(whole, chat(&server, cut, true).await);
        assert_eq!(whole.reason, if is_whole { "tool_calls" } else { "stop" }, "{stop}");
        assert_eq!(is_whole, whole.arguments == [ARGUMENTS], "{stop}");

        let response = responses(&server, cut, false).await.checked(&shown("responses"));
        assert_eq!(response, responses(&server, cut, true).await);
        assert_eq!((&response.names, &response.arguments), (&whole.names, &whole.arguments));
        assert_eq!(response.reason, "completed");

        let message = messages(&server, cut, false).await.checked(&shown("messages"));
        let streamed = messages(&server, cut, true).await.checked(&shown("messages"));
        assert_eq!((&streamed.names, &streamed.arguments), (&whole.names, &whole.arguments));
        let reason = if is_whole { "tool_use" } else { "stop_sequence" };
        assert_eq!([&*message.reason, &*streamed.reason], [reason; 2], "{stop}");

        let line = ollama(&server, cut, false).await.checked(&shown("ollama"));
        assert_eq!(line, ollama(&server, cut, true).await);
        assert_eq!(line.names, if is_whole { vec!["sum"] } else { vec![] }, "{stop}");
        assert_eq!(line.reason, "stop");
    }
}

#[tokio::test]
async fn a_call_that_a_stop_token_cuts_is_the_same_part_as_one_of_that_length() {
    let (server, _) = server().await;
    let tokens = server.tokens(&format!("{CONTENT}\n{}", written_call()));
    for (idx, token) in tokens.iter().enumerate().skip(1) {
        if tokens[..idx].contains(token) {
            continue;
        }
        let cut = Cut::StopToken(u64::from(*token));
        let shown = |protocol: &str| format!("{protocol} with the stop token {token} at {idx}");
        let of_length = chat(&server, Cut::Length(idx as u64), false).await;
        let whole = chat(&server, cut, false).await.checked(&shown("chat"));
        assert_eq!(whole, chat(&server, cut, true).await, "{}", shown("chat"));
        let is_whole = whole.arguments == [ARGUMENTS];
        let reason = if is_whole { "tool_calls" } else { "stop" }.to_owned();
        assert_eq!(whole, Said { reason, ..of_length }, "{}", shown("chat"));

        let response = responses(&server, cut, false).await.checked(&shown("responses"));
        assert_eq!(response, responses(&server, cut, true).await);
        assert_eq!((&response.names, &response.arguments), (&whole.names, &whole.arguments));
        assert_eq!(response.reason, "completed");
    }
}

#[tokio::test]
async fn a_call_before_the_one_that_a_stop_string_cuts_stays() {
    let second = "<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"b\": 77}}\n</tool_call>";
    let mut setup = Setup::says(&format!("{}\n{second}", written_call()));
    setup.context_tokens = 1024;
    let server = setup.start().await;
    for is_stream in [false, true] {
        let cut = Cut::Stop("77");
        let said = chat(&server, cut, is_stream).await;
        assert_eq!(said.arguments, [ARGUMENTS, "{\"b\": "], "{said:?}");
        assert_eq!(said.reason, "stop");
        let said = ollama(&server, cut, is_stream).await;
        assert_eq!((&*said.names, &*said.reason), (&["sum".to_owned()][..], "stop"));
        // A stop string after calls ends an answer that calls tools.
        let said = chat(&server, Cut::Stop("\n<tool"), is_stream).await;
        assert_eq!((said.arguments, &*said.reason), (vec![ARGUMENTS.into()], "tool_calls"));
    }
    let tool = json!({"name": "sum", "input_schema": {"type": "object"}});
    let body = json!({"messages": user(), "max_tokens": 500, "stop_sequences": ["77"]});
    let message = ask(&server, "/v1/messages", body, tool).await.ok();
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("stop_sequence"), &json!("77"))
    );
}

#[tokio::test]
async fn arguments_come_in_many_pieces() {
    let (server, _) = server().await;
    let body = json!({"messages": user(), "stream": true});
    let reply = ask(&server, "/v1/chat/completions", body, function()).await;
    let chunks = reply.chunks();
    let calls = chunks.iter().filter(|it| it["choices"][0]["delta"].get("tool_calls").is_some());
    assert!(calls.count() > 5, "{}", reply.body);
}
