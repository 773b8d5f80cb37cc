//! The state of the server: `GET /health`, `/health/live`, `/health/ready`, `/version`.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jackalope_engine::{EngineHandle, EngineState, RankStatus, Status};
use jackalope_serving::engine_answer::answered;
use jackalope_serving::ids::unix_time;
use jackalope_serving::journal::ErrorRecord;
use jackalope_serving::models::ModelStatus;
use jackalope_serving::numbers::rounded;
use jackalope_web::heat_json;
use serde_json::{Value, json};

use crate::openapi::answers::{HealthAnswer, LiveAnswer, ReadyAnswer, VersionAnswer};
use crate::route::{Route, get};
use crate::state::ServerState;
use crate::wire::merged;
use jackalope_serving::memory::memory_of;
use jackalope_serving::origin::AllowedOrigins;

/// The routes of this module.
pub(crate) fn routes() -> Vec<Route> {
    vec![
        get(
            "/health",
            health,
            "Returns the state of the server, of the default model in detail, and of every model. \
             The status is 503 while requests that name no model are refused.",
            |it| {
                let it = it.status::<HealthAnswer>("200", "Requests are accepted.");
                it.status::<HealthAnswer>("503", "Requests are refused; `reason` says why.")
            },
        ),
        get("/health/live", live, "Reports that the process responds.", |it| {
            it.answers::<LiveAnswer>()
        }),
        get(
            "/health/ready",
            ready,
            "Reports whether any model would compute a request now.",
            |it| {
                let it = it.status::<ReadyAnswer>("200", "The server is ready.");
                it.status::<ReadyAnswer>("503", "The server is not ready; `reason` says why.")
            },
        ),
        get("/version", version, "Returns the program's version.", |it| {
            it.answers::<VersionAnswer>()
        }),
    ]
}

async fn live() -> Json<Value> {
    Json(json!({"status": "alive"}))
}

async fn version() -> Json<Value> {
    Json(json!({"name": "jackalope", "version": env!("CARGO_PKG_VERSION")}))
}

async fn ready(State(state): State<ServerState>) -> (StatusCode, Json<Value>) {
    let models = state.models().list();
    let default = default_of(&models);
    let is_on_call = state.models().load_on_demand() && default.state == "unloaded";
    let mut is_ready = is_on_call;
    let mut stall = None;
    for model in models.iter().filter(|it| it.state == "ready") {
        let Some(engine) = model.model.as_ref().map(|model| &model.engine) else { continue };
        if is_ready || is_refusing(&engine.status()) {
            continue;
        }
        match stall_of(engine).await {
            None => is_ready = true,
            found => stall = found.filter(|_| model.is_default).or(stall),
        }
    }
    let code = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let health = default_health(default, state.models().load_on_demand());
    let (name, reason) = match stall.filter(|_| !is_ready) {
        Some(stall) => ("stalled", Some(stall.to_owned())),
        None => (health.ready_name, health.reason(Audience::Public)),
    };
    (code, Json(json!({"ready": is_ready, "status": name, "reason": reason})))
}

/// Returns why no step completes at present: the engine's thread hangs, or a step is overdue. None
/// if neither is the case.
async fn stall_of(engine: &EngineHandle) -> Option<&'static str> {
    if !answered(engine.responds()).await.unwrap_or(false) {
        return Some("the engine does not answer");
    }
    let is_overdue = engine.status().due_at.is_some_and(|due_at| due_at < Instant::now());
    is_overdue.then_some("no step has been completed in time")
}

