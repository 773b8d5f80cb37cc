//! Copies of models to the other machines of a cluster.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use jackalope_protocol::counted;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::{JobKind, JobState, Jobs};
use crate::error::ApiError;
use crate::models::Models;

/// The result of a question to a [`Copier`], or the reason why there is none, possibly with a hint.
pub type CopyFuture<T> = BoxFuture<'static, Result<T, String>>;

/// Copies models to the other machines of a cluster.
pub trait Copier: fmt::Debug + Send + Sync {
    /// Returns the names of the other machines, in the order of the hostfile.
    fn hosts(&self) -> CopyFuture<Vec<String>>;

    /// Returns what each of the other machines holds of the model with this id.
    fn holdings(&self, id: &str) -> CopyFuture<ModelHoldings>;

    /// Starts to copy a model to these machines. The copy has ended when the last sender is dropped,
    /// and is cancelled when the receiver is dropped.
    fn copy(&self, id: &str, hosts: Vec<String>) -> mpsc::Receiver<CopyProgress>;
}

/// What the machines of a cluster hold of a model.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ModelHoldings {
    /// Size of the model in bytes.
    pub total_bytes: u64,
    /// The machines, apart from the server's own, by name.
    pub machines: Vec<(String, MachineHolding)>,
}

/// What a machine holds of a model, judged by the names and sizes of its files.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MachineHolding {
    /// All files.
    Complete {
        /// The model's directory.
        dir: String,
    },
    /// Some files, or parts of files; a copy completes them.
    Partial {
        /// Number of bytes.
        num_bytes: u64,
    },
    /// Nothing.
    Absent,
    /// A copy would be refused.
    Different {
        /// The reason, with a hint.
        reason: String,
    },
    /// The machine cannot be reached.
    Unreachable {
        /// The reason, possibly with a hint.
        reason: String,
    },
}

/// Progress of a copy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CopyProgress {
    /// The current activity.
    Working {
        /// The activity.
        status: String,
    },
    /// The size of the model is known.
    Sized {
        /// Size of the model in bytes.
        total_bytes: u64,
    },
    /// Progress of one machine.
    Machine {
        /// The machine.
        host: String,
        /// The progress.
        progress: MachineProgress,
    },
    /// Nothing can be copied.
    Failed {
        /// The reason, possibly with a hint.
        reason: String,
    },
    /// All machines have ended.
    Ended,
}

/// Progress of the copy to one machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MachineProgress {
    /// Further bytes of the model are on the machine.
    Has {
        /// Number of bytes.
        num_bytes: u64,
    },
    /// The machine has the model, and has verified its hashes.
    Done {
        /// The model's directory.
        dir: String,
    },
    /// The copy failed.
    Failed {
        /// The reason, possibly with a hint.
        reason: String,
    },
}

/// A copy of a model to some machines.
#[derive(Debug)]
pub struct CopyJob {
    model: String,
    /// The current activity, or why the copy failed.
    status: String,
    total_bytes: u64,
    machines: Vec<CopyTarget>,
}

#[derive(Debug)]
struct CopyTarget {
    host: String,
    state: JobState,
    completed_bytes: u64,
    dir: Option<String>,
    error: Option<String>,
}

impl CopyJob {
    /// Creates the job of copying this model to these machines.
    pub fn new(model: &str, hosts: &[String]) -> CopyJob {
        let target = |host: &String| CopyTarget {
            host: host.clone(),
            state: JobState::Running,
            completed_bytes: 0,
            dir: None,
            error: None,
        };
        CopyJob {
            model: model.to_owned(),
            status: "starting".to_owned(),
            total_bytes: 0,
            machines: hosts.iter().map(target).collect(),
        }
    }

    fn hosts(&self) -> impl Iterator<Item = &str> {
        self.machines.iter().map(|it| it.host.as_str())
    }

    /// Ends the machines that have not ended.
    fn end(&mut self, state: JobState) {
        self.machines
            .iter_mut()
            .filter(|it| it.state == JobState::Running)
            .for_each(|it| it.state = state);
    }

    fn note_machine(&mut self, host: &str, progress: MachineProgress) {
        let total_bytes = self.total_bytes;
        let Some(it) = self.machines.iter_mut().find(|it| it.host == host) else { return };
        match progress {
            MachineProgress::Has { num_bytes } => {
                // A damaged file is sent again, and would count twice.
                it.completed_bytes = total_bytes.min(it.completed_bytes + num_bytes);
            }
            MachineProgress::Done { dir } => {
                it.completed_bytes = total_bytes;
                (it.state, it.dir) = (JobState::Done, Some(dir));
            }
            MachineProgress::Failed { reason } => {
                (it.state, it.error) = (JobState::Failed, Some(reason));
            }
        }
    }
}

