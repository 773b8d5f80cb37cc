//! Hardware and system of a machine, as its own programs report them.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::MemoryPressure;

/// Facts about one machine. Sizes are in bytes.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct NodeFacts {
    /// Host name, as the machine reports it.
    pub hostname: String,
    /// System and version, such as `macOS 26.3 (25D125)` or `Linux 6.12.8`.
    pub os: String,
    /// Architecture: `aarch64` or `x86_64`.
    pub arch: String,
    /// Name of the chip or processor, such as `Apple M4 Max`.
    pub chip: String,
    /// Number of logical cores.
    pub cores: u32,
    /// Installed memory.
    pub total_bytes: u64,
    /// Memory that ranks can use now without swapping.
    pub free_bytes: u64,
    /// Memory bandwidth in bytes per second, if the chip is known.
    pub memory_bytes_per_s: Option<u64>,
    /// Load average of the last minute, in percent of the cores.
    pub load_percent: Option<u32>,
    /// GPU, if there is one that MLX computes on.
    pub gpu: Option<String>,
    /// Thermal state, if the system reports it.
    pub thermal: Option<Thermal>,
    /// Network interfaces that are up.
    pub interfaces: Vec<Interface>,
}

/// How hot a machine is, as its system reports it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Thermal {
    /// Temperature of the hottest sensor, in degrees Celsius.
    Celsius(u8),
    /// Not too hot; the system reports no temperature.
    Normal,
    /// The system limits the processor to this percentage of its speed.
    SlowedDownTo(u8),
}

impl fmt::Display for Thermal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Thermal::Celsius(degrees) => write!(f, "{degrees} °C"),
            Thermal::Normal => write!(f, "normal"),
            Thermal::SlowedDownTo(percent) => write!(f, "slowed down to {percent} %"),
        }
    }
}

/// Temperature, electrical power and GPU load of a machine, as far as its system reports them.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Heat {
    /// Thermal state of the processors and GPUs.
    pub thermal: Option<Thermal>,
    /// Power of the processors, in watts.
    pub cpu_watts: Option<u16>,
    /// Power of the GPUs, in watts.
    pub gpu_watts: Option<u16>,
    /// Load of the busiest GPU: the percentage of time in which it computed.
    pub gpu_percent: Option<u8>,
}

/// What an agent reads on its machine each time it is asked.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct MachineReadings {
    /// State of the memory; absent if the system does not report it.
    pub memory: Option<MemoryPressure>,
    /// Temperature, power and GPU load.
    pub heat: Heat,
}

/// A network interface.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Interface {
    /// Name, such as `en0`, `bridge0` or `eth0`.
    pub name: String,
    /// Addresses of the interface.
    pub addrs: Vec<InterfaceAddr>,
    /// Speed of the link in bits per second, if the system reports it.
    pub bits_per_s: Option<u64>,
}

/// An interface's address and its subnet.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct InterfaceAddr {
    /// The address.
    pub ip: IpAddr,
    /// Prefix length of the subnet in bits.
    pub prefix_len: u8,
}

impl InterfaceAddr {
    /// Returns true if `other` is in this address's subnet.
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
