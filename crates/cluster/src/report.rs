//! What a look at a machine found, as types. The scripts that look are in [`crate::probe`], the
//! readers of what they print in [`crate::platform`].
//!
//! `None` always means that the machine did not tell, never that there is nothing.

mod program;
mod thunderbolt;

use std::net::IpAddr;

use serde::Serialize;

pub use program::{HttpAnswer, OwnProgram, ProgramKind};
pub use thunderbolt::{ExpectedSpeed, Generation, HardwarePort, RdmaDevice, ThunderboltPort};

use crate::facts::{InterfaceAddr, NodeFacts};

/// One machine, looked at without anything of ours installed there.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeReport {
    /// What it is.
    pub facts: NodeFacts,
    /// What only a Mac has; `None` for other systems.
    pub mac: Option<MacReport>,
    /// Where packets go.
    pub routes: Vec<Route>,
    /// Whether a firewall is up.
    pub firewall: Option<bool>,
    /// TCP ports in use.
    pub listeners: Vec<Listener>,
    /// Running programs of ours, with what they answered.
    pub programs: Vec<OwnProgram>,
    /// Running programs of others that compute models.
    pub engines: Vec<Process>,
    /// Free bytes where the home folder is.
    pub disk_free_bytes: Option<u64>,
    /// How far its clock is ahead of ours, in seconds, where that could be told.
    pub clock_ahead_s: Option<i64>,
    /// Version of jackalope in `~/.jackalope/current`.
    pub jackalope: Option<String>,
    /// Version of libmlx beside it.
    pub mlx: Option<String>,
    /// Tools that are not there.
    pub missing_tools: Vec<String>,
    /// Tools that did not end in time.
    pub stuck_tools: Vec<String>,
}

/// What only a Mac has.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MacReport {
    /// `Mac16,9`.
    pub model: String,
    /// `Mac Studio`, as its Thunderbolt ports call it.
    pub product: String,
    /// Version of macOS.
    pub version: Option<Version>,
    /// Build of macOS: `25D125`.
    pub build: String,
    /// What `rdma_ctl status` says.
    pub rdma: RdmaSwitch,
    /// What `ibv_devices` and `ibv_devinfo` list; `None` where they are missing.
    pub rdma_devices: Option<Vec<RdmaDevice>>,
    /// Its own Thunderbolt ports, in the order of their receptacles.
    pub thunderbolt: Vec<ThunderboltPort>,
    /// Network ports and their interfaces.
    pub hardware_ports: Vec<HardwarePort>,
    /// Bridges and their members.
    pub bridges: Vec<Bridge>,
    /// Memory that is wired, in bytes.
    pub wired_bytes: Option<u64>,
    /// What the GPU may wire, in bytes, where somebody set it.
    pub gpu_limit_bytes: Option<u64>,
    /// What it does when nobody is there.
    pub power: Power,
}

/// A dotted version.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number.
    pub patch: u32,
}

/// What `rdma_ctl status` says.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RdmaSwitch {
    /// On.
    Enabled,
    /// Off.
    Disabled,
    /// There is no `rdma_ctl`: the system is too old.
    Missing,
    /// Something else, or nothing.
    #[default]
    Unknown,
}

/// A bridge and the interfaces in it.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Bridge {
    /// `bridge0`.
    pub name: String,
    /// `en1`, `en2`.
    pub members: Vec<String>,
}

/// Addresses with the same leading bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct Network {
    /// First address of the network.
    pub ip: IpAddr,
    /// Leading bits that name it.
    pub prefix_len: u8,
}

/// A line of the routing table.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Route {
    /// Where to; prefix 0 for everywhere else.
    pub to: Network,
    /// The next machine, where there is one.
    pub gateway: Option<IpAddr>,
    /// Through which interface.
    pub interface: String,
}

/// A TCP port in use.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Listener {
    /// The port.
    pub port: u16,
    /// Who listens, where that can be told.
    pub pid: Option<u32>,
    /// Its program.
    pub program: Option<String>,
}

/// A running program.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Number of the process that started it; 1 once that is gone.
    pub parent_pid: u32,
    /// Memory it holds, in bytes.
    pub resident_bytes: u64,
    /// Its command line, cut.
    pub command: String,
}

