//! A server over fake ranks, and requests to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use futures_util::StreamExt;
use jackalope_engine::testing::{
    FakeControl, FakeOptions, FakeRanks, NextToken, fake_facts, pseudo_model, scripted_model,
};
use jackalope_engine::{Engine, EngineConfig, EngineHandle, EngineThread, RankTransport, Status};
use jackalope_protocol::TokenId;
use jackalope_server::{ModelDetails, RunningModel, ServerConfig, ServerState, router};
use jackalope_text::ModelText;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::model;

/// Tokens of the imaginary model's context.
pub(crate) const CONTEXT_TOKENS: u32 = 256;

/// The id of the imaginary model.
pub(crate) const MODEL: &str = "org/fake";

/// How a server under test is made.
pub(crate) struct Setup {
    pub(crate) text: Arc<ModelText>,
    pub(crate) next_token: NextToken,
    pub(crate) engine: EngineConfig,
    pub(crate) server: ServerConfig,
    pub(crate) aliases: Vec<String>,
    pub(crate) enable_thinking: Option<bool>,
    pub(crate) details: Option<ModelDetails>,
    pub(crate) start_time: Duration,
    pub(crate) transports: Vec<RankTransport>,
    pub(crate) context_tokens: u32,
    pub(crate) state_bytes: u64,
}

impl Setup {
    /// A model that says this and ends.
    pub(crate) fn says(answer: &str) -> Setup {
        let text = model::text();
        let answer = text.tokenizer.encode(answer, false).unwrap();
        Setup::answers(move |_| answer.clone())
    }

    /// A model that says what `answer` makes of the prompt's tokens and ends.
    pub(crate) fn answers(
        answer: impl FnMut(&[TokenId]) -> Vec<TokenId> + Send + 'static,
    ) -> Setup {
        Setup::with(model::text(), scripted_model(answer, end_token()))
    }

    /// A model that says something else for every prompt and every seed.
    pub(crate) fn babbles() -> Setup {
        let text = model::text();
        let vocab_size = text.tokenizer.vocab_size() as u32;
        Setup::with(text, pseudo_model(vocab_size))
    }

    pub(crate) fn with(text: Arc<ModelText>, next_token: NextToken) -> Setup {
        let eos_tokens = text.tokenizer.eos_token_ids().to_vec();
        Setup {
            text,
            next_token,
            engine: EngineConfig { eos_tokens, ..EngineConfig::default() },
            server: ServerConfig::default(),
            aliases: Vec::new(),
            enable_thinking: None,
            details: None,
            start_time: Duration::ZERO,
            transports: Vec::new(),
            context_tokens: CONTEXT_TOKENS,
            state_bytes: 0,
        }
    }

    /// Gives the model layers with states.
    pub(crate) fn with_states(mut self) -> Setup {
        self.state_bytes = 1 << 16;
        self
    }

    /// Changes what the server allows.
    pub(crate) fn limited(mut self, change: impl FnOnce(&mut ServerConfig)) -> Setup {
        change(&mut self.server);
        self
    }

    /// Changes what the engine allows.
    pub(crate) fn engine(mut self, change: impl FnOnce(&mut EngineConfig)) -> Setup {
        change(&mut self.engine);
        self
    }

    /// Starts and waits until requests are taken.
    pub(crate) async fn start(self) -> Server {
        let server = self.begin();
        assert!(server.engine.started().await, "fake ranks do not fail to start");
        server
    }

    /// Starts without waiting.
    pub(crate) fn begin(self) -> Server {
        let vocab_size = self.text.tokenizer.vocab_size() as u32;
        let mut facts = fake_facts(vocab_size, self.context_tokens);
        facts.cache_cost.state_bytes = self.state_bytes;
        let (ranks, control) = FakeRanks::new(FakeOptions {
            num_ranks: 2,
            transports: self.transports,
            facts,
            step_time: Duration::ZERO,
            start_time: self.start_time,
            next_token: self.next_token,
            ..FakeOptions::default()
        });
        let (engine, thread) = Engine::spawn(self.engine, ranks);
        let model = RunningModel {
            aliases: self.aliases,
            enable_thinking: self.enable_thinking,
            details: self.details,
            ..RunningModel::new(MODEL, engine.clone(), Arc::clone(&self.text))
        };
        let state = ServerState::new(model, self.server);
        Server { state, text: self.text, engine, control, thread: Some(thread) }
    }
}

