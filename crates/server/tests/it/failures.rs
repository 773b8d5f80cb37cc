//! A full queue, ranks that are lost, and clients that leave.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use jackalope_engine::testing::FakeOrder;
use jackalope_engine::{MemoryReading, PressurePolicy};
use jackalope_protocol::{PressureTier, Sampling, TokenId};
use jackalope_server::ServerConfig;
use serde_json::json;

use crate::support::{Setup, chat_body, end_token, events, post};

const CHAT: &str = "/v1/chat/completions";

/// Fails requests soon when ranks fail repeatedly, and recovers quickly.
fn impatient(setup: Setup) -> Setup {
    setup.engine(|config| {
        config.retry.standstill_max = Duration::from_millis(10);
    })
}

fn streaming() -> String {
    chat_body(json!({"stream": true})).to_string()
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_says_when_to_come_again() {
    let setup = Setup::says("Hello").engine(|config| {
        config.running_max = 1;
        config.queue_max = 1;
    });
    let server = setup.start().await;
    server.control.order(FakeOrder::Hold);
    let mut first = server.open(post(CHAT, streaming())).await;
    let mut second = server.open(post(CHAT, streaming())).await;
    let refused = server.chat(json!({})).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    let error = refused.error();
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("rate_limit_error"), &json!("queue_full"))
    );
    let seconds: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));
    server.control.order(FakeOrder::Resume);
    first.read_until("[DONE]").await;
    second.read_until("[DONE]").await;
    server.chat(json!({})).await.ok();
}

