//! Machines that read models from each other, and the addresses at which they do.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use anyhow::Context;
use jackalope_cluster::agent::{self, AgentConfig};
use jackalope_cluster::facts::NodeFacts;
use jackalope_cluster::hostfile::Host;
use jackalope_cluster::local::find_rank_program;
use jackalope_cluster::nodes::Node;
use jackalope_cluster::routes::{self, routes};
use jackalope_protocol::Secret;

use crate::environment::Environment;

/// A machine that takes part.
pub(super) struct Member {
    pub(super) host: Host,
    facts: NodeFacts,
    /// How we reach its library.
    pub(super) addrs: Vec<SocketAddr>,
    /// Our address as it sees us.
    our_ip: Option<IpAddr>,
    /// Whether its library is this process's.
    pub(super) is_here: bool,
}

impl Member {
    /// A machine with an agent.
    pub(super) fn there(host: Host, node: &Node) -> Member {
        let (facts, addrs) = (node.facts.clone(), node.agent.addrs().to_vec());
        Member { host, facts, addrs, our_ip: node.agent.our_ip(), is_here: false }
    }

    /// This machine, whose library is open for as long as this process runs: that needs no agent.
    ///
    /// # Errors
    /// If it cannot listen, or is not installed.
    pub(super) fn here(
        host: Option<Host>,
        environment: &Environment,
        secret: Secret,
    ) -> anyhow::Result<Member> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).context("listening")?;
        let addr = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listener.local_addr()?.port());
        let config = AgentConfig {
            secret,
            rank_program: find_rank_program()?,
            files_dir: environment.home()?.dir("run")?,
            library: environment.library(),
            linger: None,
            is_over: std::sync::Arc::default(),
        };
        // Ends with the process.
        std::thread::spawn(move || agent::serve(&listener, config));
        let facts = jackalope_cluster::platform::current::facts();
        let this = || Host { ssh: Ipv4Addr::LOCALHOST.to_string(), ..Host::default() };
        let host = host.unwrap_or_else(this);
        Ok(Member { host, facts, addrs: vec![addr], our_ip: None, is_here: true })
    }

    /// How another member reaches it: over the cable between them if there is one, else as we do. A
    /// loopback address comes last: it means something only where both are one machine.
    pub(super) fn addrs_from(&self, other: &Member) -> Vec<SocketAddr> {
        let port = self.addrs.first().map_or(0, SocketAddr::port);
        let by_route = routes(&[other.node(), self.node()]).ok().map(|it| it[0][1]);
        let as_seen = other.our_ip.filter(|_| self.is_here);
        let mut addrs: Vec<SocketAddr> =
            by_route.into_iter().chain(as_seen).map(|ip| SocketAddr::new(ip, port)).collect();
        addrs.extend(&self.addrs);
        let is_loopback = |addr: &SocketAddr| match addr.ip() {
            IpAddr::V4(ip) => ip == Ipv4Addr::LOCALHOST,
            IpAddr::V6(ip) => ip.is_loopback(),
        };
        addrs.sort_by_key(is_loopback);
        addrs.dedup();
        addrs
    }

    fn node(&self) -> routes::Node<'_> {
        routes::Node { host: &self.host, facts: Some(&self.facts) }
    }
}
