//! Machines that were not named, but answer on the networks of this one.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jackalope_fleet::discovery::{
    self, DiscoverError, DiscoveryResult, FindConfig, Listed, ListedHost,
};
use jackalope_fleet::trust::{Credentials, Expected, TrustError};
use tokio::task::spawn_blocking;

use super::credentials;
use crate::config::HostsConfig;
use crate::context::{LocalContext, Observer};
use crate::error::{DeployError, HostsError};

/// Time to wait for answers.
const WINDOW: Duration = Duration::from_secs(2);

/// Maximum time to wait for the requested number of machines.
const EXPECTED_WINDOW: Duration = Duration::from_secs(60);

/// Looks for machines. Waits for `num_machines`, including this one; with 0, returns those that
/// answer within `window`.
///
/// # Errors
/// If this machine cannot send queries.
pub fn find(
    window: Duration,
    num_machines: usize,
    ours: Credentials,
) -> Result<DiscoveryResult, DiscoverError> {
    let expected = (0 < num_machines).then_some((num_machines, EXPECTED_WINDOW));
    discovery::find(&FindConfig { ours, window, expected })
}

/// Returns the machines that answer, in the order of their ranks, this one first.
///
/// # Errors
/// If no other machine answers, or fewer than requested.
pub fn discover(
    num_machines: usize,
    agent_port: u16,
    ours: &Credentials,
    observer: &dyn Observer,
) -> Result<Listed, DeployError> {
    let found = find(WINDOW, num_machines, ours.clone()).map_err(HostsError::from)?;
    let mut listed = discovery::list(&found, agent_port);
    for it in &listed.left_out {
        observer.note(&format!("{} is left out: {}\nhint: {}", it.at, it.reason, it.hint));
    }
    let num_found = listed.hosts.len();
    if num_found < num_machines.max(2) {
        let num_strangers = found.strangers.len() + found.num_more_strangers;
        return Err(HostsError::TooFew { num_found, num_strangers }.into());
    }
    pin_names(&listed.hosts, ours)?;
    if 0 < num_machines {
        listed.hosts.truncate(num_machines);
    }
    let names: Vec<String> = listed.hosts.iter().map(|it| it.host.name()).collect();
    observer.note(&format!("found: {}", names.join(", ")));
    Ok(listed)
}

/// Pins the key that each machine has proved, under the name that the machine gave. The keys were
/// trusted before.
fn pin_names(hosts: &[ListedHost], ours: &Credentials) -> Result<(), TrustError> {
    let Expected::Pinned(store) = &ours.expected else { return Ok(()) };
    for listed in hosts {
        if let Some(key) = listed.key.filter(|key| *key != ours.identity.public()) {
            store.update(|list| list.pin(&listed.host.name(), key))?;
        }
    }
    Ok(())
}

/// Formats hosts as `--hosts` accepts them.
fn names(hosts: &[ListedHost]) -> String {
    let entry = |it: &ListedHost| {
        let ips: Vec<String> = it.host.ips.iter().map(IpAddr::to_string).collect();
        let equals = if ips.is_empty() { "" } else { "=" };
        format!("{}{equals}{}", it.host.ssh, ips.join("+"))
    };
    hosts.iter().map(entry).collect::<Vec<_>>().join(",")
}

/// If machines are to be discovered, names those that answer.
///
/// # Errors
/// As in [`discover`].
pub async fn take_discovered(
    hosts: &mut HostsConfig,
    context: &LocalContext,
) -> Result<(), DeployError> {
    let Some(num_machines) = hosts.discover.take() else { return Ok(()) };
    let port = hosts.reach.agent_port;
    let ours = credentials(hosts.reach.token.as_deref(), context)?;
    let observer = Arc::clone(&context.observer);
    let looking = move || discover(num_machines.into(), port, &ours, &*observer);
    let looking = spawn_blocking(looking);
    let listed = looking.await??;
    hosts.hosts = Some(names(&listed.hosts));
    Ok(())
}

#[cfg(test)]
mod tests {
    use jackalope_fleet::hostfile::Host;
    use jackalope_protocol::machine::NodeFacts;

    use super::super::read_hostfile;
    use super::*;

    #[test]
    fn machines_that_were_found_are_read_as_names_with_addresses() {
        let host = |ssh: &str, ips: &[&str]| Host {
            ssh: ssh.to_owned(),
            ips: ips.iter().map(|it| it.parse().unwrap()).collect(),
            ..Host::default()
        };
        let hosts = [
            host("127.0.0.1", &["10.0.0.1", "10.254.0.1"]),
            host("mac2.local", &["10.0.0.2", "fd00::2"]),
            host("10.0.0.3", &["10.0.0.3"]),
        ];
        let listed =
            hosts.clone().map(|host| ListedHost { host, facts: NodeFacts::default(), key: None });
        let text = names(&listed);
        let wanted = "127.0.0.1=10.0.0.1+10.254.0.1,mac2.local=10.0.0.2+fd00::2,10.0.0.3=10.0.0.3";
        assert_eq!(text, wanted);
        assert_eq!(read_hostfile(&text).unwrap().hosts, hosts);
        assert!(read_hostfile("mac1=10.0.0").is_err());
        assert!(read_hostfile("=10.0.0.1").is_err());
    }
}