#[tokio::test]
async fn a_machine_whose_memory_others_have_taken_is_reported_with_507_and_by_health() {
    let setup = Setup::says("Hello").engine(|config| {
        config.pressure = PressurePolicy {
            hold: Duration::ZERO,
            critical_max: Duration::ZERO,
            warns_at_rest: true,
        };
    });
    let server = setup.start().await;
    let reading = |tier| MemoryReading { tier, host: "mac2".to_owned(), free_bytes: 300 << 20 };
    let engine = server.engine.clone();
    engine.report_memory(reading(PressureTier::Warn));
    server.until("it is short", |it| it.pressure.reading.tier == PressureTier::Warn).await;
    server.chat(json!({})).await.ok();
    let health = server.get("/health").await.ok();
    assert_eq!(
        health["memory_pressure"],
        json!({"tier": "warn", "host": "mac2", "free_bytes": 300 << 20, "refusing": false})
    );
    engine.report_memory(reading(PressureTier::Critical));
    server.until("it is critical", |it| it.pressure.reading.tier == PressureTier::Critical).await;
    let refused = server.chat(json!({})).await;
    assert_eq!(refused.status, StatusCode::INSUFFICIENT_STORAGE);
    let error = refused.error();
    assert_eq!(error["code"], "memory_pressure");
    let said = error["message"].as_str().unwrap();
    assert!(said.contains("mac2 has 300 MiB of memory left") && said.contains("hint:"), "{said}");
    assert_eq!(refused.headers["retry-after"], "10");
    let health = server.get("/health").await;
    assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(health.body.contains("memory_short"), "{}", health.body);
    let ready = server.get("/health/ready").await;
    assert_eq!(ready.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(!ready.body.contains("mac2"), "names of machines are not for everybody");
    let metrics = server.get("/metrics").await.body;
    let told =
        |line: &str| line.starts_with("jackalope_memory_pressure{") && line.ends_with(" 2.0");
    assert!(metrics.lines().any(told), "{metrics}");

    engine.report_memory(reading(PressureTier::Normal));
    server.until("it is well", |it| it.pressure.reading.tier == PressureTier::Normal).await;
    server.chat(json!({})).await.ok();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_takes_too_long_ends_with_504_and_is_cancelled() {
    let mut setup = Setup::says("Hello");
    setup.server.limits.request_timeout = Some(Duration::from_secs(3));
    setup.server.limits.keep_alive = Duration::from_secs(1);
    let server = setup.start().await;
    server.control.order(FakeOrder::Hold);
    let refused = server.chat(json!({})).await;
    assert_eq!(refused.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(refused.error()["code"], "timeout");
    let mut stream = server.open(post(CHAT, streaming())).await;
    stream.read_until("was not answered within 3 s").await;
    let are_cancelled = |status: &jackalope_engine::Status| status.counters.cancelled == 2;
    server.until("both are cancelled", are_cancelled).await;
}

#[tokio::test(start_paused = true)]
async fn answers_have_a_default_length_if_the_server_was_given_one() {
    let mut setup = Setup::babbles();
    setup.server.limits.default_max_tokens = Some(5);
    let server = setup.start().await;
    let body = json!({"ignore_eos": true});
    let answer = server.chat(body).await.ok();
    assert_eq!(answer["usage"]["completion_tokens"], 5, "{answer}");
    let asked = server.chat(json!({"ignore_eos": true, "max_tokens": 7})).await.ok();
    assert_eq!(asked["usage"]["completion_tokens"], 7, "{asked}");
}

#[tokio::test(start_paused = true)]
async fn choices_that_do_not_all_fit_are_refused_together() {
    let setup = Setup::says("Hello").engine(|config| {
        config.running_max = 1;
        config.queue_max = 1;
    });
    let server = setup.start().await;
    server.control.order(FakeOrder::Hold);
    assert_eq!(server.chat(json!({"n": 3})).await.status, StatusCode::TOO_MANY_REQUESTS);
    server.control.order(FakeOrder::Resume);
    server.until("the first ones are cancelled", |status| status.counters.cancelled == 2).await;
    server.chat(json!({"n": 2})).await.ok();
}

#[tokio::test(start_paused = true)]
async fn open_streams_are_bounded() {
    let setup = Setup::says("Hello").limited(|config| config.limits.open_streams = 2);
    let server = setup.start().await;
    server.control.order(FakeOrder::Hold);
    let mut open = Vec::new();
    for _ in 0..2 {
        open.push(server.open(post(CHAT, streaming())).await);
    }
    let refused = server.chat(json!({})).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.error()["code"], "too_many_streams");
    assert!(refused.headers.contains_key("retry-after"));
    server.control.order(FakeOrder::Resume);
    for live in &mut open {
        live.read_until("[DONE]").await;
    }
    drop(open);
    server.chat(json!({})).await.ok();
}

#[tokio::test]
async fn a_lost_rank_that_comes_back_is_not_noticed() {
    let server = Setup::says("Hello world again").start().await;
    server.control.order(FakeOrder::Pace(Duration::from_millis(1)));
    let mut live = server.open(post(CHAT, streaming())).await;
    live.read_until("Hello").await;
    server.control.order(FakeOrder::Crash { rank: 1 });
    live.read_until("[DONE]").await;
    let text: String = events(&live.seen)
        .iter()
        .filter_map(|event| {
            let chunk: serde_json::Value = serde_json::from_str(event).ok()?;
            chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned)
        })
        .collect();
    assert_eq!(text, "Hello world again");
    server.until("the loss is counted", |status| status.counters.recoveries == 1).await;
}

#[tokio::test]
async fn a_failure_before_the_first_token_has_its_own_status() {
    let setup = impatient(Setup::says("Hello"));
    let patient = |config: &mut ServerConfig| config.limits.keep_alive = Duration::from_secs(600);
    let server = setup.limited(patient).start().await;
    for stream in [false, true] {
        server.control.order(FakeOrder::Hold);
        let asking = server.chat(json!({"stream": stream}));
        let crash = async {
            server.until("it runs", |status| status.running == 1).await;
            server.control.order(FakeOrder::CrashAgain { rank: 1, attempts: 4 });
        };
        let (reply, ()) = tokio::join!(asking, crash);
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "{}", reply.body);
        let error = reply.error();
        assert_eq!(error["code"], "rank_failed");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("rank 1"), "{message}");
        assert!(message.contains("the end is near"), "{message}");
        assert!(reply.headers.contains_key("retry-after"));
        server.control.order(FakeOrder::Resume);
        server.until("it is back", |status| status.state.name() == "ready").await;
    }
}

#[tokio::test]
async fn a_failure_in_the_middle_of_a_stream_is_reported_in_it() {
    let server = impatient(Setup::answers(|_| vec![33; 1000])).start().await;
    server.control.order(FakeOrder::Pace(Duration::from_millis(1)));
    let mut live = server.open(post(CHAT, streaming())).await;
    live.read_until("\"content\":\"!\"").await;
    server.control.order(FakeOrder::CrashAgain { rank: 1, attempts: 4 });
    while live.next_frame().await.is_some() {}
    let last = events(&live.seen).pop().unwrap();
    let last: serde_json::Value = serde_json::from_str(&last).unwrap();
    assert_eq!(last["error"]["code"], "rank_failed");
    assert!(last["error"]["message"].as_str().unwrap().contains("the end is near"));
    assert_eq!(last["detail"], last["error"]["message"]);
    assert!(!live.seen.contains("[DONE]"));
}

