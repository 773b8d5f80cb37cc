//! Rates of the last minute, the last answers and the state of the ranks, in the form of vllm-mlx.

use std::time::{Duration, Instant};

use jackalope_engine::{RankStatus, Status};
use jackalope_serving::journal::{ModelTotals, Recent, WINDOW};
use jackalope_serving::memory::{by_rank, memory_of};
use jackalope_serving::numbers::{gib, rounded};
use jackalope_serving::state::ServingState;
use serde_json::{Map, Value, json};

/// Maximum number of answers that are listed.
const HISTORY_MAX: usize = 40;

/// Silence after which a rank is reported as stale, and as dead: ranks send a message every few
/// seconds.
const STALE_AFTER: Duration = Duration::from_secs(5);
const DEAD_AFTER: Duration = Duration::from_secs(15);

/// Returns the content of `/metrics/snapshot`.
pub fn snapshot(state: &ServingState) -> Value {
    let (journal, now) = (state.journal(), Instant::now());
    let status = state.default_model().engine_status();
    let recent = journal.recent();
    let late: Vec<&Recent> = recent.iter().filter(|it| now - it.ended < WINDOW).collect();
    let rates: Vec<f64> = late.iter().map(|it| it.record.summary.total_rate()).collect();
    let times: Vec<f64> =
        late.iter().map(|it| it.record.summary.total_time.as_secs_f64()).collect();
    let totals = journal.totals();
    let models = totals.models.values();
    let sum = |of: fn(&ModelTotals) -> u64| models.clone().map(of).sum::<u64>();
    let history = recent.iter().skip(recent.len().saturating_sub(HISTORY_MAX)).map(|it| {
        json!({
            "t": rounded((it.ended - journal.started).as_secs_f64(), 1),
            "tps": rounded(it.record.summary.total_rate(), 1),
            "latency": rounded(it.record.summary.total_time.as_secs_f64(), 3),
            "ctokens": it.record.summary.completion_tokens,
            "kind": it.record.kind,
        })
    });
    json!({
        "uptime_s": (now - journal.started).as_secs(),
        "total_requests": sum(|it| it.num_ended()),
        "total_tokens": sum(|it| it.completion_tokens),
        "total_prompt_tokens": sum(|it| it.prompt_tokens),
        "error_count": totals.num_errors,
        "recent_count": late.len(),
        "avg_tps_60s": rounded(mean(&rates), 1),
        "peak_tps_60s": rounded(rates.iter().copied().fold(0.0, f64::max), 1),
        "avg_latency_60s": rounded(mean(&times), 3),
        "history": history.collect::<Vec<_>>(),
        "queue_size": status.queued,
        "queue_max": status.queue_max,
        "running": status.running,
        "running_max": status.running_max,
        "sampled_tokens": status.counters.sampled_tokens,
        "model": state.default_model().id,
        "state": status.state.name(),
        "recoveries": status.counters.recoveries,
        "open_requests": state.journal().open_requests().len(),
        "memory": by_rank(&status),
        "nodes": nodes(&status, now),
        "memory_monitor": {
            "source": "ranks",
            "mlx_active_gb": gib(memory_of(&status).active),
            "mlx_pressure_pct": memory_of(&status).pressure(),
        },
    })
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The state of each rank, keyed by its number.
fn nodes(status: &Status, now: Instant) -> Map<String, Value> {
    let of = |(rank, it): (usize, &RankStatus)| {
        let silent = it.last_message_at.map(|at| now.duration_since(at));
        let word = match silent {
            None => "starting",
            Some(silent) if silent < STALE_AFTER => "connected",
            Some(silent) if silent < DEAD_AFTER => "stale",
            Some(_) => "dead",
        };
        let hostname = if it.host.is_empty() { "localhost" } else { &it.host };
        let node = json!({
            "status": word,
            "hostname": hostname,
            "last_heartbeat_s": silent.map(|it| rounded(it.as_secs_f64(), 1)),
            "phase": it.phase,
        });
        (rank.to_string(), node)
    };
    status.ranks.iter().enumerate().map(of).collect()
}
