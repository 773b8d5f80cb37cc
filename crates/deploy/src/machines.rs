//! The machines that a command names, with an agent on each.

mod by_hand;
mod discovered;
mod launcher;
mod links;
pub(crate) mod placer;
mod tickets;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jackalope_fleet::agent::{OnLine, Stream};
use jackalope_fleet::facts;
use jackalope_fleet::home::secret_of_token;
use jackalope_fleet::hostfile::{Host, Hostfile, ssh_name};
use jackalope_fleet::local::find_rank_program;
use jackalope_fleet::nodes::{self, Bootstrap, Nodes, NodesConfig};
use jackalope_fleet::shell::{Shell, SystemShell};
use jackalope_fleet::trust::{Credentials, Expected, TrustStore};
use jackalope_protocol::machine::NodeFacts;
use tracing::info;

use crate::config::ReachConfig;
use crate::context::{LocalContext, Observer};
use crate::error::{DeployError, HostsError};

pub(crate) use by_hand::ByHand;
pub use discovered::{discover, find, take_discovered};
pub(crate) use launcher::{AgentLauncher, Places};
pub(crate) use tickets::Tickets;

/// Maximum size of a hostfile.
const HOSTFILE_BYTES_MAX: u64 = 1 << 20;

/// Time after which an agent that this program started ends if it is not needed any more.
const LINGER: Duration = Duration::from_secs(30);

/// Reads a hostfile, or names separated by commas, each with its addresses (`NAME=IP+IP`) or
/// without. Entries for this machine become `127.0.0.1`, because it is not reached through ssh.
///
/// # Errors
/// If a name or an address is malformed, or the hostfile is malformed or cannot be read.
pub fn hostfile(text: &str) -> Result<Hostfile, HostsError> {
    let mut hostfile = read_hostfile(text)?;
    if !hostfile.is_local() {
        let here = facts::facts_here();
        for host in hostfile.hosts.iter_mut().filter(|host| is_this_machine(host, &here)) {
            host.ssh = Ipv4Addr::LOCALHOST.to_string();
        }
    }
    Ok(hostfile)
}

/// Whether a host is this machine, by its name or by an address that no other machine has. A user
/// name before the host name requests ssh.
fn is_this_machine(host: &Host, here: &NodeFacts) -> bool {
    let own = || here.interfaces.iter().flat_map(|it| &it.addrs).map(|addr| addr.ip);
    let is_own = |ip: &IpAddr| !ip.is_loopback() && own().any(|own| own == *ip);
    let bare = |name: &str| name.to_lowercase().trim_end_matches(".local").to_owned();
    let has_own_name = !here.hostname.is_empty() && bare(&host.ssh) == bare(&here.hostname);
    !host.ssh.contains('@') && !host.ssh.is_empty() && (has_own_name || host.ips.iter().any(is_own))
}

fn read_hostfile(text: &str) -> Result<Hostfile, HostsError> {
    let path = Path::new(text);
    if path.is_file() {
        let num_bytes = std::fs::metadata(path).map_or(0, |it| it.len());
        if HOSTFILE_BYTES_MAX < num_bytes {
            return Err(HostsError::TooLong { path: text.to_owned(), num_bytes });
        }
        let content = std::fs::read_to_string(path);
        let content =
            content.map_err(|err| HostsError::Read { path: text.to_owned(), source: err })?;
        return Ok(Hostfile::parse(&content, path)?);
    }
    let looks_like_a_file = text.contains('/') || path.extension().is_some_and(|it| it == "json");
    if looks_like_a_file {
        return Err(HostsError::NoHostfile { path: text.to_owned() });
    }
    let host = |entry: &str| {
        let (name, ips) = entry.split_once('=').unwrap_or((entry, ""));
        if name.is_empty() {
            return Err(HostsError::EmptyName { list: text.to_owned() });
        }
        let name = host_name(name)?;
        let ip = |text: &str| {
            let (ip, text, host) = (text.parse(), text.to_owned(), name.clone());
            ip.map_err(|source| HostsError::Address { text, host, source })
        };
        let ips = ips.split('+').filter(|ip| !ip.is_empty()).map(ip);
        let mut ips = ips.collect::<Result<Vec<IpAddr>, HostsError>>()?;
        if ips.is_empty() {
            ips.extend(name.parse::<IpAddr>());
        }
        Ok(Host { ssh: name, ips, ..Host::default() })
    };
    let hosts = text.split(',').map(str::trim).map(host).collect::<Result<_, HostsError>>()?;
    Ok(Hostfile { hosts, ..Hostfile::default() })
}

