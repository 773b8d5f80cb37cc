//! The data that a diagnosis is based on.

use std::net::IpAddr;

use jackalope_fleet::hostfile::Hostfile;
use jackalope_fleet::shell::ShellError;

use crate::probe::{Echo, ModelFile};
use crate::report::NodeReport;

/// A machine and all data that was collected about it.
#[derive(Clone, Debug)]
pub struct ExaminedNode {
    /// Name of the machine, as given to `ssh`.
    pub name: String,
    /// The machine's report, or why there is none.
    pub report: Result<NodeReport, ShellError>,
    /// The files of the model's folder there. `None` if they were not requested, `Some(None)` if
    /// there is no such folder.
    pub model: Option<Option<Vec<ModelFile>>>,
    /// Results of the pings that the machine sent.
    pub echoes: Vec<Ping>,
}

/// A ping of another machine's address.
#[derive(Clone, Debug, PartialEq)]
pub struct Ping {
    /// The machine that was pinged.
    pub to: String,
    /// Address that was pinged.
    pub ip: IpAddr,
    /// Result of the ping.
    pub echo: Echo,
}

/// Everything that a diagnosis is based on.
#[derive(Clone, Copy, Debug)]
pub struct Examination<'a> {
    /// The machines as the hostfile describes them.
    pub hostfile: Option<&'a Hostfile>,
    /// The machines as they report themselves, each of them once.
    pub nodes: &'a [ExaminedNode],
    /// Folder of the model to run, if any.
    pub model: Option<&'a str>,
    /// Pings from this machine to machines that could not report.
    pub here: &'a [Ping],
    /// Broken links between machines that the server of this machine reports, each described in a
    /// sentence.
    pub broken_links: &'a [String],
}
