//! Brings an agent up on every machine of a cluster.
//!
//! An agent that already runs is used. Otherwise one is started over SSH, which is needed for
//! nothing else.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use jackalope_protocol::PublicKey;
use jackalope_protocol::machine::NodeFacts;
use thiserror::Error;
use tracing::debug;

use crate::agent::{Agent, AgentRefusal, OnLine, Revive};
use crate::home::HOME_IN_SCRIPTS;
use crate::hostfile::Host;
use crate::install::{Bundle, BundleError, Install, InstallError, InstallProgress, install};
use crate::listen::address_towards;
use crate::shell::{Output, Shell, ShellError, quote};
use crate::trust::{Credentials, Expected, TrustError};

/// Time within which an agent that already runs has to answer.
const KNOCK_TIMEOUT: Duration = Duration::from_millis(1500);
/// Time for starting an agent over the shell.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Time within which a started agent has to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const FACTS_TIMEOUT: Duration = Duration::from_secs(10);
/// Exit status of a shell that does not find the program.
const NOT_FOUND: i32 = 127;

/// How to reach the machines of a cluster.
#[derive(Clone)]
pub struct NodesConfig {
    /// Credentials to present to agents, and the keys expected of them.
    pub ours: Credentials,
    /// Port on which agents listen.
    pub agent_port: u16,
    /// Shell over which agents are started.
    pub shell: Arc<dyn Shell>,
    /// Path of this program, which is also the agent of this machine.
    pub program: PathBuf,
    /// Time after which an agent without connections and programs stops.
    pub linger: Duration,
    /// Programs to install on machines that lack them or have other versions. If absent, such
    /// machines are refused.
    pub bootstrap: Option<Arc<Bootstrap>>,
}

/// The programs to install on machines that lack them; read when the first machine needs them.
#[derive(Debug)]
pub struct Bootstrap {
    program: PathBuf,
    rank_program: PathBuf,
    bundle: Mutex<Option<Arc<Bundle>>>,
}

impl fmt::Debug for NodesConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodesConfig").field("agent_port", &self.agent_port).finish_non_exhaustive()
    }
}

/// A machine whose agent is connected.
#[derive(Debug)]
pub struct Node {
    /// Connection to the machine's agent.
    pub agent: Agent,
    /// Hardware and system of the machine.
    pub facts: NodeFacts,
}

/// The machines of a cluster, and the machine of each rank.
#[derive(Debug)]
pub struct Nodes {
    /// The machines, each of them once.
    pub nodes: Vec<Node>,
    /// For each rank, an index into `nodes`.
    pub of_rank: Vec<usize>,
}

/// Machines that cannot be used, each with its reason.
#[derive(Debug, Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct NodesError(pub Vec<NodeError>);

/// Why a machine cannot be used.
#[derive(Debug, Error)]
pub enum NodeError {
    /// No program can be run on the machine.
    #[error("{source}\nhint: {}", .source.kind.hint(&.source.host))]
    Shell {
        /// The shell's error.
        source: ShellError,
    },
    /// Jackalope is not installed on the machine.
    #[error("{host} has no jackalope\nhint: `jackalope bootstrap {host}` puts it there")]
    NotInstalled {
        /// The machine.
        host: String,
    },
    /// The programs to install cannot be read.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// Jackalope could not be installed on the machine.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// The agent did not start.
    #[error("the agent on {host} did not start: {reason}")]
    NoStart {
        /// The machine.
        host: String,
        /// What the agent reported when it was started.
        reason: String,
    },
    /// The agent runs, but cannot be reached.
    #[error(
        "the agent on {host} runs, but cannot be reached: {reason}\n\
         hint: let port {port} through its firewall; on macOS allow jackalope under System Settings, \
         Privacy & Security, Local Network; or name an address that reaches it in \"ips\""
    )]
    Unreachable {
        /// The machine.
        host: String,
        /// Port on which the agent listens.
        port: u16,
        /// Why connecting failed.
        reason: String,
    },
    /// The machine answers, but one side does not trust the other.
    #[error("{host} cannot be used: {reason}{}", .shell.as_ref().map(|it| format!("\nover ssh: {it}")).unwrap_or_default())]
    Refused {
        /// The machine.
        host: String,
        /// The reason, and what a person can do about the refusal.
        reason: String,
        /// Why starting the machine's agent over SSH did not help.
        shell: Option<String>,
    },
    /// The machine's agent has another version, and nothing may be installed there.
    #[error("{host} cannot be used: {reason}")]
    OtherVersion {
        /// The machine.
        host: String,
        /// Both versions, and what a person can do.
        reason: String,
    },
    /// The machine's key is not the pinned one, or cannot be saved.
    #[error("{host} cannot be used: {source}")]
    Trust {
        /// The machine.
        host: String,
        /// The cause.
        source: TrustError,
    },
    /// No address of the machine is known.
    #[error(
        "{host} has no address\nhint: name one in its \"ips\" in the hostfile, or pass `--hosts {host}=ADDRESS`"
    )]
    NoAddress {
        /// The machine.
        host: String,
    },
}