async fn health(State(state): State<ServerState>) -> (StatusCode, Json<Value>) {
    let models = state.models().list();
    let default = default_of(&models);
    let health = default_health(default, state.models().load_on_demand());
    let status = &health.status;
    let limits = status.as_ref().and_then(|it| it.limits.as_ref());
    let now = Instant::now();
    let ranks = status.iter().flat_map(|it| &it.ranks).enumerate();
    let ranks: Vec<Value> = ranks.map(|(rank, it)| rank_json(rank, it, now)).collect();
    let of = |number: fn(&Status) -> usize| status.as_ref().map_or(0, number);
    let body = json!({
        "status": health.name,
        "ok": health.code == StatusCode::OK,
        "reason": health.reason(Audience::Caller),
        "model": default.id,
        "model_name": default.id,
        "model_loaded": limits.is_some(),
        "context_tokens": limits.map(|limits| limits.context_tokens),
        "vocab_size": limits.map(|limits| limits.vocab_size),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": now.duration_since(state.started_at()).as_secs(),
        "world_size": ranks.len(),
        "ranks": ranks,
        "open_streams": state.num_open_streams(),
        "running": of(|it| it.running),
        "running_max": of(|it| it.running_max),
        "queue_size": of(|it| it.queued),
        "queue_max": of(|it| it.queue_max),
        "recoveries": status.as_ref().map_or(0, |it| it.counters.recoveries),
        "kv": status.as_ref().map(kv_json),
        "memory_pressure": status.as_ref().map(pressure_json),
        "machines": status.as_ref().map_or_else(Vec::new, heat_json),
        "counters": status.as_ref().map(counters_json),
        "steps": status.as_ref().map(steps_json),
        "broken_links": broken_links(&models, now),
        "models": models.iter().map(|it| model_json(it, now)).collect::<Vec<Value>>(),
    });
    (health.code, Json(merged(body, as_elsewhere(&state, default, &models))))
}

/// The broken links between machines that the models' engines report, each once.
fn broken_links(models: &[ModelStatus], now: Instant) -> Vec<Value> {
    let engines = models.iter().filter_map(|it| it.model.as_ref());
    let mut links: Vec<_> = engines.flat_map(|it| it.engine.status().broken_links).collect();
    links.sort_by(|one, other| (&one.between, one.since).cmp(&(&other.between, other.since)));
    links.dedup_by(|one, other| one.between == other.between);
    let object = |it: &jackalope_engine::BrokenLink| {
        let seconds = now.saturating_duration_since(it.since).as_secs();
        json!({"between": it.between, "reason": it.reason, "seconds": seconds})
    };
    links.iter().map(object).collect()
}

fn default_of(models: &[ModelStatus]) -> &ModelStatus {
    models.iter().find(|it| it.is_default).expect("one model is the default")
}

/// State of the default model, in machine-readable form.
struct DefaultHealth<'a> {
    code: StatusCode,
    /// Status in `/health`.
    name: &'static str,
    /// Status in `/health/ready`.
    ready_name: &'static str,
    status: Option<Status>,
    failure: Option<&'a str>,
}

impl DefaultHealth<'_> {
    fn reason(&self, audience: Audience) -> Option<String> {
        match (&self.status, self.failure) {
            (Some(status), _) if is_refusing(status) => {
                let host =
                    Some(&status.pressure.reading.host).filter(|_| audience != Audience::Public);
                let of = host.map(|host| format!(" of {host}")).unwrap_or_default();
                Some(format!("other programs have taken the memory{of}"))
            }
            (Some(status), _) => reason(&status.state, audience),
            (None, Some(_)) if audience == Audience::Public => {
                Some("the model did not load".to_owned())
            }
            (None, Some(failure)) => Some(failure.to_owned()),
            (None, None) if self.name == "starting" => Some("the model is loading".to_owned()),
            (None, None) => Some("the model is not loaded".to_owned()),
        }
    }
}

fn default_health(default: &ModelStatus, load_on_demand: bool) -> DefaultHealth<'_> {
    const UNAVAILABLE: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
    let status = default.model.as_ref().map(|model| model.engine.status());
    let refuses = status.as_ref().is_some_and(is_refusing);
    let (code, name) = match status.as_ref().map(|it| &it.state) {
        Some(EngineState::Ready) if refuses => (UNAVAILABLE, "memory_short"),
        Some(EngineState::Ready) => (StatusCode::OK, "healthy"),
        // Requests are accepted and wait.
        Some(EngineState::Recovering { .. }) => (StatusCode::OK, "recovering"),
        Some(EngineState::Starting) => (UNAVAILABLE, "starting"),
        Some(EngineState::Failed { .. }) => (UNAVAILABLE, "failed"),
        Some(EngineState::Stopping) => (UNAVAILABLE, "stopping"),
        None => match default.state {
            "loading" => (UNAVAILABLE, "starting"),
            // The next request loads the model.
            "unloaded" | "unloading" if load_on_demand => (StatusCode::OK, "idle"),
            state => (UNAVAILABLE, state),
        },
    };
    let ready_name = match &status {
        Some(status) if !refuses => status.state.name(),
        _ => name,
    };
    DefaultHealth { code, name, ready_name, status, failure: default.failure.as_deref() }
}

