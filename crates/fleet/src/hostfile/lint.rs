//! Finds settings in a hostfile that are legal but probably unintended.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jackalope_protocol::Backend;

use super::finding::{ETHERNET_SIDE_DEVICE, HostfileWarning, RDMA_PORTS};
use super::{Host, Hostfile};
use crate::shell::is_here;

/// Maximum number of hosts for which a ring or chain through all of them is searched.
const SEARCHED_HOSTS_MAX: usize = 10;

/// Returns the findings for a valid hostfile.
pub fn lint(hostfile: &Hostfile) -> Vec<HostfileWarning> {
    let mut findings = Vec::new();
    if hostfile.backend == Some(Backend::Jaccl) || has_devices(hostfile) {
        mesh(hostfile, &mut findings);
    }
    for (rank, host) in hostfile.hosts.iter().enumerate() {
        let devices = host.rdma.iter().enumerate();
        findings.extend(
            devices
                .filter(|(_, devices)| devices.iter().any(|it| it == ETHERNET_SIDE_DEVICE))
                .map(|(to, _)| HostfileWarning::EthernetSidePort { rank, to }),
        );
    }
    machines(hostfile, &mut findings);
    addresses(hostfile, &mut findings);
    families(hostfile, &mut findings);
    findings
}

fn has_devices(hostfile: &Hostfile) -> bool {
    hostfile.hosts.iter().any(|host| !host.rdma.is_empty())
}

/// Returns every pair of ranks, the lower one first.
fn pairs(num_hosts: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..num_hosts).flat_map(move |a| (a + 1..num_hosts).map(move |b| (a, b)))
}

/// Checks the cables between the machines.
fn mesh(hostfile: &Hostfile, findings: &mut Vec<HostfileWarning>) {
    let hosts = &hostfile.hosts;
    let num_hosts = hosts.len();
    let is_linked =
        |a: usize, b: usize| hosts[a].rdma.get(b).is_some_and(|devices| !devices.is_empty());
    let missing: Vec<_> = pairs(num_hosts).filter(|&(a, b)| !is_linked(a, b)).collect();
    let named = |rank: usize| (rank, hosts[rank].name());
    let wants_mesh = !hostfile.envs.iter().any(|(name, _)| name.ends_with("JACCL_RING"));
    if wants_mesh {
        findings.extend(
            missing.iter().map(|&(a, b)| HostfileWarning::MissingLink { a: named(a), b: named(b) }),
        );
        if RDMA_PORTS + 1 < num_hosts {
            findings.push(HostfileWarning::PortsExceeded { needed: num_hosts - 1 });
        }
    }
    if missing.is_empty() {
        return;
    }
    let unconnected = unconnected(num_hosts, is_linked);
    if !unconnected.is_empty() {
        findings.push(HostfileWarning::Unconnected { ranks: unconnected });
    } else if num_hosts <= SEARCHED_HOSTS_MAX {
        let ring = through_all(num_hosts, is_linked, true);
        let chain = || through_all(num_hosts, is_linked, false);
        match ring {
            Some(order) => findings.push(HostfileWarning::RingPossible { order }),
            None => findings.extend(chain().map(|order| HostfileWarning::ChainPossible { order })),
        }
    }
}

/// Returns the ranks that cannot be reached from rank 0.
fn unconnected(num_hosts: usize, is_linked: impl Fn(usize, usize) -> bool) -> Vec<usize> {
    let mut is_reached = vec![false; num_hosts];
    let mut open = vec![0];
    while let Some(rank) = open.pop() {
        if !std::mem::replace(&mut is_reached[rank], true) {
            open.extend((0..num_hosts).filter(|&to| is_linked(rank, to)));
        }
    }
    (0..num_hosts).filter(|&rank| !is_reached[rank]).collect()
}

/// Finds an order of all ranks in which neighbours are linked, and with `is_closed` also the last
/// and the first.
fn through_all(
    num_hosts: usize,
    is_linked: impl Fn(usize, usize) -> bool + Copy,
    is_closed: bool,
) -> Option<Vec<usize>> {
    if is_closed && num_hosts < 3 {
        return None;
    }
    // A ring can start anywhere.
    let starts = if is_closed { 0..1 } else { 0..num_hosts };
    starts.into_iter().find_map(|start| {
        let mut order = vec![start];
        extend(&mut order, num_hosts, is_linked, is_closed).then_some(order)
    })
}

