//! What a token costs on its way from the engine to a client: detokenising, stop strings, JSON,
//! events, sockets.
//!
//! ```text
//! cargo run --release -p jackalope-server --example token_cost [-- MODEL_DIR]
//! ```
//!
//! Ranks without a model sample a token for every stream in each step of two milliseconds, so that
//! every token is an event and a write of its own, as it is with a real model. Each line is the
//! processor time of the thread that serves, per token, for 1, 8 and 64 streams: reading the
//! engine's events alone, the same through the router, and through sockets.

#![expect(clippy::print_stdout, reason = "an example speaks to people")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Request as HttpRequest;
use futures_util::StreamExt;
use futures_util::future::join_all;
use jackalope_engine::testing::{FakeOptions, FakeRanks, fake_facts};
use jackalope_engine::{
    Engine, EngineConfig, EngineHandle, Event, Request, RequestOptions, SamplingOptions,
};
use jackalope_server::{RunningModel, ServerConfig, ServerState, router, serve};
use jackalope_text::ModelText;
use serde_json::json;
use tower::ServiceExt;

const TOKENS_PER_STREAM: u32 = 1000;
const STEP_TIME: Duration = Duration::from_millis(2);
const ROUNDS: usize = 3;

fn main() {
    let dir = std::env::args().nth(1).unwrap_or_else(|| "models/jackalope-mini".to_owned());
    let text = ModelText::load(Path::new(&dir)).expect("the directory holds a tokenizer");
    let text = Arc::new(text);
    let engine = fake_engine(&text);
    assert!(engine.started_blocking(Duration::from_secs(10)), "fake ranks start at once");
    let state =
        ServerState::new(RunningModel::new("cost", engine.clone(), text), ServerConfig::default());
    println!("microseconds per token and stream (best of {ROUNDS})");
    println!("{:>8} {:>10} {:>10} {:>10}", "streams", "events", "router", "sockets");
    for num_streams in [1, 8, 64] {
        let events = best(|| on_a_thread(read_events(engine.clone(), num_streams)));
        let routed = best(|| on_a_thread(read_routed(state.clone(), num_streams)));
        let sockets = best(|| read_sockets(&state, num_streams));
        let per_token = |time: Duration| {
            time.as_secs_f64() * 1e6 / f64::from(TOKENS_PER_STREAM) / num_streams as f64
        };
        println!(
            "{num_streams:>8} {:>10.2} {:>10.2} {:>10.2}",
            per_token(events),
            per_token(routed),
            per_token(sockets)
        );
    }
    engine.shutdown();
}

fn fake_engine(text: &ModelText) -> EngineHandle {
    // Letters and words rather than single bytes: what a model says.
    let vocab_size = text.tokenizer.vocab_size() as u32;
    let said = text.tokenizer.encode("The quick brown fox jumps over the lazy dog. ", false);
    let said = said.expect("a short text has tokens");
    let next_token = move |tokens: &[u32], _: &_| said[tokens.len() % said.len()];
    let (ranks, _) = FakeRanks::new(FakeOptions {
        facts: fake_facts(vocab_size, 8192),
        next_token: Box::new(next_token),
        step_time: STEP_TIME,
        ..FakeOptions::default()
    });
    let config = EngineConfig { running_max: 64, ..EngineConfig::default() };
    Engine::spawn(config, ranks).0
}

fn best(mut round: impl FnMut() -> Duration) -> Duration {
    (0..ROUNDS).map(|_| round()).min().expect("there is at least one round")
}

/// Processor time of a runtime's only thread while it does `work`.
fn on_a_thread(work: impl Future<Output = ()> + Send + 'static) -> Duration {
    let thread = thread::spawn(move || {
        let runtime = runtime();
        let before = thread_time();
        runtime.block_on(work);
        thread_time() - before
    });
    thread.join().expect("the work does not panic")
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime can be made")
}

/// Processor time of this thread where the system reports it, else the time of day.
fn thread_time() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = schedstat.and_then(|text| text.split_whitespace().next()?.parse().ok());
    nanos.map_or_else(
        || {
            static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
            START.get_or_init(Instant::now).elapsed()
        },
        Duration::from_nanos,
    )
}

async fn read_events(engine: EngineHandle, num_streams: usize) {
    let limits = engine.limits().expect("the engine has started");
    join_all((0..num_streams).map(|_| async {
        let options = RequestOptions {
            prompt: vec![1],
            max_tokens: Some(TOKENS_PER_STREAM),
            sampling: SamplingOptions::greedy(),
            ..RequestOptions::default()
        };
        let request = Request::new(options, &limits).expect("the request is sound");
        let mut generation = engine.submit(request).expect("the queue has room");
        while let Some(event) = generation.next().await {
            assert!(!matches!(event, Event::Failed(_)), "{event:?}");
        }
    }))
    .await;
}

fn body() -> String {
    let body = json!({
        "model": "default", "prompt": [1], "stream": true, "max_tokens": TOKENS_PER_STREAM,
        "temperature": 0, "stop": ["\u{0}never\u{0}"],
    });
    body.to_string()
}

async fn read_routed(state: ServerState, num_streams: usize) {
    join_all((0..num_streams).map(|_| async {
        let request = HttpRequest::post("/v1/completions")
            .header("content-type", "application/json")
            .body(Body::from(body()))
            .expect("the request is sound");
        let response = router(state.clone()).oneshot(request).await.expect("it cannot fail");
        assert!(response.status().is_success(), "{response:?}");
        let mut frames = response.into_body().into_data_stream();
        while let Some(frame) = frames.next().await {
            frame.expect("bodies of ours do not fail");
        }
    }))
    .await;
}

fn read_sockets(state: &ServerState, num_streams: usize) -> Duration {
    let state = state.clone();
    let (sender, addr) = std::sync::mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let serving = thread::spawn(move || {
        let runtime = runtime();
        let before = thread_time();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            sender.send(listener.local_addr().expect("it is bound")).expect("main waits for it");
            serve(listener, state, async { stopped.await.unwrap_or_default() }).await;
        });
        thread_time() - before
    });
    let addr = addr.recv().expect("the server listens");
    let clients: Vec<_> = (0..num_streams).map(|_| thread::spawn(move || read_one(addr))).collect();
    for client in clients {
        client.join().expect("a client reads to the end");
    }
    stop.send(()).expect("the server waits for it");
    serving.join().expect("the server does not panic")
}

fn read_one(addr: SocketAddr) {
    let mut socket = TcpStream::connect(addr).expect("the server listens");
    let body = body();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: cost\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all((head + &body).as_bytes()).expect("the server reads");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).expect("the server writes");
    assert!(answer.windows(6).any(|window| window == b"[DONE]"), "the stream ends well");
}
