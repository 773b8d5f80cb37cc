//! From cables to a hostfile: which port of which Mac leads where, what the ranks should talk over,
//! which addresses the cables need, and the commands that give them, each with its undo. Pure: the
//! reports go in, a [`Plan`] comes out, and only the caller runs anything.
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
pub use shape::Shape;
pub use steps::{Check, Given, Step};
pub use write::hostfile_json;

use crate::hostfile::Hostfile;
use crate::report::NodeReport;

/// What ranks talk over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Over {
    /// Thunderbolt cables, with addresses given here.
    Thunderbolt,
    /// The network that leads to the internet, as it is.
    Ethernet,
}

/// What to do, and what comes of it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which port leads where.
    pub cabling: Cabling,
    /// The transport and why.
    pub choice: Choice,
    /// Commands in the order to run them; none if all is as it should be.
    pub steps: Vec<Step>,
    /// What must answer afterwards.
    pub checks: Vec<Check>,
    /// The addresses that the cables have, once the commands have run.
    pub given: Vec<Given>,
    /// What the commands may break.
    pub risks: Vec<String>,
    /// The machines for the ranks.
    pub hostfile: Hostfile,
}

/// No plan is possible.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum PlanError {
    /// Ranks could not be told where to find this machine.
    #[error("{host} has no address that others could reach")]
    NoAddress {
        /// The machine.
        host: String,
    },
    /// All networks of the kind used for cables are taken.
    #[error("no free network is left for the cables")]
    NoNetwork,
}

/// A machine and its report.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// What `ssh` is given.
    pub name: &'a str,
    /// What it told.
    pub report: &'a NodeReport,
}

impl Plan {
    /// Plans for these machines. `wanted` is the transport asked for, if any.
    ///
    /// # Errors
    /// [`PlanError`] if no hostfile could work.
    pub fn new(
        members: &[Member<'_>],
        over: Over,
        wanted: Option<Backend>,
    ) -> Result<Plan, PlanError> {
        Plan::again(members, (over, wanted), &[])
    }

    /// As [`Plan::new`]. Cables that have lost their addresses get those that they were given before, so
    /// that hostfiles stay right.
    ///
    /// # Errors
    /// [`PlanError`] if no hostfile could work.
    pub fn again(
        members: &[Member<'_>],
        (over, wanted): (Over, Option<Backend>),
        before: &[Given],
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

/// The address of a machine on the network that leads to the internet, else any that others may
/// reach.
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

/// The network interfaces of a Mac's own Thunderbolt ports.
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
