//! Estimates when a refused request may be retried, from the progress so far.

use std::time::Duration;

use axum::http::StatusCode;
use jackalope_engine::EngineState;

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
            status.loading_time_left(state.started_at().elapsed()).or(again)
        }
    };
    estimate.unwrap_or(UNKNOWN).clamp(LEAST, MOST)
}
