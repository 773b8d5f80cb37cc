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
use jackalope_serving::body::{parse_json, read_json};
use jackalope_serving::error::ApiError;
use jackalope_serving::memory::MemoryUse;
use jackalope_serving::models::UnloadRefusal;
use jackalope_serving::models::control::{freed_json, memory, memory_json, slot_json};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::openapi::answers::{LoadedModel, UnloadedModel, UnloadedModels};
use crate::route::{Route, post};
use crate::state::ServerState;

/// Default time to wait for requests that use a model to be unloaded.
const UNLOAD_PATIENCE: Duration = Duration::from_secs(30);

/// What a client does instead of naming a directory.
const NAME_A_MODEL: &str = "name a model of GET /v1/models as `model`";

/// The body of `POST /model/load`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
struct LoadRequest {
    /// Id or alias of the model. Default: `default`, the default model.
    model: Option<String>,
    /// Older name of `model`.
    model_id: Option<String>,
    /// Clients cannot choose directories.
    model_dir: Option<Value>,
    /// Clients cannot choose directories.
    model_path: Option<Value>,
    /// Answer only when the model is loaded. Default: `true`.
    wait: Option<bool>,
}

/// The body of `POST /model/unload`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
struct UnloadRequest {
    /// Id or alias of the model. Default: `default`, the default model.
    model: Option<String>,
    /// Older name of `model`.
    model_id: Option<String>,
    /// Clients cannot choose directories.
    model_dir: Option<Value>,
    /// Clients cannot choose directories.
    model_path: Option<Value>,
    /// Maximum time to wait for requests that use the model, in seconds. Default: 30.
    #[schema(minimum = 0)]
    timeout_seconds: Option<f64>,
}

/// The body of `POST /model/gc`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
struct UnloadUnusedRequest {
    /// Only `/model/unload` unloads a model by its name.
    model: Option<Value>,
    /// Only `/model/unload` unloads a model by its name.
    model_id: Option<Value>,
}

/// Reads the body of a request that loads or unloads models. An absent one has all defaults.
async fn read<T>(state: &ServerState, request: Request<Body>) -> Result<T, ApiError>
where
    T: Default + DeserializeOwned + Send + 'static,
{
    if !state.config().model_control {
        let hint = "start the server with `--admin-key`, or with several models on this machine";
        return Err(ApiError::NoModelControl { hint });
    }
    // An empty body need not be declared as JSON, unless the request comes from a page of
    // another site.
    let says_nothing = request.body().size_hint().exact() == Some(0);
    if says_nothing && !request.headers().contains_key(ORIGIN) {
        return Ok(T::default());
    }
    parse_json(read_json(request, state.limits(), state.body_memory()).await?).await?.read()
}

/// The routes of this module.
pub(crate) fn routes() -> Vec<Route> {
    vec![
        post("/model/load", load, "Loads a model; without a name, the default model.", |it| {
            let it = it.takes::<LoadRequest>();
            let it = it.status::<LoadedModel>("200", "The model is loaded.");
            it.status::<LoadedModel>("202", "The model is loading.")
        }),
        post(
            "/model/unload",
            unload,
            "Unloads a model once no request uses it; without a name, the default model.",
            |it| it.takes::<UnloadRequest>().answers::<UnloadedModel>(),
        ),
        post(
            "/model/gc",
            unload_unused,
            "Unloads all idle models except pinned ones and the default model.",
            |it| it.takes::<UnloadUnusedRequest>().answers::<UnloadedModels>(),
        ),
    ]
}

async fn load(
    State(state): State<ServerState>,
    request: Request<Body>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let said = read::<LoadRequest>(&state, request).await?;
    ApiError::refuse_set(&[
        ("model_dir", said.model_dir.is_some(), NAME_A_MODEL),
        ("model_path", said.model_path.is_some(), NAME_A_MODEL),
    ])?;
    let name = said.model.as_deref().or(said.model_id.as_deref()).unwrap_or("default");
    let mut limits = state.limits().as_ref().clone();
    if said.wait == Some(false) {
        limits.load_wait = Duration::ZERO;
    }
    // Kept open, so that what is described is what was loaded.
    let (code, word, _opened) = match state.models().load_and_open(name, &limits).await {
        Ok(opened) => (StatusCode::OK, "loaded", Some(opened)),
        Err(ApiError::ModelLoading { .. }) => (StatusCode::ACCEPTED, "loading", None),
        Err(err) => return Err(err),
    };
    let status = state.models().status(name).expect("it was just found");
    let body = json!({
        "status": word,
        "model": status.id,
        "model_id": status.id,
        "load_time_s": status.load_time.map(|it| it.as_secs_f64()),
        "slot": slot_json(&status),
        "memory": memory_json(memory(&status)),
    });
    Ok((code, Json(body)))
}

async fn unload(
    State(state): State<ServerState>,
    request: Request<Body>,
) -> Result<Json<Value>, ApiError> {
    let said = read::<UnloadRequest>(&state, request).await?;
    ApiError::refuse_set(&[
        ("model_dir", said.model_dir.is_some(), NAME_A_MODEL),
        ("model_path", said.model_path.is_some(), NAME_A_MODEL),
    ])?;
    let name = said.model.as_deref().or(said.model_id.as_deref()).unwrap_or("default");
    let unknown =
        || ApiError::UnknownModel { found: name.to_owned(), served: state.models().served() };
    let before = state.models().status(name).ok_or_else(unknown)?;
    let before_use = memory(&before);
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
        Err(UnloadRefusal::NotLoaded) => {
            let message = format!("the model {model} is not loaded");
            let memory = memory_json(MemoryUse::default());
            return Ok(Json(json!({"status": "no_model", "message": message, "memory": memory})));
        }
        Err(UnloadRefusal::InUse(num_open)) => {
            return Err(ApiError::ModelInUse { model, num_open });
        }
        Err(UnloadRefusal::Unknown) => return Err(unknown()),
        Err(UnloadRefusal::Fixed) => {
            return Err(ApiError::NoModelControl { hint: "this server's one model stays" });
        }
    }
    let mut body = freed_json(before_use, MemoryUse::default());
    body["status"] = json!("unloaded");
    body["model"] = json!(model);
    body["model_id"] = json!(model);
    body["memory_after"] = memory_json(MemoryUse::default());
    Ok(Json(body))
}

async fn unload_unused(
    State(state): State<ServerState>,
    request: Request<Body>,
) -> Result<Json<Value>, ApiError> {
    let said = read::<UnloadUnusedRequest>(&state, request).await?;
    let hint = "/model/unload unloads one model, /model/gc all idle ones";
    ApiError::refuse_set(&[
        ("model", said.model.is_some(), hint),
        ("model_id", said.model_id.is_some(), hint),
    ])?;
    let sum = |state: &ServerState| {
        let all = state.models().list();
        all.iter().map(memory).fold(MemoryUse::default(), MemoryUse::plus)
    };
    let before = sum(&state);
    let unloaded = state.models().unload_unused().await;
    let after = sum(&state);
    let mut body = freed_json(before, after);
    body["unloaded"] = json!(unloaded);
    body["memory"] = memory_json(after);
    Ok(Json(body))
}
