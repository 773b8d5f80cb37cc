//! The ranks of LocalAI's models: their hostfile, and how they find each other.

use std::net::IpAddr;

use jackalope_deploy::config::CONTROL_PORT;
use jackalope_deploy::{PortRange, machines};
use jackalope_fleet::hostfile::Hostfile;
use jackalope_protocol::Backend;

use crate::error::LocalAiError;

/// How the ranks of a model find each other and communicate.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Hostfile with one rank per entry; only this machine computes if absent.
    pub hostfile: Option<String>,
    /// Transport of the collectives; TCP if absent.
    pub backend: Option<Backend>,
    /// Address at which the other ranks find rank 0, as `HOST:PORT`, with JACCL.
    pub coordinator: Option<String>,
    /// Memory for the KV cache of each rank, in MiB.
    pub kv_mib: Option<u64>,
    /// Ports for the connections between ranks.
    pub data_ports: PortRange,
}

/// Parses LocalAI's name of a transport.
///
/// # Errors
/// [`LocalAiError::Backend`].
pub fn parse_backend(word: &str) -> Result<Backend, LocalAiError> {
    let known = [("ring", Backend::Tcp), ("jaccl", Backend::Jaccl)];
    let found = known.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
    let refused = || LocalAiError::Backend { word: word.to_owned() };
    found.map(|(_, backend)| *backend).ok_or_else(refused)
}

/// Machines of a cluster, and the address of its coordinator.
pub(crate) struct Cluster {
    /// Path of the hostfile.
    path: String,
    pub(crate) hostfile: Hostfile,
    pub(crate) is_jaccl: bool,
    coordinator: Option<String>,
    /// Host name or address by which the other ranks reach rank 0's machine.
    host: String,
    /// Port on which rank 0 listens for the others.
    pub(crate) port: u16,
}

impl Cluster {
    /// Reads the hostfile at `path`. With TCP, rank 0 listens on the port of its entry. With JACCL,
    /// that port belongs to JACCL, and rank 0 listens on the default control port. The configured
    /// coordinator, if there is one, names rank 0's machine.
    pub(crate) fn read(path: &str, config: &WorkerConfig) -> Result<Cluster, LocalAiError> {
        let hostfile = machines::hostfile(path)?;
        let first = hostfile.hosts.first().ok_or(LocalAiError::NoHost)?;
        let listen = first.listen.first();
        let host = match (&config.coordinator, listen, first.ips.first()) {
            (Some(coordinator), ..) => host_of(coordinator).to_owned(),
            (None, Some(listen), _) => listen.host.clone(),
            (None, None, Some(ip)) => ip.to_string(),
            (None, None, None) => first.name(),
        };
        let is_jaccl = config.backend == Some(Backend::Jaccl);
        let port = listen.map(|it| it.port).filter(|_| !is_jaccl).unwrap_or(CONTROL_PORT);
        let (path, coordinator) = (path.to_owned(), config.coordinator.clone());
        Ok(Cluster { path, hostfile, is_jaccl, coordinator, host, port })
    }

    /// Returns the address at which the others find rank 0, in the form of the command line.
    pub(crate) fn control(&self) -> String {
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V6(ip)) => format!("[{ip}]:{}", self.port),
            _ => format!("{}:{}", self.host, self.port),
        }
    }

    /// Returns the environment variables that MLX's own transport reads, if it is used.
    pub(crate) fn variables(&self, rank: u32) -> Vec<(String, String)> {
        if !self.is_jaccl {
            return Vec::new();
        }
        let coordinator = self.coordinator.iter();
        let coordinator = coordinator.map(|it| ("MLX_JACCL_COORDINATOR".to_owned(), it.clone()));
        let variables = [
            ("MLX_RANK".to_owned(), rank.to_string()),
            ("MLX_IBV_DEVICES".to_owned(), self.path.clone()),
        ];
        variables.into_iter().chain(coordinator).collect()
    }
}

fn host_of(addr: &str) -> &str {
    addr.rsplit_once(':').map_or(addr, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_have_the_names_that_localai_gives_them() {
        assert_eq!(parse_backend("RING").unwrap(), Backend::Tcp);
        assert_eq!(parse_backend("jaccl").unwrap(), Backend::Jaccl);
        assert!(parse_backend("mpi").is_err());
    }
}
