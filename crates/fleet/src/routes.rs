//! Chooses the address by which each rank reaches each other one: over the cable between them if
//! there is one, else over a network that both are in, else as the hostfile says. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use jackalope_protocol::machine::{InterfaceAddr, NodeFacts};
use thiserror::Error;

use crate::hostfile::Host;

/// Maximum number of host bits in a cable's subnet, which is a /30 or a /31.
const CABLE_HOST_BITS: u8 = 2;

/// A machine, described by its hostfile entry and by its own report if it was asked.
#[derive(Clone, Copy, Debug)]
pub struct RouteNode<'a> {
    /// Entry of the machine in the hostfile.
    pub host: &'a Host,
    /// What the machine reports about itself.
    pub facts: Option<&'a NodeFacts>,
}

/// Pairs of ranks that have no route.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub struct NoRoutes {
    /// The pairs; at least one.
    pub pairs: Vec<NoRoute>,
}

impl fmt::Display for NoRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for pair in &self.pairs {
            let NoRoute { from, from_name, to, to_name } = pair;
            writeln!(f, "rank {from} ({from_name}) knows no address of rank {to} ({to_name})")?;
        }
        f.write_str("hint: add an address of the latter to its \"ips\" in the hostfile")
    }
}

/// A rank that has no address by which it could reach another rank.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NoRoute {
    /// The rank that has to connect.
    pub from: usize,
    /// Name of the machine of rank `from`.
    pub from_name: String,
    /// The rank whose address is unknown.
    pub to: usize,
    /// Name of the machine of rank `to`.
    pub to_name: String,
}

