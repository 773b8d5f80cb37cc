//! gRPC for LocalAI, held against what HTTP answers.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, Request, StatusCode};
use futures_util::{StreamExt, stream};
use jackalope_engine::testing::FakeOrder;
use jackalope_localai::{LocalAi, router};
use jackalope_server::ApiKeys;
use prost::Message;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{MODEL, Server, Setup};
use crate::wire::{
    Ask, Embedded, Load, Metadata, Metrics, Outcome, Reply, Said, State, Text, Tokens, TokensAlone,
    ask, framed, percent_decoded, unframed,
};

/// gRPC's codes.
const INVALID_ARGUMENT: u32 = 3;
const DEADLINE_EXCEEDED: u32 = 4;
const NOT_FOUND: u32 = 5;
const RESOURCE_EXHAUSTED: u32 = 8;
pub(crate) const FAILED_PRECONDITION: u32 = 9;
const UNIMPLEMENTED: u32 = 12;
const UNAVAILABLE: u32 = 14;
const UNAUTHENTICATED: u32 = 16;

/// A call that is being answered.
struct Call {
    headers: HeaderMap,
    body: Pin<Box<Body>>,
    seen: Vec<u8>,
    trailers: Option<HeaderMap>,
}

impl Call {
    /// Takes the next frame; false at the end.
    async fn step(&mut self) -> bool {
        let Some(frame) = poll_fn(|context| self.body.as_mut().poll_frame(context)).await else {
            return false;
        };
        match frame.unwrap().into_data() {
            Ok(data) => self.seen.extend_from_slice(&data),
            Err(frame) => self.trailers = frame.into_trailers().ok(),
        }
        true
    }

    /// Code and message, once all has been read.
    async fn end(&mut self) -> (u32, String) {
        while self.step().await {}
        // A refusal has them where others have their head.
        let told = self.trailers.as_ref().unwrap_or(&self.headers);
        let code = told["grpc-status"].to_str().unwrap().parse().unwrap();
        let message = told.get("grpc-message").map_or("", |it| it.to_str().unwrap());
        (code, percent_decoded(message))
    }
}

/// A backend of the server's own model.
fn backend(server: &Server) -> LocalAi {
    LocalAi::new(server.state.clone())
}

fn request(call: &str, message: &impl Message) -> Request<Body> {
    let request = Request::post(format!("/backend.Backend/{call}"));
    request.header("content-type", "application/grpc").body(framed(message).into()).unwrap()
}

async fn send(state: &LocalAi, request: Request<Body>) -> Call {
    let response = router(state.clone()).oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "gRPC tells everything in its own status");
    assert_eq!(response.headers()["content-type"], "application/grpc");
    let (parts, body) = response.into_parts();
    Call { headers: parts.headers, body: Box::pin(body), seen: Vec::new(), trailers: None }
}

async fn all<M: Message + Default>(state: &LocalAi, call: &str, message: &impl Message) -> Vec<M> {
    let mut call = send(state, request(call, message)).await;
    assert_eq!(call.end().await, (0, String::new()));
    unframed(&call.seen)
}

pub(crate) async fn one<M: Message + Default>(
    state: &LocalAi,
    call: &str,
    message: &impl Message,
) -> M {
    let mut messages = all(state, call, message).await;
    assert_eq!(messages.len(), 1);
    messages.remove(0)
}

pub(crate) async fn refused(state: &LocalAi, call: &str, message: &impl Message) -> (u32, String) {
    let mut call = send(state, request(call, message)).await;
    let refusal = call.end().await;
    assert_ne!(refusal.0, 0);
    assert!(call.seen.is_empty());
    refusal
}

pub(crate) async fn load(state: &LocalAi, model: &str, options: &[&str]) -> Outcome {
    let options = options.iter().map(|it| (*it).to_owned()).collect();
    let load = Load { model: model.to_owned(), context_size: 512, options, ..Load::default() };
    one(state, "LoadModel", &load).await
}

/// A conversation of one message.
fn chat() -> Ask {
    let said = Said { role: "user".to_owned(), content: "Hello".to_owned(), ..Said::default() };
    Ask { use_tokenizer_template: true, messages: vec![said], seed: 11, ..ask() }
}