/// Returns the name of a machine as other functions use it: without the dot with which mDNS tools
/// end a name.
///
/// # Errors
/// If no machine can have this name or address.
pub fn host_name(name: &str) -> Result<String, HostsError> {
    ssh_name(name).map_err(HostsError::Name)
}

/// Returns the credentials that this machine presents to agents. It trusts the holders of the token
/// if there is one, else the machines whose keys are pinned.
///
/// # Errors
/// If the token is invalid, or this machine's secret or key cannot be read.
pub fn credentials(
    token: Option<&str>,
    context: &LocalContext,
) -> Result<Credentials, DeployError> {
    let home = context.home()?;
    let identity = home.identity()?;
    Ok(match token {
        Some(token) => {
            let expected = Expected::TokenHolders;
            Credentials { secret: secret_of_token(token)?, identity, expected }
        }
        None => {
            let expected = Expected::Pinned(TrustStore::new(&home));
            Credentials { secret: home.secret()?, identity, expected }
        }
    })
}

/// Returns the settings for reaching agents.
///
/// # Errors
/// If the programs of this version are not found, and as in [`credentials`].
pub fn nodes_config(
    reach: &ReachConfig,
    context: &LocalContext,
) -> Result<NodesConfig, DeployError> {
    let shell: Arc<dyn Shell> = Arc::new(SystemShell::new(reach.ssh.clone()));
    let program: PathBuf = nodes::own_program().map_err(DeployError::OwnProgram)?;
    let ours = credentials(reach.token.as_deref(), context)?;
    let agent_port = reach.agent_port;
    let bootstrap = if reach.bootstraps {
        Some(Arc::new(Bootstrap::new(program.clone(), find_rank_program()?)))
    } else {
        None
    };
    Ok(NodesConfig { ours, agent_port, shell, program, linger: LINGER, bootstrap })
}

/// Ensures that an agent runs on every machine, and shows the progress.
///
/// # Errors
/// Names the machines that have no agent, with the reason.
pub async fn bring_up(
    hosts: Vec<Host>,
    config: NodesConfig,
    observer: &Arc<dyn Observer>,
    on_line: impl Fn(&str) -> OnLine + Send + Sync + 'static,
) -> Result<Nodes, DeployError> {
    let observer = Arc::clone(observer);
    let work = move || {
        nodes::bring_up(&hosts, &config, &on_line, &|text| {
            // The observer either shows the message or logs it; it is not logged here as well.
            observer.note(text);
        })
    };
    Ok(tokio::task::spawn_blocking(work).await??)
}

/// Returns a handler that logs the output of a rank with its name and machine.
pub fn log_lines(host: &str) -> OnLine {
    let host = host.to_owned();
    Box::new(move |name: &str, _: Stream, text: &str| info!(from = name, host, "{text}"))
}

#[cfg(test)]
mod tests {
    use jackalope_protocol::machine::{Interface, InterfaceAddr};

    use super::*;

    #[test]
    fn this_machine_is_known_by_its_addresses_and_its_name() {
        let addr = |ip: &str| InterfaceAddr { ip: ip.parse().unwrap(), prefix_len: 24 };
        let addrs = vec![addr("10.0.0.1"), addr("127.0.0.1")];
        let here = NodeFacts {
            hostname: "Studio.local".to_owned(),
            interfaces: vec![Interface { addrs, ..Interface::default() }],
            ..NodeFacts::default()
        };
        let is_here = |ssh: &str, ip: &str| {
            let host = Host {
                ssh: ssh.to_owned(),
                ips: ip.parse().into_iter().collect(),
                ..Host::default()
            };
            is_this_machine(&host, &here)
        };
        assert!(is_here("mac1", "10.0.0.1"));
        assert!(is_here("studio", "10.9.9.9"));
        assert!(is_here("STUDIO.local", ""));
        assert!(!is_here("mac2", "10.0.0.2"));
        assert!(!is_here("mac2", "127.0.0.1"), "every machine has that address");
        assert!(!is_here("me@mac1", "10.0.0.1"), "another user is reached through ssh");
        assert!(!is_here("", "10.0.0.1"));
    }
}
