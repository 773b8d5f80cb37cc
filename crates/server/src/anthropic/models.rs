//! `GET /v1/models` and `GET /v1/models/{id}`, which OpenAI has as well: a client that sends
//! `anthropic-version` gets Anthropic's form.

use std::time::{Duration, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use jackalope_serving::error::ApiError;
use jackalope_serving::ids::rfc3339;
use jackalope_serving::models::ModelStatus;
use serde::Serialize;
use utoipa::ToSchema;

use super::error::ANTHROPIC_VERSION;
use super::messages::FOREIGN_NAMES;
use crate::extract::Name;
use crate::openai;
use crate::state::ServerState;

/// All models; there is only one page of them.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AnthropicModelPage)]
pub(crate) struct ModelPage {
    data: Vec<ModelCard>,
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

/// A model in the list.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AnthropicModelCard)]
pub(crate) struct ModelCard {
    #[serde(rename = "type")]
    kind: &'static str,
    id: String,
    display_name: String,
    created_at: String,
    lifecycle: &'static str,
    /// Maximum length of a sequence in tokens, once the model is loaded.
    max_input_tokens: Option<u32>,
    max_tokens: Option<u32>,
}

impl ModelCard {
    fn of(model: &ModelStatus) -> ModelCard {
        let limits = model.model.as_ref().and_then(|it| it.engine.limits());
        let context_tokens = limits.map(|limits| limits.context_tokens);
        ModelCard {
            kind: "model",
            id: model.id.clone(),
            display_name: model.id.clone(),
            created_at: rfc3339(UNIX_EPOCH + Duration::from_secs(model.created)),
            lifecycle: "active",
            max_input_tokens: context_tokens,
            max_tokens: context_tokens,
        }
    }
}

/// The models, in OpenAI's or Anthropic's form.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it is only described")]
pub(super) enum AnyModelList {
    OpenAi(openai::models::ModelList),
    Anthropic(ModelPage),
}

/// A model, in OpenAI's or Anthropic's form.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it is only described")]
pub(super) enum AnyModelCard {
    OpenAi(openai::models::ModelCard),
    Anthropic(ModelCard),
}

pub(super) async fn list_models(state: State<ServerState>, headers: HeaderMap) -> Response {
    if !headers.contains_key(ANTHROPIC_VERSION) {
        return openai::models::list_models(&state).into_response();
    }
    let data = state.models().list().iter().map(ModelCard::of).collect::<Vec<_>>();
    let id_of = |card: Option<&ModelCard>| card.map(|card| card.id.clone());
    let (first_id, last_id) = (id_of(data.first()), id_of(data.last()));
    Json(ModelPage { data, has_more: false, first_id, last_id }).into_response()
}

pub(super) async fn show_model(
    state: State<ServerState>,
    headers: HeaderMap,
    Name(id): Name,
) -> Result<Response, ApiError> {
    if !headers.contains_key(ANTHROPIC_VERSION) {
        return Ok(openai::models::show_model(&state, &id)?.into_response());
    }
    let model = match state.is_foreign(&id, FOREIGN_NAMES) {
        true => state.default_model(),
        false => state.models().named(&id)?,
    };
    Ok(Json(ModelCard::of(&model)).into_response())
}
