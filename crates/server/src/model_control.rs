//! `POST /model/load`, `/model/unload` and `/model/gc`: loading and unloading of models on request.
//!
//! A model is named by its id or an alias. Paths are not accepted: only the server's operator
//! decides which directories are read.

use std::time::Duration;

use axum::Json;
use axum::body::{Body, HttpBody};
use axum::extract::State;
use axum::http::header::ORIGIN;
use axum::http::{Request, StatusCode};
use jackalope_serving::body::read_json_body;
use jackalope_serving::error::ApiError;
use jackalope_serving::models::{Kept, ModelStatus};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::openapi::answers::{LoadedModel, UnloadedModel, UnloadedModels};
use crate::state::ServerState;

/// Default time to wait for requests that use a model to be unloaded.
const UNLOAD_PATIENCE: Duration = Duration::from_secs(30);

/// Bytes per gigabyte in the answers.
const GIGABYTE: f64 = 1e9;

/// What may be said of a model that is to come or go.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
struct ControlRequest {
    /// A name of the model: its id, an alias, or `default`, which it is without one.
    model: Option<String>,
    /// The same, as older servers call it.
    model_id: Option<String>,
    /// Clients do not choose directories.
    model_dir: Option<Value>,
    /// Clients do not choose directories.
    model_path: Option<Value>,
    /// `/model/load`: whether to answer only when it is loaded.
    wait: Option<bool>,
    /// `/model/unload`: how long requests that use it are waited for.
    #[schema(minimum = 0)]
    timeout_seconds: Option<f64>,
}

impl ControlRequest {
    async fn read(state: &ServerState, request: Request<Body>) -> Result<Self, ApiError> {
        if !state.config().model_control {
            let hint =
                "start the server with `--admin-key`, or with several models on this machine";
            return Err(ApiError::NoModelControl { hint });
        }
        // An empty body need not be declared as JSON, unless the request comes from a page of
        // another site.
        let says_nothing = request.body().size_hint().exact() == Some(0);
        if says_nothing && !request.headers().contains_key(ORIGIN) {
            return Ok(ControlRequest::default());
        }
        let said: ControlRequest = read_json_body(request, state.limits()).await?.read()?;
        let refused = [("model_dir", &said.model_dir), ("model_path", &said.model_path)];
        match refused.iter().find(|(_, value)| value.is_some()) {
            Some((param, _)) => Err(ApiError::NotSupported {
                param: (*param).to_owned(),
                hint: Some("name a model of GET /v1/models as `model`".to_owned()),
            }),
            None => Ok(said),
        }
    }

    fn name(&self) -> Option<&str> {
        self.model.as_deref().or(self.model_id.as_deref())
    }
}

/// Loads a model, the default one if none is named.
#[utoipa::path(
    post,
    path = "/model/load",
    tag = "models",
    request_body = ControlRequest,
    responses(
        (status = 200, description = "It is loaded.", body = LoadedModel),
        (status = 202, description = "It is being loaded.", body = LoadedModel)
    ),
)]
pub(crate) async fn load(
    State(state): State<ServerState>,
    request: Request<Body>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let said = ControlRequest::read(&state, request).await?;
    let name = said.name().unwrap_or("default");
    let mut limits = state.limits().as_ref().clone();
    if said.wait == Some(false) {
        limits.load_wait = Duration::ZERO;
    }
    let (code, told) = match state.models().load_and_open(name, &limits).await {
        Ok(_) => (StatusCode::OK, "loaded"),
        Err(ApiError::ModelLoading { .. }) => (StatusCode::ACCEPTED, "loading"),
        Err(err) => return Err(err),
    };
    let status = state.models().status(name).expect("it was just found");
    let body = json!({
        "status": told,
        "model": status.id,
        "model_id": status.id,
        "load_time_s": status.load_time.map(|it| it.as_secs_f64()),
        "slot": slot_json(&status),
        "memory": memory_json(&Memory::of(&status)),
    });
    Ok((code, Json(body)))
}

