//! Estimates when a refused request may be retried, from the progress so far.

use std::time::Duration;

use axum::http::StatusCode;
use jackalope_engine::{EngineState, Status};

use crate::state::ServerState;

/// Estimate if nothing has been measured yet.
const UNKNOWN: Duration = Duration::from_secs(5);

/// Bounds of the estimate.
const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(60);

/// The time after which a request refused with this status is likely to be accepted.
pub(crate) fn retry_after(state: &ServerState, status: StatusCode) -> Duration {
    let estimate = match status {
        // A slot is free as soon as one answer ends.
        StatusCode::TOO_MANY_REQUESTS => state.journal().end_interval().or(Some(LEAST)),
        _ => {
            let status = state.default_model().engine_status();
            // A recovery is assumed to take as long as the previous one.
            let again = status.recovery.took.filter(|_| status.state != EngineState::Starting);
            loading_time(&status, state.started_at().elapsed()).or(again)
        }
    };
    estimate.unwrap_or(UNKNOWN).clamp(LEAST, MOST)
}

/// Remaining loading time of the slowest rank at its pace so far; none if no rank is loading.
fn loading_time(status: &Status, elapsed: Duration) -> Option<Duration> {
    if status.state != EngineState::Starting {
        return None;
    }
    let of_rank = |(done, total): (u64, u64)| {
        let left = total.saturating_sub(done) as f64 / (done.max(1)) as f64;
        (0 < done).then(|| elapsed.mul_f64(left.min(1e6)))
    };
    status.ranks.iter().filter_map(|rank| of_rank(rank.loaded_bytes?)).max()
}