impl JobKind for CopyJob {
    type Progress = CopyProgress;
    const LIST: &'static str = "copies";
    const PREFIX: &'static str = "copy_";
    const CALLED: &'static str = "copy";
    const UNKNOWN: &'static str = "unknown_copy";

    fn is_same(&self, other: &CopyJob) -> bool {
        self.model == other.model && self.hosts().eq(other.hosts())
    }

    fn note(&mut self, progress: CopyProgress) -> JobState {
        match progress {
            CopyProgress::Working { status } => self.status = status,
            CopyProgress::Sized { total_bytes } => self.total_bytes = total_bytes,
            CopyProgress::Machine { host, progress } => self.note_machine(&host, progress),
            CopyProgress::Failed { reason } => {
                self.status = reason;
                self.end(JobState::Failed);
                return JobState::Failed;
            }
            CopyProgress::Ended => {
                self.end(JobState::Failed);
                let all = self.machines.len();
                let failed = self.machines.iter().filter(|it| it.state == JobState::Failed).count();
                if failed == 0 {
                    self.status = format!("verified on {}", counted(all, "machine"));
                    return JobState::Done;
                }
                self.status = format!("failed on {failed} of {}", counted(all, "machine"));
                return JobState::Failed;
            }
        }
        JobState::Running
    }

    fn cancel(&mut self) {
        "cancelled; what has arrived is kept".clone_into(&mut self.status);
        self.end(JobState::Cancelled);
    }

    fn lose(&mut self) {
        "the copy ended without a reason".clone_into(&mut self.status);
        self.end(JobState::Failed);
    }

    fn fields(&self) -> Map<String, Value> {
        let machine = |it: &CopyTarget| {
            json!({
                "host": it.host,
                "state": it.state.name(),
                "completed_bytes": it.completed_bytes,
                "path": it.dir,
                "error": it.error,
            })
        };
        let completed_bytes: u64 = self.machines.iter().map(|it| it.completed_bytes).sum();
        let fields = json!({
            "model": self.model,
            "status": self.status,
            "model_bytes": self.total_bytes,
            "total_bytes": self.total_bytes * self.machines.len() as u64,
            "completed_bytes": completed_bytes,
            "machines": self.machines.iter().map(machine).collect::<Vec<_>>(),
        });
        fields.as_object().cloned().unwrap_or_default()
    }
}

/// The copies of a server, and how they are made.
#[derive(Clone, Debug, Default)]
pub struct Copies {
    /// The copies that clients started.
    pub jobs: Jobs<CopyJob>,
    /// Makes the copies; if absent, they are refused.
    copier: Option<Arc<dyn Copier>>,
}

impl Copies {
    /// Creates an empty list of copies, which `copier` makes.
    pub fn new(copier: Option<Arc<dyn Copier>>) -> Copies {
        Copies { jobs: Jobs::default(), copier }
    }

    fn copier(&self) -> Result<&Arc<dyn Copier>, ApiError> {
        self.copier.as_ref().ok_or(ApiError::NotOffered {
            what: "models are not copied to other machines",
            hint: "start the server with `--hosts FILE`, a hostfile that names them, and with \
                   `--admin-key` if other machines can reach it; or run `jackalope models sync \
                   MODEL --hosts FILE` on the server's machine",
        })
    }

    /// Starts to copy a model to `hosts`, or to all other machines, or resumes such a copy. Returns
    /// the id of the copy.
    ///
    /// # Errors
    /// If this server copies nothing, or there is no such model or machine.
    pub async fn start(
        &self,
        models: &Models,
        name: &str,
        hosts: Option<Vec<String>>,
    ) -> Result<String, ApiError> {
        let copier = self.copier()?;
        let model = models.named(name)?.id;
        let refused = |reason| ApiError::NotCopied { model: model.clone(), reason };
        let known = copier.hosts().await.map_err(refused)?;
        let hosts = match hosts {
            None => known,
            Some(hosts) => {
                if hosts.is_empty() {
                    return Err(ApiError::Empty { param: "hosts".to_owned() });
                }
                if let Some(found) = hosts.iter().find(|it| !known.contains(it)) {
                    let expected = format!("one of {}", known.join(", "));
                    return Err(ApiError::out_of_range("hosts", found, expected));
                }
                // In the order of the hostfile, and each once.
                known.into_iter().filter(|it| hosts.contains(it)).collect()
            }
        };
        let job = CopyJob::new(&model, &hosts);
        Ok(self.jobs.start(job, || copier.copy(&model, hosts)))
    }

