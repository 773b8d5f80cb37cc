//! Determines which Thunderbolt port of which Mac is connected to which other. Each port of a Mac
//! has a domain UUID and reports that of the port at the other end.

use super::ReportedMachine;
use crate::report::{ThunderboltGeneration, ThunderboltPort};

/// Machines and the cables between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cabling {
    /// The machines, in the order given.
    pub hosts: Vec<CabledHost>,
    /// Cables between two of the machines.
    pub cables: Vec<Cable>,
}

/// A machine and its Thunderbolt ports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CabledHost {
    /// Name of the machine, as given to `ssh`.
    pub name: String,
    /// Description: `Mac Studio, Apple M3 Ultra, macOS 26.3 (25D125)`.
    pub about: String,
    /// Thunderbolt ports of the machine, in the order of their receptacles.
    pub ports: Vec<ThunderboltPort>,
    /// Interfaces that do not support RDMA.
    pub without_rdma: Vec<String>,
    /// Newest Thunderbolt generation of the machine's ports, if known.
    pub generation: Option<ThunderboltGeneration>,
}

/// A cable between two machines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cable {
    /// Ends of the cable; the first one is on the machine with the lower position.
    pub ends: [End; 2],
    /// Speed of the link in bits per second, if the ports report it.
    pub bits_per_s: Option<u64>,
}

/// One end of a cable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct End {
    /// Position in [`Cabling::hosts`].
    pub host_idx: usize,
    /// Position in [`CabledHost::ports`].
    pub port_idx: usize,
}

impl Cabling {
    /// Finds the cables from the machines' reports.
    pub fn of(members: &[ReportedMachine<'_>]) -> Cabling {
        let hosts: Vec<CabledHost> = members.iter().map(CabledHost::of).collect();
        let ends: Vec<End> = (0..hosts.len())
            .flat_map(|host_idx| {
                let num_ports = hosts[host_idx].ports.len();
                (0..num_ports).map(move |port_idx| End { host_idx, port_idx })
            })
            .collect();
        let port = |end: End| &hosts[end.host_idx].ports[end.port_idx];
        let mut cables: Vec<Cable> = Vec::new();
        for &end in &ends {
            let peer_uuid = port(end).peer_uuid.as_deref();
            let peer = ends.iter().find(|it| Some(port(**it).domain_uuid.as_str()) == peer_uuid);
            let Some(&peer) = peer.filter(|it| it.host_idx != end.host_idx) else { continue };
            let ends = if end.host_idx < peer.host_idx { [end, peer] } else { [peer, end] };
            if !cables.iter().any(|it| it.ends == ends) {
                let speeds = ends.iter().filter_map(|it| port(*it).link_bits_per_s);
                cables.push(Cable { ends, bits_per_s: speeds.min() });
            }
        }
        cables.sort_by_key(|it| it.ends.map(|end| (end.host_idx, end.port_idx)));
        Cabling { hosts, cables }
    }

    /// Returns the port at an end.
    pub fn port(&self, end: End) -> &ThunderboltPort {
        &self.hosts[end.host_idx].ports[end.port_idx]
    }

    /// Returns the network interface at an end.
    pub fn interface(&self, end: End) -> Option<&str> {
        self.port(end).interface.as_deref()
    }

    /// Returns the cables between two machines.
    pub fn between(&self, a: usize, b: usize) -> impl Iterator<Item = &Cable> {
        let wanted = [a.min(b), a.max(b)];
        self.cables.iter().filter(move |cable| cable.ends.map(|end| end.host_idx) == wanted)
    }

    /// Returns true if a cable connects two machines.
    pub fn joins(&self, a: usize, b: usize) -> bool {
        self.between(a, b).next().is_some()
    }

    /// Returns the pairs of machines without a cable.
    pub fn missing_pairs(&self) -> Vec<(usize, usize)> {
        let pairs = (0..self.hosts.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
        let mut missing: Vec<(usize, usize)> = pairs.filter(|&(a, b)| !self.joins(a, b)).collect();
        missing.sort_unstable();
        missing
    }

    /// Returns the ports that are free and support RDMA.
    pub fn free_ports(&self, host_idx: usize) -> impl Iterator<Item = &ThunderboltPort> {
        let host = &self.hosts[host_idx];
        let free = host.ports.iter().filter(|it| it.attached.is_none());
        free.filter(|it| it.interface.as_ref().is_none_or(|it| !host.without_rdma.contains(it)))
    }

    /// Returns the ports that lead to a computer that is none of these machines.
    pub fn strangers(&self) -> Vec<End> {
        let all = (0..self.hosts.len()).flat_map(|host_idx| {
            (0..self.hosts[host_idx].ports.len()).map(move |port_idx| End { host_idx, port_idx })
        });
        let leads_out = |end: &End| {
            let port = self.port(*end);
            port.peer_uuid.is_some() && !self.cables.iter().any(|it| it.ends.contains(end))
        };
        all.filter(leads_out).collect()
    }
}

impl CabledHost {
    fn of(member: &ReportedMachine<'_>) -> CabledHost {
        let facts = &member.report.facts;
        let Some(mac) = &member.report.mac else {
            let about = format!("{}, {}", facts.chip, facts.os);
            return CabledHost { name: member.name.to_owned(), about, ..CabledHost::default() };
        };
        let interfaces = mac.thunderbolt.iter().filter_map(|port| port.interface.clone());
        let product = if mac.product.is_empty() { &mac.model } else { &mac.product };
        CabledHost {
            name: member.name.to_owned(),
            about: format!("{product}, {}, {}", facts.chip, facts.os),
            ports: mac.thunderbolt.clone(),
            without_rdma: interfaces.filter(|it| mac.is_unusable_for_rdma(it)).collect(),
            generation: mac.generation().or_else(|| ThunderboltGeneration::of_chip(&facts.chip)),
        }
    }
}

impl Cable {
    /// Returns the cable's end on this machine; `None` if it has none.
    pub fn end_on(&self, host_idx: usize) -> Option<End> {
        self.ends.into_iter().find(|end| end.host_idx == host_idx)
    }

    /// Returns the cable's other end, seen from this machine; `None` if the machine has no end of
    /// it.
    pub fn end_facing(&self, host_idx: usize) -> Option<End> {
        let [a, b] = self.ends;
        match host_idx {
            it if it == a.host_idx => Some(b),
            it if it == b.host_idx => Some(a),
            _ => None,
        }
    }
}
