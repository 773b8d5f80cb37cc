//! The last requests and errors, for administrators.

use axum::Json;
use axum::extract::State;
use jackalope_serving::error::ApiError;
use jackalope_serving::journal::{AnswerEnding, AnswerRecord, RECENT_MAX};
use jackalope_serving::numbers::{gib, quantile, rounded};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use crate::extract::Params;
use crate::state::ServerState;

/// Default number of answers that are returned.
const RECENT_TOLD: usize = 50;

/// Query parameters of a list of answers.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Maximum number of answers, at most 200. Default: 50.
    n: Option<usize>,
    /// Return only answers with this status: `ok`, `error`, `timeout` or `cancelled`.
    status: Option<String>,
    /// Return only answers to this kind of request.
    kind: Option<String>,
    /// Return only answers of this model.
    model: Option<String>,
    /// Return only answers for this key.
    key: Option<String>,
}

impl Filter {
    fn passes(&self, record: &AnswerRecord) -> bool {
        let fits =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|it| it == found);
        fits(&self.status, record.ending.name())
            && fits(&self.kind, record.kind)
            && fits(&self.model, &record.model)
            && fits(&self.key, record.key.as_deref().unwrap_or_default())
    }
}

pub(super) async fn recent(
    State(state): State<ServerState>,
    Params(filter): Params<Filter>,
) -> Result<Json<Value>, ApiError> {
    let limit = filter.n.unwrap_or(RECENT_TOLD).min(RECENT_MAX);
    let recent = state.journal().recent();
    let records = recent.iter().rev().map(|it| &it.record).filter(|it| filter.passes(it));
    let requests: Vec<Value> = records.take(limit).map(|record| record.to_json()).collect();
    Ok(Json(json!({"ok": true, "count": requests.len(), "requests": requests})))
}

pub(super) async fn errors(State(state): State<ServerState>) -> Json<Value> {
    let errors = state.journal().errors();
    let errors: Vec<Value> = errors.iter().rev().map(|it| it.to_json()).collect();
    Json(json!({"ok": true, "count": errors.len(), "errors": errors}))
}

pub(super) async fn stats(State(state): State<ServerState>) -> Json<Value> {
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
    Json(json!({
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
    }))
}