pub(crate) fn prompt(text: &str) -> Ask {
    Ask { prompt: text.to_owned(), tokens: 12, seed: 11, ..ask() }
}

pub(crate) fn text(replies: &[Reply]) -> String {
    let bytes = replies.iter().flat_map(|reply| reply.message.clone()).collect();
    String::from_utf8(bytes).unwrap()
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}])
}

const CALL: &str = "<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": 1}}\n</tool_call>";

#[tokio::test]
async fn a_prompt_is_answered_as_a_completion_is_whole_and_streamed() {
    let server = Setup::babbles().start().await;
    for (ask, more) in [
        (prompt("Hello"), json!({})),
        (
            Ask { temperature: 0.7, seed: 5, ..prompt("Hello") },
            json!({"temperature": 0.7, "seed": 5}),
        ),
        (Ask { seed: -7, ..prompt("again") }, json!({"prompt": "again", "seed": -7})),
        (
            Ask { stop_prompts: vec!["e".to_owned(), String::new()], ..prompt("Hello") },
            json!({"stop": "e"}),
        ),
        (
            Ask { logit_bias: "{\"3\": -100}".to_owned(), ..prompt("Hello") },
            json!({"logit_bias": {"3": -100}}),
        ),
    ] {
        let same = json!({"max_tokens": 12, "seed": 11, "temperature": 0, "top_p": 0.95});
        let body = crate::support::merge(same, more);
        let completion = server.complete(body).await.ok();
        let whole: Reply = one(&backend(&server), "Predict", &ask).await;
        assert_eq!(text(std::slice::from_ref(&whole)), completion["choices"][0]["text"]);
        assert_eq!(whole.tokens, completion["usage"]["completion_tokens"]);
        assert_eq!(whole.prompt_tokens, completion["usage"]["prompt_tokens"]);
        assert_eq!(whole.chat_deltas[0].content.as_bytes(), whole.message);
        assert!(0.0 <= whole.timing_prompt_processing && 0.0 <= whole.timing_token_generation);

        let replies: Vec<Reply> = all(&backend(&server), "PredictStream", &ask).await;
        assert_eq!(text(&replies), text(std::slice::from_ref(&whole)));
        let (last, pieces) = replies.split_last().unwrap();
        assert!(last.message.is_empty() && last.chat_deltas.is_empty());
        assert_eq!((last.tokens, last.prompt_tokens), (whole.tokens, whole.prompt_tokens));
        for piece in pieces {
            assert_eq!(piece.chat_deltas[0].content.as_bytes(), piece.message);
        }
    }
}

#[tokio::test]
async fn a_conversation_is_answered_as_a_chat_is() {
    let server = Setup::babbles().start().await;
    let more = json!({"max_tokens": 9, "seed": 11, "temperature": 0, "top_p": 0.95, "logprobs": true,
        "enable_thinking": true});
    let answer = server.chat(more).await.ok();
    let metadata = [("enable_thinking".to_owned(), "true".to_owned())];
    let ask = Ask { tokens: 9, logprobs: 1, metadata: metadata.into(), ..chat() };
    let reply: Reply = one(&backend(&server), "Predict", &ask).await;
    assert_eq!(text(std::slice::from_ref(&reply)), answer["choices"][0]["message"]["content"]);
    assert_eq!(reply.prompt_tokens, answer["usage"]["prompt_tokens"]);
    let logprobs: Value = serde_json::from_slice(&reply.logprobs).unwrap();
    assert_eq!(logprobs, answer["choices"][0]["logprobs"]);
    let streamed: Vec<Reply> = all(&backend(&server), "PredictStream", &ask).await;
    assert_eq!(streamed.last().unwrap().logprobs, reply.logprobs);
}

