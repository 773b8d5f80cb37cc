//! Runs a rank again and again: LocalAI's workers wait for the next model when one is freed.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use jackalope_deploy::rank_process::{self, DataPlane, RankToStart};
use jackalope_fleet::listen::address_towards;
use tokio::signal::unix::{SignalKind, signal};

use super::open::Cluster;
use crate::args::worker::MlxDistributedArgs;
use crate::environment::Environment;
use crate::output;

/// Interval of polling the process.
const POLL: Duration = Duration::from_millis(50);

/// Pause before a failed rank is replaced.
const PAUSE: Duration = Duration::from_secs(5);

/// Time in seconds for which a rank tries to reach its coordinator before it is replaced.
const WAIT_SECONDS: u64 = 24 * 3600;

/// Runs this rank until a signal ends it.
pub(super) async fn run(
    rank: u32,
    args: &MlxDistributedArgs,
    environment: &Environment,
) -> anyhow::Result<ExitCode> {
    let hostfile = args.hostfile.as_deref().context(
        "a hostfile is needed\nhint: pass `--hostfile FILE`, or set MLX_DISTRIBUTED_HOSTFILE",
    )?;
    let coordinator = args.coordinator.as_deref();
    let cluster = Cluster::read(hostfile, args.backend, coordinator)?;
    let num_ranks = cluster.hostfile.hosts.len();
    ensure!(
        (rank as usize) < num_ranks,
        "`--rank {rank}` does not exist: {hostfile} has {}\nhint: ranks are numbered from 0",
        jackalope_protocol::counted(num_ranks, "rank")
    );
    let control = rank_process::address(&cluster.control())?;
    let ticket =
        rank_process::ticket_by_hand(&rank_process::known_secret(&environment.local)?, rank);
    let variables = cluster.variables(rank, hostfile, (args.backend, coordinator));
    let to_start = RankToStart { rank, control, wait: WAIT_SECONDS };
    // The addresses of its own hostfile entry, else the local address towards rank 0.
    let mut ips = cluster.hostfile.hosts[rank as usize].ips.clone();
    if ips.is_empty() {
        ips.extend(address_towards(control.ip()));
    }
    let data = DataPlane { ips, ports: args.data_ports };
    output::note(&format!("rank {rank} connects to rank 0 at {control}"));
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        let spawn = rank_process::spawn(&to_start, &data, &ticket, &variables)?;
        let mut child = spawn.start().context("starting the rank")?;
        let ended = loop {
            if let Some(status) = child.try_wait() {
                break status;
            }
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                // The rank ends with this process.
                _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
                _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
            }
        };
        if !ended.success() {
            output::note(&format!("rank {rank} has failed: {}", child.last_words()));
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
                _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
            }
        }
    }
}
