//! Ranks that are started by hand, or by another launcher.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use jackalope_engine::link::{Launch, LaunchError, LaunchOrder, Launcher, RankProcess};
use jackalope_fleet::local::{LocalError, RANK_PROGRAM};
use jackalope_fleet::process::{Child, describe};

use crate::config::PortRange;
use crate::context::Observer;
use crate::rank_process::{self, DataPlane, RankToStart};

/// Time in seconds for which a rank started here tries to reach its coordinator.
const PATIENCE_SECONDS: u64 = 60;

/// Launcher that prints the commands to type, and waits for the ranks.
pub(crate) struct ByHand {
    /// Machine of each rank.
    pub(crate) hosts: Vec<String>,
    /// Address of the coordinator as the machines see it.
    pub(crate) control: SocketAddr,
    /// Addresses of each rank by which the others reach it; empty if the transport finds them
    /// itself.
    pub(crate) data_ips: Vec<Vec<IpAddr>>,
    /// Ports for the connections between ranks; each rank takes one of them.
    pub(crate) data_ports: PortRange,
    /// Environment variables of the first rank, if this program starts it.
    pub(crate) first: Option<Vec<(String, String)>>,
    /// Shows people the commands to type.
    pub(crate) observer: Arc<dyn Observer>,
}

impl Launcher for ByHand {
    fn launch(&mut self, order: &LaunchOrder) -> Launch {
        let (order, host) = (order.clone(), self.hosts[order.rank].clone());
        let (rank, control) = (order.rank, self.control);
        let ips = self.data_ips[rank].clone();
        if let (0, Some(env)) = (rank, self.first.clone()) {
            let data = DataPlane { ips, ports: self.data_ports };
            return Box::new(move || start_here(&order, &data, &env));
        }
        let ips: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
        let data =
            if ips.is_empty() { String::new() } else { format!(" --data {}", ips.join(",")) };
        let observer = Arc::clone(&self.observer);
        Box::new(move || {
            observer.note(&format!(
                "waiting for rank {rank}; on {host} run: jackalope rank --rank {rank} --control \
                 {control}{data}"
            ));
            Ok(Box::new(Elsewhere))
        })
    }
}

/// Starts rank 0 here; it ends with this program.
fn start_here(
    order: &LaunchOrder,
    data: &DataPlane,
    env: &[(String, String)],
) -> Result<Box<dyn RankProcess>, LaunchError> {
    let program = PathBuf::from(RANK_PROGRAM);
    let missing =
        |err: LocalError| LaunchError::Missing { program: program.clone(), hint: err.to_string() };
    let to_start = RankToStart { rank: 0, control: order.control_addr, wait: PATIENCE_SECONDS };
    let spawn = rank_process::spawn(&to_start, data, &order.ticket, env).map_err(missing)?;
    let child = spawn.start();
    let child = child.map_err(|source| LaunchError::Spawn { program: program.clone(), source })?;
    Ok(Box::new(Here(child)))
}

/// The child process of a rank on this machine.
struct Here(Child);

impl RankProcess for Here {
    fn pid(&self) -> Option<u32> {
        Some(self.0.pid())
    }

    fn try_wait(&mut self) -> Option<String> {
        self.0.try_wait().map(describe)
    }

    fn kill(&mut self) {
        self.0.signal_kill();
    }

    fn last_words(&self) -> String {
        self.0.last_words()
    }
}

/// A rank started by hand; its connection is its lifetime.
struct Elsewhere;

impl RankProcess for Elsewhere {
    fn pid(&self) -> Option<u32> {
        None
    }

    fn is_started_elsewhere(&self) -> bool {
        true
    }

    fn try_wait(&mut self) -> Option<String> {
        None
    }

    fn kill(&mut self) {}

    fn last_words(&self) -> String {
        String::new()
    }
}
