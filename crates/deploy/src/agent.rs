//! Runs the agent of this machine.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jackalope_fleet::agent::{self as agents, Agent, NewListeners, Trust};
use jackalope_fleet::discovery::Responder;
use jackalope_fleet::home::{Home, HomeError};
use jackalope_fleet::listen::{AgentAddresses, own_addresses};
use jackalope_fleet::local::find_rank_program;
use jackalope_fleet::nodes::own_program;
use jackalope_fleet::record::Recorded;
use jackalope_fleet::trust::{Credentials, Expected, TrustStore};
use jackalope_protocol::Secret;
use serde_json::json;

use crate::context::LocalContext;
use crate::error::DeployError;

/// Name of the agent's record.
pub const RECORD: &str = "agent";

/// Time that an agent is given to end by itself.
pub const END_GRACE: Duration = Duration::from_secs(3);

/// Where an agent listens, and which peers it accepts.
#[derive(Clone, Debug)]
pub struct AgentServiceConfig {
    /// Secret of the cluster; peers without it are refused.
    pub secret: Secret,
    /// Whose orders the agent accepts.
    pub trust: Trust,
    /// Addresses to listen on; empty: the private addresses of this machine.
    pub listen: Vec<IpAddr>,
    /// Port to listen on.
    pub port: u16,
    /// How long the agent runs without a client before it ends. Absent: it does not end by itself.
    pub linger: Option<Duration>,
    /// Whether the agent answers queries on the local networks, by which other machines discover
    /// it.
    pub announces: bool,
}

/// Runs the agent until `end` is ready, or until it has had no client for the `linger` time. While
/// it runs, a record in jackalope's directory describes it.
///
/// # Errors
/// If jackalope's directory cannot be used, the agent cannot listen, or the rank program is
/// missing.
pub async fn serve(
    config: AgentServiceConfig,
    context: &LocalContext,
    end: impl Future<Output = ()>,
) -> Result<(), DeployError> {
    let home = context.home()?;
    // Removes the list of an earlier agent.
    let list = listen_list(&home, config.port)?;
    std::fs::remove_file(&list).ok();
    let mut addresses = AgentAddresses::new(config.listen.clone(), config.port, list);
    let first = addresses.first();
    let mut first =
        Some(first.map_err(|(addr, source)| DeployError::AgentAddress { addr, source })?);
    let open: Vec<IpAddr> = addresses.open().collect();
    // The address for the record: the first that is not loopback, if any.
    let ip = open.iter().find(|ip| !ip.is_loopback()).or(open.first());
    let addr = SocketAddr::new(*ip.expect("it listens somewhere"), addresses.port());
    let new_listeners: NewListeners =
        Box::new(move || first.take().unwrap_or_else(|| addresses.appeared()));
    let is_over = Arc::new(AtomicBool::new(false));
    let agent = agents::AgentConfig {
        secret: config.secret,
        identity: home.identity()?,
        trust: config.trust,
        rank_program: find_rank_program()?,
        files_dir: home.dir("run")?,
        library: context.library().service(),
        linger: config.linger,
        is_over: Arc::clone(&is_over),
    };
    let program = own_program().and_then(std::fs::canonicalize);
    let program = program.map_err(DeployError::OwnProgram)?;
    let about = json!({
        "addr": addr.to_string(), "listen": config.listen, "program": program, "linger": config.linger.map(|it| it.as_secs()),
        "announce": config.announces,
    });
    let responder = config.announces.then(|| Responder::start(config.secret, addr.port()));
    let _responder = responder.transpose().map_err(DeployError::Discovery)?;
    let record = Recorded::this(about);
    record.write(&home, RECORD)?;
    let mut serving = tokio::task::spawn_blocking(move || agents::serve_on(new_listeners, agent));
    let result = tokio::select! {
        result = &mut serving => result?.map_err(DeployError::Agent),
        () = end => Ok(()),
    };
    // Programs end with the agent, because their standard input closes. Those that are stopped or
    // stuck end only by a signal.
    is_over.store(true, Ordering::SeqCst);
    if !serving.is_finished() {
        tokio::time::timeout(END_GRACE, serving).await.ok();
    }
    record.forget(&home, RECORD);
    result
}

/// Returns the path of the file from which the agent on `port` reads further addresses to listen on
/// while it runs.
///
/// # Errors
/// If jackalope's directory cannot be used.
pub fn listen_list(home: &Home, port: u16) -> Result<PathBuf, HomeError> {
    Ok(home.dir("run")?.join(format!("agent-{port}.listen")))
}

/// Returns addresses to listen on so that the machine that started this program over SSH can reach
/// it. If this machine has none of the given addresses (they are translated, as by NAT), adds the
/// address at which the SSH connection arrived.
pub fn reachable(listen: &[IpAddr], came_to: Option<IpAddr>) -> Vec<IpAddr> {
    let own = own_addresses();
    let mut reachable = listen.to_vec();
    let is_here = |ip: &IpAddr| ip.is_loopback() || ip.is_unspecified() || own.contains(ip);
    if !listen.is_empty() && !listen.iter().any(is_here) {
        reachable.extend(came_to);
    }
    reachable
}

/// Reason why no agent with the expected secret answers.
#[derive(Debug)]
pub struct Silence {
    /// The reason, for people.
    pub reason: String,
    /// Whether the agent's port accepts connections but nothing answers on them.
    pub is_hung: bool,
}

/// The agent of this machine that is expected to run.
#[derive(Clone, Copy, Debug)]
pub struct AgentHere<'a> {
    /// Addresses on which the agent listens.
    pub listen: &'a [IpAddr],
    /// Port on which the agent listens.
    pub port: u16,
    /// Jackalope's directory.
    pub home: &'a Home,
    /// Secret of the agent's cluster.
    pub secret: Secret,
}

impl AgentHere<'_> {
    /// Checks whether an agent with this secret answers within `timeout`.
    ///
    /// # Errors
    /// The reason why no agent answers.
    pub fn answers(&self, timeout: Duration) -> Result<(), Silence> {
        let loopback = self.listen.iter().copied().filter(IpAddr::is_loopback);
        let mut ips: Vec<IpAddr> = loopback.collect();
        if ips.is_empty() {
            ips.push(Ipv4Addr::LOCALHOST.into());
        }
        let addrs = ips.into_iter().map(|ip| SocketAddr::new(ip, self.port)).collect();
        let failed = |reason| Silence { reason, is_hung: false };
        let identity = self.home.identity().map_err(|err| failed(err.to_string()))?;
        let expected = Expected::Pinned(TrustStore::new(self.home));
        let ours = Credentials { secret: self.secret, identity, expected };
        let agent = Agent::connect("this machine", addrs, ours, Box::new(|_, _, _| {}));
        let answered = agent.wait_until_up(timeout);
        answered.map_err(|reason| Silence { reason, is_hung: agent.is_hung() })
    }
}
