//! Derives a hostfile from cables: which port of which Mac leads where, which transport the ranks
//! should use, which addresses the cables need, and the commands that set them, each with its undo.
//! Pure: the reports go in, a [`Plan`] comes out, and only the caller runs anything.
//!
//! ```text
//!   reports ─▶ cabling ─▶ shape ─▶ choice of backend
//!                 └─────▶ subnets ─▶ steps ─▶ hostfile
//! ```

mod apply;
mod cabling;
mod choice;
mod drawing;
#[cfg(test)]
pub(crate) mod lab;
mod shape;
mod steps;
mod subnets;
mod write;

use std::net::IpAddr;

use jackalope_protocol::Backend;
use thiserror::Error;

pub use apply::{ApplyError, Undo, apply, run_as_root, verify};
pub use cabling::{Cable, CabledHost, Cabling, End};
pub use choice::Choice;
pub use drawing::{dot, terminal};
pub use shape::CablingShape;
pub use steps::{AssignedAddress, PingCheck, Step};
pub use write::hostfile_json;

use jackalope_fleet::hostfile::Hostfile;

use crate::report::NodeReport;

/// Network that ranks use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Over {
    /// Thunderbolt cables, with addresses that the plan assigns.
    Thunderbolt,
    /// The network that leads to the Internet, as it is configured.
    Ethernet,
}

/// The commands to run, and the cluster that results.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which port leads where.
    pub cabling: Cabling,
    /// The chosen transport, and why.
    pub choice: Choice,
    /// Commands in the order in which to run them; empty if nothing needs to change.
    pub steps: Vec<Step>,
    /// Pings that must be answered afterwards.
    pub checks: Vec<PingCheck>,
    /// Addresses of the cables once the commands have run.
    pub given: Vec<AssignedAddress>,
    /// Connections that the commands may break.
    pub risks: Vec<String>,
    /// Hostfile with the machines of the ranks.
    pub hostfile: Hostfile,
}

/// Reason why no plan is possible.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum PlanError {
    /// The machine has no address that other ranks could connect to.
    #[error("{host} has no address that others could reach")]
    NoAddress {
        /// The machine.
        host: String,
    },
    /// All networks from the range used for cables are taken.
    #[error("no free network is left for the cables")]
    NoNetwork,
}

/// A machine and its report.
#[derive(Clone, Copy, Debug)]
pub struct ReportedMachine<'a> {
    /// Name of the machine, as given to `ssh`.
    pub name: &'a str,
    /// Report of the machine.
    pub report: &'a NodeReport,
}

impl Plan {
    /// Makes a plan for these machines. `wanted` is the transport that the user asked for, if any.
    ///
    /// # Errors
    /// [`PlanError`] if no hostfile could work.
    pub fn new(
        members: &[ReportedMachine<'_>],
        over: Over,
        wanted: Option<Backend>,
    ) -> Result<Plan, PlanError> {
        Plan::again(members, over, wanted, &[])
    }

    /// Like [`Plan::new`], but gives cables that have lost their addresses the ones that they had
    /// `before`, so that existing hostfiles stay valid.
    ///
    /// # Errors
    /// [`PlanError`] if no hostfile could work.
    pub fn again(
        members: &[ReportedMachine<'_>],
        over: Over,
        wanted: Option<Backend>,
        before: &[AssignedAddress],
    ) -> Result<Plan, PlanError> {
        let cabling = Cabling::of(members);
        if over == Over::Ethernet {
            let choice = Choice::over_ethernet(members.len(), wanted);
            let hostfile = write::over_ethernet(members, &choice)?;
            let (steps, checks, risks) = (Vec::new(), Vec::new(), Vec::new());
            let given = Vec::new();
            return Ok(Plan { cabling, choice, steps, checks, given, risks, hostfile });
        }
        let choice = Choice::new(members, &cabling, wanted);
        let links = steps::links(members, &cabling, before)?;
        let (steps, checks) = (steps::steps(members, &links), steps::checks(members, &links));
        let hostfile = write::over_cables(members, &choice, &links)?;
        let (risks, given) = (steps::risks(members, &steps), steps::given(members, &links));
        Ok(Plan { cabling, choice, steps, checks, given, risks, hostfile })
    }
}

/// Returns the machine's IPv4 address on the network that leads to the Internet, or else any other
/// one that is neither link-local nor on a cable.
pub(crate) fn lan_ip(report: &NodeReport) -> Option<IpAddr> {
    let usable = |ip: IpAddr| matches!(ip, IpAddr::V4(ip) if !ip.is_link_local());
    let cables = cable_interfaces(report);
    let way_out = report.default_route().map(|route| route.interface.as_str());
    let mut all: Vec<(&str, IpAddr)> = report
        .addrs()
        .map(|(name, addr)| (name, addr.ip))
        .filter(|(name, ip)| usable(*ip) && !cables.contains(name))
        .collect();
    all.sort_by_key(|(name, _)| (way_out != Some(*name), !matches!(*name, "en0" | "en1")));
    all.first().map(|(_, ip)| *ip)
}

/// Returns the network interfaces of a Mac's own Thunderbolt ports.
pub(crate) fn cable_interfaces(report: &NodeReport) -> Vec<&str> {
    let ports = report.mac.iter().flat_map(|mac| &mac.hardware_ports);
    let numbered = ports.filter(|port| {
        let number = port.name.strip_prefix("Thunderbolt ");
        number.is_some_and(|it| it.bytes().all(|byte| byte.is_ascii_digit()))
    });
    numbered.map(|port| port.interface.as_str()).collect()
}

#[cfg(test)]
mod tests;
