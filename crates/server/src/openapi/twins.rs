//! Descriptions of paths whose handlers are described under another path. The code here is only
//! used by the description.

use super::answers::{CancelledRequest, ClearedCache, OllamaError, RecentRequests};
use crate::monitor::history::Filter;

/// Refuses to publish models.
#[utoipa::path(
    post,
    path = "/api/push",
    tag = "Ollama",
    responses((status = 400, description = "It is refused by name.", body = OllamaError))
)]
#[expect(dead_code, reason = "it is only described")]
fn push() {}

/// Refuses to take files.
#[utoipa::path(
    post,
    path = "/api/blobs/{digest}",
    tag = "Ollama",
    params(("digest" = String, Path, description = "The hash of the file.")),
    responses((status = 400, description = "It is refused by name.", body = OllamaError))
)]
#[expect(dead_code, reason = "it is only described")]
fn blobs() {}

/// Lists the last answers, the latest first.
#[utoipa::path(
    get,
    path = "/requests/recent",
    tag = "state",
    params(Filter),
    responses((status = 200, description = "The answer.", body = RecentRequests))
)]
#[expect(dead_code, reason = "it is only described")]
fn recent() {}

/// The same as `DELETE /v1/cache`.
#[utoipa::path(
    delete,
    path = "/v1/cache/prefix",
    tag = "state",
    responses((status = 200, description = "The answer.", body = ClearedCache))
)]
#[expect(dead_code, reason = "it is only described")]
fn clear_prefixes() {}

/// The same as `DELETE /v1/requests/{id}`.
#[utoipa::path(
    post,
    path = "/v1/requests/{id}/cancel",
    tag = "state",
    params(("id" = String, Path, description = "The answer's `id`, or `X-Request-Id`.")),
    responses((status = 200, description = "The answer.", body = CancelledRequest))
)]
#[expect(dead_code, reason = "it is only described")]
fn cancel() {}

/// Shows this description.
#[utoipa::path(
    get,
    path = "/docs/",
    tag = "description",
    responses((status = 200, description = "The page.", body = String, content_type = "text/html"))
)]
#[expect(dead_code, reason = "it is only described")]
fn docs_index() {}