#[tokio::test]
async fn a_server_whose_ranks_still_load_says_so() {
    let mut setup = Setup::says("Hello");
    setup.start_time = Duration::from_secs(3600);
    let setup = setup.limited(|config| config.limits.load_wait = Duration::from_millis(10));
    let server = setup.begin();
    let reply = server.chat(json!({})).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(reply.error()["code"], "model_loading");
    assert_eq!(reply.headers["retry-after"], "5");
    let ready = server.get("/health/ready").await;
    assert_eq!(ready.status, StatusCode::SERVICE_UNAVAILABLE);
    let body: serde_json::Value = serde_json::from_str(&ready.body).unwrap();
    assert_eq!(body["status"], "starting");
    assert_eq!(server.get("/health/live").await.ok()["status"], "alive");
    assert_eq!(server.get("/health").await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn an_engine_that_ends_ends_its_streams() {
    let server = Setup::answers(|_| vec![33; 1000]).start().await;
    server.control.order(FakeOrder::Pace(Duration::from_millis(1)));
    let mut live = server.open(post(CHAT, streaming())).await;
    live.read_until("\"content\":\"!\"").await;
    server.engine.shutdown();
    while live.next_frame().await.is_some() {}
    assert!(events(&live.seen).pop().unwrap().contains("\"error\""), "{}", live.seen);
    assert_eq!(server.chat(json!({})).await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_dropped_stream_is_cancelled() {
    let server = Setup::answers(|_| vec![33; 1000]).start().await;
    server.control.order(FakeOrder::Pace(Duration::from_millis(1)));
    let body = chat_body(json!({"stream": true, "n": 3})).to_string();
    let mut live = server.open(post(CHAT, body)).await;
    live.read_until("\"content\":\"!\"").await;
    drop(live);
    let all_ended =
        |status: &jackalope_engine::Status| status.counters.cancelled == 3 && status.running == 0;
    server.until("all choices are cancelled", all_ended).await;
}

/// Here, blocking the ranks also blocks the engine's thread.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_engine_hangs_is_not_ready() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let server = Setup::answers(move |_| {
        // An error means that the test has released it.
        released.recv().ok();
        vec![33; 2]
    })
    .start()
    .await;
    let ready = || async { server.get("/health/ready").await };
    assert_eq!(ready().await.status, StatusCode::OK);
    let _asking = server.open(post(CHAT, streaming())).await;
    let reply = loop {
        let reply = ready().await;
        if reply.status != StatusCode::OK {
            break reply;
        }
    };
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(reply.body.contains("the engine does not answer"), "{}", reply.body);
    drop(release);
    while ready().await.status != StatusCode::OK {}
}

/// The engine's thread computes the answers of fake ranks, so a model that hangs holds it up.
#[tokio::test]
async fn orders_to_an_engine_that_hangs_are_answered_in_time_and_by_name() {
    let (released, held) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
    let (release, hold) = (Arc::clone(&released), Arc::clone(&held));
    let next_token = Box::new(move |_: &[TokenId], _: &Sampling| {
        held.set(()).ok();
        released.wait();
        end_token()
    });
    let server = Setup::with(crate::model::text(), next_token).start().await;
    let mut live = server.open(post(CHAT, streaming())).await;
    tokio::task::spawn_blocking(move || *hold.wait()).await.unwrap();
    let name = live.headers["x-request-id"].to_str().unwrap().to_owned();
    for path in ["/v1/cache", &format!("/v1/requests/{name}")] {
        let request = Request::delete(path).body(Body::empty()).unwrap();
        let reply = server.send(request).await;
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "{path}: {}", reply.body);
        assert_eq!(reply.error()["code"], "engine_silent");
        let message = reply.error()["message"].to_string();
        assert!(message.contains("did not answer within 2 s"), "{message}");
    }
    assert_eq!(server.get("/health/ready").await.status, StatusCode::SERVICE_UNAVAILABLE);
    release.set(()).unwrap();
    live.read_until("[DONE]").await;
}
