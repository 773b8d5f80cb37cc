//! `GET /v1/models` and `GET /v1/models/{id}`.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::ServerState;
use crate::error::ApiError;

/// The models that are served.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelCard>,
}

/// What is told of a model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelCard {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Longest sequence in tokens, once the model is loaded.
    max_model_len: Option<u32>,
}

fn card(state: &ServerState) -> ModelCard {
    let model = state.first_model();
    ModelCard {
        id: model.id.clone(),
        object: "model",
        created: model.created,
        owned_by: "jackalope",
        max_model_len: model.engine.limits().map(|limits| limits.context_tokens),
    }
}

/// Lists the models.
#[utoipa::path(get, path = "/v1/models", tag = "OpenAI", responses((status = 200, body = ModelList)))]
pub(crate) async fn list_models(State(state): State<ServerState>) -> Json<ModelList> {
    Json(ModelList { object: "list", data: vec![card(&state)] })
}

/// Shows a model under any of its names.
#[utoipa::path(
    get,
    path = "/v1/models/{id}",
    tag = "OpenAI",
    params(("id" = String, Path, description = "A name of the model; it may contain slashes.")),
    responses((status = 200, body = ModelCard))
)]
pub(crate) async fn show_model(
    State(state): State<ServerState>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelCard>, ApiError> {
    // A name that is not UTF-8 is no name of ours.
    let id = id.map_or_else(|_| char::REPLACEMENT_CHARACTER.to_string(), |Path(id)| id);
    state.open(Some(&id)).await?;
    Ok(Json(card(&state)))
}
