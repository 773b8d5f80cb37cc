//! Parsers of a machine's report, one module for each operating system. Both compile and are tested
//! everywhere.

mod linux;
mod macos;
mod posix;

use std::io;
use std::time::Duration;

use jackalope_fleet::facts::{Sections, ToolEnding};
use jackalope_fleet::platform::facts_of;
use jackalope_fleet::process::output_of;

use crate::report::{NodeReport, OwnProgram, RdmaDevice};

/// Returns the RDMA devices of this machine; empty if `ibv_devinfo` is not installed.
///
/// # Errors
/// If `ibv_devinfo` fails, or takes longer than `timeout`.
pub fn rdma_devices(timeout: Duration) -> io::Result<Vec<RdmaDevice>> {
    match output_of("ibv_devinfo", &["-v"], timeout) {
        Ok(text) => Ok(parse_rdma_devices(&text)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(err) => Err(err),
    }
}

/// Parses the output of `ibv_devinfo -v`.
pub fn parse_rdma_devices(ibv_devinfo: &str) -> Vec<RdmaDevice> {
    macos::rdma::devices("", ibv_devinfo)
}

/// Parses all sections of a machine's report.
pub fn report_of(sections: &Sections) -> NodeReport {
    let mut report = NodeReport { facts: facts_of(sections), ..NodeReport::default() };
    report.programs = OwnProgram::parse_all(sections.any_text("programs"));
    report.engines = posix::engines(sections.any_text("engines"));
    report.disk_free_bytes = posix::disk_free(sections.text("disk"));
    report.jackalope = posix::jackalope_version(sections.text("jackalope"));
    report.mlx = posix::mlx_version(sections.text("mlx"));
    for (name, section) in sections.iter() {
        match &section.ending {
            // A program that is not installed is reported in its own field.
            ToolEnding::Missing(tool) if !tool.contains('/') => {
                report.missing_tools.push(tool.clone())
            }
            ToolEnding::Stuck | ToolEnding::CutOff => report.stuck_tools.push(name.to_owned()),
            _ => {}
        }
    }
    report.missing_tools.dedup();
    if sections.text("uname").starts_with("Darwin") {
        macos::add_report(sections, &mut report)
    } else {
        linux::add_report(sections, &mut report)
    }
    report
}
