//! Checks that compare several machines.

use std::collections::{BTreeMap, BTreeSet};

use super::{CheckedMachine, Scene};
use crate::doctor::{Entry, Finding, Severity, catalogue};
use crate::probe::Echo;

pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let mac = |it: CheckedMachine<'_>| it.report.mac.as_ref().map(|_| it.report.facts.os.clone());
    findings.extend(differs(scene, &catalogue::OS_VERSIONS_DIFFER, mac));
    let jackalope = |it: CheckedMachine<'_>| it.report.jackalope.clone();
    findings.extend(differs(scene, &catalogue::VERSIONS_DIFFER, jackalope));
    let mlx = |it: CheckedMachine<'_>| it.report.mlx.clone();
    findings.extend(differs(scene, &catalogue::MLX_VERSIONS_DIFFER, mlx));
    bridge_loops(scene, findings);
    common_networks(scene, findings);
    let broken = |found: &String| Finding::of_all(&catalogue::LINK_BROKEN, found, &[]);
    findings.extend(scene.broken_links.iter().map(broken));
}

/// Reports the groups of machines if they differ in a property.
fn differs(
    scene: &Scene<'_>,
    entry: &'static Entry,
    version_of: impl Fn(CheckedMachine<'_>) -> Option<String>,
) -> Option<Finding> {
    let mut sides: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for machine in scene.machines() {
        if let Some(version) = version_of(machine) {
            sides.entry(version).or_default().push(machine.name);
        }
    }
    if sides.len() <= 1 {
        return None;
    }
    let found: Vec<String> =
        sides.iter().map(|(version, names)| format!("{}: {version}", names.join(", "))).collect();
    Some(Finding::of_all(entry, found.join("; "), &[]))
}

/// Reports loops of cables between bridges: a cable whose two ends are in bridges that are already
/// connected closes a loop.
fn bridge_loops(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let reports: Vec<CheckedMachine<'_>> = scene.machines().collect();
    let cabling = &scene.cabling;
    // Groups of connected bridges; a bridge is identified by its machine and name.
    let mut groups: Vec<BTreeSet<(usize, String)>> = Vec::new();
    for cable in &cabling.cables {
        let bridge = |end: crate::autoconfig::End| {
            let mac = reports[end.host_idx].report.mac.as_ref()?;
            let bridge = mac.bridge_of(cabling.interface(end)?)?;
            Some((end.host_idx, bridge.to_owned()))
        };
        let [Some(a), Some(b)] = cable.ends.map(bridge) else { continue };
        if groups.iter().any(|group| group.contains(&a) && group.contains(&b)) {
            let [first, second] = cable.ends;
            let interface = cabling.interface(first).unwrap_or("?");
            let names = [first, second].map(|end| reports[end.host_idx].name);
            let found = format!("the cable between {} and {} closes a loop", names[0], names[1]);
            let blanks =
                [("interface", interface), ("bridge", &a.1), ("hosts", scene.hosts.as_str())];
            findings.push(Finding::on(&catalogue::BRIDGE_LOOP, names[0], found, &blanks));
            continue;
        }
        let mut joined = BTreeSet::from([a, b]);
        groups.retain(|group| {
            let touches = !group.is_disjoint(&joined);
            if touches {
                joined.extend(group.iter().cloned());
            }
            !touches
        });
        groups.push(joined);
    }
    one_sided_loops(scene, findings);
}

/// Reports bridges with two ports whose cables lead to machines that were not probed: perhaps a
/// loop.
fn one_sided_loops(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let strangers = scene.cabling.strangers();
    for (host_idx, machine) in scene.machines().enumerate() {
        let Some(mac) = &machine.report.mac else { continue };
        let own = strangers.iter().filter(|end| end.host_idx == host_idx);
        let members: Vec<&str> = own
            .filter_map(|end| scene.cabling.interface(*end))
            .filter(|it| mac.bridge_of(it).is_some())
            .collect();
        if let [_, interface, ..] = members[..] {
            let bridge = mac.bridge_of(interface).unwrap_or_default();
            let found = format!(
                "{} are in {bridge}, each with a cable to a Mac that was not asked",
                members.join(" and ")
            );
            let blanks =
                [("interface", interface), ("bridge", bridge), ("hosts", scene.hosts.as_str())];
            let finding = Finding::on(&catalogue::BRIDGE_LOOP, machine.name, found, &blanks);
            findings.push(finding.at_most(Severity::Warn));
        }
    }
}

/// Checks that every two machines of the hostfile share a network.
fn common_networks(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    for (node_idx, node) in scene.nodes.iter().enumerate() {
        let Ok(report) = &node.report else { continue };
        for peer in &scene.nodes[node_idx + 1..] {
            let ips = scene.ips(&peer.name);
            let is_near = report.addrs().any(|(_, addr)| ips.iter().any(|ip| addr.reaches(*ip)));
            let answers = node.echoes.iter().any(|ping| {
                ping.to == peer.name && !matches!(ping.echo, Echo::Silent | Echo::NoRoute)
            });
            if ips.is_empty() || is_near || answers || scene.ips(&node.name).is_empty() {
                continue;
            }
            let found = format!("{} is in no network of the addresses of {}", node.name, peer.name);
            let blanks = [("peer", peer.name.as_str())];
            findings.push(Finding::on(&catalogue::NO_COMMON_NETWORK, &node.name, found, &blanks));
        }
    }
}
