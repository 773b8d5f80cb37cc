//! Machines that read models from each other, and the addresses they use.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jackalope_fleet::agent::{Agent, AgentConfig, Trust};
use jackalope_fleet::hostfile::Host;
use jackalope_fleet::local::find_rank_program;
use jackalope_fleet::nodes::Node;
use jackalope_fleet::routes::{self, routes};
use jackalope_fleet::trust::{Credentials, Expected};
use jackalope_protocol::PublicKey;
use jackalope_protocol::machine::NodeFacts;
use jackalope_store::exchange::{ExchangeError, LibraryClient};

use crate::context::LocalContext;
use crate::error::DeployError;

/// Opens a connection to the library beside an agent.
///
/// # Errors
/// [`ExchangeError::Unreachable`].
pub fn library_of(agent: &Agent) -> Result<LibraryClient, ExchangeError> {
    LibraryClient::dial(agent.host(), agent.addrs(), agent.credentials())
}

/// A machine that takes part.
#[derive(Debug)]
pub struct Member {
    /// The machine.
    pub host: Host,
    facts: NodeFacts,
    /// Addresses by which the machine of this process reaches the member's library.
    pub addrs: Vec<SocketAddr>,
    /// Public key of the member's agent.
    pub key: PublicKey,
    /// Address of the machine of this process, as the member sees it.
    our_ip: Option<IpAddr>,
    /// Whether this process serves the member's library.
    pub is_here: bool,
    /// Once set, this process no longer serves the member's library.
    is_over: Arc<AtomicBool>,
}

impl Member {
    /// Creates the member for a machine with an agent.
    pub fn there(host: Host, node: &Node) -> Member {
        let (facts, addrs) = (node.facts.clone(), node.agent.addrs().to_vec());
        let key = node.agent.key().expect("a machine that has reported has proved its key");
        let (our_ip, is_over) = (node.agent.our_ip(), Arc::default());
        Member { host, facts, addrs, key, our_ip, is_here: false, is_over }
    }

    /// Creates the member for this machine. Opens its library to `others`, without an agent: on a
    /// free port until [`Member::close`], on `port` for as long as this process runs.
    ///
    /// # Errors
    /// If this machine cannot listen, or is not installed.
    pub fn here(
        host: Option<Host>,
        context: &LocalContext,
        ours: &Credentials,
        others: &[Member],
        port: u16,
    ) -> Result<Member, DeployError> {
        let this = || Host { ssh: Ipv4Addr::LOCALHOST.to_string(), ..Host::default() };
        let host = host.unwrap_or_else(this);
        let facts = jackalope_fleet::facts::facts_here();
        let key = ours.identity.public();
        let (addrs, is_over) = (Vec::new(), Arc::<AtomicBool>::default());
        let mut member = Member {
            host,
            facts,
            addrs,
            key,
            our_ip: None,
            is_here: true,
            is_over: Arc::clone(&is_over),
        };
        let home: IpAddr = Ipv4Addr::LOCALHOST.into();
        let theirs = others.iter().flat_map(|it| member.ips_from(it));
        let ips: BTreeSet<IpAddr> = theirs.chain([home]).collect();
        let config = AgentConfig {
            secret: ours.secret,
            identity: ours.identity.clone(),
            trust: match &ours.expected {
                Expected::Pinned(store) => Trust::Listed(store.clone()),
                Expected::TokenHolders => Trust::TokenHolders,
            },
            rank_program: find_rank_program()?,
            files_dir: context.home()?.dir("run")?,
            library: context.library().service(),
            linger: None,
            is_over,
        };
        let port = context.fixed_library.open(&ips, port, config)?;
        member.addrs = vec![SocketAddr::new(home, port)];
        Ok(member)
    }

    /// Closes the library that this process serves for the member on a free port, if it does.
    pub fn close(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Returns addresses by which `other` may reach this member.
    fn ips_from(&self, other: &Member) -> Vec<IpAddr> {
        let by_route = routes(&[other.node(), self.node()]).ok().map(|it| it[0][1]);
        let as_seen = other.our_ip.filter(|_| self.is_here);
        by_route.into_iter().chain(as_seen).collect()
    }

    /// Returns the addresses by which `other` reaches this member: over the cable between the two
    /// if there is one, then those that the machine of this process uses. A loopback address comes
    /// last, because it is valid only if both members are the same machine.
    pub fn addrs_from(&self, other: &Member) -> Vec<SocketAddr> {
        let port = self.addrs.first().map_or(0, SocketAddr::port);
        let ips = self.ips_from(other).into_iter();
        let mut addrs: Vec<SocketAddr> = ips.map(|ip| SocketAddr::new(ip, port)).collect();
        addrs.extend(&self.addrs);
        let is_loopback = |addr: &SocketAddr| match addr.ip() {
            IpAddr::V4(ip) => ip == Ipv4Addr::LOCALHOST,
            IpAddr::V6(ip) => ip.is_loopback(),
        };
        addrs.sort_by_key(is_loopback);
        addrs.dedup();
        addrs
    }

    fn node(&self) -> routes::RouteNode<'_> {
        routes::RouteNode { host: &self.host, facts: Some(&self.facts) }
    }
}
