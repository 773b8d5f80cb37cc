//! Memory of the ranks, current and recent.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use jackalope_engine::{MemoryReading, Status};
use jackalope_serving::error::ApiError;
use jackalope_serving::ids::unix_time;
use jackalope_serving::numbers::{gib, rounded};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use utoipa::IntoParams;

use super::samples::{SAMPLES_MAX, Sample};
use crate::extract::Params;
use crate::state::ServerState;
use jackalope_serving::memory::{PRESSURE_CRITICAL, PRESSURE_WARN, by_rank, memory_of};

/// Time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Default number of samples that are returned.
const SAMPLES_RETURNED: usize = 60;

fn sample(state: &ServerState) -> Sample {
    let status = state.default_model().engine_status();
    let is_loaded = status.ranks.iter().all(|rank| rank.facts.is_some());
    Sample { at: unix_time(), memory: memory_of(&status), is_loaded }
}

/// Samples the memory and the rates periodically until the server ends.
pub(crate) async fn sample_until(state: ServerState, mut ended: watch::Receiver<bool>) {
    let mut ticks = interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                state.samples().push(sample(&state));
                state.activity().sample(&state);
            }
            _ = ended.wait_for(|&ended| ended) => return,
        }
    }
}

pub(super) async fn memory(State(state): State<ServerState>) -> Json<Value> {
    let model = state.default_model();
    let status = model.engine_status();
    let total = memory_of(&status);
    let now = sample(&state);
    state.samples().push(now);
    let of_late = state.samples().last(SAMPLES_RETURNED);
    let pressures = of_late.iter().map(|it| it.memory.pressure());
    let peak_pressure = pressures.clone().fold(0.0, f64::max);
    let mean_pressure = rounded(pressures.sum::<f64>() / of_late.len().max(1) as f64, 1);
    let available = total.total.saturating_sub(total.active);
    let mlx = json!({
        "timestamp": rounded(now.at, 3),
        "active_gb": gib(total.active),
        "peak_gb": gib(total.peak),
        "cache_gb": gib(total.cache),
        "limit_gb": gib(total.total),
        "cache_limit_gb": gib(status.kv.budget_bytes),
        "total_ram_gb": gib(total.total),
        "system_reserve_gb": 0.0,
        "pressure_pct": total.pressure(),
        "model_loaded": now.is_loaded,
        "model_id": model.id,
        "model_size_gb": gib(total.weights),
        "system_used_gb": gib(total.active + total.cache),
        "actual_available_gb": gib(available),
    });
    Json(json!({
        "ok": true,
        "mlx": mlx,
        "system": system(&status),
        "slot": slot(&state, &status, total.weights),
        "limits": {
            "memory_limit_gb": gib(total.total),
            "cache_limit_gb": gib(status.kv.budget_bytes),
            "hard_max_tokens": status.limits.as_ref().map(|limits| limits.context_tokens),
            "system_reserve_gb": 0.0,
            "pressure_warn": PRESSURE_WARN / 100.0,
            "pressure_critical": PRESSURE_CRITICAL / 100.0,
        },
        "monitor": {
            "monitor_running": true,
            "source": "ranks",
            "macmon_interval_ms": null,
            "mlx_poll_interval_s": SAMPLE_INTERVAL.as_secs_f64(),
            "history_size": of_late.len(),
            "memory_threshold": PRESSURE_WARN,
            "thresholds": {"warn": PRESSURE_WARN, "critical": PRESSURE_CRITICAL},
            "mlx": {
                "active_gb": gib(total.active),
                "peak_gb": gib(total.peak),
                "cache_gb": gib(total.cache),
                "limit_gb": gib(total.total),
                "pressure_pct": total.pressure(),
                "model_loaded": now.is_loaded,
                "model_id": model.id,
            },
            "rolling": {
                "peak_mlx_pressure_pct": peak_pressure,
                "avg_mlx_pressure_pct": mean_pressure,
                "min_available_gb": gib(available),
            },
        },
        "ranks": by_rank(&status),
    }))
}

/// The loaded model, in the form of mlx-jaccl-cluster.
fn slot(state: &ServerState, status: &Status, weights_bytes: u64) -> Value {
    let model = state.default_model();
    if status.ranks.iter().any(|rank| rank.facts.is_none()) {
        return json!({"loaded": false});
    }
    let load_ms = status.ranks.iter().filter_map(|rank| Some(rank.facts.as_ref()?.load_ms));
    json!({
        "loaded": true,
        "model_id": model.id,
        "strategy": strategy(status),
        "load_time_s": rounded(load_ms.max().unwrap_or(0) as f64 / 1e3, 3),
        "size_gb": gib(weights_bytes),
        "loaded_at": model.created,
        "uptime_s": state.started_at().elapsed().as_secs(),
    })
}

/// How the model is split, in the words of mlx-jaccl-cluster.
fn strategy(status: &Status) -> &'static str {
    let stages: BTreeSet<u32> =
        status.ranks.iter().filter_map(|rank| Some(rank.facts.as_ref()?.layers.start)).collect();
    match (status.ranks.len(), stages.len()) {
        (0 | 1, _) => "single",
        (_, 0 | 1) => "tensor_parallel",
        _ => "pipeline_parallel",
    }
}

/// Returns the free memory of the machine that has the least, and whether requests are refused for
/// it; only `available: false` until the engine has a reading.
fn system(status: &Status) -> Value {
    let MemoryReading { tier, host, free_bytes } = &status.pressure.reading;
    if *free_bytes == 0 {
        return json!({"available": false});
    }
    json!({
        "available": true,
        "host": host,
        "free_gb": gib(*free_bytes),
        "pressure": tier.name(),
        "refuses_requests": status.pressure.refuses(Instant::now()).is_some(),
    })
}

/// Query parameters of `/memory/live`.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// Number of samples, at most 600. Default: 60.
    n: Option<usize>,
}

pub(super) async fn live(
    State(state): State<ServerState>,
    Params(page): Params<Page>,
) -> Result<Json<Value>, ApiError> {
    state.samples().push(sample(&state));
    let samples = state.samples().last(page.n.unwrap_or(SAMPLES_RETURNED).min(SAMPLES_MAX));
    let entry = |it: &Sample| {
        json!({
            "timestamp": rounded(it.at, 3),
            "mlx_active_gb": gib(it.memory.active),
            "mlx_pressure_pct": it.memory.pressure(),
            "system_used_gb": gib(it.memory.active + it.memory.cache),
            "system_available_gb": gib(it.memory.total.saturating_sub(it.memory.active)),
            "system_pressure_pct": it.memory.pressure(),
            "model_loaded": it.is_loaded,
        })
    };
    let data: Vec<Value> = samples.iter().map(entry).collect();
    Ok(Json(json!({"ok": true, "source": "ranks", "count": data.len(), "data": data})))
}
