//! What administrators do on the web page: downloads and copies of models, keys, whether a model fits, a diagnosis of the
//! machines, and the log.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use jackalope_serving::auth::KeySettings;
use jackalope_serving::error::ApiError;
use jackalope_serving::jobs::PullJob;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::copies::{self, cancel, list, list_events};
use crate::extract::{JsonRequest, Name, Params};
use crate::openapi::answers::{CreatedKey, Fields, KeyList, LogLines, ModelFitAnswer, PullList};
use crate::route::{Route, delete, get, post};
use crate::state::ServerState;

/// The routes of this module.
pub(crate) fn routes() -> Vec<Route> {
    [pull_routes(), copies::routes(), key_routes(), machine_routes()]
        .into_iter()
        .flatten()
        .collect()
}

fn pull_routes() -> Vec<Route> {
    vec![
        get(
            "/v1/pulls",
            list::<PullJob>,
            "Lists the downloads that were started by `POST /v1/pulls`.",
            |it| it.answers::<PullList>(),
        ),
        post(
            "/v1/pulls",
            start_pull,
            "Starts to download a model, or continues a download that was interrupted.",
            |it| it.takes::<PullRequest>().answers::<Fields>(),
        ),
        get(
            "/v1/pulls/events",
            list_events::<PullJob>,
            "Streams the content of `GET /v1/pulls` whenever it changes.",
            |it| it.events(),
        ),
        delete(
            "/v1/pulls/{id}",
            cancel::<PullJob>,
            "Cancels a download, which can be continued later; takes one that has ended from the list.",
            |it| it.path("id", "Id of the download.").answers::<PullList>(),
        ),
    ]
}

fn key_routes() -> Vec<Route> {
    vec![
        get("/v1/keys", keys, "Lists the keys with their limits and rights.", |it| {
            it.answers::<KeyList>()
        }),
        post(
            "/v1/keys",
            create_key,
            "Creates a key in the file of keys. The answer has the key, which is not stored.",
            |it| it.takes::<NewKey>().answers::<CreatedKey>(),
        ),
        post(
            "/v1/keys/{name}",
            change_key,
            "Changes the limits and rights of a key in the file of keys; absent limits are removed.",
            |it| it.path("name", "Name of the key.").takes::<KeyLimits>().answers::<KeyList>(),
        ),
        delete("/v1/keys/{name}", revoke_key, "Revokes a key in the file of keys.", |it| {
            it.path("name", "Name of the key.").answers::<KeyList>()
        }),
    ]
}

fn machine_routes() -> Vec<Route> {
    vec![
        get(
            "/model/fit",
            fit,
            "Returns the memory that a model takes on each machine, and what models may take there.",
            |it| it.query::<FitOptions>().answers::<ModelFitAnswer>(),
        ),
        get(
            "/v1/diagnosis",
            diagnosis,
            "Examines the machines, which takes up to 20 seconds, and returns what \
             `jackalope doctor --json` prints.",
            |it| it.answers::<Fields>(),
        ),
        get("/v1/logs", logs, "Returns the last lines of the server's log.", |it| {
            it.query::<LogOptions>().answers::<LogLines>()
        }),
    ]
}

/// The body of a request to download a model.
#[derive(Deserialize, ToSchema)]
struct PullRequest {
    /// Name of the model on the hub: ORG/NAME, or ORG/NAME@REVISION.
    model: Option<String>,
}

async fn start_pull(
    State(state): State<ServerState>,
    JsonRequest(body): JsonRequest,
) -> Result<Json<Value>, ApiError> {
    let PullRequest { model } = body.read()?;
    let model = model.ok_or(ApiError::Missing { param: "model" })?;
    let name = model.trim();
    if name.is_empty() {
        return Err(ApiError::Empty { param: "model".to_owned() });
    }
    let puller = state.puller().ok_or(ApiError::NotOffered {
        what: "models are not downloaded",
        hint: "run `jackalope pull ORG/NAME` on the server's machine",
    })?;
    let id = state.pulls().start(PullJob::new(name), || puller.pull(name));
    Ok(Json(json!({"id": id})))
}