/// Unloads a model, the default one if none is named, once nobody uses it.
#[utoipa::path(
    post,
    path = "/model/unload",
    tag = "models",
    request_body = ControlRequest,
    responses((status = 200, description = "The answer.", body = UnloadedModel)),
)]
pub(crate) async fn unload(
    State(state): State<ServerState>,
    request: Request<Body>,
) -> Result<Json<Value>, ApiError> {
    let said = ControlRequest::read(&state, request).await?;
    let name = said.name().unwrap_or("default");
    let unknown =
        || ApiError::UnknownModel { found: name.to_owned(), served: state.models().served() };
    let before = state.models().status(name).ok_or_else(unknown)?;
    let memory = Memory::of(&before);
    let patience = said.timeout_seconds.map_or(Ok(UNLOAD_PATIENCE), |seconds| {
        let most = state.limits().load_wait.max(UNLOAD_PATIENCE).as_secs_f64();
        let is_fit = (0.0..=most).contains(&seconds);
        is_fit.then(|| Duration::from_secs_f64(seconds)).ok_or_else(|| {
            ApiError::out_of_range("timeout_seconds", &seconds, format!("between 0 and {most}"))
        })
    })?;
    let model = before.id;
    match state.models().unload(name, patience).await {
        Ok(()) => {}
        Err(Kept::NotLoaded) => {
            let message = format!("the model {model} is not loaded");
            let memory = memory_json(&Memory::default());
            return Ok(Json(json!({"status": "no_model", "message": message, "memory": memory})));
        }
        Err(Kept::InUse(num_open)) => return Err(ApiError::ModelInUse { model, num_open }),
        Err(Kept::Unknown) => return Err(unknown()),
        Err(Kept::Fixed) => {
            return Err(ApiError::NoModelControl { hint: "this server's one model stays" });
        }
    }
    let mut body = freed_json(&memory, &Memory::default());
    body["status"] = json!("unloaded");
    body["model"] = json!(model);
    body["model_id"] = json!(model);
    body["memory_after"] = memory_json(&Memory::default());
    Ok(Json(body))
}

/// Unloads every model that nobody uses, but pinned ones and the default one.
#[utoipa::path(
    post,
    path = "/model/gc",
    tag = "models",
    request_body = ControlRequest,
    responses((status = 200, description = "The answer.", body = UnloadedModels)),
)]
pub(crate) async fn unload_unused(
    State(state): State<ServerState>,
    request: Request<Body>,
) -> Result<Json<Value>, ApiError> {
    ControlRequest::read(&state, request).await?;
    let sum = |state: &ServerState| {
        let all = state.models().list();
        all.iter().map(Memory::of).fold(Memory::default(), Memory::plus)
    };
    let before = sum(&state);
    let unloaded = state.models().unload_unused().await;
    let after = sum(&state);
    let mut body = freed_json(&before, &after);
    body["unloaded"] = json!(unloaded);
    body["memory"] = memory_json(&after);
    Ok(Json(body))
}

/// Memory that the ranks reported in their last heartbeat, summed.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    active_bytes: u64,
    cache_bytes: u64,
    weights_bytes: u64,
    kv_bytes: u64,
}

impl Memory {
    fn of(status: &ModelStatus) -> Memory {
        let engine = status.model.as_ref().map(|model| model.engine.status());
        let ranks = engine.iter().flat_map(|it| &it.ranks).map(|rank| Memory {
            active_bytes: rank.memory.active_bytes,
            cache_bytes: rank.memory.cache_bytes,
            weights_bytes: rank.facts.as_ref().map_or(0, |facts| facts.weights_bytes),
            kv_bytes: rank.memory.kv_bytes,
        });
        ranks.fold(Memory::default(), Memory::plus)
    }

    fn plus(self, other: Memory) -> Memory {
        Memory {
            active_bytes: self.active_bytes + other.active_bytes,
            cache_bytes: self.cache_bytes + other.cache_bytes,
            weights_bytes: self.weights_bytes + other.weights_bytes,
            kv_bytes: self.kv_bytes + other.kv_bytes,
        }
    }
}

fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / GIGABYTE
}

fn memory_json(memory: &Memory) -> Value {
    json!({
        "active_gb": gigabytes(memory.active_bytes),
        "cache_gb": gigabytes(memory.cache_bytes),
        "weights_gb": gigabytes(memory.weights_bytes),
        "kv_gb": gigabytes(memory.kv_bytes),
    })
}

fn freed_json(before: &Memory, after: &Memory) -> Value {
    let all = |it: &Memory| it.active_bytes + it.cache_bytes;
    json!({
        "before_active_gb": gigabytes(before.active_bytes),
        "before_cache_gb": gigabytes(before.cache_bytes),
        "after_active_gb": gigabytes(after.active_bytes),
        "after_cache_gb": gigabytes(after.cache_bytes),
        "freed_gb": gigabytes(all(before).saturating_sub(all(after))),
    })
}

/// The loaded model, in the form of older servers.
fn slot_json(status: &ModelStatus) -> Value {
    if !status.is_up() {
        return json!({"loaded": false});
    }
    json!({
        "loaded": true,
        "model_id": status.id,
        "strategy": "tensor_parallel",
        "load_time_s": status.load_time.map(|it| it.as_secs_f64()),
        "size_gb": gigabytes(Memory::of(status).weights_bytes),
        "loaded_at": status.created,
        "uptime_s": jackalope_serving::ids::unix_seconds().saturating_sub(status.created),
    })
}
