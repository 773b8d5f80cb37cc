//! Brings an agent up on every machine of a cluster.
//!
//! An agent that runs already is used. Else one is started over the shell: the only time SSH is
//! needed.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use jackalope_protocol::Secret;
use thiserror::Error;
use tracing::debug;

use crate::agent::{Agent, OnLine};
use crate::facts::NodeFacts;
use crate::hostfile::Host;
use crate::shell::{Output, Shell, ShellError, quote};

/// How long an agent that runs already may take to answer.
const KNOCK_TIMEOUT: Duration = Duration::from_millis(1500);
/// Starting one over the shell.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// From there until it answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const FACTS_TIMEOUT: Duration = Duration::from_secs(10);
/// What a shell says of a program that is not there.
const NOT_FOUND: i32 = 127;

/// The folder of a machine's own programs, for scripts: set by the machine's user, or the usual one.
pub const HOME_IN_SCRIPTS: &str = "\"${JACKALOPE_HOME:-$HOME/.jackalope}\"";

/// How machines are reached.
#[derive(Clone)]
pub struct NodesConfig {
    /// The cluster's secret.
    pub secret: Secret,
    /// Where agents listen.
    pub agent_port: u16,
    /// How agents are started.
    pub shell: Arc<dyn Shell>,
    /// This program, which is the agent of this machine.
    pub program: PathBuf,
    /// How long an agent stays that nobody needs.
    pub linger: Duration,
}

impl fmt::Debug for NodesConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodesConfig").field("agent_port", &self.agent_port).finish_non_exhaustive()
    }
}

/// A machine that can be spoken to.
#[derive(Debug)]
pub struct Node {
    /// What looks after it.
    pub agent: Agent,
    /// What it is and has.
    pub facts: NodeFacts,
}

/// Machines, and which of them each rank is on.
#[derive(Debug)]
pub struct Nodes {
    /// Each machine once.
    pub nodes: Vec<Node>,
    /// By rank: an index into `nodes`.
    pub of_rank: Vec<usize>,
}

/// Machines that cannot be used, each with its reason.
#[derive(Debug, Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct NodesError(pub Vec<NodeError>);

/// Why a machine cannot be used.
#[derive(Debug, Error)]
pub enum NodeError {
    /// No way to run anything there.
    #[error("{source}\nhint: {}", .source.kind.hint(&.source.host))]
    Shell {
        /// What the shell says.
        source: ShellError,
    },
    /// Jackalope is not there.
    #[error("{host} has no jackalope\nhint: `jackalope bootstrap {host}` puts it there")]
    NotInstalled {
        /// The machine.
        host: String,
    },
    /// The agent did not start.
    #[error("the agent on {host} did not start: {reason}")]
    NoStart {
        /// The machine.
        host: String,
        /// What it says.
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
        /// Where it listens.
        port: u16,
        /// What happened.
        reason: String,
    },
    /// It has no address that we know.
    #[error("{host} has no address\nhint: name one in its \"ips\" in the hostfile")]
    NoAddress {
        /// The machine.
        host: String,
    },
}

/// Brings up an agent on each machine, all at the same time. `on_line` makes what hears a machine's
/// programs, `progress` hears what is going on.
///
/// # Errors
/// Every machine that cannot be used.
pub fn bring_up(
    hosts: &[Host],
    config: &NodesConfig,
    on_line: &(dyn Fn(&str) -> OnLine + Sync),
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Nodes, NodesError> {
    let (machines, of_rank) = machines(hosts);
    let results: Vec<Result<Node, NodeError>> = thread::scope(|scope| {
        let threads: Vec<_> = machines
            .iter()
            .map(|host| scope.spawn(move || bring_up_one(host, config, on_line, progress)))
            .collect();
        threads.into_iter().map(|it| it.join().expect("it does not panic")).collect()
    });
    let (mut nodes, mut errors) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(node) => nodes.push(node),
            Err(err) => errors.push(err),
        }
    }
    if errors.is_empty() { Ok(Nodes { nodes, of_rank }) } else { Err(NodesError(errors)) }
}

/// Each machine once, with all addresses its entries name, and which of them each rank is on.
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
    let agent = Agent::connect(&name, addrs, config.secret, on_line(&name));
    if let Err(reason) = agent.wait_until_up(KNOCK_TIMEOUT) {
        debug!(name, reason, "no agent yet");
        progress(&format!("{name}: starting its agent"));
        start(host, config)?;
        agent.wait_until_up(ANSWER_TIMEOUT).map_err(|reason| NodeError::Unreachable {
            host: name.clone(),
            port: config.agent_port,
            reason,
        })?;
    }
    let facts = agent.facts(FACTS_TIMEOUT);
    let facts = facts.map_err(|reason| NodeError::NoStart { host: name, reason })?;
    Ok(Node { agent, facts })
}

/// Where a machine's agent may listen: what the hostfile says, then what `ssh` makes of its name.
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

/// Starts a machine's agent; one that holds another secret or is another version is replaced.
fn start(host: &Host, config: &NodesConfig) -> Result<(), NodeError> {
    let name = host.name();
    let (port, linger) = (config.agent_port, config.linger.as_secs());
    let args = format!("agent --start --port {port} --linger {linger}");
    let script = match host.is_local() {
        true => format!("exec {} {args}", quote(&config.program.to_string_lossy())),
        false => on_machine(&args),
    };
    let secret = format!("{}\n", config.secret.to_hex());
    let ssh = if host.ssh.is_empty() { name.as_str() } else { host.ssh.as_str() };
    let ran = config.shell.run(ssh, &script, secret.as_bytes(), START_TIMEOUT);
    match ran.map_err(|source| NodeError::Shell { source })? {
        Output { status: 0, .. } => Ok(()),
        Output { status: NOT_FOUND, .. } => Err(NodeError::NotInstalled { host: name }),
        Output { stderr, .. } => {
            Err(NodeError::NoStart { host: name, reason: stderr.trim().to_owned() })
        }
    }
}

/// A script that runs the installed program, or ends as a shell does that finds none.
pub fn on_machine(args: &str) -> String {
    let not_found = NOT_FOUND;
    format!(
        "p={HOME_IN_SCRIPTS}/current/bin/jackalope\n\
         [ -x \"$p\" ] || exit {not_found}\n\
         exec \"$p\" {args}"
    )
}

/// The agent's program on this machine.
///
/// # Errors
/// If the system does not tell.
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
