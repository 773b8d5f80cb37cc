//! Words for what is legal in a hostfile and will probably disappoint.

use std::fmt;
use std::net::IpAddr;

use jackalope_protocol::Backend;

/// Thunderbolt 5 ports of a Mac that do RDMA: a Mac Studio has four behind, of which the one next to
/// Ethernet does not.
pub(super) const RDMA_PORTS: usize = 3;

/// The device of the port next to Ethernet.
pub(super) const ETHERNET_SIDE_DEVICE: &str = "rdma_en2";

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

fn arrows(order: &[usize]) -> String {
    order.iter().map(usize::to_string).collect::<Vec<_>>().join(" – ")
}

fn ranks_text(ranks: &[usize]) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("{noun} {}", ranks.join(", "))
}
