//! Types for what a probe of a machine found. The scripts that probe are in [`crate::probe`], the
//! parsers of their output in [`crate::platform`].
//!
//! `None` always means that the machine did not report the value, never that there is nothing.

mod program;
mod thunderbolt;

use std::net::IpAddr;

pub use jackalope_fleet::platform::{Network, Route, Version};
use jackalope_protocol::machine::{InterfaceAddr, NodeFacts};
use serde::Serialize;

pub use program::{HttpAnswer, OwnProgram, ProgramKind};
pub use thunderbolt::{
    ExpectedSpeed, HardwarePort, RdmaDevice, ThunderboltGeneration, ThunderboltPort,
};

/// Report on one machine, obtained without any of our programs installed there.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeReport {
    /// Hardware and system of the machine.
    pub facts: NodeFacts,
    /// Details of a Mac; `None` for other systems.
    pub mac: Option<MacReport>,
    /// The routing table.
    pub routes: Vec<Route>,
    /// Whether a firewall is active.
    pub firewall: Option<bool>,
    /// TCP ports in use.
    pub listeners: Vec<ListeningPort>,
    /// Our running programs, with their answers.
    pub programs: Vec<OwnProgram>,
    /// Running programs of others that compute models.
    pub engines: Vec<Process>,
    /// Free disk space in bytes on the volume of the home folder.
    pub disk_free_bytes: Option<u64>,
    /// How far the machine's clock is ahead of ours, in seconds, if that could be determined.
    pub clock_ahead_s: Option<i64>,
    /// Version of jackalope in `~/.jackalope/current`.
    pub jackalope: Option<String>,
    /// Version of MLX in `~/.jackalope/current`, from the headers of libmlx.
    pub mlx: Option<String>,
    /// Tools that are not installed.
    pub missing_tools: Vec<String>,
    /// Tools that did not finish in time.
    pub stuck_tools: Vec<String>,
}

/// Details that only a Mac has.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MacReport {
    /// Model identifier, such as `Mac16,9`.
    pub model: String,
    /// Product name as the Mac's Thunderbolt ports report it, such as `Mac Studio`.
    pub product: String,
    /// Version of macOS.
    pub version: Option<Version>,
    /// Build of macOS, such as `25D125`.
    pub build: String,
    /// Result of `rdma_ctl status`.
    pub rdma: RdmaSwitch,
    /// Devices that `ibv_devices` and `ibv_devinfo` list; `None` if these tools are missing.
    pub rdma_devices: Option<Vec<RdmaDevice>>,
    /// The Mac's own Thunderbolt ports, in the order of their receptacles.
    pub thunderbolt: Vec<ThunderboltPort>,
    /// Network ports and their interfaces.
    pub hardware_ports: Vec<HardwarePort>,
    /// Bridges and their members.
    pub bridges: Vec<Bridge>,
    /// Wired memory in bytes.
    pub wired_bytes: Option<u64>,
    /// Limit of memory that the GPU may wire, in bytes, if it was set by hand.
    pub gpu_limit_bytes: Option<u64>,
    /// Sleep settings.
    pub power: Power,
}

/// State of RDMA as `rdma_ctl status` reports it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RdmaSwitch {
    /// RDMA is on.
    Enabled,
    /// RDMA is off.
    Disabled,
    /// There is no `rdma_ctl`: this version of macOS is too old.
    Missing,
    /// Unknown output, or none.
    #[default]
    Unknown,
}

/// A network bridge and its member interfaces.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Bridge {
    /// Name, such as `bridge0`.
    pub name: String,
    /// Member interfaces, such as `en1`, `en2`.
    pub members: Vec<String>,
}

/// A TCP port in use.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct ListeningPort {
    /// The port.
    pub port: u16,
    /// Process that listens, if that is known.
    pub pid: Option<u32>,
    /// Program of that process.
    pub program: Option<String>,
}

/// A running program.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Process id of the parent; 1 once the parent is gone.
    pub parent_pid: u32,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Command line, truncated.
    pub command: String,
}

/// Sleep settings of a machine, and the programs that override them.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Power {
    /// Minutes until the system sleeps; 0 means never.
    pub sleep_minutes: Option<u32>,
    /// Minutes until the display sleeps; 0 means never.
    pub display_sleep_minutes: Option<u32>,
    /// Programs that keep the system awake.
    pub awake_by: Vec<String>,
    /// Programs that keep the display awake.
    pub display_awake_by: Vec<String>,
}

impl NodeReport {
    /// Returns all addresses except loopback, each with the name of its interface.
    pub fn addrs(&self) -> impl Iterator<Item = (&str, InterfaceAddr)> {
        let interfaces = self.facts.interfaces.iter();
        let all = interfaces.flat_map(|it| it.addrs.iter().map(|addr| (it.name.as_str(), *addr)));
        all.filter(|(_, addr)| !addr.ip.is_loopback())
    }

    /// Returns the name of the interface with this address.
    pub fn interface_of(&self, ip: IpAddr) -> Option<&str> {
        self.addrs().find(|(_, addr)| addr.ip == ip).map(|(name, _)| name)
    }

    /// Returns the default route of IPv4.
    pub fn default_route(&self) -> Option<&Route> {
        self.routes.iter().find(|route| route.to.prefix_len == 0 && route.to.ip.is_ipv4())
    }
}

impl MacReport {
    /// Returns the RDMA device of this name.
    pub fn rdma_device(&self, name: &str) -> Option<&RdmaDevice> {
        self.rdma_devices.iter().flatten().find(|device| device.name == name)
    }

    /// Returns the name of the bridge that an interface belongs to.
    pub fn bridge_of(&self, interface: &str) -> Option<&str> {
        let holds = |bridge: &&Bridge| bridge.members.iter().any(|it| it == interface);
        self.bridges.iter().find(holds).map(|bridge| bridge.name.as_str())
    }

    /// Returns the network interface of the Thunderbolt port in a receptacle.
    pub fn interface_of_receptacle(&self, receptacle: u32) -> Option<&str> {
        let name = format!("Thunderbolt {receptacle}");
        let port = self.hardware_ports.iter().find(|port| port.name == name);
        port.map(|port| port.interface.as_str())
    }

    /// Returns the newest Thunderbolt generation among the Mac's ports.
    pub fn generation(&self) -> Option<ThunderboltGeneration> {
        self.thunderbolt.iter().filter_map(|port| port.generation).max()
    }

    /// Returns true for the one port of a Mac Studio that does not support RDMA: the one next to
    /// Ethernet. See <https://github.com/exo-explore/exo/pull/1543>.
    pub fn is_unusable_for_rdma(&self, interface: &str) -> bool {
        self.product == "Mac Studio" && interface == "en2"
    }
}
