//! Downloads of models.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{JobKind, JobState};
use crate::puller::PullProgress;

/// A download of a model.
#[derive(Debug)]
pub struct PullJob {
    model: String,
    /// The current activity of the download, or why the download failed.
    status: String,
    /// Total bytes and bytes fetched, by hash of the file.
    files: BTreeMap<String, (u64, u64)>,
}

impl PullJob {
    /// Creates the job of downloading this model.
    pub fn new(model: &str) -> PullJob {
        let (model, status) = (model.to_owned(), "starting".to_owned());
        PullJob { model, status, files: BTreeMap::new() }
    }
}

impl JobKind for PullJob {
    type Progress = PullProgress;
    const LIST: &'static str = "pulls";
    const PREFIX: &'static str = "pull_";
    const CALLED: &'static str = "download";
    const UNKNOWN: &'static str = "unknown_download";

    fn is_same(&self, other: &PullJob) -> bool {
        self.model == other.model
    }

    fn note(&mut self, progress: PullProgress) -> JobState {
        match progress {
            PullProgress::Working { status, digest, bytes } => {
                match digest.zip(bytes) {
                    Some((digest, bytes)) => {
                        "downloading".clone_into(&mut self.status);
                        self.files.insert(digest, bytes);
                    }
                    None => self.status = status,
                }
                JobState::Running
            }
            PullProgress::Done => JobState::Done,
            PullProgress::Failed { reason } => {
                self.status = reason;
                JobState::Failed
            }
        }
    }

    fn lose(&mut self) {
        "the download ended without a reason".clone_into(&mut self.status);
    }

    fn fields(&self) -> Map<String, Value> {
        let sum = |of: fn(&(u64, u64)) -> u64| self.files.values().map(of).sum::<u64>();
        let fields = json!({
            "model": self.model,
            "status": self.status,
            "total_bytes": sum(|it| it.0),
            "completed_bytes": sum(|it| it.1),
        });
        fields.as_object().cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokio::sync::mpsc;

    use super::*;
    use crate::jobs::Jobs;

    type Pulls = Jobs<PullJob>;

    fn states(pulls: &Pulls) -> Vec<(String, String, u64)> {
        let list = pulls.to_json();
        let list = list["pulls"].as_array().unwrap();
        let text = |it: &Value, field: &str| it[field].as_str().unwrap().to_owned();
        let entry = |it: &Value| {
            (text(it, "state"), text(it, "status"), it["completed_bytes"].as_u64().unwrap())
        };
        list.iter().map(entry).collect()
    }

    async fn until(pulls: &Pulls, state: &str) {
        let mut changes = pulls.changes();
        while states(pulls)[0].0 != state {
            changes.changed().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_download_ends_done_failed_or_cancelled() {
        let pulls = Pulls::default();
        let (sender, progress) = mpsc::channel(8);
        let id = pulls.start(PullJob::new("a/b"), || progress);
        assert_eq!(pulls.start(PullJob::new("a/b"), || unreachable!("it runs already")), id);
        let bytes = Some((10, 4));
        let working = PullProgress::Working { status: "x".into(), digest: Some("d".into()), bytes };
        sender.send(working).await.unwrap();
        let reason = "no network".to_owned();
        sender.send(PullProgress::Failed { reason }).await.unwrap();
        until(&pulls, "failed").await;
        assert_eq!(states(&pulls), [("failed".to_owned(), "no network".to_owned(), 4)]);
        let (sender, progress) = mpsc::channel(8);
        let again = pulls.start(PullJob::new("a/b"), || progress);
        assert_ne!(again, id);
        assert!(pulls.cancel(&again).is_ok() && pulls.cancel(&id).is_err());
        assert_eq!(states(&pulls)[0].0, "cancelled");
        // Cancelling drops the receiver, which the download notices.
        sender.closed().await;
        let (sender, progress) = mpsc::channel(8);
        let third = pulls.start(PullJob::new("a/b"), || progress);
        sender.send(PullProgress::Done).await.unwrap();
        until(&pulls, "done").await;
        pulls.cancel(&third).unwrap();
        assert_eq!(states(&pulls), []);
    }
}
