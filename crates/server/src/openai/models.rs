//! `GET /v1/models` and `GET /v1/models/{id}`.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use jackalope_serving::body::name_in_path;
use jackalope_serving::error::ApiError;
use jackalope_serving::models::ModelStatus;
use serde::Serialize;
use utoipa::ToSchema;

use crate::state::ServerState;

/// The models that requests may name.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelCard>,
}

/// A model in the list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelCard {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Longest sequence in tokens, while the model is loaded.
    max_model_len: Option<u32>,
    aliases: Vec<String>,
    /// Whether requests for it are computed at once.
    loaded: bool,
    state: &'static str,
    pinned: bool,
    /// Whether requests that name no model are for it.
    default: bool,
}

fn card(status: ModelStatus) -> ModelCard {
    let limits = status.model.as_ref().and_then(|model| model.engine.limits());
    ModelCard {
        loaded: status.is_up(),
        id: status.id,
        object: "model",
        created: status.created,
        owned_by: "jackalope",
        max_model_len: limits.map(|limits| limits.context_tokens),
        aliases: status.aliases,
        state: status.state,
        pinned: status.is_pinned,
        default: status.is_default,
    }
}

/// Lists the models, loaded or not.
pub(crate) async fn list_models(State(state): State<ServerState>) -> Json<ModelList> {
    let data = state.models().list().into_iter().map(card).collect();
    Json(ModelList { object: "list", data })
}

/// Shows a model under any of its names. Loads nothing.
pub(crate) async fn show_model(
    State(state): State<ServerState>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelCard>, ApiError> {
    let id = name_in_path(id);
    let status = state.models().status(&id);
    let unknown = || ApiError::UnknownModel { found: id.clone(), served: state.models().served() };
    Ok(Json(card(status.ok_or_else(unknown)?)))
}