    /// Returns what each of the other machines holds of a model.
    ///
    /// # Errors
    /// If this server copies nothing, there is no such model, or this machine cannot read it.
    pub async fn holdings(&self, models: &Models, name: &str) -> Result<Value, ApiError> {
        let copier = self.copier()?;
        let model = models.named(name)?.id;
        let held = copier.holdings(&model).await;
        let refused = |reason| ApiError::NotCopied { model: model.clone(), reason };
        let ModelHoldings { total_bytes, machines } = held.map_err(refused)?;
        let machine = |(host, it): &(String, MachineHolding)| {
            let (state, num_bytes, path, error) = match it {
                MachineHolding::Complete { dir } => ("complete", total_bytes, Some(dir), None),
                MachineHolding::Partial { num_bytes } => ("partial", *num_bytes, None, None),
                MachineHolding::Absent => ("absent", 0, None, None),
                MachineHolding::Different { reason } => ("different", 0, None, Some(reason)),
                MachineHolding::Unreachable { reason } => ("unreachable", 0, None, Some(reason)),
            };
            json!({
                "host": host, "state": state, "completed_bytes": num_bytes, "path": path,
                "error": error,
            })
        };
        let machines: Vec<Value> = machines.iter().map(machine).collect();
        Ok(json!({"model": model, "total_bytes": total_bytes, "machines": machines}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(host: &str, progress: MachineProgress) -> CopyProgress {
        CopyProgress::Machine { host: host.to_owned(), progress }
    }

    fn state_of(copies: &Jobs<CopyJob>) -> Value {
        copies.to_json()["copies"][0].clone()
    }

    async fn until(copies: &Jobs<CopyJob>, state: &str) -> Value {
        let mut changes = copies.changes();
        while state_of(copies)["state"] != state {
            changes.changed().await.unwrap();
        }
        state_of(copies)
    }

    #[tokio::test]
    async fn a_machine_that_fails_does_not_stop_the_others() {
        let copies = Jobs::<CopyJob>::default();
        let hosts = ["b".to_owned(), "c".to_owned()];
        let (sender, progress) = mpsc::channel(8);
        copies.start(CopyJob::new("m", &hosts), || progress);
        sender.send(CopyProgress::Sized { total_bytes: 10 }).await.unwrap();
        let reason = "no room\nhint: free some".to_owned();
        sender.send(machine("b", MachineProgress::Failed { reason })).await.unwrap();
        sender.send(machine("c", MachineProgress::Has { num_bytes: 4 })).await.unwrap();
        sender.send(machine("c", MachineProgress::Done { dir: "/m".to_owned() })).await.unwrap();
        sender.send(CopyProgress::Ended).await.unwrap();
        let failed = until(&copies, "failed").await;
        assert_eq!(failed["status"], "failed on 1 of 2 machines");
        assert_eq!(failed["machines"][0]["error"], "no room\nhint: free some");
        assert_eq!(failed["machines"][1]["state"], "done");
        assert_eq!((&failed["total_bytes"], &failed["completed_bytes"]), (&json!(20), &json!(10)));
    }

    #[tokio::test]
    async fn cancelling_ends_the_machines_and_a_copy_to_others_is_another_job() {
        let copies = Jobs::<CopyJob>::default();
        let (b, c) = (["b".to_owned()], ["c".to_owned()]);
        let (sender, progress) = mpsc::channel(8);
        let id = copies.start(CopyJob::new("m", &b), || progress);
        assert_eq!(copies.start(CopyJob::new("m", &b), || unreachable!("it runs")), id);
        let (other, progress) = mpsc::channel::<CopyProgress>(8);
        assert_ne!(copies.start(CopyJob::new("m", &c), || progress), id);
        copies.cancel(&id).unwrap();
        sender.closed().await;
        let cancelled = until(&copies, "cancelled").await;
        assert_eq!(cancelled["machines"][0]["state"], "cancelled");
        drop(other);
        let mut changes = copies.changes();
        while copies.to_json()["copies"][1]["state"] != "failed" {
            changes.changed().await.unwrap();
        }
        let lost = copies.to_json()["copies"][1].clone();
        assert_eq!(lost["status"], "the copy ended without a reason");
        let err = copies.cancel("copy_none").unwrap_err();
        assert_eq!(err.code(), "unknown_copy");
    }
}
