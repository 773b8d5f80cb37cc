//! Health, versions, keys and names of requests.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use jackalope_server::ApiKeys;
use serde_json::{Value, json};

use crate::support::{MODEL, Server, Setup, chat_body, post};

#[tokio::test]
async fn health_reports_what_other_servers_report_and_more() {
    let server = Setup::says("Hello").start().await;
    server.chat(json!({})).await.ok();
    server.until("it has ended", |status| status.counters.finished == 1).await;
    let health = server.get("/health").await.ok();
    let told = |field: &str| health[field].clone();
    assert_eq!(told("status"), "healthy");
    assert_eq!(told("ok"), true);
    assert_eq!((told("model"), told("model_name")), (json!(MODEL), json!(MODEL)));
    assert_eq!(told("world_size"), 2);
    assert_eq!((told("running"), told("queue_size")), (json!(0), json!(0)));
    assert_eq!(told("recoveries"), 0);
    assert_eq!(told("reason"), Value::Null);
    assert_eq!(health["counters"]["finished"], 1);
    let ranks = health["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2);
    for (rank, it) in ranks.iter().enumerate() {
        assert_eq!(it["rank"], rank);
        assert_eq!(it["facts"]["heads"], json!({"start": 0, "end": 4}));
        assert!(it["memory"]["kv_bytes"].is_number() && it["phase"].is_string());
    }
    assert_eq!(server.get("/health/ready").await.ok()["ready"], true);
    assert_eq!(server.get("/version").await.ok()["version"], env!("CARGO_PKG_VERSION"));
}

async fn get_with(server: &Server, path: &str, header: Option<(&str, &str)>) -> StatusCode {
    let mut request = Request::get(path);
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    let reply = server.send(request.body(Body::empty()).unwrap()).await;
    if reply.status == StatusCode::UNAUTHORIZED {
        assert_eq!(reply.error()["code"], "invalid_api_key");
        assert_eq!(reply.headers["www-authenticate"], "Bearer");
        assert!(!reply.body.contains("sekret"), "a key is never told: {}", reply.body);
    }
    reply.status
}

#[tokio::test]
async fn with_keys_only_their_holders_are_served() {
    let setup = Setup::says("Hello")
        .limited(|config| config.api_keys = ApiKeys::new(["sekret-one", " sekret-two "]));
    let server = setup.start().await;
    for (header, status) in [
        (None, 401),
        (Some(("authorization", "Bearer sekret-three")), 401),
        (Some(("authorization", "Bearer sekret-on")), 401),
        (Some(("authorization", "Bearer ")), 401),
        (Some(("authorization", "Basic sekret-one")), 401),
        (Some(("x-api-key", "sekret-onE")), 401),
        (Some(("authorization", "Bearer sekret-one")), 200),
        (Some(("authorization", "bearer sekret-two")), 200),
        (Some(("x-api-key", "sekret-one")), 200),
    ] {
        for path in ["/v1/models", "/health", "/version"] {
            assert_eq!(get_with(&server, path, header).await, status, "{header:?} {path}");
        }
        for path in ["/health/live", "/health/ready"] {
            assert_eq!(get_with(&server, path, header).await, 200, "{header:?} {path}");
        }
    }
    assert_eq!(get_with(&server, "/nowhere", None).await, 401);
    assert_eq!(server.chat(json!({})).await.status, 401);
    assert_eq!(format!("{:?}", ApiKeys::new(["sekret"])), "ApiKeys(1 keys)");
}

#[tokio::test]
async fn without_keys_any_key_will_do() {
    let server = Setup::says("Hello").start().await;
    let key = Some(("authorization", "Bearer not-needed"));
    assert_eq!(get_with(&server, "/v1/models", key).await, 200);
}

#[tokio::test]
async fn every_answer_carries_the_name_of_its_request() {
    let server = Setup::says("Hello").start().await;
    let long = "x".repeat(129);
    for (sent, is_kept) in [("abc-123", true), ("has space", false), (&long, false), ("", false)] {
        let mut request = post("/v1/chat/completions", chat_body(json!({})).to_string());
        request.headers_mut().insert("x-request-id", sent.parse().unwrap());
        let reply = server.send(request).await;
        let name = reply.headers["x-request-id"].to_str().unwrap();
        assert_eq!(name == sent, is_kept, "{sent:?} became {name:?}");
        assert!(is_kept || name.starts_with("req_"));
    }
    let (one, other) = (server.get("/nowhere").await, server.get("/nowhere").await);
    assert_ne!(one.headers["x-request-id"], other.headers["x-request-id"]);
}

#[tokio::test]
async fn no_answer_lets_other_origins_in() {
    let server = Setup::says("Hello").start().await;
    let mut request = post("/v1/chat/completions", chat_body(json!({})).to_string());
    request.headers_mut().insert("origin", "https://elsewhere.example".parse().unwrap());
    let reply = server.send(request).await;
    reply.ok();
    assert!(reply.headers.keys().all(|name| !name.as_str().starts_with("access-control")));
}
