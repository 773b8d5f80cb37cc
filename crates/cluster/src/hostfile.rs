//! The machines of a cluster, as a hostfile names them.
//!
//! A rank is a position in [`Hostfile::hosts`]. Several entries may name the same machine, which then
//! runs several ranks.

use std::net::IpAddr;

use jackalope_protocol::Backend;

/// A cluster's machines, one entry for each rank.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Hostfile {
    /// The transport the file asks for.
    pub backend: Option<Backend>,
    /// Set for every rank, in the order of the file.
    pub envs: Vec<(String, String)>,
    /// One for each rank.
    pub hosts: Vec<Host>,
}

/// One rank's machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Host {
    /// What `ssh` is given: a name of the user's configuration, an address, `user@host`. Empty where
    /// the file names addresses only.
    pub ssh: String,
    /// Addresses that other ranks may reach it at, the preferred one first.
    pub ips: Vec<IpAddr>,
    /// RDMA devices towards each rank, by rank; empty towards itself and where there is no cable.
    /// No entries at all where the file names no devices.
    pub rdma: Vec<Vec<String>>,
    /// Where MLX's ring listens, from lists of `host:port`.
    pub listen: Vec<ListenAddr>,
}

/// `host:port`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ListenAddr {
    /// An address or a name.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Host {
    /// True if this is the machine that reads the file.
    pub fn is_local(&self) -> bool {
        matches!(self.ssh.as_str(), "127.0.0.1" | "localhost" | "::1")
    }

    /// What people call it.
    pub fn name(&self) -> String {
        match (self.ssh.is_empty(), self.ips.first(), self.listen.first()) {
            (false, ..) => self.ssh.clone(),
            (true, Some(ip), _) => ip.to_string(),
            (true, None, Some(listen)) => listen.host.clone(),
            (true, None, None) => "?".to_owned(),
        }
    }
}
