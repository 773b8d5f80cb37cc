//! What is legal in a hostfile and will probably disappoint.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use jackalope_protocol::Backend;

use super::{Host, Hostfile};
use crate::shell::is_here;

/// Thunderbolt 5 ports of a Mac that do RDMA: a Mac Studio has four behind, of which the one next to
/// Ethernet does not.
const RDMA_PORTS: usize = 3;

/// The device of the port next to Ethernet.
const ETHERNET_SIDE_DEVICE: &str = "rdma_en2";

/// Hosts up to which a way through all of them is searched.
const SEARCHED_HOSTS_MAX: usize = 10;

/// Something that deserves a look.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Finding {
    /// JACCL's mesh lacks a cable.
    MissingLink {
        /// A rank and its name.
        a: (usize, String),
        /// The other one.
        b: (usize, String),
    },
    /// The mesh is not complete; ranks in this order would make a ring.
    RingPossible {
        /// Ranks.
        order: Vec<usize>,
    },
    /// The mesh is not complete and there is no ring; ranks in this order would make a chain.
    ChainPossible {
        /// Ranks.
        order: Vec<usize>,
    },
    /// Some machines have no cable to the others at all, not even over others.
    Unconnected {
        /// Ranks that rank 0 does not reach.
        ranks: Vec<usize>,
    },
    /// A mesh needs more ports than a machine has.
    PortsExceeded {
        /// Ports needed on each machine.
        needed: usize,
    },
    /// The port next to Ethernet does no RDMA.
    EthernetSidePort {
        /// The rank.
        rank: usize,
        /// Towards this one.
        to: usize,
    },
    /// Cable addresses in a subnet that many home networks use.
    HomeSubnet {
        /// An address and its rank.
        a: (usize, IpAddr),
        /// The other end of the cable.
        b: (usize, IpAddr),
    },
    /// Several ranks on one machine.
    SameMachine {
        /// What people call it.
        name: String,
        /// The ranks.
        ranks: Vec<usize>,
    },
    /// Machines with different names have one address.
    SharedIp {
        /// The address.
        ip: IpAddr,
        /// The ranks.
        ranks: Vec<usize>,
    },
    /// Two machines have no family of addresses in common.
    MixedFamilies {
        /// The ranks.
        ranks: (usize, usize),
    },
    /// Others cannot reach a loopback address.
    Loopback {
        /// The rank.
        rank: usize,
        /// The address.
        ip: IpAddr,
    },
    /// MLX's own transports know IPv4 alone.
    NoIpv4 {
        /// The rank.
        rank: usize,
        /// The transport.
        backend: Backend,
    },
    /// A ring is made of addresses, and a rank has none.
    RingWithoutIp {
        /// The rank.
        rank: usize,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::MissingLink { a, b } => {
                write!(f, "no cable between rank {} ({}) and rank {} ({})", a.0, a.1, b.0, b.1)
            }
            Finding::RingPossible { order } => {
                write!(f, "the mesh is incomplete; the cables make a ring: {}", arrows(order))
            }
            Finding::ChainPossible { order } => {
                write!(f, "the mesh is incomplete; the cables make a chain: {}", arrows(order))
            }
            Finding::Unconnected { ranks } => {
                write!(f, "no cables lead from rank 0 to {}", ranks_text(ranks))
            }
            Finding::PortsExceeded { needed } => write!(
                f,
                "a mesh of {} machines needs {needed} RDMA ports on each, a Thunderbolt 5 Mac has \
                 {RDMA_PORTS}",
                needed + 1
            ),
            Finding::EthernetSidePort { rank, to } => write!(
                f,
                "rank {rank} uses {ETHERNET_SIDE_DEVICE} towards rank {to}: on a Mac Studio the \
                 port next to Ethernet does no RDMA"
            ),
            Finding::HomeSubnet { a, b } => write!(
                f,
                "{} (rank {}) and {} (rank {}) look like the ends of a cable, in a subnet that \
                 home networks use",
                a.1, a.0, b.1, b.0
            ),
            Finding::SameMachine { name, ranks } => {
                write!(f, "{} run on one machine, {name}", ranks_text(ranks))
            }
            Finding::SharedIp { ip, ranks } => {
                write!(f, "{} have different names and one address, {ip}", ranks_text(ranks))
            }
            Finding::MixedFamilies { ranks: (a, b) } => {
                write!(f, "ranks {a} and {b} have no address of the same family")
            }
            Finding::Loopback { rank, ip } => {
                write!(f, "rank {rank} names {ip}, which other machines cannot reach")
            }
            Finding::NoIpv4 { rank, backend } => {
                write!(f, "rank {rank} has no IPv4 address, and {} knows no other", backend.name())
            }
            Finding::RingWithoutIp { rank } => write!(f, "rank {rank} has no address for the ring"),
        }
    }
}