/// What a machine does when nobody is there.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Power {
    /// Minutes until it sleeps; 0 never.
    pub sleep_minutes: Option<u32>,
    /// Minutes until its display sleeps; 0 never.
    pub display_sleep_minutes: Option<u32>,
    /// Programs that keep the system awake.
    pub awake_by: Vec<String>,
    /// Programs that keep the display awake.
    pub display_awake_by: Vec<String>,
}

impl NodeReport {
    /// All addresses but loopback, with the interface that has them.
    pub fn addrs(&self) -> impl Iterator<Item = (&str, InterfaceAddr)> {
        let interfaces = self.facts.interfaces.iter();
        let all = interfaces.flat_map(|it| it.addrs.iter().map(|addr| (it.name.as_str(), *addr)));
        all.filter(|(_, addr)| !addr.ip.is_loopback())
    }

    /// The interface with this address.
    pub fn interface_of(&self, ip: IpAddr) -> Option<&str> {
        self.addrs().find(|(_, addr)| addr.ip == ip).map(|(name, _)| name)
    }

    /// The route of packets to nowhere in particular.
    pub fn default_route(&self) -> Option<&Route> {
        self.routes.iter().find(|route| route.to.prefix_len == 0 && route.to.ip.is_ipv4())
    }
}

impl MacReport {
    /// The RDMA device of this name.
    pub fn rdma_device(&self, name: &str) -> Option<&RdmaDevice> {
        self.rdma_devices.iter().flatten().find(|device| device.name == name)
    }

    /// The bridge that holds an interface.
    pub fn bridge_of(&self, interface: &str) -> Option<&str> {
        let holds = |bridge: &&Bridge| bridge.members.iter().any(|it| it == interface);
        self.bridges.iter().find(holds).map(|bridge| bridge.name.as_str())
    }

    /// The interface of the port in a receptacle.
    pub fn interface_of_receptacle(&self, receptacle: u32) -> Option<&str> {
        let name = format!("Thunderbolt {receptacle}");
        let port = self.hardware_ports.iter().find(|port| port.name == name);
        port.map(|port| port.interface.as_str())
    }

    /// The fastest generation among its ports.
    pub fn generation(&self) -> Option<Generation> {
        self.thunderbolt.iter().filter_map(|port| port.generation).max()
    }

    /// True for the one port of a Mac Studio that does no RDMA: the one next to Ethernet.
    /// See <https://github.com/exo-explore/exo/pull/1543>.
    pub fn is_unusable_for_rdma(&self, interface: &str) -> bool {
        self.product == "Mac Studio" && interface == "en2"
    }
}

impl Version {
    /// Three numbers, or fewer.
    pub fn parse(text: &str) -> Option<Version> {
        let mut numbers = text.trim().split('.').map(|part| part.parse().ok());
        let major = numbers.next()??;
        let minor = numbers.next().unwrap_or(Some(0))?;
        let patch = numbers.next().unwrap_or(Some(0))?;
        Some(Version { major, minor, patch })
    }

    /// True from `major.minor` on.
    pub fn is_at_least(self, major: u32, minor: u32) -> bool {
        (self.major, self.minor) >= (major, minor)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if self.patch != 0 { write!(f, ".{}", self.patch) } else { Ok(()) }
    }
}

impl Network {
    /// The network that an address is in.
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

    /// True if both have an address in common.
    pub fn overlaps(self, other: Network) -> bool {
        let prefix_len = self.prefix_len.min(other.prefix_len);
        InterfaceAddr { ip: self.ip, prefix_len }.reaches(other.ip)
    }

    /// True if the address is in it.
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
    fn versions_are_compared_by_number() {
        let version = |text| Version::parse(text).unwrap();
        assert!(version("26.10") > version("26.2.1"));
        assert!(version("26.2").is_at_least(26, 2));
        assert!(!version("15.7.3").is_at_least(26, 2));
        assert_eq!(version("26.3").to_string(), "26.3");
        assert_eq!(Version::parse("x"), None);
    }

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
