//! What is looked at, machine by machine, then with all of them.

mod hostfile;
mod machine;
mod model;
mod network;
mod programs;
mod rdma;
mod reach;
mod together;

use std::net::IpAddr;

use super::{Examination, Finding, Node, Ping};
use crate::autoconfig::{Cabling, Member};
use crate::hostfile::{Host, Hostfile};
use crate::report::NodeReport;
use jackalope_protocol::Backend;

/// What the checks know beside the machine they look at.
struct Scene<'a> {
    hostfile: Option<&'a Hostfile>,
    nodes: &'a [Node],
    model: Option<&'a str>,
    /// Pings from this machine.
    here: &'a [Ping],
    /// What this machine's server knows.
    broken_links: &'a [String],
    /// All machines' names with commas, as `--hosts` takes them.
    hosts: String,
    /// True if the hostfile means RDMA to be used.
    wants_rdma: bool,
    /// The cables between the machines that told.
    cabling: Cabling,
}

/// A machine that told.
#[derive(Clone, Copy)]
struct Told<'a> {
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
        let members: Vec<Member<'_>> =
            scene.told().map(|it| Member { name: it.name, report: it.report }).collect();
        scene.cabling = Cabling::of(&members);
        scene
    }

    /// The machines that told, in their order.
    fn told(&self) -> impl Iterator<Item = Told<'a>> + use<'a> {
        self.nodes
            .iter()
            .filter_map(|node| Some(Told { name: &node.name, report: node.report.as_ref().ok()? }))
    }

    /// The entries of the hostfile that mean a machine, with their ranks.
    fn entries(&self, name: &str) -> impl Iterator<Item = (usize, &'a Host)> {
        let hosts = self.hostfile.map_or(&[][..], |file| &file.hosts[..]);
        hosts.iter().enumerate().filter(move |(_, host)| host.name() == name)
    }

    /// The addresses that the hostfile gives a machine.
    fn ips(&self, name: &str) -> Vec<IpAddr> {
        let mut ips: Vec<IpAddr> =
            self.entries(name).flat_map(|(_, host)| host.ips.iter().copied()).collect();
        ips.dedup();
        ips
    }
}

/// Looks at everything.
pub(super) fn all(examination: &Examination<'_>) -> Vec<Finding> {
    let scene = Scene::new(examination);
    let mut findings = Vec::new();
    for node in scene.nodes {
        match &node.report {
            Err(err) => findings.push(reach::failed(&scene, &node.name, err)),
            Ok(report) => {
                let told = Told { name: &node.name, report };
                reach::answers(&scene, node, told, &mut findings);
                machine::check(told, &mut findings);
                programs::check(told, &mut findings);
                rdma::check(&scene, told, &mut findings);
                network::check(&scene, told, &mut findings);
                hostfile::check(&scene, told, &mut findings);
                model::check(&scene, node, &mut findings);
            }
        }
    }
    together::check(&scene, &mut findings);
    findings
}

/// Bytes as people say them.
fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests;
