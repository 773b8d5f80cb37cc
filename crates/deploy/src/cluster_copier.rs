//! Copies models to the other machines of a hostfile, as clients of the server request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use jackalope_fleet::nodes;
use jackalope_server::{
    Copier, CopyFuture, CopyProgress, MachineHolding, MachineProgress, ModelHoldings,
};
use jackalope_store::exchange::{ExchangeError, Holding};
use thiserror::Error;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{Semaphore, TryAcquireError};
use tokio::task::{JoinError, JoinSet};

use crate::config::{HostsConfig, ReachConfig};
use crate::context::LocalContext;
use crate::error::{self, DeployError};
use crate::machines;
use crate::models::{CopyEvent, CopyGroup, CopyMembers, CopyOrder, DEFAULT_CONNECTIONS, Located};
use crate::registry::ModelRegistry;

/// Maximum number of concurrent copies.
const COPIES_MAX: usize = 2;

/// Maximum number of concurrent queries of what machines hold.
const QUERIES_MAX: usize = 2;

/// Maximum number of events of a copy that the list of copies has not read yet.
const EVENTS_MAX: usize = 256;

/// Copies models like `jackalope models sync`, from the machine of the server.
#[derive(Debug)]
pub struct ClusterCopier {
    state: Arc<CopierState>,
    /// Copies in progress; they end with the server.
    tasks: Mutex<JoinSet<()>>,
    copies: Arc<Semaphore>,
    questions: Arc<Semaphore>,
}

#[derive(Debug)]
struct CopierState {
    context: LocalContext,
    /// A hostfile, or names separated by commas. It is read for each request.
    hosts: String,
    reach: ReachConfig,
    copy_port: u16,
    registry: ModelRegistry,
}

/// Why a model that a client requested is not copied.
#[derive(Debug, Error)]
enum CopierError {
    #[error(transparent)]
    Deploy(#[from] DeployError),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("{COPIES_MAX} models are being copied, which is the maximum\nhint: try again later")]
    TooMany,
    #[error("the machines are being asked already\nhint: try again in some seconds")]
    Asked(#[from] TryAcquireError),
    #[error(transparent)]
    Thread(#[from] JoinError),
}

/// Cancels a copy when dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl ClusterCopier {
    /// Creates a copier of these models to the machines that `hosts` names; none if there are no
    /// other machines with agents.
    pub(crate) fn new(
        hosts: &HostsConfig,
        context: &LocalContext,
        registry: ModelRegistry,
    ) -> Option<ClusterCopier> {
        let names = hosts.hosts.clone().filter(|_| !hosts.by_hand)?;
        // A hostfile that cannot be read is reported to those who want to copy.
        if machines::hostfile(&names).is_ok_and(|it| it.is_local()) {
            return None;
        }
        let (context, reach) = (context.clone(), hosts.reach.clone());
        let copy_port = hosts.copy_port;
        let state = Arc::new(CopierState { context, hosts: names, reach, copy_port, registry });
        Some(ClusterCopier {
            state,
            tasks: Mutex::default(),
            copies: Arc::new(Semaphore::new(COPIES_MAX)),
            questions: Arc::new(Semaphore::new(QUERIES_MAX)),
        })
    }
}

impl Copier for ClusterCopier {
    fn hosts(&self) -> CopyFuture<Vec<String>> {
        let state = Arc::clone(&self.state);
        let work = tokio::task::spawn_blocking(move || state.hosts());
        Box::pin(async move {
            let hosts = work.await.map_err(|err| err.to_string())?;
            hosts.map_err(|err| error::text(&err))
        })
    }

    fn holdings(&self, id: &str) -> CopyFuture<ModelHoldings> {
        let (state, id) = (Arc::clone(&self.state), id.to_owned());
        let permit = Arc::clone(&self.questions).try_acquire_owned();
        Box::pin(async move {
            let _permit = permit.map_err(|err| error::text(&CopierError::from(err)))?;
            state.holdings(&id).await.map_err(|err| error::text(&err))
        })
    }

    fn copy(&self, id: &str, hosts: Vec<String>) -> Receiver<CopyProgress> {
        let (sender, progress) = mpsc::channel(EVENTS_MAX);
        let Ok(permit) = Arc::clone(&self.copies).try_acquire_owned() else {
            let reason = CopierError::TooMany.to_string();
            sender.try_send(CopyProgress::Failed { reason }).expect("the channel is new");
            return progress;
        };
        let (state, id) = (Arc::clone(&self.state), id.to_owned());
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let _permit = permit;
            let cancel = CancelOnDrop(Arc::default());
            let copying = state.copy(&id, &hosts, &cancel.0, &sender);
            let copied = tokio::select! {
                copied = copying => copied,
                () = sender.closed() => return,
            };
            let last = match copied {
                Ok(()) => CopyProgress::Ended,
                Err(err) => CopyProgress::Failed { reason: error::text(&err) },
            };
            // The server may be stopping.
            sender.send(last).await.ok();
        });
        progress
    }
}

impl CopierState {
    fn hosts(&self) -> Result<Vec<String>, DeployError> {
        let (machines, _) = nodes::machines(&machines::hostfile(&self.hosts)?.hosts);
        Ok(machines.iter().filter(|it| !it.is_local()).map(|it| it.name()).collect())
    }

