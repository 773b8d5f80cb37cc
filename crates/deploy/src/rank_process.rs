//! Prepares the process of a rank that this machine runs without an agent.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use jackalope_fleet::local::{LocalError, find_rank_program};
use jackalope_fleet::process::Spawn;
use jackalope_protocol::Secret;

use crate::config::PortRange;
use crate::context::LocalContext;
use crate::error::DeployError;

/// Returns the secret that this machine shares with the coordinator.
pub fn known_secret(context: &LocalContext) -> Result<Secret, DeployError> {
    context.home()?.known_secret()?.ok_or(DeployError::NoSecret)
}

/// Derives the ticket of a rank that is started by hand from the cluster's secret, which people
/// carry.
pub fn ticket_by_hand(secret: &Secret, rank: u32) -> Secret {
    secret.derive("jackalope: ticket of a rank that a person starts", &[&rank.to_le_bytes()])
}

/// Settings for connecting a rank to its coordinator.
#[derive(Clone, Copy, Debug)]
pub struct RankToStart {
    /// Number of the rank.
    pub rank: u32,
    /// Address of the coordinator.
    pub control: SocketAddr,
    /// Time in seconds for which the rank tries to reach the coordinator.
    pub wait: u64,
}

/// Addresses and ports on which a rank listens for the others.
#[derive(Clone, Debug)]
pub struct DataPlane {
    /// Addresses to listen on; loopback only if empty.
    pub ips: Vec<IpAddr>,
    /// Ports for the connections between ranks; the rank takes one of them.
    pub ports: PortRange,
}

/// Prepares the process of a rank, which ends with the process of this program.
pub fn spawn(
    looking: &RankToStart,
    data: &DataPlane,
    ticket: &Secret,
    env: &[(String, String)],
) -> Result<Spawn, LocalError> {
    let mut spawn = Spawn::new(find_rank_program()?, format!("rank {}", looking.rank));
    let RankToStart { rank, control, wait } = looking;
    let (rank, control, wait) = (rank.to_string(), control.to_string(), wait.to_string());
    let ips: Vec<String> = data.ips.iter().map(IpAddr::to_string).collect();
    let ips = if ips.is_empty() { Ipv4Addr::LOCALHOST.to_string() } else { ips.join(",") };
    let ports = data.ports.to_string();
    let words = ["serve", "--control", &control, "--rank", &rank, "--data", &ips];
    spawn.args = words.map(OsString::from).to_vec();
    spawn.args.extend(["--data-ports", &ports, "--patience", &wait].map(OsString::from));
    spawn.env = env.iter().map(|(name, value)| (name.clone(), value.into())).collect();
    spawn.input = format!("{}\n", ticket.to_hex()).into_bytes();
    Ok(spawn)
}

/// Resolves `HOST:PORT` to an address.
pub fn address(host: &str) -> Result<SocketAddr, DeployError> {
    match host.to_socket_addrs() {
        Err(source) => Err(DeployError::Lookup { host: host.to_owned(), source }),
        Ok(mut found) => {
            found.next().ok_or_else(|| DeployError::NoAddress { host: host.to_owned() })
        }
    }
}
