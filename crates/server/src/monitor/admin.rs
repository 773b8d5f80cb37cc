//! The engine's state in the form of vllm-mlx, and an administrator's actions on requests and
//! cache.

use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use jackalope_engine::{EngineState, Status};
use jackalope_serving::caller::ApiCaller;
use jackalope_serving::engine_answer::answered;
use jackalope_serving::error::ApiError;
use jackalope_serving::journal::AnswerInProgress;
use jackalope_serving::numbers::{gib, rounded};
use serde_json::{Value, json};

use crate::extract::Name;
use crate::state::ServerState;
use jackalope_serving::memory::memory_of;

pub(super) async fn status(State(state): State<ServerState>) -> Json<Value> {
    let status = state.default_model().engine_status();
    let word = match status.state {
        EngineState::Ready | EngineState::Recovering { .. } => "running",
        EngineState::Starting => "not_loaded",
        EngineState::Failed { .. } | EngineState::Stopping => "stopped",
    };
    let totals = state.journal().totals();
    let ended: u64 = totals.models.values().map(|model| model.num_ended()).sum();
    let memory = memory_of(&status);
    let caller = ApiCaller::current();
    let open = state.journal().open_requests();
    let seen = open.iter().filter(|it| caller.sees(it.caller.key_name()));
    Json(json!({
        "status": word,
        "model": state.default_model().id,
        "uptime_s": rounded(state.started_at().elapsed().as_secs_f64(), 1),
        "steps_executed": status.steps.steps,
        "num_running": status.running,
        "num_waiting": status.queued,
        "total_requests_processed": ended,
        "total_prompt_tokens": status.counters.prompt_tokens,
        "total_completion_tokens": status.counters.sampled_tokens,
        "metal": {
            "active_memory_gb": gib(memory.active),
            "peak_memory_gb": gib(memory.peak),
            "cache_memory_gb": gib(memory.cache),
        },
        "cache": cache_json(&status),
        "spec_decode": null,
        "requests": seen.map(|it| request_json(it)).collect::<Vec<_>>(),
    }))
}

fn request_json(request: &AnswerInProgress) -> Value {
    let elapsed = request.began.elapsed().as_secs_f64();
    let tokens = request.completion_tokens.load(Ordering::Relaxed);
    json!({
        "request_id": *request.caller.request_id,
        "answer_id": request.opening.answer_id,
        "engine_ids": request.opening.engine_ids,
        "kind": request.caller.kind,
        "model": request.model,
        "key": request.caller.key_name(),
        "is_stream": request.opening.is_stream,
        "num_choices": request.opening.num_choices,
        "phase": if tokens == 0 { "waiting" } else { "generating" },
        "prompt_tokens": request.opening.prompt_tokens,
        "completion_tokens": tokens,
        "max_tokens": request.opening.max_tokens,
        "elapsed_s": rounded(elapsed, 3),
        "tokens_per_second": rounded(f64::from(tokens) / elapsed.max(1e-3), 1),
    })
}

pub(super) async fn cache_stats(State(state): State<ServerState>) -> Json<Value> {
    Json(cache_json(&state.default_model().engine_status()))
}

fn cache_json(status: &Status) -> Value {
    let (prefix, kv) = (&status.prefix, &status.kv);
    let rate = prefix.found_tokens as f64 / prefix.wanted_tokens.max(1) as f64;
    json!({
        "type": "prefix",
        "entries": kv.num_kept,
        "memory_gb": gib(kv.kept_bytes),
        "running_gb": gib(kv.running_bytes),
        "memory_limit_gb": gib(kv.budget_bytes),
        "utilization": rounded(kv.kept_bytes as f64 / kv.budget_bytes.max(1) as f64, 4),
        "queried_tokens": prefix.wanted_tokens,
        "tokens_saved": prefix.found_tokens,
        "hit_rate": rounded(rate, 4),
        "hits": prefix.taken_over + prefix.forked,
        "taken_over": prefix.taken_over,
        "forked": prefix.forked,
        "evictions": prefix.evicted,
    })
}

pub(super) async fn cancel(
    State(state): State<ServerState>,
    Name(id): Name,
) -> Result<Json<Value>, ApiError> {
    let open = state.journal().open_requests();
    let found: Vec<_> = open.iter().filter(|it| it.is_called(&id)).collect();
    let Some(first) = found.first() else {
        let (what, code) = ("open request", "unknown_request");
        return Err(ApiError::UnknownJob { what, code, found: id });
    };
    let mut cancelled = false;
    for request in &found {
        cancelled |= request.cancel().await?;
    }
    Ok(Json(json!({
        "object": "request.cancel",
        "id": id,
        "cancelled": cancelled,
        "model": first.model,
    })))
}

pub(super) async fn clear_cache(State(state): State<ServerState>) -> Result<Json<Value>, ApiError> {
    let mut cleared = 0;
    for model in state.models().list().into_iter().filter_map(|it| it.model) {
        cleared += answered(model.engine.clear_prefixes()).await?;
    }
    Ok(Json(json!({"status": "cleared", "caches": ["prefix"], "cleared_entries": cleared})))
}
