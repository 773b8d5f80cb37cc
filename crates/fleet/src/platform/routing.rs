//! Subnets and entries of the routing table.

use std::net::IpAddr;

use jackalope_protocol::machine::InterfaceAddr;
use serde::Serialize;

/// A subnet: the addresses with the same leading bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct Network {
    /// First address of the network.
    pub ip: IpAddr,
    /// Length of the prefix in bits.
    pub prefix_len: u8,
}

/// An entry of the routing table.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Route {
    /// Destination; prefix length 0 for the default route.
    pub to: Network,
    /// Gateway, if there is one.
    pub gateway: Option<IpAddr>,
    /// Outgoing interface.
    pub interface: String,
}

impl Network {
    /// Returns the network that an address belongs to.
    pub fn of(addr: InterfaceAddr) -> Network {
        let ip = match addr.ip {
            IpAddr::V4(ip) => {
                let shift = 32 - u32::from(addr.prefix_len.min(32));
                let bits = ip.to_bits().checked_shr(shift).unwrap_or(0);
                IpAddr::V4(bits.checked_shl(shift).unwrap_or(0).into())
            }
            IpAddr::V6(ip) => {
                let shift = 128 - u32::from(addr.prefix_len.min(128));
                let bits = ip.to_bits().checked_shr(shift).unwrap_or(0);
                IpAddr::V6(bits.checked_shl(shift).unwrap_or(0).into())
            }
        };
        Network { ip, prefix_len: addr.prefix_len }
    }

    /// Returns true if the two networks have an address in common.
    pub fn overlaps(self, other: Network) -> bool {
        let prefix_len = self.prefix_len.min(other.prefix_len);
        InterfaceAddr { ip: self.ip, prefix_len }.reaches(other.ip)
    }

    /// Returns true if the address is in this network.
    pub fn holds(self, ip: IpAddr) -> bool {
        InterfaceAddr { ip: self.ip, prefix_len: self.prefix_len }.reaches(ip)
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_overlap_if_one_holds_the_other() {
        let network = |text: &str| {
            let (ip, prefix_len) = text.split_once('/').unwrap();
            let (ip, prefix_len) = (ip.parse().unwrap(), prefix_len.parse().unwrap());
            Network::of(InterfaceAddr { ip, prefix_len })
        };
        assert!(network("10.254.0.0/30").overlaps(network("10.0.0.0/8")));
        assert!(network("10.0.0.0/8").overlaps(network("10.254.0.0/30")));
        assert!(!network("10.254.0.0/30").overlaps(network("10.254.0.4/30")));
        assert!(!network("10.254.0.0/30").overlaps(network("fd00::/8")));
        assert_eq!(network("192.168.1.77/24").to_string(), "192.168.1.0/24");
    }
}
