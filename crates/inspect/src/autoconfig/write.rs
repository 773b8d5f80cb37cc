//! Creates the hostfile of a plan.

use std::net::IpAddr;

use jackalope_fleet::hostfile::{Host, Hostfile, object_text};
use jackalope_protocol::Backend;

use super::steps::Link;
use super::{Choice, PlanError, ReportedMachine, lan_ip};

/// Creates the hostfile for ranks over the existing network.
pub(super) fn over_ethernet(
    members: &[ReportedMachine<'_>],
    choice: &Choice,
) -> Result<Hostfile, PlanError> {
    let hosts = members.iter().map(|member| {
        let ip = lan_ip(member.report).ok_or_else(|| no_address(member))?;
        Ok(Host { ssh: member.name.to_owned(), ips: vec![ip], ..Host::default() })
    });
    let hosts = hosts.collect::<Result<Vec<Host>, PlanError>>()?;
    Ok(Hostfile { backend: Some(choice.backend), envs: Vec::new(), hosts })
}

/// Creates the hostfile for ranks over cables, and over the network where there is no cable.
pub(super) fn over_cables(
    members: &[ReportedMachine<'_>],
    choice: &Choice,
    links: &[Link],
) -> Result<Hostfile, PlanError> {
    let order = &choice.order;
    let num_wires = num_wires(order, links);
    let hosts = order.iter().enumerate().map(|(rank, &host_idx)| {
        let member = &members[host_idx];
        let previous = order[(rank + order.len() - 1) % order.len()];
        let ips = match choice.backend {
            // In MLX's ring, a rank listens for the previous one.
            Backend::Ring => towards(links, host_idx, previous).take(num_wires).collect(),
            // The coordinator's address must be reachable by every machine.
            Backend::Jaccl | Backend::Nccl => lan_ip(member.report).into_iter().collect(),
            Backend::Tcp => {
                let cables = links.iter().filter_map(|it| Some(it.seen_from(host_idx)?.0.ip));
                cables.chain(lan_ip(member.report)).collect::<Vec<IpAddr>>()
            }
        };
        let is_coordinator = rank == 0 || choice.backend != Backend::Jaccl;
        if ips.is_empty() && is_coordinator {
            return Err(no_address(member));
        }
        let rdma = match choice.backend {
            Backend::Jaccl => {
                order.iter().map(|&peer| devices(links, host_idx, peer, num_wires)).collect()
            }
            _ => Vec::new(),
        };
        Ok(Host { ssh: member.name.to_owned(), ips, rdma, listen: Vec::new() })
    });
    let hosts = hosts.collect::<Result<Vec<Host>, PlanError>>()?;
    Ok(Hostfile { backend: Some(choice.backend), envs: Vec::new(), hosts })
}

fn no_address(member: &ReportedMachine<'_>) -> PlanError {
    PlanError::NoAddress { host: member.name.to_owned() }
}

/// Returns a machine's own addresses on the cables towards another one.
fn towards(links: &[Link], host_idx: usize, peer: usize) -> impl Iterator<Item = IpAddr> {
    let seen = links.iter().filter_map(move |link| link.seen_from(host_idx));
    seen.filter(move |(_, other)| other.host_idx == peer).map(|(own, _)| own.ip)
}

/// Returns a machine's own devices on the cables towards another one, in the order of the cables,
/// which is the same at both ends.
fn devices(links: &[Link], host_idx: usize, peer: usize, num_wires: usize) -> Vec<String> {
    let seen = links.iter().filter_map(|link| link.seen_from(host_idx));
    let facing = seen.filter(|(_, other)| other.host_idx == peer);
    facing.map(|(own, _)| format!("rdma_{}", own.interface)).take(num_wires).collect()
}

/// Returns the number of parallel cables that MLX can use: the smallest number between any two
/// machines that have a cable.
fn num_wires(order: &[usize], links: &[Link]) -> usize {
    let pairs = order.iter().flat_map(|&a| order.iter().map(move |&b| (a, b)));
    let counts = pairs.map(|(a, b)| towards(links, a, b).count()).filter(|it| *it != 0);
    counts.min().unwrap_or(1)
}

/// Formats a hostfile in the object form of MLX's launcher.
///
/// # Panics
/// If a host has neither a name for ssh nor an address.
pub fn hostfile_json(hostfile: &Hostfile) -> String {
    object_text(hostfile).expect("a machine that was looked at has a name")
}