/// The token that ends an answer.
pub(crate) fn end_token() -> TokenId {
    model::text().tokenizer.token_id(model::END).unwrap()
}

/// A server under test; ends with the value.
pub(crate) struct Server {
    pub(crate) state: ServerState,
    pub(crate) text: Arc<ModelText>,
    pub(crate) engine: EngineHandle,
    pub(crate) control: FakeControl,
    thread: Option<EngineThread>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.engine.shutdown();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the engine does not panic").expect("fake ranks do not end it");
            }
        }
    }
}

impl Server {
    /// Sends a request and reads the whole answer.
    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        send(&self.state, request).await
    }

    /// Sends a request and reads the head of the answer.
    pub(crate) async fn open(&self, request: Request<Body>) -> Live {
        open(&self.state, request).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(post(path, body.to_string())).await
    }

    /// A chat of one message; `more` adds to the request.
    pub(crate) async fn chat(&self, more: Value) -> Reply {
        self.post("/v1/chat/completions", &chat_body(more)).await
    }

    /// A completion of "Hello"; `more` adds to the request.
    pub(crate) async fn complete(&self, more: Value) -> Reply {
        self.post("/v1/completions", &completion_body(more)).await
    }

    /// Waits until the engine's numbers are as wanted. They tell nobody that they changed, so this
    /// looks again and again; it fails only if they never get there.
    pub(crate) async fn until(&self, what: &str, mut wanted: impl FnMut(&Status) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let status = self.engine.status();
            if wanted(&status) {
                return;
            }
            assert!(Instant::now() < deadline, "never reached: {what}; {status:?}");
            std::thread::yield_now();
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn tokens(&self, text: &str) -> Vec<TokenId> {
        self.text.tokenizer.encode(text, false).unwrap()
    }
}

/// Sends a request and reads the whole answer.
pub(crate) async fn send(state: &ServerState, request: Request<Body>) -> Reply {
    let mut live = open(state, request).await;
    while live.next_frame().await.is_some() {}
    Reply { status: live.status, headers: live.headers, body: live.seen }
}

/// Sends a request and reads the head of the answer.
pub(crate) async fn open(state: &ServerState, request: Request<Body>) -> Live {
    let response = router(state.clone()).oneshot(request).await.expect("the router cannot fail");
    let (parts, body) = response.into_parts();
    let frames = Box::pin(body.into_data_stream());
    Live { status: parts.status, headers: parts.headers, frames, seen: String::new() }
}

/// A JSON request.
pub(crate) fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(CONTENT_TYPE, "application/json")
        .body(body.into())
        .unwrap()
}

