//! Web pages of other sites: what they may read, and under which names the server answers.

use axum::body::Body;
use axum::http::{Method, Request};
use jackalope_server::{AllowedHosts, AllowedOrigins, ApiKeys};
use serde_json::json;

use crate::support::{Reply, Server, Setup, chat_body, post};

const ORIGIN: &str = "https://chat.example";

async fn preflight(server: &Server, origin: &str) -> Reply {
    let request = Request::builder()
        .method(Method::OPTIONS)
        .uri("/v1/chat/completions")
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization, content-type");
    server.send(request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn pages_of_allowed_origins_read_answers_and_others_do_not() {
    let setup = Setup::says("Hello").limited(|config| {
        config.origins = AllowedOrigins::new([ORIGIN]);
        config.api_keys = ApiKeys::new(["sekret"]);
    });
    let server = setup.start().await;
    let reply = preflight(&server, ORIGIN).await;
    assert_eq!(reply.status, 204, "a browser asks without the key");
    assert_eq!(reply.headers["access-control-allow-origin"], ORIGIN);
    assert_eq!(reply.headers["access-control-allow-headers"], "authorization, content-type");
    assert!(reply.headers["access-control-allow-methods"].to_str().unwrap().contains("POST"));
    let reply = preflight(&server, "https://elsewhere.example").await;
    assert_eq!(reply.status, 401);
    assert!(!reply.headers.contains_key("access-control-allow-origin"));

    for (origin, is_allowed) in [(ORIGIN, true), ("https://elsewhere.example", false)] {
        let mut request = post("/v1/chat/completions", chat_body(json!({})).to_string());
        request.headers_mut().insert("origin", origin.parse().unwrap());
        let reply = server.send(request).await;
        assert_eq!(reply.status, 401);
        let told = reply.headers.get("access-control-allow-origin");
        assert_eq!(told.is_some(), is_allowed, "{origin}: a page has to read errors too");
        assert_eq!(reply.headers["vary"], "origin");
    }
}

#[tokio::test]
async fn all_origins_are_allowed_by_a_star() {
    let setup = Setup::says("Hello").limited(|config| config.origins = AllowedOrigins::new(["*"]));
    let server = setup.start().await;
    let reply = preflight(&server, "https://anywhere.example").await;
    assert_eq!(
        (reply.status.as_u16(), &reply.headers["access-control-allow-origin"]),
        (204, &"*".parse().unwrap())
    );
}

#[tokio::test]
async fn without_a_list_a_preflight_is_an_unknown_method() {
    let server = Setup::says("Hello").start().await;
    let reply = preflight(&server, ORIGIN).await;
    assert_eq!(reply.status, 405);
    assert!(reply.headers.keys().all(|name| !name.as_str().starts_with("access-control")));
}

#[tokio::test]
async fn a_name_that_only_points_here_is_not_answered_to() {
    let setup = Setup::says("Hello")
        .limited(|config| config.hosts = AllowedHosts::Local(vec!["studio.example".to_owned()]));
    let server = setup.start().await;
    for (host, status) in [
        ("localhost:8080", 200),
        ("127.0.0.1:8080", 200),
        ("studio.example", 200),
        ("evil.example", 421),
    ] {
        let request = Request::get("/v1/models").header("host", host);
        let reply = server.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(reply.status, status, "{host}: {}", reply.body);
        if status == 421 {
            let message = reply.error()["message"].as_str().unwrap().to_owned();
            assert!(message.contains("--allow-host evil.example"), "{message}");
        }
    }
}