/// Limits and rights of a key.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = KeyLimits)]
struct KeyLimits {
    /// Limit on requests per minute. Default: none.
    #[schema(minimum = 1)]
    requests_per_minute: Option<u32>,
    /// Limit on tokens of prompts and answers per minute. Default: none.
    #[schema(minimum = 1)]
    tokens_per_minute: Option<u32>,
    /// Limit on requests at the same time. Default: none.
    #[schema(minimum = 1)]
    concurrent_requests: Option<u32>,
    /// Best priority of its requests; lower values are scheduled earlier. Default: 0.
    priority: Option<i32>,
    /// Whether the key has administrator rights. Default: `false`.
    admin: Option<bool>,
    /// Name of a group of keys that share cached prefixes. Default: none.
    cache_group: Option<String>,
}

impl KeyLimits {
    fn settings(self) -> KeySettings {
        KeySettings {
            requests_per_minute: self.requests_per_minute,
            tokens_per_minute: self.tokens_per_minute,
            concurrent_requests: self.concurrent_requests,
            priority: self.priority.unwrap_or_default(),
            admin: self.admin.unwrap_or_default(),
            cache_group: self.cache_group,
        }
    }
}

/// A new key.
#[derive(Deserialize, ToSchema)]
struct NewKey {
    /// Name of the key: letters, digits and any of `._-@`.
    name: Option<String>,
    #[serde(flatten)]
    limits: KeyLimits,
}

async fn keys(State(state): State<ServerState>) -> Json<Value> {
    Json(jackalope_web::key_list(state.api_keys(), &state))
}

async fn create_key(
    State(state): State<ServerState>,
    JsonRequest(body): JsonRequest,
) -> Result<Json<Value>, ApiError> {
    let NewKey { name, limits } = body.read()?;
    let name = name.ok_or(ApiError::Missing { param: "name" })?;
    let key = state.api_keys().create(&name, &limits.settings())?;
    Ok(Json(json!({"name": name, "key": key})))
}

async fn change_key(
    State(state): State<ServerState>,
    Name(name): Name,
    JsonRequest(body): JsonRequest,
) -> Result<Json<Value>, ApiError> {
    let limits: KeyLimits = body.read()?;
    state.api_keys().change(&name, &limits.settings())?;
    Ok(Json(jackalope_web::key_list(state.api_keys(), &state)))
}

async fn revoke_key(
    State(state): State<ServerState>,
    Name(name): Name,
) -> Result<Json<Value>, ApiError> {
    state.api_keys().revoke(&name)?;
    Ok(Json(jackalope_web::key_list(state.api_keys(), &state)))
}

/// Query parameters of the question whether a model fits.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct FitOptions {
    /// Id or alias of the model. Default: the default model.
    model: Option<String>,
}

async fn fit(
    State(state): State<ServerState>,
    Params(FitOptions { model }): Params<FitOptions>,
) -> Result<Json<Value>, ApiError> {
    let fit = state.models().fit(model.as_deref().unwrap_or("default")).await?;
    Ok(Json(fit.to_json()))
}

async fn diagnosis(State(state): State<ServerState>) -> Result<Json<Value>, ApiError> {
    let doctor = state.config().doctor.clone().ok_or(ApiError::NotOffered {
        what: "machines are not examined",
        hint: "run `jackalope doctor` on the server's machine",
    })?;
    let now = Instant::now();
    let models = state.models().list();
    let links = models.iter().flat_map(|it| it.engine_status().broken_links);
    let sentences = links.map(|it| {
        let seconds = now.saturating_duration_since(it.since).as_secs();
        format!("{} do not reach each other, for {seconds} s: {}", it.between, it.reason)
    });
    Ok(Json(doctor.diagnose(sentences.collect()).await))
}

/// Query parameters of a request for the log.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct LogOptions {
    /// Return only lines with greater numbers. Default: 0.
    after: Option<u64>,
}

async fn logs(Params(LogOptions { after }): Params<LogOptions>) -> Json<Value> {
    Json(jackalope_web::log_lines(after.unwrap_or_default()))
}