/// Brings up an agent on each machine, on all machines at the same time. `on_line` is called with a
/// machine's name and returns the callback for the output lines of its programs. `progress`
/// receives messages about what happens.
///
/// # Errors
/// [`NodesError`] with every machine that cannot be used.
pub fn bring_up(
    hosts: &[Host],
    config: &NodesConfig,
    on_line: &(dyn Fn(&str) -> OnLine + Sync),
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Nodes, NodesError> {
    let (machines, of_rank) = machines(hosts);
    let (mut nodes, mut errors) = (Vec::new(), Vec::new());
    for result in bring_up_each(machines, config, on_line, progress) {
        match result {
            Ok(node) => nodes.push(node),
            Err(err) => errors.push(err),
        }
    }
    if errors.is_empty() { Ok(Nodes { nodes, of_rank }) } else { Err(NodesError(errors)) }
}

/// Like [`bring_up`], but returns the result of each of these machines, none of which is named twice,
/// in their order: a machine that cannot be used does not stop the others.
pub fn bring_up_each(
    mut machines: Vec<Host>,
    config: &NodesConfig,
    on_line: &(dyn Fn(&str) -> OnLine + Sync),
    progress: &(dyn Fn(&str) + Sync),
) -> Vec<Result<Node, NodeError>> {
    reach_this_machine(&mut machines, config);
    thread::scope(|scope| {
        let threads: Vec<_> = machines
            .iter()
            .map(|host| scope.spawn(move || bring_up_one(host, config, on_line, progress)))
            .collect();
        threads.into_iter().map(|it| it.join().expect("it does not panic")).collect()
    })
}

/// Returns each machine once, with all addresses that its entries name, and for each rank the index
/// of its machine.
pub fn machines(hosts: &[Host]) -> (Vec<Host>, Vec<usize>) {
    let mut machines: Vec<Host> = Vec::new();
    let mut by_name: HashMap<String, usize> = HashMap::new();
    let of_rank = hosts.iter().map(|host| {
        let name = if host.is_local() { "127.0.0.1".to_owned() } else { host.name() };
        let idx = *by_name.entry(name).or_insert_with(|| {
            machines.push(Host { ips: Vec::new(), ..host.clone() });
            machines.len() - 1
        });
        for ip in &host.ips {
            if !machines[idx].ips.contains(ip) {
                machines[idx].ips.push(*ip);
            }
        }
        idx
    });
    let of_rank = of_rank.collect();
    (machines, of_rank)
}

/// Adds this machine's addresses towards the other machines, so that its agent listens on them.
fn reach_this_machine(machines: &mut [Host], config: &NodesConfig) {
    let others = machines.iter().filter(|host| !host.is_local());
    let theirs: Vec<SocketAddr> = others.flat_map(|host| addresses(host, config)).collect();
    for host in machines.iter_mut().filter(|host| host.is_local()) {
        for ip in theirs.iter().filter_map(|addr| address_towards(addr.ip())) {
            if !host.ips.contains(&ip) {
                host.ips.push(ip);
            }
        }
    }
}

fn bring_up_one(
    host: &Host,
    config: &NodesConfig,
    on_line: &(dyn Fn(&str) -> OnLine + Sync),
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Node, NodeError> {
    let name = host.name();
    let addrs = addresses(host, config);
    if addrs.is_empty() {
        return Err(NodeError::NoAddress { host: name });
    }
    let (again, host_again) = (config.clone(), host.clone());
    let revive: Revive =
        Box::new(move || start(&host_again, &again).map_err(|err| err.to_string()));
    let (ours, on_line) = (config.ours.clone(), on_line(&name));
    let agent = Agent::connect_or_revive(&name, addrs, ours, on_line, Some(revive));
    if let Err(reason) = agent.knock(KNOCK_TIMEOUT) {
        debug!(name, reason, "no agent yet");
        if agent.refusal() == Some(AgentRefusal::ChangedKey) {
            return Err(NodeError::Refused { host: name, reason, shell: None });
        }
        progress(&format!("{name}: starting its agent"));
        if let Err(err) = start_and_wait(host, config, &agent) {
            // The agent runs, but one side does not trust the other.
            if agent.refusal().is_some() && matches!(err, NodeError::Shell { .. }) {
                let shell = Some(err.to_string());
                return Err(NodeError::Refused { host: name, reason, shell });
            }
            if matches!(err, NodeError::Refused { .. } | NodeError::Trust { .. }) {
                return Err(err);
            }
            // An agent of another version may fail to start or speak another protocol.
            let is_ours = !put_there(host, config, progress, &err)?;
            if is_ours {
                return Err(err);
            }
            start_and_wait(host, config, &agent)?;
        }
    }
    let facts = agent.facts(FACTS_TIMEOUT);
    let facts = facts.map_err(|reason| NodeError::NoStart { host: name, reason })?;
    Ok(Node { agent, facts })
}

fn start_and_wait(host: &Host, config: &NodesConfig, agent: &Agent) -> Result<(), NodeError> {
    start(host, config)?;
    agent.wait_until_up(ANSWER_TIMEOUT).map_err(|reason| match agent.refusal() {
        Some(AgentRefusal::OtherVersion) => NodeError::OtherVersion { host: host.name(), reason },
        Some(_) => NodeError::Refused { host: host.name(), reason, shell: None },
        None => NodeError::Unreachable { host: host.name(), port: config.agent_port, reason },
    })
}

/// Installs these programs on a machine after `failure`. Returns false if the machine already has
/// them, or if nothing may or need be installed.
fn put_there(
    host: &Host,
    config: &NodesConfig,
    progress: &(dyn Fn(&str) + Sync),
    failure: &NodeError,
) -> Result<bool, NodeError> {
    let may_help = matches!(
        failure,
        NodeError::NotInstalled { .. }
            | NodeError::NoStart { .. }
            | NodeError::OtherVersion { .. }
            | NodeError::Unreachable { .. }
    );
    let Some(bootstrap) = config.bootstrap.as_ref().filter(|_| may_help && !host.is_local()) else {
        return Ok(false);
    };
    let bundle = bootstrap.bundle()?;
    let name = host.name();
    let report = |step| {
        if let InstallProgress::Missing(bytes) = step {
            progress(&format!("{name}: putting jackalope there ({} MiB)", bytes.div_ceil(1 << 20)));
        }
    };
    let (shell, ours) = (&*config.shell, Some(&config.ours));
    let what = Install { bundle: &bundle, ours, shell, progress: &report };
    let installed = install(ssh_name(host, &name), what)?;
    if let Some(key) = installed.activated.key {
        pin(&config.ours, &name, key)?;
    }
    Ok(!installed.was_there())
}

fn ssh_name<'a>(host: &'a Host, name: &'a str) -> &'a str {
    if host.ssh.is_empty() { name } else { &host.ssh }
}

impl Bootstrap {
    /// Creates a bootstrap of these two programs and the libraries that they load.
    pub fn new(program: PathBuf, rank_program: PathBuf) -> Bootstrap {
        Bootstrap { program, rank_program, bundle: Mutex::default() }
    }

    fn bundle(&self) -> Result<Arc<Bundle>, BundleError> {
        let mut known = self.bundle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known {
            return Ok(Arc::clone(known));
        }
        let bundle = Arc::new(Bundle::of_programs(&self.program, &self.rank_program)?);
        *known = Some(Arc::clone(&bundle));
        Ok(bundle)
    }
}

/// Returns the addresses at which a machine's agent may listen: those in the hostfile, or else
/// those to which its name resolves with the user's `ssh` configuration.
pub fn addresses(host: &Host, config: &NodesConfig) -> Vec<SocketAddr> {
    if host.is_local() {
        return vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), config.agent_port)];
    }
    let mut ips: Vec<IpAddr> = host.ips.clone();
    if ips.is_empty() {
        let name = config.shell.address_of(&host.ssh).unwrap_or_else(|| host.ssh.clone());
        let found = (name.as_str(), config.agent_port).to_socket_addrs();
        ips.extend(found.into_iter().flatten().map(|addr| addr.ip()));
    }
    ips.into_iter().map(|ip| SocketAddr::new(ip, config.agent_port)).collect()
}

