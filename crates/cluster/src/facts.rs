//! What a machine is and has, as its own programs tell.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// One machine. Sizes are in bytes.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct NodeFacts {
    /// Its own name.
    pub hostname: String,
    /// System and version: `macOS 26.3 (25D125)`, `Linux 6.12.8`.
    pub os: String,
    /// `aarch64`, `x86_64`.
    pub arch: String,
    /// `Apple M4 Max`, a processor's name.
    pub chip: String,
    /// Logical cores.
    pub cores: u32,
    /// Installed memory.
    pub total_bytes: u64,
    /// Memory that ranks may take now without swapping.
    pub free_bytes: u64,
    /// Speed of the memory in bytes per second, where the chip is known.
    pub memory_bytes_per_s: Option<u64>,
    /// Work that waited for a core in the last minute, in percent of the cores.
    pub load_percent: Option<u32>,
    /// The graphics processor, if there is one that MLX computes on.
    pub gpu: Option<String>,
    /// How hot it is: `normal`, `54 °C`, `slowed down to 80 %`.
    pub thermal: Option<String>,
    /// Network interfaces that are up.
    pub interfaces: Vec<Interface>,
}

/// A network interface.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Interface {
    /// `en0`, `bridge0`, `eth0`.
    pub name: String,
    /// Its addresses.
    pub addrs: Vec<InterfaceAddr>,
    /// Speed of the link in bits per second, where the system tells.
    pub bits_per_s: Option<u64>,
}

/// An address and its subnet.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct InterfaceAddr {
    /// The address.
    pub ip: IpAddr,
    /// Leading bits that name the subnet.
    pub prefix_len: u8,
}

impl InterfaceAddr {
    /// True if `other` is in this address's subnet.
    pub fn reaches(&self, other: IpAddr) -> bool {
        match (self.ip, other) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let shift = 32 - u32::from(self.prefix_len.min(32));
                let subnet = |ip: u32| ip.checked_shr(shift).unwrap_or(0);
                subnet(ours.to_bits()) == subnet(theirs.to_bits())
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let shift = 128 - u32::from(self.prefix_len.min(128));
                let subnet = |ip: u128| ip.checked_shr(shift).unwrap_or(0);
                subnet(ours.to_bits()) == subnet(theirs.to_bits())
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_holds_the_addresses_with_its_prefix() {
        let addr = |ip: &str, prefix_len| InterfaceAddr { ip: ip.parse().unwrap(), prefix_len };
        let reaches = |addr: InterfaceAddr, ip: &str| addr.reaches(ip.parse().unwrap());
        let cable = addr("10.254.0.1", 30);
        assert!(reaches(cable, "10.254.0.2"));
        assert!(!reaches(cable, "10.254.0.5"));
        assert!(!reaches(cable, "fe80::1"));
        assert!(reaches(addr("10.0.0.1", 0), "192.168.7.7"));
        assert!(reaches(addr("fd00::1", 64), "fd00::9:9"));
        assert!(!reaches(addr("fd00::1", 64), "fd01::1"));
    }
}
