//! `/v1/copies`: copies of models to the other machines, and what all lists of jobs have in common.

use axum::Json;
use axum::extract::{FromRef, State};
use axum::response::Response;
use jackalope_serving::error::ApiError;
use jackalope_serving::jobs::{CopyJob, JobKind, Jobs, PullJob};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::extract::{JsonRequest, Name, Params};
use crate::openapi::answers::{CopyList, CopyMachines, Fields};
use crate::route::{Route, delete, get, post};
use crate::state::ServerState;

pub(crate) fn routes() -> Vec<Route> {
    vec![
        get(
            "/v1/copies",
            list::<CopyJob>,
            "Lists the copies that were started by `POST /v1/copies`.",
            |it| it.answers::<CopyList>(),
        ),
        post(
            "/v1/copies",
            start,
            "Starts to copy a model to other machines, or resumes a copy that was interrupted.",
            |it| it.takes::<CopyRequest>().answers::<Fields>(),
        ),
        get(
            "/v1/copies/events",
            list_events::<CopyJob>,
            "Streams the content of `GET /v1/copies` whenever it changes.",
            |it| it.events(),
        ),
        get(
            "/v1/copies/machines",
            machines,
            "Asks the other machines what they hold of a model.",
            |it| it.query::<HoldingOptions>().answers::<CopyMachines>(),
        ),
        delete(
            "/v1/copies/{id}",
            cancel::<CopyJob>,
            "Cancels a copy, which can be resumed later; takes one that has ended from the list.",
            |it| it.path("id", "Id of the copy.").answers::<CopyList>(),
        ),
    ]
}

/// The body of a request to copy a model.
#[derive(Deserialize, ToSchema)]
struct CopyRequest {
    /// Id or alias of a model of this server.
    model: Option<String>,
    /// Names of the machines to copy to. Default: all other machines.
    hosts: Option<Vec<String>>,
}

/// Query parameters of the question what machines hold.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct HoldingOptions {
    /// Id or alias of the model. Default: the default model.
    model: Option<String>,
}

async fn start(
    State(state): State<ServerState>,
    JsonRequest(body): JsonRequest,
) -> Result<Json<Value>, ApiError> {
    let CopyRequest { model, hosts } = body.read()?;
    let model = model.ok_or(ApiError::Missing { param: "model" })?;
    let id = state.copies().start(state.models(), &model, hosts).await?;
    Ok(Json(json!({"id": id})))
}

async fn machines(
    State(state): State<ServerState>,
    Params(HoldingOptions { model }): Params<HoldingOptions>,
) -> Result<Json<Value>, ApiError> {
    let model = model.as_deref().unwrap_or("default");
    state.copies().holdings(state.models(), model).await.map(Json)
}

impl FromRef<ServerState> for Jobs<CopyJob> {
    fn from_ref(state: &ServerState) -> Jobs<CopyJob> {
        state.copies().jobs.clone()
    }
}

impl FromRef<ServerState> for Jobs<PullJob> {
    fn from_ref(state: &ServerState) -> Jobs<PullJob> {
        state.pulls().clone()
    }
}

pub(crate) async fn list<J: JobKind>(State(jobs): State<Jobs<J>>) -> Json<Value> {
    Json(jobs.to_json())
}

pub(crate) async fn list_events<J: JobKind>(State(jobs): State<Jobs<J>>) -> Response {
    jobs.events()
}

pub(crate) async fn cancel<J: JobKind>(
    State(jobs): State<Jobs<J>>,
    Name(id): Name,
) -> Result<Json<Value>, ApiError> {
    jobs.cancel(&id)?;
    Ok(Json(jobs.to_json()))
}