pub(crate) fn chat_body(more: Value) -> Value {
    merge(json!({"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}), more)
}

pub(crate) fn completion_body(more: Value) -> Value {
    merge(json!({"model": MODEL, "prompt": "Hello"}), more)
}

/// Sets the fields of `more` in `body`.
pub(crate) fn merge(mut body: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("fields are given as an object") };
    body.as_object_mut().unwrap().extend(more);
    body
}

/// An answer that is being read.
pub(crate) struct Live {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    frames: std::pin::Pin<Box<axum::body::BodyDataStream>>,
    /// What has been read.
    pub(crate) seen: String,
}

impl Live {
    pub(crate) async fn next_frame(&mut self) -> Option<Bytes> {
        let frame = self.frames.next().await?.expect("bodies of ours do not fail");
        self.seen.push_str(std::str::from_utf8(&frame).expect("answers are UTF-8"));
        Some(frame)
    }

    /// Reads until the answer contains `text`.
    pub(crate) async fn read_until(&mut self, text: &str) {
        while !self.seen.contains(text) {
            assert!(self.next_frame().await.is_some(), "no {text:?} in {:?}", self.seen);
        }
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Reply {
    /// The body of a success.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        serde_json::from_str(&self.body).expect("answers are JSON")
    }

    /// The error object of a failure, whose form is checked.
    #[track_caller]
    pub(crate) fn error(&self) -> Value {
        assert!(!self.status.is_success(), "{}", self.body);
        let body: Value = serde_json::from_str(&self.body).expect("errors are JSON");
        let error = body["error"].clone();
        for field in ["message", "type", "param", "code"] {
            assert!(error.get(field).is_some(), "{field} is missing in {body}");
        }
        assert_eq!(body["detail"], error["message"]);
        error
    }

    /// The chunks of a stream that ended well.
    #[track_caller]
    pub(crate) fn chunks(&self) -> Vec<Value> {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        let mut chunks = events(&self.body);
        assert_eq!(chunks.pop().as_deref(), Some("[DONE]"), "{}", self.body);
        chunks.iter().map(|chunk| serde_json::from_str(chunk).expect("chunks are JSON")).collect()
    }

    /// What people read in a snapshot: the body without what differs from run to run.
    pub(crate) fn transcript(&self) -> String {
        let body = redact(&self.body);
        let content_type = self.headers[CONTENT_TYPE].to_str().unwrap();
        let body = match serde_json::from_str::<Value>(&body) {
            Ok(value) => format!("{value:#}"),
            Err(_) => body,
        };
        format!("{} {content_type}\n\n{}", self.status, body.trim_end())
    }
}

/// The data of each event of a stream.
pub(crate) fn events(body: &str) -> Vec<String> {
    let events = body.split("\n\n").filter(|event| !event.is_empty());
    let data = events.filter(|event| !event.starts_with(':'));
    data.map(|event| event.strip_prefix("data: ").expect("an event is one line").to_owned())
        .collect()
}

fn is_number(c: char) -> bool {
    c.is_ascii_digit() || c == '.' || c == 'e' || c == '-'
}

/// Replaces ids and times.
pub(crate) fn redact(body: &str) -> String {
    let mut redacted = body.to_owned();
    for (prefix, is_value) in [
        ("chatcmpl-", char::is_alphanumeric as fn(char) -> bool),
        ("cmpl-", char::is_alphanumeric),
        ("call_", char::is_alphanumeric),
        ("fp_jackalope_", |c: char| c.is_ascii_digit() || c == '.'),
        ("resp_", char::is_alphanumeric),
        ("msg_", char::is_alphanumeric),
        ("rs_", char::is_alphanumeric),
        ("fc_", char::is_alphanumeric),
        ("toolu_", char::is_alphanumeric),
        ("req_", char::is_alphanumeric),
        ("\"conversation_id\":\"", |c: char| c.is_ascii_hexdigit() || c == '-'),
        ("\"created_at\":", |c: char| c.is_ascii_digit()),
        ("\"completed_at\":", |c: char| c.is_ascii_alphanumeric()),
        ("_at\":\"", |c: char| c.is_ascii_digit() || "-:.TZ".contains(c)),
        ("_duration\":", |c: char| c.is_ascii_digit()),
        ("\"created\":", |c: char| c.is_ascii_digit()),
        ("\"seconds\":", is_number),
        ("tokens_per_sec\":", is_number),
        ("tokens_per_second\":", is_number),
        ("token_seconds\":", is_number),
    ] {
        let mut parts = redacted.split(prefix);
        let mut result = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let rest = part.trim_start_matches(is_value);
            let value = &part[..part.len() - rest.len()];
            // A number, or the part of an id that is drawn.
            let is_drawn = value.len() >= 10 || prefix.starts_with("fp");
            let varies = is_drawn || (prefix.ends_with([':', '"']) && !value.is_empty());
            let mark = if varies { "0" } else { value };
            result.push_str(&format!("{prefix}{mark}{rest}"));
        }
        redacted = result;
    }
    redacted
}
