//! Totals since the start, and rates and times of the recorded answers, in the form of
//! mlx-jaccl-cluster.

use jackalope_serving::journal::{AnswerEnding, AnswerRecord};
use jackalope_serving::numbers::{gib, quantile, rounded};
use jackalope_serving::state::ServingState;
use serde_json::{Value, json};

/// Returns the content of `/requests/stats`.
pub fn request_stats(state: &ServingState) -> Value {
    let totals = state.journal().totals();
    let mut endings = [0; AnswerEnding::NAMES.len()];
    let (mut tokens, mut wall_seconds) = (0, 0.0);
    for model in totals.models.values() {
        for (sum, count) in endings.iter_mut().zip(model.endings) {
            *sum += count;
        }
        tokens += model.completion_tokens;
        wall_seconds += model.wall_seconds;
    }
    let [ok, errors, timeouts, cancelled] = endings;
    let total: u64 = endings.iter().sum();
    let share = |part: u64, of: u64| rounded(part as f64 / of.max(1) as f64, 4);
    let recent = state.journal().recent();
    let count = recent.len().max(1) as f64;
    let sorted = |of: fn(&AnswerRecord) -> f64| {
        let mut values: Vec<f64> = recent.iter().map(|it| of(&it.record)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let rates = sorted(|it| it.summary.total_rate());
    let times = sorted(|it| it.summary.total_time.as_secs_f64());
    let growth = sorted(|it| gib(it.memory_bytes.1) - gib(it.memory_bytes.0));
    let hits = recent.iter().filter(|it| 0 < it.record.summary.cached_tokens).count() as u64;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
    json!({
        "ok": ok,
        "total_requests": total,
        "errors": errors,
        "timeouts": timeouts,
        "cancelled": cancelled,
        "pressure_aborts": 0,
        "error_rate": share(errors + timeouts, total),
        "total_generated_tokens": tokens,
        "total_wall_time_s": rounded(wall_seconds, 3),
        "buffer_size": recent.len(),
        "avg_tps": rounded(mean(&rates), 1),
        "p50_tps": rounded(quantile(&rates, 0.5), 1),
        "p95_tps": rounded(quantile(&rates, 0.95), 1),
        "avg_latency_s": rounded(mean(&times), 3),
        "p50_latency_s": rounded(quantile(&times, 0.5), 3),
        "p95_latency_s": rounded(quantile(&times, 0.95), 3),
        "avg_memory_delta_gb": rounded(mean(&growth), 3),
        "kv_cache_hit_rate": share(hits, recent.len() as u64),
    })
}
