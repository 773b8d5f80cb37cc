//! Turns the machines found into entries of a hostfile. Pure.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr};

use jackalope_protocol::PublicKey;
use jackalope_protocol::machine::NodeFacts;

use super::find::{DiscoveryResult, FoundMachine, MachineState};
use crate::hostfile::Host;
use crate::shell::is_here;

/// Maximum length of a host name; a longer one is not used.
const NAME_LEN_MAX: usize = 63;

/// The machines to use, in the order of their ranks.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// This machine, then the others by descending memory.
    pub hosts: Vec<ListedHost>,
    /// Machines of ours that cannot be used.
    pub left_out: Vec<LeftOut>,
}

/// A machine and its entry in a hostfile.
#[derive(Clone, Debug)]
pub struct ListedHost {
    /// The machine's entry in a hostfile.
    pub host: Host,
    /// Facts that the machine reported.
    pub facts: NodeFacts,
    /// Key that the machine has proved; `None` for this machine.
    pub key: Option<PublicKey>,
}

/// One of our machines that cannot be used unless something is changed there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LeftOut {
    /// An address of the machine.
    pub at: String,
    /// Reason why the machine cannot be used.
    pub reason: String,
    /// What a person can do so that the machine can be used.
    pub hint: String,
}

/// Sorts the machines whose agents listen on `agent_port`; the others are left out.
pub fn list(found: &DiscoveryResult, agent_port: u16) -> Listed {
    let mut others: Vec<(&FoundMachine, &NodeFacts)> = Vec::new();
    let mut left_out = Vec::new();
    for machine in &found.machines {
        match usable(machine, agent_port) {
            Ok(facts) => others.push((machine, facts)),
            Err(it) => left_out.push(it),
        }
    }
    others.sort_by_key(|(machine, facts)| {
        (Reverse(facts.total_bytes), bare(&facts.hostname), machine.ips())
    });
    let all = || std::iter::once(&found.here).chain(others.iter().map(|(_, facts)| *facts));
    let names: Vec<String> = all().map(|it| bare(&it.hostname)).collect();
    let first = |ip: Option<IpAddr>| ip.map(|ip| ip.to_string()).unwrap_or_default();
    let mut hosts = vec![ListedHost {
        host: Host {
            ssh: Ipv4Addr::LOCALHOST.to_string(),
            ips: own_ips(&found.here, &others),
            ..Host::default()
        },
        facts: found.here.clone(),
        key: None,
    }];
    for (machine, facts) in &others {
        let ips = machine.ips();
        let name = bare(&facts.hostname);
        let is_unique = names.iter().filter(|it| **it == name).count() == 1;
        let ssh = if is_unique && is_name(&facts.hostname) {
            facts.hostname.clone()
        } else {
            first(ips.first().copied())
        };
        let host = Host { ssh, ips, ..Host::default() };
        hosts.push(ListedHost { host, facts: (*facts).clone(), key: machine.key });
    }
    Listed { hosts, left_out }
}

/// Normalises a host name, to find machines that would be confused.
fn bare(hostname: &str) -> String {
    hostname.to_lowercase().trim_end_matches(".local").to_owned()
}

/// Whether the string is a valid host name of another machine: no address, not this machine, and no
/// characters at which `--hosts` or `ssh` would split it.
fn is_name(hostname: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let is_address = hostname.parse::<IpAddr>().is_ok();
    (1..=NAME_LEN_MAX).contains(&hostname.len())
        && hostname.chars().all(is_of_name)
        && hostname.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !is_here(hostname)
        && !is_address
}

fn usable(machine: &FoundMachine, agent_port: u16) -> Result<&NodeFacts, LeftOut> {
    let at = machine.addrs.first().map(|it| it.ip().to_string()).unwrap_or_default();
    let left_out = |reason: String, hint: String| LeftOut { at: at.clone(), reason, hint };
    let facts = match &machine.state {
        MachineState::Ready(facts) => facts,
        MachineState::OtherVersion => {
            let reason = format!("its agent is of another version, {}", machine.build);
            return Err(left_out(
                reason,
                format!("`jackalope bootstrap {at}` puts this one there"),
            ));
        }
        MachineState::Refused(said) => {
            let (reason, hint) = said.split_once("\nhint: ").unwrap_or((said, ""));
            return Err(left_out(reason.to_owned(), hint.to_owned()));
        }
        MachineState::Unreachable(reason) => {
            let hint = format!("let port {} through its firewall, over TCP", machine.port());
            return Err(left_out(reason.clone(), hint));
        }
    };
    if machine.port() != agent_port {
        let reason = format!("its agent listens on port {}", machine.port());
        return Err(left_out(reason, format!("pass `--agent-port {}`", machine.port())));
    }
    if machine.ips().is_empty() {
        let reason = "only a link-local address of IPv6 reaches it".to_owned();
        let hint = "`jackalope autoconfig` gives cables addresses".to_owned();
        return Err(left_out(reason, hint));
    }
    Ok(facts)
}

