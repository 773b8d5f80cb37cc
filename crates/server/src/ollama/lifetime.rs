//! Loads and unloads models, and sets how long they stay loaded.

use std::time::Duration;

use axum::response::Response;

use super::format::{self, Shape};
use super::keep_alive::KeepAlive;
use super::names::known;
use super::request::Shared;
use crate::state::ServerState;
use jackalope_serving::error::ApiError;
use jackalope_serving::models::UnloadRefusal;
use jackalope_serving::state::Serving;

/// Sets how long the model stays loaded, if the request has a `keep_alive`.
pub(super) fn keep(serving: &Serving, keep_alive: Option<KeepAlive>) {
    let Some(keep_alive) = keep_alive else { return };
    let time = match keep_alive {
        KeepAlive::For(time) => Some(time),
        KeepAlive::Forever => None,
    };
    serving.state().models().keep_alive(&serving.id, time);
}

/// Unloads a model if requests may do so and it is not pinned. Returns its id.
async fn unload(state: &ServerState, name: Option<&str>) -> Result<String, ApiError> {
    let known = known(state, name)?;
    if state.models().may_expire() && !known.is_pinned {
        let unloaded = state.models().unload(&known.id, Duration::ZERO).await;
        if let Err(UnloadRefusal::InUse(_)) = unloaded {
            // The model is unloaded as soon as the requests in progress have ended.
            state.models().keep_alive(&known.id, Some(Duration::ZERO));
        }
    }
    Ok(known.id)
}

/// Loads or unloads a model for a request without a prompt.
pub(super) async fn answer_nothing(
    state: &ServerState,
    name: Option<&str>,
    shape: Shape,
    shared: &Shared,
) -> Result<Response, ApiError> {
    if shared.keep_alive.is_some_and(KeepAlive::is_over) {
        let id = unload(state, name).await?;
        return Ok(format::nothing(shape, shared, &id, "unload"));
    }
    let serving = state.open(name).await?;
    keep(&serving, shared.keep_alive);
    Ok(format::nothing(shape, shared, &serving.id, "load"))
}
