//! All checks: first machine by machine, then of all machines together.

mod hostfile;
mod machine;
mod model;
mod network;
mod programs;
mod rdma;
mod reach;
mod together;

use std::net::IpAddr;

use jackalope_fleet::hostfile::{Host, Hostfile};
use jackalope_protocol::Backend;

use super::{Examination, ExaminedNode, Finding, Ping};
use crate::autoconfig::{Cabling, ReportedMachine};
use crate::report::NodeReport;

/// Everything that a check of one machine may use.
struct Scene<'a> {
    hostfile: Option<&'a Hostfile>,
    nodes: &'a [ExaminedNode],
    model: Option<&'a str>,
    /// Pings sent from this machine.
    here: &'a [Ping],
    /// Broken links that the server of this machine reports, each described in a sentence.
    broken_links: &'a [String],
    /// Names of all machines, separated by commas as `--hosts` expects them.
    hosts: String,
    /// True if the hostfile asks for RDMA.
    wants_rdma: bool,
    /// Cables between the machines that reported.
    cabling: Cabling,
}

/// A machine that reported.
#[derive(Clone, Copy)]
struct CheckedMachine<'a> {
    name: &'a str,
    report: &'a NodeReport,
}

impl<'a> Scene<'a> {
    fn new(examination: &Examination<'a>) -> Scene<'a> {
        let Examination { hostfile, nodes, model, here, broken_links } = *examination;
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let names_rdma = |file: &Hostfile| file.hosts.iter().any(|host| !host.rdma.is_empty());
        let wants_rdma = hostfile.is_some_and(|file| match file.backend {
            Some(backend) => backend == Backend::Jaccl,
            None => names_rdma(file),
        });
        let mut scene = Scene {
            hostfile,
            nodes,
            model,
            here,
            broken_links,
            hosts: names.join(","),
            wants_rdma,
            cabling: Cabling::default(),
        };
        let members: Vec<ReportedMachine<'_>> = scene
            .machines()
            .map(|it| ReportedMachine { name: it.name, report: it.report })
            .collect();
        scene.cabling = Cabling::of(&members);
        scene
    }

    /// Returns the machines that reported, in their order.
    fn machines(&self) -> impl Iterator<Item = CheckedMachine<'a>> + use<'a> {
        self.nodes.iter().filter_map(|node| {
            Some(CheckedMachine { name: &node.name, report: node.report.as_ref().ok()? })
        })
    }

    /// Returns the hostfile's entries for a machine, with their ranks.
    fn entries(&self, name: &str) -> impl Iterator<Item = (usize, &'a Host)> {
        let hosts = self.hostfile.map_or(&[][..], |file| &file.hosts[..]);
        hosts.iter().enumerate().filter(move |(_, host)| host.name() == name)
    }

    /// Returns the machine's addresses in the hostfile.
    fn ips(&self, name: &str) -> Vec<IpAddr> {
        let mut ips: Vec<IpAddr> =
            self.entries(name).flat_map(|(_, host)| host.ips.iter().copied()).collect();
        ips.dedup();
        ips
    }
}

/// Runs all checks.
pub(super) fn all(examination: &Examination<'_>) -> Vec<Finding> {
    let scene = Scene::new(examination);
    let mut findings = Vec::new();
    for node in scene.nodes {
        match &node.report {
            Err(err) => findings.push(reach::failed(&scene, &node.name, err)),
            Ok(report) => {
                let machine = CheckedMachine { name: &node.name, report };
                reach::answers(&scene, node, machine, &mut findings);
                machine::check(machine, &mut findings);
                programs::check(machine, &mut findings);
                rdma::check(&scene, machine, &mut findings);
                network::check(&scene, machine, &mut findings);
                hostfile::check(&scene, machine, &mut findings);
                model::check(&scene, node, &mut findings);
            }
        }
    }
    together::check(&scene, &mut findings);
    findings
}

/// Formats a size in GiB.
fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests;
