//! Memory of the ranks, current and recent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use jackalope_engine::{MemoryReading, RankStatus, Status};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use utoipa::IntoParams;

use crate::ServerState;
use crate::error::ApiError;
use crate::ids::unix_time;
use crate::numbers::{gib, percent, rounded};
use crate::openapi::answers::{MemoryAnswer, MemorySamples};

/// Time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of samples that are kept.
const SAMPLES_MAX: usize = 600;

/// Default number of samples that are returned.
const SAMPLES_TOLD: usize = 60;

/// Memory use of the ranks, in percent of the total, from which the dashboard and `/health` warn.
/// The engine's own reaction to memory pressure by other programs follows the system's signals
/// (`system.pressure`).
const PRESSURE_WARN: f64 = 80.0;

/// Memory use, in percent of the total, that is reported as critical.
const PRESSURE_CRITICAL: f64 = 95.0;

/// Memory in bytes, of one rank or over all of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryUse {
    pub(crate) active: u64,
    pub(crate) cache: u64,
    pub(crate) kv: u64,
    /// Maximum of active memory so far.
    pub(crate) peak: u64,
    pub(crate) weights: u64,
    /// Weights and free memory of the rank; 0 if unknown.
    pub(crate) total: u64,
}

impl MemoryUse {
    pub(crate) fn of_rank(rank: &RankStatus) -> MemoryUse {
        let (weights, free) =
            rank.facts.as_ref().map_or((0, 0), |facts| (facts.weights_bytes, facts.free_bytes));
        MemoryUse {
            active: rank.memory.active_bytes,
            cache: rank.memory.cache_bytes,
            kv: rank.memory.kv_bytes,
            peak: rank.memory.peak_bytes.max(rank.memory.active_bytes),
            weights,
            total: if free == 0 { 0 } else { weights + free },
        }
    }

    fn plus(self, other: MemoryUse) -> MemoryUse {
        MemoryUse {
            active: self.active + other.active,
            cache: self.cache + other.cache,
            kv: self.kv + other.kv,
            peak: self.peak + other.peak,
            weights: self.weights + other.weights,
            total: self.total + other.total,
        }
    }

    /// Active memory in percent of the total; 0 if the total is unknown.
    pub(crate) fn pressure(self) -> f64 {
        percent(self.active, self.total)
    }

    pub(crate) fn is_safe(self) -> bool {
        self.pressure() < PRESSURE_WARN
    }

    /// Converts to JSON with the names of mlx-jaccl-cluster's `/health`.
    pub(crate) fn to_json(self) -> Value {
        json!({
            "active_gb": gib(self.active),
            "cache_gb": gib(self.cache),
            "peak_gb": gib(self.peak),
            "kv_gb": gib(self.kv),
            "weights_gb": gib(self.weights),
            "limit_gb": rounded(gib(self.total), 1),
            "total_gb": gib(self.total),
            "pressure_pct": self.pressure(),
            "headroom_gb": rounded(gib(self.total.saturating_sub(self.active)), 2),
        })
    }
}

/// Memory over all ranks. The total counts the free memory of a machine with several ranks once.
pub(crate) fn of_engine(status: &Status) -> MemoryUse {
    let all = status.ranks.iter().map(MemoryUse::of_rank);
    let mut all = all.fold(MemoryUse::default(), MemoryUse::plus);
    // For each machine: the weights of its ranks, and the least free memory that any of them
    // reported.
    let mut machines: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for rank in &status.ranks {
        let Some(facts) = rank.facts.as_ref().filter(|facts| 0 < facts.free_bytes) else {
            continue;
        };
        let (weights, free) = machines.entry(&rank.host).or_insert((0, u64::MAX));
        *weights += facts.weights_bytes;
        *free = facts.free_bytes.min(*free);
    }
    all.total = machines.values().map(|(weights, free)| weights + free).sum();
    all
}

/// Memory at one moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Time in seconds since 1970.
    at: f64,
    memory: MemoryUse,
    is_loaded: bool,
}

/// Recent memory samples.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    list: Mutex<VecDeque<Sample>>,
}

impl Samples {
    fn push(&self, sample: Sample) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() == SAMPLES_MAX {
            list.pop_front();
        }
        list.push_back(sample);
    }

    /// The last `count` samples, the newest last.
    fn last(&self, count: usize) -> Vec<Sample> {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().skip(list.len().saturating_sub(count)).copied().collect()
    }
}

fn sample(state: &ServerState) -> Sample {
    let status = state.default_model().engine_status();
    let is_loaded = status.ranks.iter().all(|rank| rank.facts.is_some());
    Sample { at: unix_time(), memory: of_engine(&status), is_loaded }
}

/// Samples the memory periodically until the server ends.
pub(crate) async fn sample_until(state: ServerState, mut ended: watch::Receiver<bool>) {
    let mut ticks = interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            _ = ticks.tick() => state.samples().push(sample(&state)),
            _ = ended.wait_for(|&ended| ended) => return,
        }
    }
}

/// Tells the memory of the ranks.
#[utoipa::path(
    get,
    path = "/memory",
    tag = "state",
    responses((status = 200, description = "The answer.", body = MemoryAnswer)),
)]
pub(crate) async fn memory(State(state): State<ServerState>) -> Json<Value> {
    let model = state.default_model();
    let status = model.engine_status();
    let total = of_engine(&status);
    let now = sample(&state);
    state.samples().push(now);
    let of_late = state.samples().last(SAMPLES_TOLD);
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

/// Free memory of the machine that has the least, once the engine has a reading.
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

/// Memory of each rank, keyed by its number.
pub(super) fn by_rank(status: &Status) -> Map<String, Value> {
    let of =
        |(rank, it): (usize, &RankStatus)| (rank.to_string(), MemoryUse::of_rank(it).to_json());
    status.ranks.iter().enumerate().map(of).collect()
}

/// How many of something are asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// How many seconds, at most 600.
    n: Option<usize>,
}

/// Tells the memory of the ranks once a second of late.
#[utoipa::path(
    get,
    path = "/memory/live",
    tag = "state",
    params(Wanted),
    responses((status = 200, description = "The answer.", body = MemorySamples)),
)]
pub(crate) async fn live(
    State(state): State<ServerState>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let wanted = super::query(wanted)?;
    state.samples().push(sample(&state));
    let samples = state.samples().last(wanted.n.unwrap_or(SAMPLES_TOLD).min(SAMPLES_MAX));
    let told = |it: &Sample| {
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
    let data: Vec<Value> = samples.iter().map(told).collect();
    Ok(Json(json!({"ok": true, "source": "ranks", "count": data.len(), "data": data})))
}