/// Pins the key that a machine reported over SSH, which authenticates the machine.
///
/// # Errors
/// [`NodeError::Trust`] if another key is pinned for the machine, or the list cannot be written.
pub fn pin(ours: &Credentials, host: &str, key: PublicKey) -> Result<(), NodeError> {
    let Expected::Pinned(store) = &ours.expected else { return Ok(()) };
    if key == ours.identity.public() {
        return Ok(());
    }
    let pinned = store.update(|list| list.pin(host, key));
    pinned.map_err(|source| NodeError::Trust { host: host.to_owned(), source })
}

/// Starts a machine's agent, sends it our key and pins the key that it reports. An agent with
/// another secret or of another version is replaced.
fn start(host: &Host, config: &NodesConfig) -> Result<(), NodeError> {
    let name = host.name();
    let (port, linger) = (config.agent_port, config.linger.as_secs());
    let mut listen: Vec<String> =
        addresses(host, config).iter().map(|it| it.ip().to_string()).collect();
    if host.is_local() {
        listen.extend(host.ips.iter().map(IpAddr::to_string));
    }
    let listen = listen.join(",");
    let args = format!("agent --start --port {port} --linger {linger} --listen {listen}");
    let script = if host.is_local() {
        format!("exec {} {args}", quote(&config.program.to_string_lossy()))
    } else {
        on_machine(&args)
    };
    let input = config.ours.introduction();
    let ran = config.shell.run(ssh_name(host, &name), &script, input.as_bytes(), START_TIMEOUT);
    match ran.map_err(|source| NodeError::Shell { source })? {
        Output { status: 0, stdout, .. } => match reported_key(&stdout) {
            Some(key) => pin(&config.ours, &name, key),
            // An older version reports no key; connecting to its agent fails as well.
            None => Ok(()),
        },
        Output { status: NOT_FOUND, .. } => Err(NodeError::NotInstalled { host: name }),
        Output { stderr, .. } => {
            Err(NodeError::NoStart { host: name, reason: stderr.trim().to_owned() })
        }
    }
}