impl Finding {
    /// What to do.
    pub fn hint(&self) -> &'static str {
        match self {
            Finding::MissingLink { .. } => "add the cable and name its devices on both sides",
            Finding::RingPossible { .. } => {
                "list the hosts in this order and use \"jaccl-ring\", or \"tcp\" over any network"
            }
            Finding::ChainPossible { .. } => {
                "join the ends with a cable, or use \"tcp\" over any network"
            }
            Finding::Unconnected { .. } => "add cables, or use \"tcp\" over any network",
            Finding::PortsExceeded { .. } => {
                "use at most four machines, or \"tcp\" over any network"
            }
            Finding::EthernetSidePort { .. } => "move the cable to another port",
            Finding::HomeSubnet { .. } => {
                "give cables addresses of their own: 10.254.0.1 and 10.254.0.2 with mask \
                 255.255.255.252, 10.254.0.5 and 10.254.0.6 for the next one"
            }
            Finding::SameMachine { .. } => "fine for a test; such ranks share memory and speed",
            Finding::SharedIp { .. } => {
                "write the same name if it is one machine, else its address"
            }
            Finding::MixedFamilies { .. } => "give both an IPv4 address, or both an IPv6 address",
            Finding::Loopback { .. } => "name the address that other machines see",
            Finding::NoIpv4 { .. } => "add an IPv4 address, or use \"tcp\"",
            Finding::RingWithoutIp { .. } => "add its address to \"ips\"",
        }
    }
}

