//! The last requests and errors, for administrators.

use axum::Json;
use axum::extract::State;
use jackalope_serving::error::ApiError;
use jackalope_serving::journal::{AnswerRecord, RECENT_MAX};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use crate::extract::Params;
use crate::state::ServerState;

/// Default number of answers that are returned.
const RECENT_RETURNED: usize = 50;

/// Query parameters of a list of answers.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Maximum number of answers, at most 200. Default: 50.
    n: Option<usize>,
    /// Return only answers with this status: `ok`, `error`, `timeout` or `cancelled`.
    status: Option<String>,
    /// Return only answers to this kind of request.
    kind: Option<String>,
    /// Return only answers of this model.
    model: Option<String>,
    /// Return only answers for this key.
    key: Option<String>,
}

impl Filter {
    fn passes(&self, record: &AnswerRecord) -> bool {
        let fits =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|it| it == found);
        fits(&self.status, record.ending.name())
            && fits(&self.kind, record.kind)
            && fits(&self.model, &record.model)
            && fits(&self.key, record.key.as_deref().unwrap_or_default())
    }
}

pub(super) async fn recent(
    State(state): State<ServerState>,
    Params(filter): Params<Filter>,
) -> Result<Json<Value>, ApiError> {
    let limit = filter.n.unwrap_or(RECENT_RETURNED).min(RECENT_MAX);
    let recent = state.journal().recent();
    let records = recent.iter().rev().map(|it| &it.record).filter(|it| filter.passes(it));
    let requests: Vec<Value> = records.take(limit).map(|record| record.to_json()).collect();
    Ok(Json(json!({"ok": true, "count": requests.len(), "requests": requests})))
}

pub(super) async fn errors(State(state): State<ServerState>) -> Json<Value> {
    let errors = state.journal().errors();
    let errors: Vec<Value> = errors.iter().rev().map(|it| it.to_json()).collect();
    Json(json!({"ok": true, "count": errors.len(), "errors": errors}))
}

pub(super) async fn stats(State(state): State<ServerState>) -> Json<Value> {
    Json(jackalope_web::request_stats(&state))
}