/// Returns whether other programs have taken the memory for too long, so that requests are refused.
fn is_refusing(status: &Status) -> bool {
    status.pressure.refuses(Instant::now()).is_some()
}

fn pressure_json(status: &Status) -> Value {
    let reading = &status.pressure.reading;
    json!({
        "tier": reading.tier.name(),
        "host": Some(&reading.host).filter(|host| !host.is_empty()),
        "free_bytes": reading.free_bytes,
        "refusing": is_refusing(status),
    })
}

fn model_json(model: &ModelStatus, now: Instant) -> Value {
    let engine = model.model.as_ref().map(|it| it.engine.status());
    let ranks = engine.iter().flat_map(|it| &it.ranks).enumerate();
    let ranks: Vec<Value> = ranks
        .map(|(rank, it)| {
            let silent_ms = it.last_message_at.map(|at| now.duration_since(at).as_millis() as u64);
            json!({
                "rank": rank, "host": Some(&it.host).filter(|host| !host.is_empty()),
                "pid": it.pid, "phase": it.phase, "silent_ms": silent_ms,
                "weights_bytes": it.facts.as_ref().map(|facts| facts.weights_bytes),
            })
        })
        .collect();
    let seconds = |it: std::time::Duration| it.as_secs_f64();
    json!({
        "id": model.id,
        "aliases": model.aliases,
        "state": model.state,
        "loaded": model.is_up(),
        "default": model.is_default,
        "pinned": model.is_pinned,
        "bytes_loaded": model.loaded_bytes.map(|it| it.0),
        "total_bytes": model.loaded_bytes.map(|it| it.1),
        "loading_seconds": model.loading_for.map(seconds),
        "load_seconds": model.load_time.map(seconds),
        "expires_in_seconds": model.expires_in.map(seconds),
        "open_requests": model.num_open,
        "waiting_requests": model.num_waiting,
        "running": engine.as_ref().map(|it| it.running),
        "queue_size": engine.as_ref().map(|it| it.queued),
        "failure": model.failure,
        "ranks": ranks,
    })
}

/// Returns the fields of other servers' health answers that their clients read. None of them has the
/// name of one of our own fields.
fn as_elsewhere(state: &ServerState, default: &ModelStatus, models: &[ModelStatus]) -> Value {
    let memory = memory_of(&default.engine_status());
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
        "available_models": models.iter().map(|it| &it.id).collect::<Vec<_>>(),
        "residency_state": if default.is_up() { "resident" } else { default.state },
        "active_requests": journal.open_requests().len(),
        "last_used_at": idle_seconds.map(|idle| rounded(unix_time() - idle, 3)),
        "loaded_at": default.created,
        "auto_unload_idle_seconds": default.expires_in.map(|it| it.as_secs()),
        "last_error": last_error,
    })
}

/// The audience of a reason.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Audience {
    /// Anyone, without a key.
    Public,
    /// Callers who may use the server.
    Caller,
}

fn reason(state: &EngineState, audience: Audience) -> Option<String> {
    match state {
        EngineState::Ready => None,
        EngineState::Starting => Some("the ranks are loading".to_owned()),
        EngineState::Stopping => Some("the engine is stopping".to_owned()),
        EngineState::Recovering { failure, .. } | EngineState::Failed { failure, .. } => {
            let public = match failure.rank {
                Some(rank) => format!("rank {rank} failed while {}", failure.phase.name()),
                None => "the ranks failed".to_owned(),
            };
            Some(if audience == Audience::Caller { failure.to_string() } else { public })
        }
    }
}

fn rank_json(rank: usize, status: &RankStatus, now: Instant) -> Value {
    let loaded = status.loaded_bytes.map(|(done, total)| json!({"done": done, "total": total}));
    let silent_ms = status.last_message_at.map(|at| now.duration_since(at).as_millis() as u64);
    json!({
        "rank": rank,
        "host": Some(&status.host).filter(|host| !host.is_empty()),
        "pid": status.pid,
        "phase": status.phase,
        "loaded_bytes": loaded,
        "silent_ms": silent_ms,
        "round_trip_us": status.round_trip.map(|it| it.as_micros() as u64),
        "facts": status.facts,
        "memory": status.memory,
        "encrypts": status.encrypts,
        "transport": status.transport.as_ref().map(|it| it.backend),
        "rdma": status.transport.as_ref().map(|it| &it.rdma),
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
        "window_bytes_per_token": kv.window_bytes_per_token,
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
        "sampled_tokens": counters.sampled_tokens,
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
