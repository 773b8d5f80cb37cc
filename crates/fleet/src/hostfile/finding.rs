//! Messages about settings in a hostfile that are legal but probably unintended.

use std::fmt;
use std::net::IpAddr;

use jackalope_protocol::{Backend, counted};

/// Number of Thunderbolt 5 ports of a Mac that support RDMA: a Mac Studio has four at the back, and
/// the one next to Ethernet does not support it.
pub(super) const RDMA_PORTS: usize = 3;

/// Device of the port next to Ethernet.
pub(super) const ETHERNET_SIDE_DEVICE: &str = "rdma_en2";

/// A setting that is legal but probably unintended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HostfileWarning {
    /// A cable is missing in JACCL's mesh.
    MissingLink {
        /// Number and name of a rank.
        a: (usize, String),
        /// Number and name of the other rank.
        b: (usize, String),
    },
    /// The mesh is incomplete, but the ranks form a ring in this order.
    RingPossible {
        /// The ranks in the order of the ring.
        order: Vec<usize>,
    },
    /// The mesh is incomplete and there is no ring, but the ranks form a chain in this order.
    ChainPossible {
        /// The ranks in the order of the chain.
        order: Vec<usize>,
    },
    /// No sequence of cables leads from rank 0 to some machines.
    Unconnected {
        /// Ranks that cannot be reached from rank 0.
        ranks: Vec<usize>,
    },
    /// A full mesh needs more ports than a machine has.
    PortsExceeded {
        /// Number of ports needed on each machine.
        needed: usize,
    },
    /// A device is on the port next to Ethernet, which does not support RDMA.
    EthernetSidePort {
        /// The rank with the device.
        rank: usize,
        /// The rank towards which the device leads.
        to: usize,
    },
    /// Addresses of a cable are in a subnet that many home networks use.
    HomeSubnet {
        /// Rank and address of one end.
        a: (usize, IpAddr),
        /// Rank and address of the other end.
        b: (usize, IpAddr),
    },
    /// Several ranks run on one machine.
    SameMachine {
        /// Name of the machine.
        name: String,
        /// The ranks.
        ranks: Vec<usize>,
    },
    /// Machines with different names have the same address.
    SharedIp {
        /// The address.
        ip: IpAddr,
        /// The ranks.
        ranks: Vec<usize>,
    },
    /// Two machines share neither IPv4 nor IPv6.
    MixedFamilies {
        /// The ranks.
        ranks: (usize, usize),
    },
    /// A loopback address, which other machines cannot reach.
    Loopback {
        /// The rank.
        rank: usize,
        /// The address.
        ip: IpAddr,
    },
    /// A rank without an IPv4 address, which MLX's own transports need.
    NoIpv4 {
        /// The rank.
        rank: usize,
        /// The transport.
        backend: Backend,
    },
    /// A rank without an address, which a ring needs.
    RingWithoutIp {
        /// The rank.
        rank: usize,
    },
}

impl fmt::Display for HostfileWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostfileWarning::MissingLink { a, b } => {
                write!(f, "no cable between rank {} ({}) and rank {} ({})", a.0, a.1, b.0, b.1)
            }
            HostfileWarning::RingPossible { order } => {
                write!(f, "the mesh is incomplete; the cables make a ring: {}", arrows(order))
            }
            HostfileWarning::ChainPossible { order } => {
                write!(f, "the mesh is incomplete; the cables make a chain: {}", arrows(order))
            }
            HostfileWarning::Unconnected { ranks } => {
                write!(f, "no cables lead from rank 0 to {}", ranks_text(ranks))
            }
            HostfileWarning::PortsExceeded { needed } => write!(
                f,
                "a mesh of {} needs {} on each, a Thunderbolt 5 Mac has {RDMA_PORTS}",
                counted(needed + 1, "machine"),
                counted(needed, "RDMA port")
            ),
            HostfileWarning::EthernetSidePort { rank, to } => write!(
                f,
                "rank {rank} uses {ETHERNET_SIDE_DEVICE} towards rank {to}: on a Mac Studio the \
                 port next to Ethernet does no RDMA"
            ),
            HostfileWarning::HomeSubnet { a, b } => write!(
                f,
                "{} (rank {}) and {} (rank {}) look like the ends of a cable, in a subnet that \
                 home networks use",
                a.1, a.0, b.1, b.0
            ),
            HostfileWarning::SameMachine { name, ranks } => {
                write!(f, "{} run on one machine, {name}", ranks_text(ranks))
            }
            HostfileWarning::SharedIp { ip, ranks } => {
                write!(f, "{} have different names and one address, {ip}", ranks_text(ranks))
            }
            HostfileWarning::MixedFamilies { ranks: (a, b) } => {
                write!(f, "ranks {a} and {b} have no address of the same family")
            }
            HostfileWarning::Loopback { rank, ip } => {
                write!(f, "rank {rank} names {ip}, which other machines cannot reach")
            }
            HostfileWarning::NoIpv4 { rank, backend } => {
                write!(f, "rank {rank} has no IPv4 address, and {} knows no other", backend.name())
            }
            HostfileWarning::RingWithoutIp { rank } => {
                write!(f, "rank {rank} has no address for the ring")
            }
        }
    }
}

impl HostfileWarning {
    /// Returns a hint for correcting the setting.
    pub fn hint(&self) -> &'static str {
        match self {
            HostfileWarning::MissingLink { .. } => {
                "add the cable and name its devices on both sides"
            }
            HostfileWarning::RingPossible { .. } => {
                "list the hosts in this order and use \"jaccl-ring\", or \"tcp\" over any network"
            }
            HostfileWarning::ChainPossible { .. } => {
                "join the ends with a cable, or use \"tcp\" over any network"
            }
            HostfileWarning::Unconnected { .. } => "add cables, or use \"tcp\" over any network",
            HostfileWarning::PortsExceeded { .. } => {
                "use at most four machines, or \"tcp\" over any network"
            }
            HostfileWarning::EthernetSidePort { .. } => "move the cable to another port",
            HostfileWarning::HomeSubnet { .. } => {
                "give cables addresses of their own: 10.254.0.1 and 10.254.0.2 with mask \
                 255.255.255.252, 10.254.0.5 and 10.254.0.6 for the next one"
            }
            HostfileWarning::SameMachine { .. } => {
                "fine for a test; such ranks share memory and speed"
            }
            HostfileWarning::SharedIp { .. } => {
                "write the same name if it is one machine, else its address"
            }
            HostfileWarning::MixedFamilies { .. } => {
                "give both an IPv4 address, or both an IPv6 address"
            }
            HostfileWarning::Loopback { .. } => "name the address that other machines see",
            HostfileWarning::NoIpv4 { .. } => "add an IPv4 address, or use \"tcp\"",
            HostfileWarning::RingWithoutIp { .. } => "add its address to \"ips\"",
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
