//! Bodies that arrive slowly, or not at all.

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use futures_util::{StreamExt, stream};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::support::{Reply, Server, Setup, post, send};

/// A request whose body never ends after `num_bytes`.
fn endless(server: &Server, num_bytes: usize) -> JoinHandle<Reply> {
    let begun = Bytes::from(vec![b' '; num_bytes]);
    let begun = stream::iter([Ok::<_, std::convert::Infallible>(begun)]);
    let body = Body::from_stream(begun.chain(stream::pending()));
    let state = server.state.clone();
    tokio::spawn(async move { send(&state, post("/v1/chat/completions", body)).await })
}

/// Lets all tasks run until they wait.
async fn settled() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_that_arrive_slowly_take_no_slots_for_answers() {
    let setup = Setup::says("Hello").limited(|config| config.limits.open_streams = 1);
    let server = setup.start().await;
    let slow: Vec<JoinHandle<Reply>> = (0..20).map(|_| endless(&server, 100)).collect();
    settled().await;
    server.chat(json!({})).await.ok();
    assert_eq!(server.get("/health").await.ok()["open_streams"], 0);
    for reply in slow {
        assert_eq!(reply.await.unwrap().status, StatusCode::REQUEST_TIMEOUT);
    }
}

#[tokio::test(start_paused = true)]
async fn large_bodies_that_arrive_have_bounded_memory() {
    let setup = Setup::says("Hello").limited(|config| {
        config.limits.body_bytes = 1 << 20;
        config.limits.arriving_bytes = 3 << 20;
    });
    let server = setup.start().await;
    let slow: Vec<JoinHandle<Reply>> = (0..3).map(|_| endless(&server, 1 << 20)).collect();
    settled().await;
    let refused = endless(&server, 1 << 20).await.unwrap();
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.error()["code"], "too_many_bodies");
    assert!(refused.headers.contains_key("retry-after"));
    server.chat(json!({})).await.ok();
    for reply in slow {
        assert_eq!(reply.await.unwrap().status, StatusCode::REQUEST_TIMEOUT);
    }
    let long = " ".repeat(1 << 19) + r#"{"messages": [{"role": "user", "content": "Hello"}]}"#;
    server.send(post("/v1/chat/completions", long)).await.ok();
}