#[tokio::test]
async fn tool_calls_are_streamed_as_deltas() {
    let mut setup = Setup::says(&format!("Let me see. {CALL}{CALL}"));
    setup.context_tokens = 1024;
    let server = setup.start().await;
    let ask = Ask {
        tools: tools().to_string(),
        tool_choice: "auto".to_owned(),
        // What LocalAI makes of the tools.
        grammar: "root ::= object".to_owned(),
        ..chat()
    };
    let whole: Reply = one(&backend(&server), "Predict", &ask).await;
    let calls = &whole.chat_deltas[0].tool_calls;
    assert_eq!(calls.iter().map(|it| it.index).collect::<Vec<_>>(), [0, 1]);
    assert!(calls.iter().all(|it| it.name == "sum" && it.id.starts_with("call_")));
    assert_eq!(calls[0].arguments, "{\"a\": 1}");
    assert_eq!(whole.message, b"Let me see. ".trim_ascii_end());

    let streamed: Vec<Reply> = all(&backend(&server), "PredictStream", &ask).await;
    let calls: Vec<_> = streamed.iter().flat_map(|it| &it.chat_deltas).collect();
    let calls: Vec<_> = calls.iter().flat_map(|it| &it.tool_calls).collect();
    let mut joined = [String::new(), String::new()];
    calls.iter().for_each(|it| joined[it.index as usize].push_str(&it.arguments));
    assert_eq!(joined, ["{\"a\": 1}", "{\"a\": 1}"]);
    let begun: Vec<_> = calls.iter().filter(|it| !it.name.is_empty()).map(|it| it.index).collect();
    assert_eq!(begun, [0, 1]);
    assert_eq!(text(&streamed).trim_end(), "Let me see.");

    // Without tools it is text.
    let plain: Reply = one(&backend(&server), "Predict", &chat()).await;
    assert!(plain.chat_deltas[0].tool_calls.is_empty() && plain.message.len() > 20);
    // An earlier call comes back as JSON.
    let mut again = ask.clone();
    let calls =
        json!([{"id": "1", "type": "function", "function": {"name": "sum", "arguments": "{}"}}]);
    again.messages.push(Said {
        role: "assistant".to_owned(),
        tool_calls: calls.to_string(),
        ..Said::default()
    });
    let longer: Reply = one(&backend(&server), "Predict", &again).await;
    assert!(whole.prompt_tokens < longer.prompt_tokens);
    let mut setup = Setup::says(CALL);
    setup.context_tokens = 1024;
    let server = setup.start().await;
    let forced = Ask { tool_choice: "\"required\"".to_owned(), ..ask };
    let reply: Reply = one(&backend(&server), "Predict", &forced).await;
    assert_eq!(reply.chat_deltas[0].tool_calls.len(), 1);
}

