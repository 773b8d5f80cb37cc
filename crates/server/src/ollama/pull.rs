//! `POST /api/pull`: fetches a model to this machine and streams lines with the progress.

use std::convert::Infallible;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Json, http::StatusCode};
use futures_util::stream;
use jackalope_serving::error::ApiError;
use jackalope_serving::sse;
use tokio::sync::mpsc;

use super::format::{LINES_TYPE, push_line};
use super::names::{bare, known};
use super::request::Named;
use crate::extract::UnlabelledRequest;
use crate::state::ServerState;
use jackalope_serving::puller::{PullProgress, RepeatedProgress};

pub(super) async fn pull(
    State(state): State<ServerState>,
    UnlabelledRequest(body): UnlabelledRequest,
) -> Result<Response, ApiError> {
    let named: Named = body.read()?;
    let name = named.name().ok_or(ApiError::Missing { param: "model" })?;
    let is_stream = named.stream.unwrap_or(true);
    let progress = match known(&state, Some(name)) {
        Ok(_) => {
            let (sender, progress) = mpsc::channel(1);
            sender.try_send(PullProgress::Done).expect("the channel has just been made");
            progress
        }
        Err(ApiError::UnknownModel { .. }) => {
            let name = bare(name);
            let refused = || {
                ApiError::not_supported(
                    format!("fetching {name}"),
                    format!("run `jackalope pull {name}`, and serve it"),
                )
            };
            state.puller().ok_or_else(refused)?.pull(name)
        }
        Err(err) => return Err(err),
    };
    Ok(if is_stream { lines(progress) } else { whole(progress).await })
}

/// Streams one line for each report of progress, and repeats it while there is none.
fn lines(progress: mpsc::Receiver<PullProgress>) -> Response {
    let lines = stream::unfold(RepeatedProgress::new(progress), |mut progress| async {
        let mut line = Vec::new();
        push_line(&mut line, &progress.next().await?.to_json());
        Some((Ok::<_, Infallible>(Bytes::from(line)), progress))
    });
    sse::response(LINES_TYPE, lines)
}

/// Waits for the end and returns the last report.
async fn whole(mut progress: mpsc::Receiver<PullProgress>) -> Response {
    let mut last = PullProgress::Failed { reason: "the fetching ended without a word".to_owned() };
    while let Some(next) = progress.recv().await {
        last = next;
    }
    let status = match last {
        PullProgress::Failed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        PullProgress::Working { .. } | PullProgress::Done => StatusCode::OK,
    };
    (status, Json(last.to_json())).into_response()
}
