//! Checks the requirements between the entries of a hostfile.

use std::collections::BTreeMap;

use jackalope_protocol::Backend;

use super::error::{DevicesNeededBy, Fault};
use super::read::{Found, RawFile, RawHost, Row};
use super::{Host, Hostfile, HostfileShape};
use crate::shell::is_here;

/// Collects the faults, and combines the parts into a hostfile.
pub(super) fn check(file: RawFile, found: &mut Vec<Found>) -> Hostfile {
    devices(&file, found);
    connections(&file.hosts, found);
    rank_zero(&file, found);
    let hosts = file.hosts.into_iter().map(host).collect();
    Hostfile { backend: file.backend, envs: file.envs, hosts }
}

fn host(raw: RawHost) -> Host {
    let rdma = raw.rdma.map(|row| row.it.into_iter().map(|cell| cell.it).collect());
    Host {
        ssh: raw.ssh,
        ips: raw.ips,
        rdma: rdma.unwrap_or_default(),
        listen: raw.listen.into_iter().map(|listen| listen.it).collect(),
    }
}

fn devices(file: &RawFile, found: &mut Vec<Found>) {
    let hosts = &file.hosts;
    let has_devices = hosts.iter().any(|host| host.rdma.is_some());
    let needed_by = match file.backend {
        _ if has_devices => Some(DevicesNeededBy::OtherHosts),
        Some(Backend::Jaccl) => Some(DevicesNeededBy::Backend(Backend::Jaccl)),
        _ => None,
    };
    for (rank, host) in hosts.iter().enumerate() {
        match (&host.rdma, needed_by) {
            (Some(row), _) => device_row(rank, row, hosts, found),
            (None, Some(needed_by)) => {
                let fault = Fault::DevicesMissing { needed_by };
                found.push(Found { at: host.at, entry: host.entry.clone(), fault });
            }
            (None, None) => {}
        }
    }
}

fn device_row(rank: usize, row: &Row, hosts: &[RawHost], found: &mut Vec<Found>) {
    let host = &hosts[rank];
    if row.it.len() != hosts.len() {
        let fault = Fault::DeviceCount { found: row.it.len(), expected: hosts.len() };
        found.push(Found { at: row.at, entry: host.rdma_entry.clone(), fault });
        return;
    }
    for (to, cell) in row.it.iter().enumerate() {
        let there = || hosts[to].rdma.as_ref()?.it.get(rank);
        let fault = match (to == rank, cell.it.first()) {
            (true, Some(device)) => Fault::OwnDevice { found: device.clone() },
            (true, None) => continue,
            (false, _) => match there() {
                // The longer list counts as right, because users do not name a cable that does not
                // exist.
                Some(there) if cell.it.len() < there.it.len() => Fault::OneWay {
                    to,
                    here: cell.it.len(),
                    there: there.it.len(),
                    back: format!("{}[{rank}]", hosts[to].rdma_entry),
                },
                _ => continue,
            },
        };
        let entry = format!("{}[{to}]", host.rdma_entry);
        found.push(Found { at: cell.at, entry, fault });
    }
}

fn connections(hosts: &[RawHost], found: &mut Vec<Found>) {
    let mut taken = BTreeMap::new();
    for host in hosts {
        for (idx, listen) in host.listen.iter().enumerate() {
            let entry = match host.listen.len() {
                1 => host.entry.clone(),
                _ => format!("{}[{idx}]", host.entry),
            };
            let first = taken.entry(listen.it.to_string()).or_insert_with(|| entry.clone());
            if *first != entry {
                let (listen_text, first) = (listen.it.to_string(), first.clone());
                let fault = Fault::DuplicateListen { listen: listen_text, first };
                found.push(Found { at: listen.at, entry, fault });
            }
        }
    }
    let Some(first) = hosts.iter().find(|host| !host.listen.is_empty()) else { return };
    for host in hosts.iter().filter(|host| host.listen.len() != first.listen.len()) {
        let fault = Fault::ConnectionCount {
            found: host.listen.len(),
            expected: first.listen.len(),
            first: first.entry.clone(),
        };
        found.push(Found { at: host.at, entry: host.entry.clone(), fault });
    }
}

/// Checks that the other machines can reach rank 0.
fn rank_zero(file: &RawFile, found: &mut Vec<Found>) {
    if !matches!(file.shape, HostfileShape::Array | HostfileShape::Object) {
        return;
    }
    let Some((first, others)) = file.hosts.split_first() else { return };
    let is_elsewhere = |other: &RawHost| {
        !other.ssh.is_empty()
            && other.ssh != first.ssh
            && !(is_here(&other.ssh) && is_here(&first.ssh))
    };
    let is_reachable = first.ips.iter().any(|ip| !ip.is_loopback() && !ip.is_unspecified());
    if !is_reachable && others.iter().any(is_elsewhere) {
        let fault = Fault::RankZeroUnreachable;
        found.push(Found { at: first.at, entry: first.entry.clone(), fault });
    }
}
