//! The service card, the web page and its files, the overview that it shows, the queue and the model.

use axum::Json;
use axum::extract::State;
use axum::http::header::{ACCEPT, VARY};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::response::{IntoResponse, Response};
use jackalope_engine::EngineState;
use jackalope_serving::error::ApiError;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use crate::extract::{Name, Params};
use crate::state::ServerState;
use crate::wire::merged;
use jackalope_serving::memory::memory_of;

/// The text by which clients of Ollama's API recognise the server.
const OLLAMA: &str = "Ollama is running";

/// Default number of samples of the rates.
const SAMPLES_RETURNED: usize = 60;

pub(super) async fn root(method: Method, headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|it| it.to_str().ok()).unwrap_or_default();
    let mut response = match (accept.contains("text/html"), accept.contains("application/json")) {
        (true, _) if method != Method::HEAD => jackalope_web::page(&headers),
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

pub(super) async fn page(headers: HeaderMap) -> Response {
    jackalope_web::page(&headers)
}

/// Query parameters of a file of the web page.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Asset {
    /// Version of the file; with the current one, clients may keep the file for ever.
    v: Option<String>,
}

pub(super) async fn asset(
    Name(name): Name,
    Params(Asset { v }): Params<Asset>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    jackalope_web::asset(&name, v.as_deref(), &headers)
        .ok_or_else(|| ApiError::UnknownPath { path: format!("/assets/{name}") })
}

/// Query parameters of the overview.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct OverviewOptions {
    /// Number of samples of the rates, one per second, at most 600. Default: 60.
    n: Option<usize>,
}

pub(super) async fn cluster(
    State(state): State<ServerState>,
    Params(OverviewOptions { n }): Params<OverviewOptions>,
) -> Result<Json<Value>, ApiError> {
    let num_samples = n.unwrap_or(SAMPLES_RETURNED).min(jackalope_web::SAMPLES_MAX);
    Ok(Json(jackalope_web::overview(&state, state.activity(), num_samples)))
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
