//! Jobs that a client starts and any client can follow: downloads and copies of models. A job belongs
//! to the server, not to the connection that started it.
//!
//! ```text
//!  started ─▶ running ─▶ done │ failed │ cancelled
//!                ▲                 │         │
//!                └─ started again ─┴─────────┘   continues with the bytes that are on disk
//! ```

mod copies;
mod pulls;

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::response::Response;
use futures_util::stream;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use crate::error::ApiError;
use crate::ids::{new_id, unix_time};
use crate::numbers::rounded;
use crate::sse;

pub use copies::{
    Copier, Copies, CopyFuture, CopyJob, CopyProgress, MachineHolding, MachineProgress,
    ModelHoldings,
};
pub use pulls::PullJob;

/// Maximum number of jobs of a kind that are listed; the oldest that has ended is dropped first.
const LISTED_MAX: usize = 32;

/// Least time between two events with the progress of jobs.
const EVENT_INTERVAL: Duration = Duration::from_millis(200);

/// Time after which the list of jobs is sent even if it has not changed.
const QUIET_MAX: Duration = Duration::from_secs(10);

/// State of a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum JobState {
    /// The job is in progress.
    Running,
    /// The job is complete.
    Done,
    /// The job has failed, at least in part.
    Failed,
    /// A client has cancelled the job.
    Cancelled,
}

impl JobState {
    fn name(self) -> &'static str {
        match self {
            JobState::Running => "running",
            JobState::Done => "done",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }
}

/// A kind of job: what it is about, and how its progress changes it.
pub trait JobKind: fmt::Debug + Send + 'static {
    /// Progress of the job.
    type Progress: Send + 'static;
    /// Name of the list of these jobs in JSON.
    const LIST: &'static str;
    /// Beginning of the ids of these jobs.
    const PREFIX: &'static str;
    /// What the job is called in errors.
    const CALLED: &'static str;
    /// Code of the error that there is no such job.
    const UNKNOWN: &'static str;

    /// Returns whether both jobs have the same purpose, so that one takes the other's place.
    fn is_same(&self, other: &Self) -> bool;

    /// Changes the job; returns its new state.
    fn note(&mut self, progress: Self::Progress) -> JobState;

    /// Changes a job that a client has cancelled.
    fn cancel(&mut self) {}

    /// Changes a job that has ended without a result.
    fn lose(&mut self);

    /// Returns the fields of the job in JSON, apart from its id, state and start.
    fn fields(&self) -> Map<String, Value>;
}

#[derive(Debug)]
struct Listed<J> {
    id: String,
    job: J,
    state: JobState,
    /// Time of the start, in seconds since 1970.
    began: f64,
    task: Option<AbortHandle>,
}

/// The jobs of one kind of a server. Cheap to clone.
#[derive(Debug)]
pub struct Jobs<J> {
    shared: Arc<SharedJobs<J>>,
}

#[derive(Debug)]
struct SharedJobs<J> {
    list: Mutex<Vec<Listed<J>>>,
    changed: watch::Sender<()>,
}

impl<J> Clone for Jobs<J> {
    fn clone(&self) -> Jobs<J> {
        Jobs { shared: Arc::clone(&self.shared) }
    }
}

impl<J> Default for Jobs<J> {
    fn default() -> Jobs<J> {
        let changed = watch::Sender::new(());
        Jobs { shared: Arc::new(SharedJobs { list: Mutex::default(), changed }) }
    }
}

