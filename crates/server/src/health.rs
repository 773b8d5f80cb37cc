//! How the server is: `GET /health`, `/health/live`, `/health/ready`, `/version`.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jackalope_engine::{EngineState, RankStatus, Status};
use serde_json::{Value, json};

use crate::ServerState;
use crate::ids::unix_time;
use crate::journal::ErrorRecord;
use crate::monitor::memory_of;
use crate::numbers::rounded;
use crate::origin::AllowedOrigins;

/// Says that the process answers.
#[utoipa::path(get, path = "/health/live", tag = "state", responses((status = 200, body = Value)))]
pub(crate) async fn live() -> Json<Value> {
    Json(json!({"status": "alive"}))
}

/// Says which build this is.
#[utoipa::path(get, path = "/version", tag = "state", responses((status = 200, body = Value)))]
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"name": "jackalope", "version": env!("CARGO_PKG_VERSION")}))
}

/// Says whether a request would be computed now.
#[utoipa::path(
    get,
    path = "/health/ready",
    tag = "state",
    responses(
        (status = 200, description = "Yes.", body = Value),
        (status = 503, description = "No; `reason` says why.", body = Value)
    )
)]
pub(crate) async fn ready(State(state): State<ServerState>) -> (StatusCode, Json<Value>) {
    let status = state.first_model().engine.status();
    let (code, is_ready) = match &status.state {
        EngineState::Ready => (StatusCode::OK, true),
        EngineState::Starting
        | EngineState::Recovering { .. }
        | EngineState::Failed { .. }
        | EngineState::Stopping => (StatusCode::SERVICE_UNAVAILABLE, false),
    };
    let reason = reason(&status.state, Told::Public);
    let name = status.state.name();
    (code, Json(json!({"ready": is_ready, "status": name, "reason": reason})))
}

/// Everything an operator or a program may want to know. 503 while requests would be refused.
#[utoipa::path(
    get,
    path = "/health",
    tag = "state",
    responses(
        (status = 200, description = "Requests are taken.", body = Value),
        (status = 503, description = "Requests are refused; `reason` says why.", body = Value)
    )
)]
pub(crate) async fn health(State(state): State<ServerState>) -> (StatusCode, Json<Value>) {
    let status = state.first_model().engine.status();
    let (code, name) = match &status.state {
        EngineState::Ready => (StatusCode::OK, "healthy"),
        // Requests are taken and wait.
        EngineState::Recovering { .. } => (StatusCode::OK, "recovering"),
        EngineState::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting"),
        EngineState::Failed { .. } => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
        EngineState::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
    };
    let now = Instant::now();
    let ranks = status.ranks.iter().enumerate().map(|(rank, it)| rank_json(rank, it, now));
    let model = &state.first_model().id;
    let mut body = json!({
        "status": name,
        "ok": code == StatusCode::OK,
        "reason": reason(&status.state, Told::Everything),
        "model": model,
        "model_name": model,
        "model_loaded": status.limits.is_some(),
        "context_tokens": status.limits.as_ref().map(|limits| limits.context_tokens),
        "vocab_size": status.limits.as_ref().map(|limits| limits.vocab_size),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": now.duration_since(state.started_at()).as_secs(),
        "world_size": status.ranks.len(),
        "ranks": ranks.collect::<Vec<_>>(),
        "open_streams": state.num_open_streams(),
        "running": status.running,
        "running_max": status.running_max,
        "queue_size": status.queued,
        "queue_max": status.queue_max,
        "recoveries": status.counters.recoveries,
        "kv": kv_json(&status),
        "counters": counters_json(&status),
        "steps": steps_json(&status),
    });
    if let (Value::Object(body), Value::Object(more)) = (&mut body, as_elsewhere(&state, &status)) {
        body.extend(more);
    }
    (code, Json(body))
}

