//! `GET /v1/models` and `GET /v1/models/{id}`.

use axum::Json;
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
    /// Maximum length of a sequence in tokens, while the model is loaded.
    max_model_len: Option<u32>,
    aliases: Vec<String>,
    /// Whether requests for it are computed without loading it.
    loaded: bool,
    state: &'static str,
    pinned: bool,
    /// Whether it answers requests that name no model.
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
pub(crate) fn list_models(state: &ServerState) -> Json<ModelList> {
    let data = state.models().list().into_iter().map(card).collect();
    Json(ModelList { object: "list", data })
}

/// Shows a model under any of its names. Loads nothing.
pub(crate) fn show_model(state: &ServerState, id: &str) -> Result<Json<ModelCard>, ApiError> {
    state.models().named(id).map(card).map(Json)
}
