//! `POST /api/pull`: fetches a model to this machine and streams lines with the progress.

use std::convert::Infallible;
use std::fmt;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use axum::{Json, http::StatusCode};
use futures_util::future::BoxFuture;
use futures_util::stream;
use serde_json::{Map, Value, json};
use thiserror::Error;
use tokio::sync::mpsc;

use super::format::{LINES_TYPE, push_line};
use super::models::named;
use super::request::Named;
use super::{bare, known};
use crate::ServerState;
use crate::error::ApiError;
use crate::openapi::answers::OllamaPulled;
use crate::sse;

/// Fetches models for clients, and removes them.
pub trait Puller: fmt::Debug + Send + Sync {
    /// Starts to fetch a model. Everything that is sent is passed on to the client; the fetch has
    /// ended when the last sender is dropped, and is cancelled when the receiver is dropped.
    fn pull(&self, name: &str) -> mpsc::Receiver<PullProgress>;

    /// Removes the model with this id from the server and deletes its files.
    fn remove(&self, id: &str) -> RemoveFuture;
}

/// The result of removing a model.
pub type RemoveFuture = BoxFuture<'static, Result<(), RemoveError>>;

/// Reason why a model was not removed.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum RemoveError {
    /// The model may not be removed.
    #[error("{reason}")]
    Refused {
        /// The reason, possibly with a hint.
        reason: String,
    },
    /// The removal failed.
    #[error("{reason}")]
    Failed {
        /// The reason.
        reason: String,
    },
}

/// Progress of fetching a model.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PullProgress {
    /// The fetch is in progress.
    Working {
        /// The current activity.
        status: String,
        /// Hash of the current file.
        digest: Option<String>,
        /// Total bytes, and bytes fetched so far.
        bytes: Option<(u64, u64)>,
    },
    /// The model was fetched.
    Done,
    /// The model cannot be fetched.
    Failed {
        /// The reason, with a hint.
        reason: String,
    },
}

impl PullProgress {
    fn to_json(&self) -> Value {
        let (status, digest, bytes) = match self {
            PullProgress::Working { status, digest, bytes } => (status.as_str(), digest, *bytes),
            PullProgress::Done => ("success", &None, None),
            PullProgress::Failed { reason } => return json!({"error": reason}),
        };
        let mut line = Map::new();
        line.insert("status".to_owned(), status.into());
        if let Some(digest) = digest {
            line.insert("digest".to_owned(), digest.as_str().into());
        }
        if let Some((total, completed)) = bytes {
            line.insert("total".to_owned(), total.into());
            line.insert("completed".to_owned(), completed.into());
        }
        line.into()
    }
}

/// Fetches a model unless it is served already.
#[utoipa::path(
    post,
    path = "/api/pull",
    tag = "Ollama",
    request_body = Named,
    responses((
        status = 200,
        description = "The answer.",
        content((OllamaPulled = "application/json"), (String = "application/x-ndjson")),
    )),
)]
pub(crate) async fn pull(
    State(state): State<ServerState>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let named = named(&state, request).await?;
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
            let refused = || ApiError::NotSupported {
                param: format!("fetching {name}"),
                hint: Some(format!("run `jackalope pull {name}`, and serve it")),
            };
            state.puller().ok_or_else(refused)?.pull(name)
        }
        Err(err) => return Err(err),
    };
    Ok(if is_stream { lines(progress) } else { whole(progress).await })
}

/// Streams one line for each report of progress.
fn lines(progress: mpsc::Receiver<PullProgress>) -> Response {
    let lines = stream::unfold(progress, |mut progress| async {
        let mut line = Vec::new();
        push_line(&mut line, &progress.recv().await?.to_json());
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
