//! Monitoring: the service itself, its queue, its memory, its recent requests and errors, and the web
//! page that shows all of it.
//!
//! Names and shapes follow other servers' endpoints (mlx-jaccl-cluster, vllm-mlx), so that their
//! clients keep working; the numbers come from the engine's [`Status`](jackalope_engine::Status)
//! and from the journal.

mod admin;
mod history;
pub(crate) mod memory;
mod overview;
pub(crate) mod samples;
mod snapshot;

use axum::extract::State;
use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;

use crate::openapi::answers::{
    CacheStats, CancelledRequest, ClearedCache, ClusterOverview, EngineStatus, MemoryAnswer,
    MemorySamples, ModelInfo, QueueAnswer, RecentErrors, RecentRequests, RequestStats, ServiceCard,
    SnapshotAnswer,
};
use crate::route::{Route, delete, get, post};
use crate::state::ServerState;

/// Content type of Prometheus' text format.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The routes of this module.
pub(crate) fn routes() -> Vec<Route> {
    let overview = vec![
        get(
            "/metrics",
            metrics,
            "Returns metrics in Prometheus' text format: `vllm:*`, `llamacpp:*`, `vllm_mlx_*`, \
             `mlx_cluster_*`, and `jackalope_*` for ranks, steps, links, recoveries, keys and HTTP.",
            |it| it.text("text/plain"),
        ),
        get(
            "/",
            overview::root,
            "Returns a web page to browsers, a description of the service to programs that accept JSON, \
             and `Ollama is running` to all others.",
            |it| it.text("text/html").answers::<ServiceCard>().text("text/plain"),
        ),
        get(
            "/dashboard",
            overview::page,
            "Returns the web page. It loads nothing from other servers.",
            |it| it.text("text/html"),
        ),
        get("/assets/{name}", overview::asset, "Returns a file of the web page.", |it| {
            let it = it.path("name", "Name of the file.").query::<overview::Asset>();
            it.text("text/javascript").text("text/css").text("image/svg+xml")
        }),
        get(
            "/v1/cluster",
            overview::cluster,
            "Returns an overview of the cluster: machines, ranks and links, memory, rates of the last \
             minutes, recoveries and models.",
            |it| it.query::<overview::OverviewOptions>().answers::<ClusterOverview>(),
        ),
        get(
            "/queue",
            overview::queue,
            "Returns the number of waiting and running requests.",
            |it| it.answers::<QueueAnswer>(),
        ),
        get("/model/info", overview::model, "Describes the default model and its memory.", |it| {
            it.answers::<ModelInfo>()
        }),
        get(
            "/metrics/snapshot",
            snapshot::snapshot,
            "Returns rates of the last minute, the last 40 answers, memory and ranks.",
            |it| it.answers::<SnapshotAnswer>(),
        ),
        get(
            "/metrics/stream",
            snapshot::stream,
            "Streams the content of `/metrics/snapshot` every two seconds.",
            |it| it.events(),
        ),
        get("/memory", memory::memory, "Returns the memory of the ranks.", |it| {
            it.answers::<MemoryAnswer>()
        }),
        get(
            "/memory/live",
            memory::live,
            "Returns the memory of the ranks, once per second.",
            |it| it.query::<memory::Page>().answers::<MemorySamples>(),
        ),
    ];
    [overview, requests(), engine()].into_iter().flatten().collect()
}

async fn metrics(State(state): State<ServerState>) -> ([(HeaderName, &'static str); 1], String) {
    let log_lines_dropped = state.config().log_lines_dropped.map(|count| count());
    ([(CONTENT_TYPE, PROMETHEUS)], jackalope_serving::metrics::text(&state, log_lines_dropped))
}

fn requests() -> Vec<Route> {
    vec![
        get("/requests", history::recent, "Lists the last answers, newest first.", |it| {
            it.query::<history::Filter>().answers::<RecentRequests>()
        }),
        get("/requests/recent", history::recent, "The same as `GET /requests`.", |it| {
            it.query::<history::Filter>().answers::<RecentRequests>()
        }),
        get(
            "/requests/stats",
            history::stats,
            "Returns totals since the start, and rates and times of the recorded answers. `ok` is a \
             count, as in mlx-jaccl-cluster.",
            |it| it.answers::<RequestStats>(),
        ),
        get(
            "/errors",
            history::errors,
            "Lists the last 50 errors of the server and requests refused for lack of capacity, newest \
             first.",
            |it| it.answers::<RecentErrors>(),
        ),
    ]
}

fn engine() -> Vec<Route> {
    vec![
        get(
            "/v1/status",
            admin::status,
            "Returns the state of the engine and the caller's open requests; to administrators, all \
             open requests.",
            |it| it.answers::<EngineStatus>(),
        ),
        get(
            "/v1/cache/stats",
            admin::cache_stats,
            "Returns statistics of the prefix cache.",
            |it| it.answers::<CacheStats>(),
        ),
        delete(
            "/v1/cache",
            admin::clear_cache,
            "Clears the caches of finished sequences. Running requests keep theirs.",
            |it| it.answers::<ClearedCache>(),
        ),
        delete("/v1/cache/prefix", admin::clear_cache, "The same as `DELETE /v1/cache`.", |it| {
            it.answers::<ClearedCache>()
        }),
        delete(
            "/v1/requests/{id}",
            admin::cancel,
            "Cancels all requests with this name. They end with the `finish_reason` `abort`.",
            |it| {
                it.path("id", "The answer's `id`, or `X-Request-Id`.").answers::<CancelledRequest>()
            },
        ),
        post(
            "/v1/requests/{id}/cancel",
            admin::cancel,
            "The same as `DELETE /v1/requests/{id}`.",
            |it| {
                it.path("id", "The answer's `id`, or `X-Request-Id`.").answers::<CancelledRequest>()
            },
        ),
    ]
}
