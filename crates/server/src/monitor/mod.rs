//! What people and programs are told of the server at work: the service itself, its queue, its
//! memory, its last requests and errors, and a page that shows all of it.
//!
//! Names and shapes are those of the founding systems; every number is read from the engine's
//! [`Status`](jackalope_engine::Status) or from the journal.

mod admin;
mod history;
mod memory;
mod overview;
mod snapshot;

use axum::Router;
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::routing::{delete, get, post};

use crate::error::ApiError;
use crate::{ServerState, get_only, post_only, wrong_method};

pub(crate) use memory::{Samples, of_engine as memory_of, sample_until};

/// What stands behind the question mark of an address, or why it cannot be read.
fn query<T>(found: Result<Query<T>, QueryRejection>) -> Result<T, ApiError> {
    found
        .map(|Query(query)| query)
        .map_err(|err| ApiError::WrongType { param: "query".to_owned(), reason: err.body_text() })
}

/// The routes of this module.
pub(crate) fn routes() -> Router<ServerState> {
    let delete_only = |it: axum::routing::MethodRouter<ServerState>| {
        it.fallback(|request| wrong_method(request, "DELETE"))
    };
    Router::new()
        .route("/", get_only(get(overview::root)))
        .route("/dashboard", get_only(get(overview::dashboard)))
        .route("/queue", get_only(get(overview::queue)))
        .route("/model/info", get_only(get(overview::model)))
        .route("/metrics", get_only(get(crate::metrics::metrics)))
        .route("/metrics/snapshot", get_only(get(snapshot::snapshot)))
        .route("/metrics/stream", get_only(get(snapshot::stream)))
        .route("/memory", get_only(get(memory::memory)))
        .route("/memory/live", get_only(get(memory::live)))
        .route("/requests", get_only(get(history::recent)))
        .route("/requests/recent", get_only(get(history::recent)))
        .route("/requests/stats", get_only(get(history::stats)))
        .route("/errors", get_only(get(history::errors)))
        .route("/v1/status", get_only(get(admin::status)))
        .route("/v1/cache/stats", get_only(get(admin::cache_stats)))
        .route("/v1/cache", delete_only(delete(admin::clear_cache)))
        .route("/v1/cache/prefix", delete_only(delete(admin::clear_cache)))
        .route("/v1/requests/{id}", delete_only(delete(admin::cancel)))
        .route("/v1/requests/{id}/cancel", post_only(post(admin::cancel)))
}
