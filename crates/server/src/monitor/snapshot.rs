//! Rates of the last minute, the last answers and the state of the ranks, once or every two
//! seconds.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use futures_util::stream;
use jackalope_serving::sse;
use jackalope_web::snapshot as taken;
use serde_json::Value;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::state::ServerState;

/// Time between two events of the stream.
const STREAM_INTERVAL: Duration = Duration::from_secs(2);

pub(super) async fn snapshot(State(state): State<ServerState>) -> Json<Value> {
    Json(taken(&state))
}

pub(super) async fn stream(State(state): State<ServerState>) -> Response {
    let mut ticks = interval(STREAM_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let frames =
        stream::unfold((state, ticks), |(state, mut ticks): (ServerState, Interval)| async {
            ticks.tick().await;
            let mut frame = Vec::new();
            sse::push_event(&mut frame, &taken(&state));
            Some((Ok::<_, Infallible>(Bytes::from(frame)), (state, ticks)))
        });
    sse::response(sse::STREAM_TYPE, frames)
}