/// What the founding systems' own servers tell in addition. No name has two meanings.
fn as_elsewhere(state: &ServerState, status: &Status) -> Value {
    let memory = memory_of(status);
    let journal = state.journal();
    let totals = journal.totals();
    let last_error = journal.errors().last().map(ErrorRecord::to_json);
    let ended: u64 = totals.models.values().map(|model| model.num_ended()).sum();
    let has_cors = state.config().origins != AllowedOrigins::None;
    let idle_seconds = journal.recent().last().map(|it| it.ended.elapsed().as_secs_f64());
    json!({
        "rank": 0,
        "api": "ready",
        "config": {"port": state.port(), "cors_enabled": has_cors},
        "model_type": "llm",
        "engine_type": "batched",
        "mcp": null,
        "memory": memory.to_json(),
        "memory_safe": memory.is_safe(),
        "monitor": {"running": true, "source": "ranks"},
        "requests_total": ended,
        "available_models": [state.first_model().id],
        "residency_state": if status.limits.is_some() { "resident" } else { "loading" },
        "active_requests": journal.open_requests().len(),
        "last_used_at": idle_seconds.map(|idle| rounded(unix_time() - idle, 3)),
        "loaded_at": state.first_model().created,
        "auto_unload_idle_seconds": null,
        "last_error": last_error,
    })
}

/// Who reads a reason.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Told {
    /// Anybody, without a key.
    Public,
    /// Those who may use the server.
    Everything,
}

fn reason(state: &EngineState, told: Told) -> Option<String> {
    match state {
        EngineState::Ready => None,
        EngineState::Starting => Some("the ranks are loading".to_owned()),
        EngineState::Stopping => Some("the engine is stopping".to_owned()),
        EngineState::Recovering { failure, .. } | EngineState::Failed { failure, .. } => {
            let public = match failure.rank {
                Some(rank) => format!("rank {rank} failed while {}", failure.phase.name()),
                None => "the ranks failed".to_owned(),
            };
            Some(if told == Told::Everything { failure.to_string() } else { public })
        }
    }
}

fn rank_json(rank: usize, status: &RankStatus, now: Instant) -> Value {
    let loaded = status.loaded_bytes.map(|(done, total)| json!({"done": done, "total": total}));
    let silent_ms = status.heard_at.map(|at| now.duration_since(at).as_millis() as u64);
    json!({
        "rank": rank,
        "host": Some(&status.host).filter(|host| !host.is_empty()),
        "pid": status.pid,
        "phase": status.phase,
        "loaded_bytes": loaded,
        "silent_ms": silent_ms,
        "facts": status.facts,
        "memory": status.memory,
        "steps": status.steps,
        "total_us": status.timings.total_us,
        "collectives_us": status.timings.collectives_us,
        "sampling_us": status.timings.sampling_us,
        "planning_us": status.timings.planning_us,
    })
}

fn kv_json(status: &Status) -> Value {
    let kv = &status.kv;
    json!({
        "running_bytes": kv.running_bytes,
        "kept_bytes": kv.kept_bytes,
        "num_kept": kv.num_kept,
        "budget_bytes": kv.budget_bytes,
        "bytes_per_token": kv.bytes_per_token,
        "capacity_tokens": kv.capacity_tokens,
        "prefix_wanted_tokens": status.prefix.wanted_tokens,
        "prefix_found_tokens": status.prefix.found_tokens,
        "prefix_taken_over": status.prefix.taken_over,
        "prefix_forked": status.prefix.forked,
        "prefix_evicted": status.prefix.evicted,
    })
}

fn counters_json(status: &Status) -> Value {
    let counters = &status.counters;
    json!({
        "requests": counters.requests,
        "finished": counters.finished,
        "not_a_number": counters.not_a_number,
        "cancelled": counters.cancelled,
        "failed": counters.failed,
        "refused": counters.refused,
        "prompt_tokens": counters.prompt_tokens,
        "drawn_tokens": counters.drawn_tokens,
        "dropped_tokens": counters.dropped_tokens,
        "preemptions": counters.preemptions,
        "failures": counters.failures,
        "recoveries": counters.recoveries,
    })
}

fn steps_json(status: &Status) -> Value {
    let steps = &status.steps;
    json!({
        "steps": steps.steps,
        "computed_tokens": steps.computed_tokens,
        "plan_ns": steps.plan_ns,
        "send_ns": steps.send_ns,
        "commit_ns": steps.commit_ns,
        "interval_ns": steps.interval_ns,
        "interval_p50_us": steps.interval_us.quantile(0.5),
        "interval_p99_us": steps.interval_us.quantile(0.99),
    })
}
