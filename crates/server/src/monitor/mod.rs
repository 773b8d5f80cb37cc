//! Monitoring: the service itself, its queue, its memory, its recent requests and errors, and a
//! dashboard that shows all of it.
//!
//! Names and shapes follow other servers' endpoints (mlx-jaccl-cluster, vllm-mlx), so that their
//! clients keep working; the numbers come from the engine's [`Status`](jackalope_engine::Status)
//! and from the journal.

pub(crate) mod admin;
pub(crate) mod history;
pub(crate) mod memory;
pub(crate) mod overview;
mod query;
pub(crate) mod samples;
pub(crate) mod snapshot;

use axum::routing::{delete, get, post};

use crate::route::{Route, delete_only, get_only, post_only};

/// The routes of this module.
pub(crate) fn routes() -> Vec<Route> {
    vec![
        get_only("/", get(overview::root)),
        get_only("/dashboard", get(overview::dashboard)),
        get_only("/queue", get(overview::queue)),
        get_only("/model/info", get(overview::model)),
        get_only("/metrics/snapshot", get(snapshot::snapshot)),
        get_only("/metrics/stream", get(snapshot::stream)),
        get_only("/memory", get(memory::memory)),
        get_only("/memory/live", get(memory::live)),
        get_only("/requests", get(history::recent)),
        get_only("/requests/recent", get(history::recent)),
        get_only("/requests/stats", get(history::stats)),
        get_only("/errors", get(history::errors)),
        get_only("/v1/status", get(admin::status)),
        get_only("/v1/cache/stats", get(admin::cache_stats)),
        delete_only("/v1/cache", delete(admin::clear_cache)),
        delete_only("/v1/cache/prefix", delete(admin::clear_cache)),
        delete_only("/v1/requests/{id}", delete(admin::cancel)),
        post_only("/v1/requests/{id}/cancel", post(admin::cancel)),
    ]
}