/// Returns a matrix: `routes[i][j]` is the address by which rank i reaches rank j.
///
/// On the same machine that is 127.0.0.1. Otherwise it is an address of j in the smallest subnet
/// that an interface of i is in as well, so that a cable with its own subnet is preferred to the
/// local network. Among addresses in equally small subnets, the first one in the hostfile wins.
/// Without a common subnet, it is the first address of j in the hostfile, or the argument of `ssh`
/// if that is an address.
///
/// # Errors
/// [`NoRoutes`] with all pairs that have no route.
pub fn routes(nodes: &[RouteNode<'_>]) -> Result<Vec<Vec<IpAddr>>, NoRoutes> {
    let nodes: Vec<RouteNode<'_>> = nodes.iter().map(|node| with_facts(node, nodes)).collect();
    let mut pairs = Vec::new();
    let mut routes = Vec::with_capacity(nodes.len());
    for (from, node) in nodes.iter().enumerate() {
        let mut row = Vec::with_capacity(nodes.len());
        for (to, peer) in nodes.iter().enumerate() {
            let named = named_addresses(peer, &nodes);
            match route(node, peer, &named) {
                _ if from == to => row.push(Ipv4Addr::LOCALHOST.into()),
                Some(ip) => row.push(ip),
                None => {
                    let (from_name, to_name) = (node.host.name(), peer.host.name());
                    pairs.push(NoRoute { from, from_name, to, to_name });
                }
            }
        }
        routes.push(row);
    }
    if pairs.is_empty() { Ok(routes) } else { Err(NoRoutes { pairs }) }
}

/// Returns the hosts with at least one address each. A host that has none, or loopback addresses
/// only, gets the address by which the previous rank reaches it, because in a ring each rank
/// connects to the next one.
///
/// # Errors
/// Like [`routes`], if any host lacks an address.
pub fn with_addresses(nodes: &[RouteNode<'_>]) -> Result<Vec<Host>, NoRoutes> {
    let has_none = |node: &RouteNode<'_>| node.host.ips.iter().all(IpAddr::is_loopback);
    if !nodes.iter().any(has_none) {
        return Ok(nodes.iter().map(|node| node.host.clone()).collect());
    }
    let routes = routes(nodes)?;
    let with_address = |(rank, node): (usize, &RouteNode<'_>)| {
        let before = (rank + nodes.len() - 1) % nodes.len();
        let ips = if has_none(node) { vec![routes[before][rank]] } else { node.host.ips.clone() };
        Host { ips, ..node.host.clone() }
    };
    Ok(nodes.iter().enumerate().map(with_address).collect())
}

/// Which connections between ranks are encrypted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Encryption {
    /// Connections that a third party could listen on: all except loopback and cables that join
    /// exactly two machines.
    #[default]
    Auto,
    /// All connections.
    On,
    /// No connections.
    Off,
}

/// Returns a symmetric matrix: `encrypted[i][j]` says whether the connection between ranks i and j
/// is encrypted. `routes` are those between `nodes`.
///
/// A cable is exempt only if both ends report it. If a machine reports nothing about itself, all
/// its connections to other machines are encrypted.
pub fn encrypted(
    nodes: &[RouteNode<'_>],
    routes: &[Vec<IpAddr>],
    encryption: Encryption,
) -> Vec<Vec<bool>> {
    let nodes: Vec<RouteNode<'_>> = nodes.iter().map(|node| with_facts(node, nodes)).collect();
    let is_private = |from: usize, to: usize| {
        let ip = routes[from][to];
        ip.is_loopback() || nodes[from].facts.is_some_and(|facts| is_cable(facts, ip))
    };
    let is_encrypted = |a: usize, b: usize| match encryption {
        _ if a == b => false,
        Encryption::Auto => !(is_private(a, b) && is_private(b, a)),
        Encryption::On => true,
        Encryption::Off => false,
    };
    let ranks = 0..nodes.len();
    ranks.clone().map(|a| ranks.clone().map(|b| is_encrypted(a, b)).collect()).collect()
}

/// Returns true if the machine with these `facts` reaches `ip` over a cable with its own subnet, as
/// `autoconfig` creates them: a subnet without room for a third machine.
pub fn is_cable(facts: &NodeFacts, ip: IpAddr) -> bool {
    let addrs = facts.interfaces.iter().flat_map(|interface| &interface.addrs);
    let reaching = addrs.filter(|addr| !addr.ip.is_loopback() && addr.reaches(ip));
    reaching.map(|addr| host_bits(*addr)).min().is_some_and(|bits| bits <= CABLE_HOST_BITS)
}

/// Returns the node with facts: those of the node, or else those of another entry for the same
/// machine.
fn with_facts<'a>(node: &RouteNode<'a>, nodes: &[RouteNode<'a>]) -> RouteNode<'a> {
    let others = || nodes.iter().filter(|other| other.host.is_same_machine(node.host));
    RouteNode {
        host: node.host,
        facts: node.facts.or_else(|| others().find_map(|other| other.facts)),
    }
}

fn route(node: &RouteNode<'_>, peer: &RouteNode<'_>, named: &[IpAddr]) -> Option<IpAddr> {
    if are_one_machine(node, peer) {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    let own: Vec<InterfaceAddr> = interface_addrs(node).collect();
    let known = interface_addrs(peer).map(|addr| addr.ip).filter(|ip| !named.contains(ip));
    let all: Vec<IpAddr> = named.iter().copied().chain(known).collect();
    // Skips addresses that both have: bridges of virtual machines have the same address on every
    // machine.
    let theirs = all.iter().filter(|ip| own.iter().all(|addr| addr.ip != **ip));
    let shared = theirs.filter_map(|&ip| {
        let subnets = own.iter().filter(|addr| addr.reaches(ip));
        subnets.map(|addr| host_bits(*addr)).min().map(|bits| (bits, ip))
    });
    // `min_by_key` returns the first of the smallest subnets, and the named addresses come first.
    shared.min_by_key(|(bits, _)| *bits).map(|(_, ip)| ip).or_else(|| named.first().copied())
}

/// Returns the number of host bits in the address's subnet.
fn host_bits(addr: InterfaceAddr) -> u8 {
    let all = if addr.ip.is_ipv4() { 32 } else { 128 };
    all - addr.prefix_len.min(all)
}

/// Returns the addresses that the hostfile names for a machine, those of its own entry first.
fn named_addresses(peer: &RouteNode<'_>, nodes: &[RouteNode<'_>]) -> Vec<IpAddr> {
    let others = nodes.iter().filter(|node| are_one_machine(node, peer));
    let ips = std::iter::once(peer).chain(others).flat_map(|node| {
        let ssh = &node.host.ssh;
        let name = ssh.rsplit_once('@').map_or(ssh.as_str(), |(_, name)| name);
        node.host.ips.iter().copied().chain(name.parse())
    });
    ips.filter(|&ip| !ip.is_loopback() && !ip.is_unspecified()).collect()
}

/// Returns the addresses of a machine's interfaces that can be announced to other machines.
/// Excludes link-local IPv6 addresses, which are meaningless without an interface.
fn interface_addrs<'a>(node: &RouteNode<'a>) -> impl Iterator<Item = InterfaceAddr> + use<'a> {
    let interfaces = node.facts.into_iter().flat_map(|facts| &facts.interfaces);
    interfaces.flat_map(|interface| &interface.addrs).copied().filter(|addr| match addr.ip {
        IpAddr::V4(ip) => !ip.is_loopback(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    })
}

/// Returns true if the hostfile names the same machine, or if both report the same host name and
/// share an address.
fn are_one_machine(a: &RouteNode<'_>, b: &RouteNode<'_>) -> bool {
    let share_address =
        || interface_addrs(a).any(|addr| interface_addrs(b).any(|other| other.ip == addr.ip));
    let call_themselves_the_same = match (a.facts, b.facts) {
        (Some(a), Some(b)) => !a.hostname.is_empty() && a.hostname == b.hostname,
        _ => false,
    };
    a.host.is_same_machine(b.host) || (call_themselves_the_same && share_address())
}

#[cfg(test)]
mod tests {
    use jackalope_protocol::machine::Interface;
    use proptest::prelude::*;

    use super::*;

    fn host(ssh: &str, ips: &[&str]) -> Host {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        Host { ssh: ssh.to_owned(), ips, ..Host::default() }
    }

    /// Creates facts with these addresses, such as `10.254.0.1/30`.
    fn facts(hostname: &str, addrs: &[&str]) -> NodeFacts {
        let addr = |text: &&str| {
            let (ip, prefix_len) = text.split_once('/').unwrap();
            InterfaceAddr { ip: ip.parse().unwrap(), prefix_len: prefix_len.parse().unwrap() }
        };
        let interface = |text| Interface { addrs: vec![addr(text)], ..Interface::default() };
        let interfaces = addrs.iter().map(interface).collect();
        NodeFacts { hostname: hostname.to_owned(), interfaces, ..NodeFacts::default() }
    }

    fn table(machines: &[(Host, Option<NodeFacts>)]) -> Result<Vec<Vec<String>>, NoRoutes> {
        let nodes = machines.iter().map(|(host, facts)| RouteNode { host, facts: facts.as_ref() });
        let rows = routes(&nodes.collect::<Vec<_>>())?;
        Ok(rows.into_iter().map(|row| row.iter().map(IpAddr::to_string).collect()).collect())
    }

    #[test]
    fn each_cable_carries_its_pair_and_ethernet_what_has_none() {
        // There are cables a–b and b–c; a and c are connected over Ethernet only.
        let machines = [
            (host("a", &["192.168.7.1"]), Some(facts("a", &["192.168.7.1/24", "10.254.0.1/30"]))),
            (
                host("b", &[]),
                Some(facts("b", &["192.168.7.2/24", "10.254.0.2/30", "10.254.0.5/30"])),
            ),
            (host("c", &[]), Some(facts("c", &["192.168.7.3/24", "10.254.0.6/30"]))),
        ];
        let wanted = [
            ["127.0.0.1", "10.254.0.2", "192.168.7.3"],
            ["10.254.0.1", "127.0.0.1", "10.254.0.6"],
            ["192.168.7.1", "10.254.0.5", "127.0.0.1"],
        ];
        assert_eq!(table(&machines).unwrap(), wanted);
    }

    #[test]
    fn what_leaves_a_machine_is_encrypted_except_on_a_cable_that_both_ends_know() {
        let machines = [
            (host("a", &["192.168.7.1"]), Some(facts("a", &["192.168.7.1/24", "10.254.0.1/30"]))),
            (host("b", &["192.168.7.2"]), Some(facts("b", &["192.168.7.2/24", "10.254.0.2/30"]))),
            (host("c", &["192.168.7.3"]), Some(facts("c", &["192.168.7.3/24"]))),
            (host("a", &["192.168.7.1"]), None),
        ];
        let nodes = |is_known: [bool; 4]| -> Vec<RouteNode<'_>> {
            let both = machines.iter().zip(is_known);
            both.map(|((host, facts), is_known)| RouteNode {
                host,
                facts: facts.as_ref().filter(|_| is_known),
            })
            .collect()
        };
        let (yes, no) = (true, false);
        let all = nodes([true; 4]);
        let ways = routes(&all).unwrap();
        let auto = encrypted(&all, &ways, Encryption::Auto);
        let wanted = [[no, no, yes, no], [no, no, yes, no], [yes, yes, no, yes], [no, no, yes, no]];
        assert_eq!(auto, wanted);
        let on = encrypted(&all, &ways, Encryption::On);
        assert!((0..4).all(|a| (0..4).all(|b| on[a][b] == (a != b))));
        let off = encrypted(&all, &ways, Encryption::Off);
        assert!(off.iter().flatten().all(|it| !it));
        // If only one end of the cable is known, the connection counts as exposed.
        let half = nodes([true, false, true, true]);
        let auto = encrypted(&half, &ways, Encryption::Auto);
        assert!(auto[0][1] && auto[1][0]);
        assert!(!auto[0][3], "loopback stays loopback");
    }

    #[test]
    fn in_equal_subnets_the_hostfile_decides() {
        let machines = [
            (host("a", &["10.0.1.1"]), Some(facts("a", &["10.0.0.1/24", "10.0.1.1/24"]))),
            (host("b", &["10.0.1.2"]), Some(facts("b", &["10.0.0.2/24", "10.0.1.2/24"]))),
        ];
        assert_eq!(table(&machines).unwrap()[0][1], "10.0.1.2");
        assert_eq!(table(&machines).unwrap()[1][0], "10.0.1.1");
    }

    #[test]
    fn without_facts_the_hostfile_alone_is_believed() {
        let machines = [
            (host("a", &["10.0.0.1", "10.0.1.1"]), None),
            (host("me@10.0.0.2", &[]), None),
            (host("c", &["127.0.0.1", "10.0.0.3"]), None),
        ];
        let rows = table(&machines).unwrap();
        assert_eq!(rows[1], ["10.0.0.1", "127.0.0.1", "10.0.0.3"]);
        assert_eq!(rows[0][1], "10.0.0.2");
    }

    #[test]
    fn ranks_of_one_machine_meet_at_home() {
        let bridge = "192.168.64.1/24";
        let machines = [
            (host("127.0.0.1", &["10.0.0.1"]), Some(facts("mac1", &["10.0.0.1/24", bridge]))),
            (host("localhost", &[]), None),
            (host("mac1.local", &[]), Some(facts("mac1", &["10.0.0.1/24", bridge]))),
            (host("mac2", &[]), Some(facts("mac2", &["10.0.0.2/24", bridge]))),
        ];
        let rows = table(&machines).unwrap();
        assert_eq!(rows[0], ["127.0.0.1", "127.0.0.1", "127.0.0.1", "10.0.0.2"]);
        assert_eq!(rows[3], ["10.0.0.1", "10.0.0.1", "10.0.0.1", "127.0.0.1"]);
    }

    #[test]
    fn a_machine_without_addresses_is_named_by_all_who_look_for_it() {
        let machines = [(host("a", &["10.0.0.1"]), None), (host("b", &[]), None)];
        let err = table(&machines).unwrap_err();
        assert_eq!(err.pairs.len(), 1);
        let wanted = "rank 0 (a) knows no address of rank 1 (b)\nhint: add an address of the \
                      latter to its \"ips\" in the hostfile";
        assert_eq!(err.to_string(), wanted);
    }

    #[test]
    fn a_host_without_an_address_gets_one_that_the_rank_before_it_reaches() {
        let [a, b] = [facts("a", &["10.0.0.1/24"]), facts("b", &["10.0.0.2/24"])];
        let hosts =
            [host("localhost", &[]), host("b", &[]), host("b", &[]), host("c", &["9.9.9.9"])];
        let facts = [Some(&a), Some(&b), Some(&b), None];
        let nodes: Vec<RouteNode<'_>> =
            hosts.iter().zip(facts).map(|(host, facts)| RouteNode { host, facts }).collect();
        let ips = |nodes: &[RouteNode<'_>]| -> Vec<String> {
            let hosts = with_addresses(nodes).unwrap();
            hosts.iter().map(|host| host.ips[0].to_string()).collect()
        };
        assert_eq!(ips(&nodes[..3]), ["10.0.0.1", "10.0.0.2", "127.0.0.1"]);
        assert_eq!(ips(&nodes[..1]), ["127.0.0.1"], "one rank alone reaches itself");
        assert_eq!(ips(&nodes[3..]), ["9.9.9.9"], "what was named stays, whoever can be asked");
    }

    #[test]
    fn addresses_that_mean_nothing_elsewhere_are_left_out() {
        let own = ["fe80::1/64", "127.0.0.1/8", "172.17.0.1/16", "10.0.0.1/24"];
        let theirs = ["fe80::2/64", "127.0.0.1/8", "172.17.0.1/16", "10.0.0.2/24"];
        let machines =
            [(host("a", &[]), Some(facts("a", &own))), (host("b", &[]), Some(facts("b", &theirs)))];
        assert_eq!(table(&machines).unwrap()[0][1], "10.0.0.2");
    }

    proptest! {
        #[test]
        fn a_cable_of_its_own_is_always_preferred(
            num_nodes in 2_usize..6, cables in prop::collection::vec(any::<bool>(), 15),
        ) {
            let mut addrs: Vec<Vec<String>> =
                (0..num_nodes).map(|rank| vec![format!("192.168.7.{}/24", rank + 1)]).collect();
            let mut wanted: Vec<Vec<String>> = (0..num_nodes)
                .map(|_| (0..num_nodes).map(|to| format!("192.168.7.{}", to + 1)).collect())
                .collect();
            let pairs = (0..num_nodes).flat_map(|a| (a + 1..num_nodes).map(move |b| (a, b)));
            for (cable, (a, b)) in pairs.enumerate().filter(|(cable, _)| cables[*cable]) {
                for (from, to, last) in [(a, b, 2), (b, a, 1)] {
                    wanted[from][to] = format!("10.254.0.{}", 4 * cable + last);
                    addrs[to].push(format!("{}/30", wanted[from][to]));
                }
            }
            let machines: Vec<_> = addrs
                .iter()
                .enumerate()
                .map(|(rank, addrs)| {
                    let addrs: Vec<&str> = addrs.iter().map(String::as_str).collect();
                    let name = format!("m{rank}");
                    (host(&name, &[]), Some(facts(&name, &addrs)))
                })
                .collect();
            for (rank, row) in wanted.iter_mut().enumerate() {
                row[rank] = "127.0.0.1".to_owned();
            }
            prop_assert_eq!(table(&machines).unwrap(), wanted);
        }
    }
}