/// Parses the key from the last line that a starting agent writes.
fn reported_key(stdout: &str) -> Option<PublicKey> {
    let report: serde_json::Value = serde_json::from_str(stdout.lines().last()?).ok()?;
    PublicKey::from_hex(report["key"].as_str()?)
}

/// Returns a script that runs the installed program, or exits with the status of a shell that finds
/// none.
pub fn on_machine(args: &str) -> String {
    let not_found = NOT_FOUND;
    format!(
        "p={HOME_IN_SCRIPTS}/current/bin/jackalope\n\
         [ -x \"$p\" ] || exit {not_found}\n\
         exec \"$p\" {args}"
    )
}

/// Returns the path of the running program, which is also this machine's agent.
///
/// # Errors
/// If the system does not report the path.
pub fn own_program() -> std::io::Result<PathBuf> {
    std::env::current_exe().map(|path| Path::new(&path).to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(ssh: &str, ips: &[&str]) -> Host {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        Host { ssh: ssh.to_owned(), ips, ..Host::default() }
    }

    #[test]
    fn a_machine_with_several_ranks_has_one_agent() {
        let hosts = [
            host("127.0.0.1", &[]),
            host("mac2", &["10.0.0.2"]),
            host("localhost", &["10.0.0.1"]),
            host("mac2", &["10.0.0.2", "10.0.1.2"]),
        ];
        let (machines, of_rank) = machines(&hosts);
        assert_eq!(of_rank, [0, 1, 0, 1]);
        assert_eq!(machines[0].ips, host("", &["10.0.0.1"]).ips);
        assert_eq!(machines[1].ips, host("", &["10.0.0.2", "10.0.1.2"]).ips);
    }
}
