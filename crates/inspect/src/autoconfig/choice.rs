//! Chooses the transport that the cables allow, and lists what is missing for a better one.

use jackalope_protocol::Backend;

use super::{Cabling, CablingShape, ReportedMachine};
use crate::report::{RdmaSwitch, ThunderboltGeneration};

/// First version of macOS that supports RDMA.
const RDMA_SINCE: (u32, u32) = (26, 2);

/// The chosen transport, and the reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Shape that the cables form.
    pub shape: CablingShape,
    /// The transport.
    pub backend: Backend,
    /// Positions of the machines, in the order of ranks.
    pub order: Vec<usize>,
    /// Reasons why the choice is not the requested transport, or not the fastest one.
    pub because: Vec<String>,
    /// Cables that would allow a better transport.
    pub missing: Vec<String>,
    /// Whether `backend` is the requested transport, or none was requested.
    pub is_as_wanted: bool,
}

impl Choice {
    /// Chooses the best transport that the cables allow.
    pub(super) fn new(
        members: &[ReportedMachine<'_>],
        cabling: &Cabling,
        wanted: Option<Backend>,
    ) -> Choice {
        let shape = CablingShape::of(cabling);
        let obstacles = rdma_obstacles(members, cabling);
        let best = match &shape {
            CablingShape::Mesh if obstacles.is_empty() => Backend::Jaccl,
            CablingShape::Ring(_) => Backend::Ring,
            _ => Backend::Tcp,
        };
        let is_possible = |backend| match backend {
            Backend::Tcp => true,
            Backend::Ring => matches!(shape, CablingShape::Mesh | CablingShape::Ring(_)),
            Backend::Jaccl => matches!(shape, CablingShape::Mesh) && obstacles.is_empty(),
            Backend::Nccl => false,
        };
        let is_as_wanted = wanted.is_none_or(is_possible);
        let backend = wanted.filter(|it| is_possible(*it)).unwrap_or(best);
        let mut because = Vec::new();
        let mut missing = Vec::new();
        if backend != Backend::Jaccl
            && wanted.is_none_or(|it| it == Backend::Jaccl || !is_as_wanted)
        {
            if shape != CablingShape::Mesh {
                because.push(format!("RDMA needs a full mesh, the cables form {}", shape.name()));
                missing = missing_cables(cabling);
            }
            because.extend(obstacles);
        }
        let order = match &shape {
            CablingShape::Ring(order) | CablingShape::Chain(order) => order.clone(),
            _ => (0..cabling.hosts.len()).collect(),
        };
        Choice { shape, backend, order, because, missing, is_as_wanted }
    }

    /// Chooses the transport over the existing network.
    pub(super) fn over_ethernet(num_hosts: usize, wanted: Option<Backend>) -> Choice {
        let backend = wanted.filter(|it| matches!(it, Backend::Tcp | Backend::Ring));
        let is_as_wanted = wanted.is_none() || backend.is_some();
        let because = if is_as_wanted {
            Vec::new()
        } else {
            vec!["RDMA and NCCL do not go over Ethernet here".to_owned()]
        };
        Choice {
            shape: if num_hosts <= 1 { CablingShape::Alone } else { CablingShape::Mesh },
            backend: backend.unwrap_or(Backend::Tcp),
            order: (0..num_hosts).collect(),
            because,
            missing: Vec::new(),
            is_as_wanted,
        }
    }
}

/// Returns the cables that a full mesh lacks, with free ports for them if there are any.
fn missing_cables(cabling: &Cabling) -> Vec<String> {
    let mut used = vec![0; cabling.hosts.len()];
    let mut end = |host_idx: usize| {
        let name = &cabling.hosts[host_idx].name;
        let port = cabling.free_ports(host_idx).nth(used[host_idx]);
        used[host_idx] += 1;
        match port {
            Some(port) => format!("{name} (port {})", port.receptacle),
            None => format!("{name} (no free port)"),
        }
    };
    let pairs = cabling.missing_pairs();
    pairs.into_iter().map(|(a, b)| format!("{} to {}", end(a), end(b))).collect()
}

/// Returns what prevents RDMA on the machines, whatever shape the cables form.
fn rdma_obstacles(members: &[ReportedMachine<'_>], cabling: &Cabling) -> Vec<String> {
    let mut all = Vec::new();
    for (host_idx, member) in members.iter().enumerate() {
        let name = member.name;
        let Some(mac) = &member.report.mac else {
            all.push(format!("{name} is no Mac"));
            continue;
        };
        let (major, minor) = RDMA_SINCE;
        if mac.version.is_none_or(|it| !it.is_at_least(major, minor)) {
            all.push(format!("{name} runs {}, RDMA needs 26.2", member.report.facts.os));
        }
        if cabling.hosts[host_idx].generation == Some(ThunderboltGeneration::Four) {
            all.push(format!("{name} has Thunderbolt 4, RDMA needs Thunderbolt 5"));
            continue;
        }
        if mac.rdma != RdmaSwitch::Enabled {
            all.push(format!("RDMA is not switched on at {name} (see rdma-disabled)"));
            continue;
        }
        let ends = cabling.cables.iter().filter_map(|cable| cable.end_on(host_idx));
        for end in ends {
            let Some(interface) = cabling.interface(end) else { continue };
            let receptacle = cabling.port(end).receptacle;
            if mac.is_unusable_for_rdma(interface) {
                all.push(format!("port {receptacle} of {name} has no RDMA (see studio-port)"));
            } else if mac.rdma_device(&format!("rdma_{interface}")).is_none() {
                all.push(format!("{name} has no device rdma_{interface} (see rdma-no-devices)"));
            }
        }
    }
    all
}
