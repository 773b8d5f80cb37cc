//! Runs a rank again whenever it ends: LocalAI's workers wait for the next model when one is freed.

use std::time::Duration;

use jackalope_deploy::rank_process::{self, DataPlane, RankToStart};
use jackalope_deploy::{DeployError, LocalContext};
use jackalope_fleet::listen::address_towards;
use tokio::time::sleep;

use crate::cluster::{Cluster, WorkerConfig};
use crate::error::LocalAiError;

/// Interval of polling the process.
const POLL: Duration = Duration::from_millis(50);

/// Pause before a failed rank is replaced.
const PAUSE: Duration = Duration::from_secs(5);

/// Time in seconds for which a rank tries to reach its coordinator before it is replaced.
const WAIT_SECONDS: u64 = 24 * 3600;

/// Runs rank `rank` until `shutdown` completes, and starts it again whenever it ends.
///
/// # Errors
/// Returns an error if there is no hostfile with this rank, or the rank cannot be started.
pub async fn run_rank(
    rank: u32,
    config: &WorkerConfig,
    local: &LocalContext,
    shutdown: impl Future<Output = ()>,
) -> Result<(), LocalAiError> {
    let hostfile = config.hostfile.as_deref().ok_or(LocalAiError::NoHostfile)?;
    let cluster = Cluster::read(hostfile, config)?;
    let num_ranks = cluster.hostfile.hosts.len();
    if num_ranks <= rank as usize {
        return Err(LocalAiError::NoRank { rank, hostfile: hostfile.to_owned(), num_ranks });
    }
    let control = rank_process::address(&cluster.control())?;
    let ticket = rank_process::ticket_by_hand(&rank_process::known_secret(local)?, rank);
    let variables = cluster.variables(rank);
    let to_start = RankToStart { rank, control, wait: WAIT_SECONDS };
    // The addresses of its own hostfile entry, else the local address towards rank 0.
    let mut ips = cluster.hostfile.hosts[rank as usize].ips.clone();
    if ips.is_empty() {
        ips.extend(address_towards(control.ip()));
    }
    let data = DataPlane { ips, ports: config.data_ports };
    local.observer.note(&format!("rank {rank} connects to rank 0 at {control}"));
    let running = async {
        loop {
            let spawn = rank_process::spawn(&to_start, &data, &ticket, &variables);
            let spawn = spawn.map_err(DeployError::from)?;
            let mut child = spawn.start().map_err(LocalAiError::Start)?;
            let ended = loop {
                if let Some(status) = child.try_wait() {
                    break status;
                }
                sleep(POLL).await;
            };
            if !ended.success() {
                local.observer.note(&format!("rank {rank} has failed: {}", child.last_words()));
                sleep(PAUSE).await;
            }
        }
    };
    tokio::select! {
        failed = running => failed,
        // The rank ends with this process.
        () = shutdown => Ok(()),
    }
}
