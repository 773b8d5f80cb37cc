//! The interface to the code that fetches and removes models.

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Time without progress after which the last one is repeated.
const REPEAT_AFTER: Duration = Duration::from_millis(500);

/// Fetches models for clients, and removes them.
pub trait Puller: fmt::Debug + Send + Sync {
    /// Starts to fetch a model. Everything that is sent is passed on to the client; the fetch has
    /// ended when the last sender is dropped, and is cancelled when the receiver is dropped.
    fn pull(&self, name: &str) -> mpsc::Receiver<PullProgress>;

    /// Removes the model with this id from the server and deletes its files.
    fn remove(&self, id: &str) -> RemoveFuture;
}

/// The result of removing a model.
pub type RemoveFuture = BoxFuture<'static, Result<(), ModelRemoveError>>;

/// Reason why a model was not removed.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum ModelRemoveError {
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

/// Progress for a client that reads a stream, repeated while there is none: only a write shows that the
/// client has disconnected, which ends the fetch.
#[derive(Debug)]
pub struct RepeatedProgress {
    progress: mpsc::Receiver<PullProgress>,
    last: Option<PullProgress>,
}

impl RepeatedProgress {
    /// Repeats the progress of a fetch.
    pub fn new(progress: mpsc::Receiver<PullProgress>) -> RepeatedProgress {
        RepeatedProgress { progress, last: None }
    }

    /// Returns the next progress, or the last one again after half a second without any; `None` if the
    /// fetch has ended.
    pub async fn next(&mut self) -> Option<PullProgress> {
        loop {
            match timeout(REPEAT_AFTER, self.progress.recv()).await {
                Ok(next) => {
                    self.last.clone_from(&next);
                    return next;
                }
                Err(_) if self.last.is_some() => return self.last.clone(),
                Err(_) => {}
            }
        }
    }
}

impl PullProgress {
    /// Converts to JSON, as a line of Ollama's `/api/pull`.
    pub fn to_json(&self) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn progress_is_repeated_until_there_is_more_or_the_end() {
        let (sender, progress) = mpsc::channel(1);
        let mut repeated = RepeatedProgress::new(progress);
        let first = timeout(REPEAT_AFTER * 2, repeated.next()).await;
        assert!(first.is_err(), "there is nothing to repeat yet");
        sender.try_send(PullProgress::Done).unwrap();
        for _ in 0..3 {
            assert_eq!(repeated.next().await, Some(PullProgress::Done));
        }
        drop(sender);
        assert_eq!(repeated.next().await, None);
    }
}
