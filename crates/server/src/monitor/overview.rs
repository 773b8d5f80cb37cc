//! The service card, the dashboard, the queue and the model.

use axum::Json;
use axum::extract::State;
use axum::http::header::{
    ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::response::{Html, IntoResponse, Response};
use jackalope_engine::EngineState;
use serde_json::{Value, json};

use crate::state::ServerState;
use crate::wire::merged;
use jackalope_serving::memory::memory_of;

/// The dashboard. It is self-contained, so it works without access to any other server.
const PAGE: &str = include_str!("dashboard.html");

/// Content security policy of the dashboard: it runs only its inline script, connects only to this
/// server, and cannot be framed.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
    connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The text by which clients of Ollama's API recognise the server.
const OLLAMA: &str = "Ollama is running";

pub(super) async fn root(method: Method, headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|it| it.to_str().ok()).unwrap_or_default();
    let mut response = match (accept.contains("text/html"), accept.contains("application/json")) {
        (true, _) if method != Method::HEAD => dashboard().await,
        (_, true) if method != Method::HEAD => Json(card()).into_response(),
        _ => OLLAMA.into_response(),
    };
    response.headers_mut().append(VARY, HeaderValue::from_static("accept"));
    response
}

fn card() -> Value {
    json!({
        "name": "MLX Distributed Inference API",
        "server": "jackalope",
        "version": env!("CARGO_PKG_VERSION"),
        "endpoints": {
            "health": "/health",
            "model_info": "/model/info",
            "chat": "/v1/chat/completions",
            "completions": "/v1/completions",
            "models": "/v1/models",
            "queue": "/queue",
            "metrics": "/metrics",
            "snapshot": "/metrics/snapshot",
            "dashboard": "/dashboard",
        },
    })
}

pub(super) async fn dashboard() -> Response {
    let mut response = Html(PAGE).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

pub(super) async fn queue(State(state): State<ServerState>) -> Json<Value> {
    let status = state.default_model().engine_status();
    let oldest = state.journal().open_requests().first().map(|it| it.began.elapsed().as_secs_f64());
    Json(json!({
        "size": status.queued,
        "max": status.queue_max,
        "running": status.running,
        "running_max": status.running_max,
        "oldest_open_s": oldest.map(|it| jackalope_serving::numbers::rounded(it, 3)),
    }))
}

pub(super) async fn model(State(state): State<ServerState>) -> Json<Value> {
    let model = state.default_model();
    let status = model.engine_status();
    let context_tokens = status.limits.as_ref().map(|limits| limits.context_tokens);
    let facts = status.ranks.iter().find_map(|rank| rank.facts.as_ref());
    let is_loaded = status.state == EngineState::Ready;
    let ring = json!({
        "id": model.id,
        "model": model.id,
        "max_context_length": context_tokens,
        "max_tokens": state.limits().default_max_tokens.or(context_tokens),
        "backend": "jackalope",
        "num_devices": status.ranks.len(),
    });
    let info = json!({
        "model_id": model.id,
        "loaded": is_loaded,
        "slot": {"loaded": is_loaded, "model_id": model.id, "loaded_at": model.created},
        "memory": memory_of(&status).to_json(),
        "architecture": facts.map(|facts| &facts.architecture),
        "num_layers": facts.map(|facts| facts.num_layers),
        "vocab_size": facts.map(|facts| facts.vocab_size),
        "models": [ring.clone()],
    });
    Json(merged(info, ring))
}
