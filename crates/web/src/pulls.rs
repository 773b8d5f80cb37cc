//! Downloads of models that a web page started: their progress, which any page can follow, and how
//! each ended.
//!
//! ```text
//!  started ─▶ running ─▶ done │ failed │ cancelled
//!                ▲                 │         │
//!                └─ started again ─┴─────────┘   continues with the bytes that are on disk
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jackalope_serving::ids::{new_id, unix_time};
use jackalope_serving::numbers::rounded;
use jackalope_serving::puller::PullProgress;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

/// Maximum number of downloads that are listed; the oldest that has ended is dropped first.
const LISTED_MAX: usize = 32;

/// State of a download.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PullState {
    Running,
    Done,
    Failed,
    Cancelled,
}

#[derive(Debug)]
struct ListedPull {
    id: String,
    model: String,
    state: PullState,
    /// The current activity of the download, or why the download failed.
    status: String,
    /// Total bytes and bytes fetched, by hash of the file.
    files: BTreeMap<String, (u64, u64)>,
    /// Time of the start, in seconds since 1970.
    began: f64,
    task: Option<AbortHandle>,
}

/// The downloads of a server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pulls {
    shared: Arc<SharedPulls>,
}

#[derive(Debug)]
struct SharedPulls {
    list: Mutex<Vec<ListedPull>>,
    changed: watch::Sender<()>,
}

impl Default for Pulls {
    fn default() -> Pulls {
        let changed = watch::Sender::new(());
        Pulls { shared: Arc::new(SharedPulls { list: Mutex::default(), changed }) }
    }
}

impl Pulls {
    /// Calls `pull` to start a download of `model`, follows it until it ends, and returns its id.
    /// If a download of the same model runs already, returns that one's id and does not call
    /// `pull`.
    pub fn start(
        &self,
        model: &str,
        pull: impl FnOnce() -> mpsc::Receiver<PullProgress>,
    ) -> String {
        let mut list = self.lock();
        let running = list.iter().find(|it| it.model == model && it.state == PullState::Running);
        if let Some(running) = running {
            return running.id.clone();
        }
        // A second attempt takes the place of the first one.
        list.retain(|it| it.model != model);
        if LISTED_MAX <= list.len() {
            let ended = list.iter().position(|it| it.state != PullState::Running);
            ended.map(|idx| list.remove(idx));
        }
        let id = new_id("pull_");
        let task = tokio::spawn(follow(self.clone(), id.clone(), pull()));
        list.push(ListedPull {
            id: id.clone(),
            model: model.to_owned(),
            state: PullState::Running,
            status: "starting".to_owned(),
            files: BTreeMap::new(),
            began: unix_time(),
            task: Some(task.abort_handle()),
        });
        drop(list);
        self.shared.changed.send_replace(());
        id
    }

    /// Cancels a download that runs, or takes one that has ended from the list; false if there is no
    /// such download. What was fetched stays on disk.
    pub fn cancel(&self, id: &str) -> bool {
        let mut list = self.lock();
        let Some(idx) = list.iter().position(|it| it.id == id) else { return false };
        if list[idx].state == PullState::Running {
            // Dropping the task drops the receiver, which ends the download.
            list[idx].task.take().into_iter().for_each(|task| task.abort());
            list[idx].state = PullState::Cancelled;
        } else {
            list.remove(idx);
        }
        drop(list);
        self.shared.changed.send_replace(());
        true
    }

    /// The downloads, the oldest first.
    pub fn to_json(&self) -> Value {
        let entry = |it: &ListedPull| {
            let sum = |of: fn(&(u64, u64)) -> u64| it.files.values().map(of).sum::<u64>();
            json!({
                "id": it.id,
                "model": it.model,
                "state": match it.state {
                    PullState::Running => "running",
                    PullState::Done => "done",
                    PullState::Failed => "failed",
                    PullState::Cancelled => "cancelled",
                },
                "status": it.status,
                "total_bytes": sum(|it| it.0),
                "completed_bytes": sum(|it| it.1),
                "began": rounded(it.began, 3),
            })
        };
        json!({"pulls": self.lock().iter().map(entry).collect::<Vec<_>>()})
    }

    /// Returns a receiver that is notified when a download has made progress.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changed.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ListedPull>> {
        self.shared.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, id: &str, edit: impl FnOnce(&mut ListedPull)) {
        if let Some(pull) = self.lock().iter_mut().find(|it| it.id == id) {
            edit(pull);
        }
        self.shared.changed.send_replace(());
    }
}

async fn follow(pulls: Pulls, id: String, mut progress: mpsc::Receiver<PullProgress>) {
    while let Some(next) = progress.recv().await {
        pulls.note(&id, |pull| match next {
            PullProgress::Working { status, digest, bytes } => match digest.zip(bytes) {
                Some((digest, bytes)) => {
                    pull.status = "downloading".to_owned();
                    pull.files.insert(digest, bytes);
                }
                None => pull.status = status,
            },
            PullProgress::Done => pull.state = PullState::Done,
            PullProgress::Failed { reason } => {
                (pull.state, pull.status) = (PullState::Failed, reason);
            }
        });
    }
    pulls.note(&id, |pull| {
        pull.task = None;
        if pull.state == PullState::Running {
            pull.state = PullState::Failed;
            "the download ended without a reason".clone_into(&mut pull.status);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let id = pulls.start("a/b", || progress);
        assert_eq!(pulls.start("a/b", || unreachable!("it runs already")), id);
        let bytes = Some((10, 4));
        let working = PullProgress::Working { status: "x".into(), digest: Some("d".into()), bytes };
        sender.send(working).await.unwrap();
        let reason = "no network".to_owned();
        sender.send(PullProgress::Failed { reason }).await.unwrap();
        until(&pulls, "failed").await;
        assert_eq!(states(&pulls), [("failed".to_owned(), "no network".to_owned(), 4)]);
        let (sender, progress) = mpsc::channel(8);
        let again = pulls.start("a/b", || progress);
        assert_ne!(again, id);
        assert!(pulls.cancel(&again) && !pulls.cancel(&id));
        assert_eq!(states(&pulls)[0].0, "cancelled");
        // Cancelling drops the receiver, which the download notices.
        sender.closed().await;
        let (sender, progress) = mpsc::channel(8);
        let third = pulls.start("a/b", || progress);
        sender.send(PullProgress::Done).await.unwrap();
        until(&pulls, "done").await;
        assert!(pulls.cancel(&third));
        assert_eq!(states(&pulls), []);
    }
}