#[tokio::test]
async fn a_stream_without_a_reader_is_cancelled() {
    let server = Setup::babbles().start().await;
    server.control.order(FakeOrder::Pace(Duration::from_millis(20)));
    let ask = Ask { tokens: 200, ..prompt("Hello") };
    let mut call = send(&backend(&server), request("PredictStream", &ask)).await;
    call.step().await;
    assert!(!call.seen.is_empty());
    drop(call);
    server.until("nothing runs", |status| status.running == 0).await;
    while server.get("/health").await.ok()["open_streams"] != 0 {
        tokio::task::yield_now().await;
    }
    let metrics: Metrics = one(&backend(&server), "GetMetrics", &Load::default()).await;
    assert!((1..200).contains(&metrics.tokens_generated), "{metrics:?}");
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_given_up_though_its_connection_lives() {
    let patience = Duration::from_millis(50);
    let setup = Setup::babbles().limited(|config| config.limits.write_timeout = patience);
    let server = setup.start().await;
    server.control.order(FakeOrder::Pace(Duration::from_millis(20)));
    let ask = Ask { tokens: 200, ..prompt("Hello") };
    let call = send(&backend(&server), request("PredictStream", &ask)).await;
    server.until("nothing runs", |status| status.running == 0).await;
    // What was drawn is counted when the answer is given up, soon after.
    let counted = async {
        loop {
            let metrics: Metrics = one(&backend(&server), "GetMetrics", &Load::default()).await;
            if metrics.tokens_generated != 0 {
                return metrics.tokens_generated;
            }
            tokio::task::yield_now().await;
        }
    };
    let num_tokens = tokio::time::timeout(Duration::from_secs(20), counted).await.unwrap();
    assert!(num_tokens < 200, "{num_tokens}");
    drop(call);
}

#[tokio::test]
async fn an_error_within_a_stream_is_reported_in_its_trailers() {
    let setup =
        Setup::babbles().engine(|config| config.retry.standstill_max = Duration::from_millis(10));
    let server = setup.start().await;
    server.control.order(FakeOrder::Pace(Duration::from_millis(20)));
    let ask = Ask { tokens: 200, ..prompt("Hello") };
    let mut call = send(&backend(&server), request("PredictStream", &ask)).await;
    call.step().await;
    server.control.order(FakeOrder::CrashAgain { rank: 1, attempts: 4 });
    let (code, message) = call.end().await;
    assert_eq!(code, UNAVAILABLE, "{message}");
    assert!(message.contains("rank 1 failed while computing"), "{message}");
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_by_name() {
    let server = Setup::says("Hello").start().await;
    let state = &backend(&server);
    for (ask, code, told) in [
        (Ask { temperature: 9.0, ..prompt("x") }, INVALID_ARGUMENT, "Temperature is 9"),
        (Ask { mirostat: 2, ..prompt("x") }, INVALID_ARGUMENT, "Mirostat is not supported"),
        (Ask { typical_p: 0.5, ..prompt("x") }, INVALID_ARGUMENT, "TypicalP is not supported"),
        (
            Ask { grammar: "root ::= \"a\"".to_owned(), ..prompt("x") },
            INVALID_ARGUMENT,
            "hint: grammars in llama.cpp's notation are not read",
        ),
        (
            Ask { images: vec!["iVBOR".to_owned()], ..chat() },
            INVALID_ARGUMENT,
            "Images is not supported",
        ),
        (ask(), INVALID_ARGUMENT, "UseTokenizerTemplate"),
        (
            Ask { use_tokenizer_template: true, ..ask() },
            INVALID_ARGUMENT,
            "Messages must not be empty",
        ),
        (Ask { tools: "[".to_owned(), ..chat() }, INVALID_ARGUMENT, "Tools: EOF"),
        (
            Ask { tools: tools().to_string(), tool_choice: "sometimes".to_owned(), ..chat() },
            INVALID_ARGUMENT,
            "ToolChoice is",
        ),
        (Ask { logit_bias: "{\"x\": 1}".to_owned(), ..prompt("x") }, INVALID_ARGUMENT, "LogitBias"),
        (prompt(&"long ".repeat(400)), INVALID_ARGUMENT, "maximum context length"),
    ] {
        for call in ["Predict", "PredictStream"] {
            let (found, message) = refused(state, call, &ask).await;
            assert!(found == code && message.contains(told), "{call} {found} {message:?}");
        }
    }
    for call in ["GenerateImage", "TTS", "Rerank", "Dance"] {
        let (code, message) = refused(state, call, &ask()).await;
        assert_eq!(code, UNIMPLEMENTED);
        assert!(message.starts_with(&format!("{call} is not what this backend does")), "{message}");
    }
}

#[tokio::test]
async fn malformed_frames_are_refused() {
    let server =
        Setup::says("Hello").limited(|config| config.limits.body_bytes = 1000).start().await;
    let state = &backend(&server);
    let frame = framed(&prompt("Hello"));
    let mut compressed = frame.clone();
    compressed[0] = 1;
    let mut garbled = frame.clone();
    garbled[6] = 0xff;
    for (content_type, body, told) in [
        ("application/json", frame.clone(), "the content type must be application/grpc"),
        ("application/grpc", frame[..3].to_vec(), "five bytes"),
        ("application/grpc", frame[..frame.len() - 1].to_vec(), "the prefix announces"),
        ("application/grpc", compressed, "must not be compressed"),
        ("application/grpc+proto", garbled, "message: "),
    ] {
        let request =
            Request::post("/backend.Backend/Predict").header("content-type", content_type);
        let mut call = send(state, request.body(body.into()).unwrap()).await;
        let (code, message) = call.end().await;
        assert!(code == INVALID_ARGUMENT && message.contains(told), "{code} {message}");
    }
    let longest = prompt(&"x".repeat(1000 - prompt("").encoded_len() - 3));
    assert_eq!(longest.encoded_len(), 1000);
    let (code, _) = refused(state, "Predict", &longest).await;
    assert_eq!(code, INVALID_ARGUMENT, "it is read, and too long for the context");
    let (code, message) = refused(state, "Predict", &prompt(&"x".repeat(1001))).await;
    assert!(code == RESOURCE_EXHAUSTED && message.contains("too large"), "{code} {message}");
}

#[tokio::test(start_paused = true)]
async fn messages_that_arrive_slowly_take_no_slots_for_answers() {
    let setup = Setup::says("Hello").limited(|config| config.limits.open_streams = 1);
    let server = setup.start().await;
    let state = backend(&server);
    let calls = ["Predict", "PredictStream", "Embedding"];
    let slow = calls.map(|call| {
        let begun = Bytes::from(framed(&prompt("Hello"))[..4].to_vec());
        let begun = stream::iter([Ok::<_, std::convert::Infallible>(begun)]);
        let body = Body::from_stream(begun.chain(stream::pending()));
        let request = Request::post(format!("/backend.Backend/{call}"));
        let request = request.header("content-type", "application/grpc").body(body).unwrap();
        let state = state.clone();
        tokio::spawn(async move { send(&state, request).await.end().await })
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    one::<Reply>(&state, "Predict", &prompt("Hello")).await;
    for refusal in slow {
        let (code, message) = refusal.await.unwrap();
        assert_eq!(code, DEADLINE_EXCEEDED, "{message}");
    }
}

#[tokio::test]
async fn keys_are_asked_for_as_over_http() {
    let keys = ApiKeys::new(["secret"]);
    let server = Setup::says("Hello").limited(|config| config.api_keys = keys).start().await;
    for (key, expected) in
        [(None, UNAUTHENTICATED), (Some("other"), UNAUTHENTICATED), (Some("secret"), 0)]
    {
        let mut asked = request("Predict", &prompt("Hello"));
        if let Some(key) = key {
            let value = format!("Bearer {key}").parse().unwrap();
            asked.headers_mut().insert("authorization", value);
        }
        let (code, message) = send(&backend(&server), asked).await.end().await;
        assert_eq!(code, expected, "{message}");
    }
}

#[tokio::test]
async fn a_model_is_loaded_by_its_name_and_sampled_as_its_options_say() {
    let server = Setup::babbles().start().await;
    let state = &backend(&server);
    let unbound = Ask { tokens: 12, ..prompt("Hello") };
    let unnamed: Reply = one(state, "Predict", &unbound).await;
    assert_eq!(unnamed.tokens, 12, "the server's own model needs no LoadModel");

    let loaded = load(state, MODEL, &["max_tokens:3", "temperature:0"]).await;
    assert_eq!((loaded.success, &*loaded.message), (true, "Model loaded successfully"));
    for identity in ["", MODEL] {
        let ask = Ask { temperature: 1.5, model_identity: identity.to_owned(), ..unbound.clone() };
        let reply: Reply = one(state, "Predict", &ask).await;
        assert_eq!(reply.tokens, 3);
        assert!(
            text(std::slice::from_ref(&unnamed)).starts_with(&text(&[reply])),
            "options come first"
        );
    }
    let other = Ask { model_identity: "other".to_owned(), ..unbound.clone() };
    let (code, message) = refused(state, "Predict", &other).await;
    assert!(code == NOT_FOUND && message.contains("model identity mismatch"), "{message}");

    for (model, options, told) in [
        (
            "nobody/knows",
            &[][..],
            "the model nobody/knows does not exist\nhint: this server serves org/fake; its option `--alias NAME=MODEL` adds names",
        ),
        ("", &[], "model must not be empty"),
        (MODEL, &["warmth:1"], "options[0] is the key \"warmth\", but must be one of hostfile"),
        (MODEL, &["hostfile:/x.json"], "this server was started with its models"),
        (MODEL, &["eos_token:two words"], "eos_token is \"two words\", but must be one token"),
    ] {
        let outcome = load(state, model, options).await;
        assert!(!outcome.success, "{model} {options:?}");
        let message = outcome.message;
        assert!(
            message.starts_with("Error loading model: ") && message.contains(told),
            "{message}"
        );
    }
    let adapted = Load { model: MODEL.to_owned(), lora_adapter: "x".to_owned(), ..Load::default() };
    assert!(!one::<Outcome>(state, "LoadModel", &adapted).await.success);

    // Nothing was brought for LocalAI, so nothing goes.
    let freed: Outcome = one(state, "Free", &Load::default()).await;
    assert!(freed.success, "{}", freed.message);
    let again: Reply = one(state, "Predict", &unbound).await;
    assert_eq!(again.message, unnamed.message, "the options are gone with the load");
}

#[tokio::test]
async fn health_status_and_metrics_are_reported() {
    let at_once = Duration::from_millis(1);
    let server = Setup::babbles().limited(|it| it.limits.keep_alive = at_once).start().await;
    let state = &backend(&server);
    let health: Reply = one(state, "Health", &Load::default()).await;
    assert_eq!(health.message, b"OK");
    let before: Metrics = one(state, "GetMetrics", &Load::default()).await;
    assert_eq!((before.tokens_generated, before.prompt_tokens_processed), (0, 0));
    let reply: Reply = one(state, "Predict", &prompt("Hello")).await;
    let after: Metrics = one(state, "GetMetrics", &Load::default()).await;
    assert_eq!(after.tokens_generated, reply.tokens);
    assert_eq!(after.prompt_tokens_processed, reply.prompt_tokens);
    assert!(0.0 < after.tokens_per_second);
    server.until("nothing runs", |status| status.running == 0).await;
    let ready: State = one(state, "Status", &Load::default()).await;
    let memory = ready.memory.unwrap();
    assert_eq!((ready.state, memory.breakdown.len()), (2, 2));
    assert_eq!(memory.breakdown.values().sum::<u64>(), memory.total);
    server.control.order(FakeOrder::Hold);
    let mut open = send(state, request("PredictStream", &prompt("Hello"))).await;
    server.until("it runs", |status| status.running + status.queued == 1).await;
    assert_eq!(one::<State>(state, "Status", &Load::default()).await.state, 1, "busy");
    server.control.order(FakeOrder::Resume);
    assert_eq!(open.end().await.0, 0);
}

#[tokio::test]
async fn embeddings_and_tokens_are_those_of_http() {
    let server = Setup::says("Hello").start().await;
    let state = &backend(&server);
    for pooling in ["mean", "last"] {
        assert!(load(state, MODEL, &[&format!("pooling:{pooling}")]).await.success);
        let body = json!({"model": MODEL, "input": "Hello world", "pooling": pooling});
        let list = server.post("/v1/embeddings", &body).await.ok();
        let expected = list["data"][0]["embedding"].as_array().unwrap();
        let expected: Vec<f32> = expected.iter().map(|it| it.as_f64().unwrap() as f32).collect();
        let asked = Ask { embeddings: "Hello world".to_owned(), ..ask() };
        let found: Embedded = one(state, "Embedding", &asked).await;
        assert_eq!(found.embeddings, expected);
        assert_eq!((found.tokens, found.dim as usize, found.layout), (1, expected.len(), 1));
        assert_eq!(found.prompt_tokens, list["usage"]["prompt_tokens"]);
    }
    let body = json!({"model": MODEL, "prompt": "Hello world"});
    let listed = server.post("/tokenize", &body).await.ok();
    let tokens: Tokens = one(state, "TokenizeString", &prompt("Hello world")).await;
    assert_eq!(json!(tokens.tokens), listed["tokens"]);
    assert_eq!(tokens.length, listed["count"]);
    let of_chat: Tokens = one(state, "TokenizeString", &chat()).await;
    let reply: Reply = one(state, "Predict", &chat()).await;
    assert_eq!(of_chat.length, reply.prompt_tokens, "with what the template adds");
    let back = TokensAlone { tokens: tokens.tokens };
    let back: Text = one(state, "Detokenize", &back).await;
    assert_eq!(back.content, "Hello world");
    let about: Metadata = one(state, "ModelMetadata", &Load::default()).await;
    let rendered = TokensAlone { tokens: of_chat.tokens };
    let rendered: Text = one(state, "Detokenize", &rendered).await;
    assert_eq!(about.rendered_template, rendered.content);
    assert!(about.rendered_template.contains("Hello") && !about.supports_thinking);
    for token in [-1, 1 << 30] {
        let (code, _) = refused(state, "Detokenize", &TokensAlone { tokens: vec![token] }).await;
        assert_eq!(code, INVALID_ARGUMENT);
    }
}