fn extend(
    order: &mut Vec<usize>,
    num_hosts: usize,
    is_linked: impl Fn(usize, usize) -> bool + Copy,
    is_closed: bool,
) -> bool {
    let last = order[order.len() - 1];
    if order.len() == num_hosts {
        return !is_closed || is_linked(last, order[0]);
    }
    for next in 0..num_hosts {
        if is_linked(last, next) && !order.contains(&next) {
            order.push(next);
            if extend(order, num_hosts, is_linked, is_closed) {
                return true;
            }
            order.pop();
        }
    }
    false
}

fn machines(hostfile: &Hostfile, findings: &mut Vec<HostfileWarning>) {
    let hosts = &hostfile.hosts;
    let first_of = |host: &Host| hosts.iter().position(|other| other.is_same_machine(host));
    let mut by_machine: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (rank, host) in hosts.iter().enumerate() {
        by_machine.entry(first_of(host).unwrap_or(rank)).or_default().push(rank);
    }
    for (first, ranks) in by_machine.into_iter().filter(|(_, ranks)| 1 < ranks.len()) {
        findings.push(HostfileWarning::SameMachine { name: hosts[first].name(), ranks });
    }
    let mut by_ip: BTreeMap<IpAddr, Vec<usize>> = BTreeMap::new();
    for (rank, host) in hosts.iter().enumerate().filter(|(_, host)| !host.ssh.is_empty()) {
        for ip in host.ips.iter().filter(|ip| !ip.is_loopback()) {
            by_ip.entry(*ip).or_default().push(rank);
        }
    }
    for (ip, ranks) in by_ip {
        if ranks.iter().any(|&rank| !hosts[rank].is_same_machine(&hosts[ranks[0]])) {
            findings.push(HostfileWarning::SharedIp { ip, ranks });
        }
    }
}

fn addresses(hostfile: &Hostfile, findings: &mut Vec<HostfileWarning>) {
    let hosts = &hostfile.hosts;
    let is_spread = hosts.iter().any(|host| !host.is_same_machine(&hosts[0]));
    for (rank, host) in hosts.iter().enumerate() {
        let loopback = host.ips.iter().find(|ip| ip.is_loopback());
        if let Some(&ip) = loopback.filter(|_| is_spread && !host.ssh.is_empty()) {
            findings.push(HostfileWarning::Loopback { rank, ip });
        }
        if hostfile.backend == Some(Backend::Ring) && host.ips.is_empty() && !is_here(&host.ssh) {
            findings.push(HostfileWarning::RingWithoutIp { rank });
        }
    }
    for (a, b) in pairs(hosts.len()) {
        let ends = hosts[a].ips.iter().flat_map(|&x| hosts[b].ips.iter().map(move |&y| (x, y)));
        for (x, y) in ends.filter(|&(x, y)| are_home_cable(x, y)) {
            findings.push(HostfileWarning::HomeSubnet { a: (a, x), b: (b, y) });
        }
    }
}

/// Returns true for the two ends of a /30 inside 192.168.0.0/24 or 192.168.1.0/24, which MLX's tool
/// assigns to cables.
fn are_home_cable(a: IpAddr, b: IpAddr) -> bool {
    let (IpAddr::V4(a), IpAddr::V4(b)) = (a, b) else { return false };
    let is_home = |ip: std::net::Ipv4Addr| matches!(ip.octets(), [192, 168, 0 | 1, _]);
    let is_end = |ip: std::net::Ipv4Addr| matches!(ip.octets()[3] % 4, 1 | 2);
    is_home(a) && is_end(a) && is_end(b) && a != b && a.to_bits() >> 2 == b.to_bits() >> 2
}

fn families(hostfile: &Hostfile, findings: &mut Vec<HostfileWarning>) {
    let hosts = &hostfile.hosts;
    let has = |rank: usize, is_v4: bool| hosts[rank].ips.iter().any(|ip| ip.is_ipv4() == is_v4);
    for (a, b) in pairs(hosts.len()) {
        let are_named = !hosts[a].ips.is_empty() && !hosts[b].ips.is_empty();
        let is_common = [true, false].iter().any(|&is_v4| has(a, is_v4) && has(b, is_v4));
        if are_named && !is_common {
            findings.push(HostfileWarning::MixedFamilies { ranks: (a, b) });
        }
    }
    let Some(backend) = hostfile.backend.filter(|backend| backend.is_stock()) else { return };
    let is_without = |rank: &usize| !hosts[*rank].ips.is_empty() && !has(*rank, true);
    findings.extend(
        (0..hosts.len()).filter(is_without).map(|rank| HostfileWarning::NoIpv4 { rank, backend }),
    );
}