    fn members<'a>(&'a self, only: Option<&'a [String]>) -> CopyMembers<'a> {
        let (hosts, reach, copy_port) = (&self.hosts, &self.reach, self.copy_port);
        CopyMembers { hosts, only, from: None, reach, copy_port }
    }

    /// Returns the path of a model's directory on this machine, and the name by which other machines
    /// find it when it is loaded.
    fn locate(&self, id: &str) -> Result<(String, String), DeployError> {
        let Located { dir, name, .. } = self.registry.model(id).1.located;
        let path = dir.into_os_string().into_string().map_err(|_| DeployError::ModelPath)?;
        Ok((path, name))
    }

    async fn holdings(&self, id: &str) -> Result<ModelHoldings, CopierError> {
        let (model, name) = self.locate(id)?;
        // A query never installs anything.
        let reach = ReachConfig { bootstraps: false, ..self.reach.clone() };
        let members = CopyMembers { reach: &reach, ..self.members(None) };
        let group = CopyGroup::reach(members, &self.context).await?;
        let work = move || group.holdings(&model, &name).map(|found| (group, found));
        let (group, (total_bytes, found)) = tokio::task::spawn_blocking(work).await??;
        let unreachable = |reason| MachineHolding::Unreachable { reason };
        let unreached = group
            .unreached()
            .iter()
            .map(|(host, err)| (host.clone(), unreachable(error::text(err))));
        let machines = found.into_iter().map(|(host, holding)| {
            (host, holding.map_or_else(|err| unreachable(error::text(&err)), state_of))
        });
        let machines = machines.chain(unreached).collect();
        Ok(ModelHoldings { total_bytes, machines })
    }

    /// Copies a model, and reports the progress of each machine.
    async fn copy(
        &self,
        id: &str,
        hosts: &[String],
        is_cancelled: &Arc<AtomicBool>,
        progress: &Sender<CopyProgress>,
    ) -> Result<(), CopierError> {
        let (model, name) = self.locate(id)?;
        let say = |status: &str| CopyProgress::Working { status: status.to_owned() };
        progress.send(say("reaching the machines")).await.ok();
        let group = CopyGroup::reach(self.members(Some(hosts)), &self.context).await?;
        for (host, err) in group.unreached() {
            let reason = error::text(err);
            progress.send(of_machine(host, MachineProgress::Failed { reason })).await.ok();
        }
        if group.targets().next().is_none() {
            return Ok(());
        }
        let num_connections = DEFAULT_CONNECTIONS;
        let is_cancelled = Arc::clone(is_cancelled);
        let order = CopyOrder { model, name: Some(name), num_connections, is_cancelled };
        let progress = progress.clone();
        let work = move || {
            group.copy(&order, &|event| {
                for next in reported(&event) {
                    // The copy may have been cancelled.
                    progress.blocking_send(next).ok();
                }
            })
        };
        tokio::task::spawn_blocking(work).await??;
        Ok(())
    }
}

fn state_of(holding: Holding) -> MachineHolding {
    let Holding { dir, num_bytes, is_complete, obstacle } = holding;
    match (dir, obstacle) {
        (_, Some(reason)) => MachineHolding::Different { reason },
        (Some(dir), None) if is_complete => MachineHolding::Complete { dir },
        (Some(_), None) if num_bytes != 0 => MachineHolding::Partial { num_bytes },
        _ => MachineHolding::Absent,
    }
}

fn of_machine(host: &str, progress: MachineProgress) -> CopyProgress {
    CopyProgress::Machine { host: host.to_owned(), progress }
}

/// Returns an event as the list of copies takes it.
fn reported(event: &CopyEvent<'_>) -> Vec<CopyProgress> {
    let say = |status: &str| CopyProgress::Working { status: status.to_owned() };
    match *event {
        CopyEvent::Hashing { total_bytes } => {
            vec![CopyProgress::Sized { total_bytes }, say("reading the model")]
        }
        CopyEvent::Hashed { .. } => Vec::new(),
        CopyEvent::Copying => vec![say("copying")],
        CopyEvent::Held { num_bytes: 0, .. } | CopyEvent::Received { num_bytes: 0, .. } => {
            Vec::new()
        }
        CopyEvent::Held { host, num_bytes } | CopyEvent::Received { host, num_bytes } => {
            vec![of_machine(host, MachineProgress::Has { num_bytes })]
        }
        CopyEvent::Ended(end) => {
            let progress = match &end.result {
                Ok(fetched) => MachineProgress::Done { dir: fetched.dir.clone() },
                Err(err) => MachineProgress::Failed { reason: error::text(err) },
            };
            vec![of_machine(&end.host, progress)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_holds_decides_its_state() {
        let dir = || Some("/models/m".to_owned());
        let holding =
            |num_bytes, is_complete| Holding { dir: dir(), num_bytes, is_complete, obstacle: None };
        assert_eq!(state_of(Holding::default()), MachineHolding::Absent);
        assert_eq!(state_of(holding(0, false)), MachineHolding::Absent);
        assert_eq!(state_of(holding(3, false)), MachineHolding::Partial { num_bytes: 3 });
        let complete = MachineHolding::Complete { dir: "/models/m".to_owned() };
        assert_eq!(state_of(holding(9, true)), complete);
        let reason = "it differs".to_owned();
        let other = Holding { obstacle: Some(reason.clone()), ..holding(9, false) };
        assert_eq!(state_of(other), MachineHolding::Different { reason });
    }
}
