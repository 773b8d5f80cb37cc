//! The parts that depend on the operating system. Both modules compile and are tested everywhere:
//! they run commands and parse text. `current` is the one of this system; a report from another
//! machine is parsed by the module of the system that it names.

mod chips;
pub mod linux;
pub mod macos;
mod posix;
mod pressure;

#[cfg(not(target_os = "macos"))]
pub use linux as current;
#[cfg(target_os = "macos")]
pub use macos as current;

pub use chips::memory_bytes_per_s;
pub use pressure::{MemoryPressure, PressureLimits};

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::facts::NodeFacts;
use crate::probe::{Ending, Sections};
use crate::process::output_of;
use crate::report::{NodeReport, OwnProgram, RdmaDevice};

/// A machine's memory, in bytes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MachineMemory {
    /// Installed memory.
    pub total_bytes: u64,
    /// Memory that a program can allocate now without evicting others.
    pub free_bytes: u64,
}

/// Parses the first number of a load average, and returns it in percent of the cores.
fn load_percent(text: &str, cores: u32) -> Option<u32> {
    let load: f64 = text.split_whitespace().next()?.replace(',', ".").parse().ok()?;
    (0 < cores).then(|| (load * 100.0 / f64::from(cores)).round() as u32)
}

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

/// Parses a machine's facts, whatever its system.
pub fn facts_of(sections: &Sections) -> NodeFacts {
    let facts = match sections.text("uname").starts_with("Darwin") {
        true => macos::facts_of(sections),
        false => linux::facts_of(sections),
    };
    let hostname = sections.text("hostname").trim();
    NodeFacts { hostname: hostname.to_owned(), ..facts }
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
            Ending::Missing(tool) if !tool.contains('/') => report.missing_tools.push(tool.clone()),
            Ending::Stuck | Ending::CutOff => report.stuck_tools.push(name.to_owned()),
            _ => {}
        }
    }
    report.missing_tools.dedup();
    match sections.text("uname").starts_with("Darwin") {
        true => macos::add_report(sections, &mut report),
        false => linux::add_report(sections, &mut report),
    }
    report
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_machine_tells_its_facts() {
        let facts = super::current::facts();
        assert!(0 < facts.cores && 0 < facts.free_bytes, "{facts:?}");
        assert!(facts.free_bytes <= facts.total_bytes, "{facts:?}");
        assert!(!facts.os.is_empty() && !facts.arch.is_empty(), "{facts:?}");
        assert!(facts.interfaces.iter().any(|it| !it.addrs.is_empty()), "{facts:?}");
    }
}