impl<J: JobKind> Jobs<J> {
    /// Calls `begin` to start a job, follows it until it ends, and returns its id. The job is
    /// cancelled by dropping the receiver. If the same job runs already, returns that one's id and
    /// does not call `begin`.
    pub fn start(&self, job: J, begin: impl FnOnce() -> mpsc::Receiver<J::Progress>) -> String {
        let mut list = self.lock();
        let is_running = |it: &&Listed<J>| it.state == JobState::Running && it.job.is_same(&job);
        if let Some(running) = list.iter().find(is_running) {
            return running.id.clone();
        }
        // A second attempt takes the place of the first one.
        list.retain(|it| !it.job.is_same(&job));
        if LISTED_MAX <= list.len() {
            let ended = list.iter().position(|it| it.state != JobState::Running);
            ended.map(|idx| list.remove(idx));
        }
        let id = new_id(J::PREFIX);
        let task = tokio::spawn(follow(self.clone(), id.clone(), begin()));
        list.push(Listed {
            id: id.clone(),
            job,
            state: JobState::Running,
            began: unix_time(),
            task: Some(task.abort_handle()),
        });
        drop(list);
        self.shared.changed.send_replace(());
        id
    }

    /// Cancels a job that runs, or takes one that has ended from the list. What it has done stays on
    /// disk.
    ///
    /// # Errors
    /// If there is no such job.
    pub fn cancel(&self, id: &str) -> Result<(), ApiError> {
        let mut list = self.lock();
        let Some(idx) = list.iter().position(|it| it.id == id) else {
            let (what, code) = (J::CALLED, J::UNKNOWN);
            return Err(ApiError::UnknownJob { what, code, found: id.to_owned() });
        };
        if list[idx].state == JobState::Running {
            // Dropping the task drops the receiver, which ends the job.
            list[idx].task.take().into_iter().for_each(|task| task.abort());
            list[idx].state = JobState::Cancelled;
            list[idx].job.cancel();
        } else {
            list.remove(idx);
        }
        drop(list);
        self.shared.changed.send_replace(());
        Ok(())
    }

    /// The jobs, the oldest first.
    pub fn to_json(&self) -> Value {
        let entry = |it: &Listed<J>| {
            let mut fields = it.job.fields();
            fields.insert("id".to_owned(), json!(it.id));
            fields.insert("state".to_owned(), json!(it.state.name()));
            fields.insert("began".to_owned(), json!(rounded(it.began, 3)));
            Value::Object(fields)
        };
        json!({J::LIST: self.lock().iter().map(entry).collect::<Vec<_>>()})
    }

    /// Returns a receiver that is notified when a job has made progress.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changed.subscribe()
    }

    /// Returns an endless stream of events: the list, now and whenever it changes.
    pub fn events(&self) -> Response {
        let state = (self.clone(), self.changes(), true);
        let frames = stream::unfold(state, |(jobs, mut changes, is_first)| async move {
            if !is_first {
                tokio::time::sleep(EVENT_INTERVAL).await;
                // Without a change, the list is sent after `QUIET_MAX`: writing it shows whether
                // the client is still connected.
                let _ = tokio::time::timeout(QUIET_MAX, changes.changed()).await;
            }
            let mut frame = Vec::new();
            sse::push_event(&mut frame, &jobs.to_json());
            Some((Ok::<_, Infallible>(Bytes::from(frame)), (jobs, changes, false)))
        });
        sse::response(sse::STREAM_TYPE, frames)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Listed<J>>> {
        self.shared.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a job unless a client has cancelled it.
    fn note(&self, id: &str, edit: impl FnOnce(&mut Listed<J>)) {
        let mut list = self.lock();
        let is_meant = |it: &&mut Listed<J>| it.id == id && it.state != JobState::Cancelled;
        if let Some(job) = list.iter_mut().find(is_meant) {
            edit(job);
        }
        drop(list);
        self.shared.changed.send_replace(());
    }
}

async fn follow<J: JobKind>(jobs: Jobs<J>, id: String, mut progress: mpsc::Receiver<J::Progress>) {
    while let Some(next) = progress.recv().await {
        jobs.note(&id, |it| it.state = it.job.note(next));
    }
    jobs.note(&id, |it| {
        it.task = None;
        if it.state == JobState::Running {
            it.state = JobState::Failed;
            it.job.lose();
        }
    });
}