/// Returns our addresses in the networks of the others.
fn own_ips(here: &NodeFacts, others: &[(&FoundMachine, &NodeFacts)]) -> Vec<IpAddr> {
    let own = || here.interfaces.iter().flat_map(|it| &it.addrs);
    let mut ips = Vec::new();
    for ip in others.iter().flat_map(|(machine, _)| machine.ips()) {
        let towards = own().filter(|it| !it.ip.is_loopback() && it.reaches(ip));
        // The address in the smallest network, as for routes.
        if let Some(addr) = towards.max_by_key(|it| it.prefix_len)
            && !ips.contains(&addr.ip)
        {
            ips.push(addr.ip);
        }
    }
    ips
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use jackalope_protocol::machine::{Interface, InterfaceAddr};
    use jackalope_protocol::secure::Build;

    use super::*;

    fn facts(hostname: &str, gib: u64, ips: &[&str]) -> NodeFacts {
        let addr = |ip: &&str| InterfaceAddr { ip: ip.parse().unwrap(), prefix_len: 24 };
        let addrs = ips.iter().map(addr).collect();
        NodeFacts {
            hostname: hostname.to_owned(),
            total_bytes: gib << 30,
            interfaces: vec![Interface { addrs, ..Interface::default() }],
            ..NodeFacts::default()
        }
    }

    fn machine(addrs: &[&str], state: MachineState) -> FoundMachine {
        let addrs = addrs.iter().map(|it| it.parse::<SocketAddr>().unwrap()).collect();
        FoundMachine { addrs, build: Build::ours(), state, key: None }
    }

    fn ready(hostname: &str, gib: u64, addrs: &[&str]) -> FoundMachine {
        machine(addrs, MachineState::Ready(Box::new(facts(hostname, gib, &[]))))
    }

    fn found(machines: Vec<FoundMachine>) -> DiscoveryResult {
        let here = facts("mac1.local", 16, &["10.0.0.1", "10.254.0.1", "127.0.0.1"]);
        DiscoveryResult { here, machines, strangers: Vec::new(), num_more_strangers: 0 }
    }

    fn entries(listed: &Listed) -> Vec<String> {
        let entry = |it: &ListedHost| {
            let ips: Vec<String> = it.host.ips.iter().map(IpAddr::to_string).collect();
            format!("{} {}", it.host.ssh, ips.join("+"))
        };
        listed.hosts.iter().map(entry).collect()
    }

    #[test]
    fn this_machine_comes_first_then_memory_decides_then_the_name() {
        let listed = list(
            &found(vec![
                ready("zeta", 64, &["10.0.0.4:9"]),
                ready("mac2.local", 32, &["10.0.0.2:9", "10.254.0.2:9", "[fe80::2%4]:9"]),
                ready("alpha", 64, &["10.0.0.3:9"]),
            ]),
            9,
        );
        let wanted = [
            "127.0.0.1 10.0.0.1+10.254.0.1",
            "alpha 10.0.0.3",
            "zeta 10.0.0.4",
            "mac2.local 10.0.0.2+10.254.0.2",
        ];
        assert_eq!(entries(&listed), wanted);
        assert_eq!(listed.left_out, []);
    }

    #[test]
    fn a_name_that_would_mean_something_else_is_replaced_by_an_address() {
        for name in ["mac1", "MAC1.local", "localhost", "-oProxyCommand=x", "a,b", "", "10.0.0.9"] {
            let listed = list(&found(vec![ready(name, 64, &["10.0.0.2:9"])]), 9);
            assert_eq!(entries(&listed)[1], "10.0.0.2 10.0.0.2", "{name}");
        }
        let twins = vec![ready("mac", 8, &["10.0.0.2:9"]), ready("mac", 8, &["10.0.0.3:9"])];
        let wanted = ["127.0.0.1 10.0.0.1", "10.0.0.2 10.0.0.2", "10.0.0.3 10.0.0.3"];
        assert_eq!(entries(&list(&found(twins), 9)), wanted);
    }

    #[test]
    fn who_cannot_be_used_is_named_with_what_to_do() {
        let listed = list(
            &found(vec![
                ready("mac2", 64, &["10.0.0.2:7"]),
                ready("mac3", 64, &["[fe80::3%2]:9"]),
                machine(&["10.0.0.4:9"], MachineState::OtherVersion),
                machine(&["10.0.0.5:9"], MachineState::Unreachable("no agent".to_owned())),
            ]),
            9,
        );
        assert_eq!(entries(&listed), ["127.0.0.1 "]);
        let hints: Vec<&str> = listed.left_out.iter().map(|it| it.hint.as_str()).collect();
        assert_eq!(hints[0], "pass `--agent-port 7`");
        assert_eq!(hints[1], "`jackalope autoconfig` gives cables addresses");
        assert_eq!(hints[2], "`jackalope bootstrap 10.0.0.4` puts this one there");
        assert_eq!(hints[3], "let port 9 through its firewall, over TCP");
    }
}