/// Looks at a legal hostfile.
pub fn lint(hostfile: &Hostfile) -> Vec<Finding> {
    let mut findings = Vec::new();
    if hostfile.backend == Some(Backend::Jaccl) || has_devices(hostfile) {
        mesh(hostfile, &mut findings);
    }
    for (rank, host) in hostfile.hosts.iter().enumerate() {
        let devices = host.rdma.iter().enumerate();
        findings.extend(
            devices
                .filter(|(_, devices)| devices.iter().any(|it| it == ETHERNET_SIDE_DEVICE))
                .map(|(to, _)| Finding::EthernetSidePort { rank, to }),
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

fn arrows(order: &[usize]) -> String {
    order.iter().map(usize::to_string).collect::<Vec<_>>().join(" – ")
}

fn ranks_text(ranks: &[usize]) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("{noun} {}", ranks.join(", "))
}

/// Every pair of ranks, the lower one first.
fn pairs(num_hosts: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..num_hosts).flat_map(move |a| (a + 1..num_hosts).map(move |b| (a, b)))
}

/// Cables between the machines.
fn mesh(hostfile: &Hostfile, findings: &mut Vec<Finding>) {
    let hosts = &hostfile.hosts;
    let num_hosts = hosts.len();
    let is_linked =
        |a: usize, b: usize| hosts[a].rdma.get(b).is_some_and(|devices| !devices.is_empty());
    let missing: Vec<_> = pairs(num_hosts).filter(|&(a, b)| !is_linked(a, b)).collect();
    let named = |rank: usize| (rank, hosts[rank].name());
    let wants_mesh = !hostfile.envs.iter().any(|(name, _)| name.ends_with("JACCL_RING"));
    if wants_mesh {
        findings.extend(
            missing.iter().map(|&(a, b)| Finding::MissingLink { a: named(a), b: named(b) }),
        );
        if RDMA_PORTS + 1 < num_hosts {
            findings.push(Finding::PortsExceeded { needed: num_hosts - 1 });
        }
    }
    if missing.is_empty() {
        return;
    }
    let unconnected = unconnected(num_hosts, is_linked);
    if !unconnected.is_empty() {
        findings.push(Finding::Unconnected { ranks: unconnected });
    } else if num_hosts <= SEARCHED_HOSTS_MAX {
        let ring = through_all(num_hosts, is_linked, true);
        let chain = || through_all(num_hosts, is_linked, false);
        match ring {
            Some(order) => findings.push(Finding::RingPossible { order }),
            None => findings.extend(chain().map(|order| Finding::ChainPossible { order })),
        }
    }
}

/// Ranks to which no way leads from rank 0.
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

/// An order of all ranks in which neighbours are linked, and with `is_closed` the ends too.
fn through_all(
    num_hosts: usize,
    is_linked: impl Fn(usize, usize) -> bool + Copy,
    is_closed: bool,
) -> Option<Vec<usize>> {
    if is_closed && num_hosts < 3 {
        return None;
    }
    // A ring can begin anywhere.
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

fn machines(hostfile: &Hostfile, findings: &mut Vec<Finding>) {
    let hosts = &hostfile.hosts;
    let first_of = |host: &Host| hosts.iter().position(|other| other.is_same_machine(host));
    let mut by_machine: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (rank, host) in hosts.iter().enumerate() {
        by_machine.entry(first_of(host).unwrap_or(rank)).or_default().push(rank);
    }
    for (first, ranks) in by_machine.into_iter().filter(|(_, ranks)| 1 < ranks.len()) {
        findings.push(Finding::SameMachine { name: hosts[first].name(), ranks });
    }
    let mut by_ip: BTreeMap<IpAddr, Vec<usize>> = BTreeMap::new();
    for (rank, host) in hosts.iter().enumerate().filter(|(_, host)| !host.ssh.is_empty()) {
        for ip in host.ips.iter().filter(|ip| !ip.is_loopback()) {
            by_ip.entry(*ip).or_default().push(rank);
        }
    }
    for (ip, ranks) in by_ip {
        if ranks.iter().any(|&rank| !hosts[rank].is_same_machine(&hosts[ranks[0]])) {
            findings.push(Finding::SharedIp { ip, ranks });
        }
    }
}

fn addresses(hostfile: &Hostfile, findings: &mut Vec<Finding>) {
    let hosts = &hostfile.hosts;
    let is_spread = hosts.iter().any(|host| !host.is_same_machine(&hosts[0]));
    for (rank, host) in hosts.iter().enumerate() {
        let loopback = host.ips.iter().find(|ip| ip.is_loopback());
        if let Some(&ip) = loopback.filter(|_| is_spread && !host.ssh.is_empty()) {
            findings.push(Finding::Loopback { rank, ip });
        }
        if hostfile.backend == Some(Backend::Ring) && host.ips.is_empty() && !is_here(&host.ssh) {
            findings.push(Finding::RingWithoutIp { rank });
        }
    }
    for (a, b) in pairs(hosts.len()) {
        let ends = hosts[a].ips.iter().flat_map(|&x| hosts[b].ips.iter().map(move |&y| (x, y)));
        for (x, y) in ends.filter(|&(x, y)| are_home_cable(x, y)) {
            findings.push(Finding::HomeSubnet { a: (a, x), b: (b, y) });
        }
    }
}

/// True for the two ends of a /30 inside 192.168.0.0/24 or 192.168.1.0/24, as MLX's tool gives them
/// to cables.
fn are_home_cable(a: IpAddr, b: IpAddr) -> bool {
    let (IpAddr::V4(a), IpAddr::V4(b)) = (a, b) else { return false };
    let is_home = |ip: std::net::Ipv4Addr| matches!(ip.octets(), [192, 168, 0 | 1, _]);
    let is_end = |ip: std::net::Ipv4Addr| matches!(ip.octets()[3] % 4, 1 | 2);
    is_home(a) && is_end(a) && is_end(b) && a != b && a.to_bits() >> 2 == b.to_bits() >> 2
}

fn families(hostfile: &Hostfile, findings: &mut Vec<Finding>) {
    let hosts = &hostfile.hosts;
    let has = |rank: usize, is_v4: bool| hosts[rank].ips.iter().any(|ip| ip.is_ipv4() == is_v4);
    for (a, b) in pairs(hosts.len()) {
        let are_named = !hosts[a].ips.is_empty() && !hosts[b].ips.is_empty();
        let is_common = [true, false].iter().any(|&is_v4| has(a, is_v4) && has(b, is_v4));
        if are_named && !is_common {
            findings.push(Finding::MixedFamilies { ranks: (a, b) });
        }
    }
    let Some(backend) = hostfile.backend.filter(|backend| backend.is_stock()) else { return };
    for rank in 0..hosts.len() {
        if !hosts[rank].ips.is_empty() && !has(rank, true) {
            findings.push(Finding::NoIpv4 { rank, backend });
        }
    }
}
