//! Checks whether a machine supports RDMA, and whether the devices of the hostfile lead to the
//! machines that the hostfile names.

use super::{CheckedMachine, Scene};
use crate::doctor::{Entry, Finding, Severity, catalogue};
use crate::report::{MacReport, RdmaDevice, RdmaSwitch, ThunderboltGeneration};

pub(super) fn check(scene: &Scene<'_>, machine: CheckedMachine<'_>, findings: &mut Vec<Finding>) {
    // If the hostfile does not ask for RDMA, findings about RDMA are only notes.
    let worst = if scene.wants_rdma { Severity::Error } else { Severity::Note };
    let mut push = |finding: Finding| findings.push(finding.at_most(worst));
    let Some(mac) = &machine.report.mac else {
        if scene.wants_rdma {
            let found = format!("{} runs {}", machine.name, machine.report.facts.os);
            push(Finding::on(&catalogue::RDMA_NOT_A_MAC, machine.name, found, &[]));
        }
        return;
    };
    if let Some((entry, found)) = obstacle(machine, mac) {
        push(Finding::on(entry, machine.name, found, &[]));
        return;
    }
    if mac.version.is_some_and(|it| !it.is_at_least(26, 3)) {
        let found = machine.report.facts.os.clone();
        push(Finding::on(&catalogue::MACOS_SMALL_FRAMES, machine.name, found, &[]));
    }
    for finding in slow_links(scene, machine, mac) {
        push(finding);
    }
    for (rank, host) in scene.entries(machine.name) {
        for (peer_rank, name) in towards_peers(&host.rdma, rank) {
            for finding in device(scene, machine, mac, peer_rank, name) {
                push(finding);
            }
        }
    }
    let devices = mac.rdma_devices.iter().flatten();
    let active: Vec<&str> = devices.filter(|it| it.is_active()).map(|it| &*it.name).collect();
    let found = match &active[..] {
        [] => "enabled, no port active".to_owned(),
        names => format!("enabled, active: {}", names.join(", ")),
    };
    findings.push(Finding::ok(machine.name, "rdma", found));
}

/// Returns what prevents RDMA on the whole machine: the first obstacle, because the others follow
/// from it.
fn obstacle(machine: CheckedMachine<'_>, mac: &MacReport) -> Option<(&'static Entry, String)> {
    let os = &machine.report.facts.os;
    let chip = &machine.report.facts.chip;
    let generation = mac.generation().or_else(|| ThunderboltGeneration::of_chip(chip));
    if generation == Some(ThunderboltGeneration::Four) {
        return Some((&catalogue::THUNDERBOLT_4, format!("{chip} has Thunderbolt 4")));
    }
    if mac.version.is_some_and(|it| !it.is_at_least(26, 2)) {
        return Some((&catalogue::MACOS_TOO_OLD, os.clone()));
    }
    match mac.rdma {
        RdmaSwitch::Disabled => {
            return Some((&catalogue::RDMA_DISABLED, "`rdma_ctl status`: disabled".to_owned()));
        }
        RdmaSwitch::Missing => {
            return Some((&catalogue::MACOS_TOO_OLD, format!("{os} has no `rdma_ctl`")));
        }
        RdmaSwitch::Unknown => {
            return Some((
                &catalogue::RDMA_UNKNOWN,
                "`rdma_ctl status` reports nothing".to_owned(),
            ));
        }
        RdmaSwitch::Enabled => {}
    }
    let has_none = mac.rdma_devices.as_ref().is_none_or(Vec::is_empty);
    has_none.then(|| (&catalogue::RDMA_NO_DEVICES, "`ibv_devices` lists none".to_owned()))
}

/// Returns a finding for each cable that is slower than both of its ends.
fn slow_links(scene: &Scene<'_>, machine: CheckedMachine<'_>, mac: &MacReport) -> Vec<Finding> {
    let is_five = |host_idx: usize| {
        scene.cabling.hosts[host_idx].generation == Some(ThunderboltGeneration::Five)
    };
    let cables = scene.cabling.cables.iter().filter(|cable| {
        cable.bits_per_s.map(ThunderboltGeneration::of_speed) == Some(ThunderboltGeneration::Four)
            && cable.ends.iter().all(|end| is_five(end.host_idx))
    });
    let ends = cables.filter_map(|cable| {
        let own =
            |end: &&crate::autoconfig::End| scene.cabling.hosts[end.host_idx].name == machine.name;
        cable.ends.iter().find(own).copied()
    });
    let finding = |end: crate::autoconfig::End| {
        let port = &mac.thunderbolt[end.port_idx];
        let receptacle = port.receptacle.to_string();
        let found = format!("port {receptacle} runs at 40 Gbit/s");
        Finding::on(&catalogue::SLOW_LINK, machine.name, found, &[("receptacle", &receptacle)])
    };
    ends.map(finding).collect()
}

/// Returns the devices of a row in the hostfile, each with the rank to which it leads.
fn towards_peers(rdma: &[Vec<String>], rank: usize) -> impl Iterator<Item = (usize, &str)> {
    let peers = rdma.iter().enumerate().filter(move |(peer, _)| *peer != rank);
    peers.flat_map(|(peer, names)| names.iter().map(move |name| (peer, name.as_str())))
}

/// Returns the findings for one device of the hostfile.
fn device(
    scene: &Scene<'_>,
    machine: CheckedMachine<'_>,
    mac: &MacReport,
    peer_rank: usize,
    name: &str,
) -> Vec<Finding> {
    let hosts = scene.hosts.as_str();
    let on = |entry, found: String, interface: &str, bridge: &str| {
        let blanks =
            [("hosts", hosts), ("device", name), ("interface", interface), ("bridge", bridge)];
        Finding::on(entry, machine.name, found, &blanks)
    };
    let Some(device) = mac.rdma_device(name) else {
        let names = mac.rdma_devices.iter().flatten().map(|it| it.name.as_str());
        let found = format!("{name}; there are {}", names.collect::<Vec<&str>>().join(", "));
        return vec![on(&catalogue::RDMA_DEVICE_MISSING, found, "", "")];
    };
    let interface = device.interface();
    if mac.is_unusable_for_rdma(interface) {
        return vec![on(
            &catalogue::STUDIO_PORT,
            format!("the hostfile uses {name}"),
            interface,
            "",
        )];
    }
    let mut findings = Vec::new();
    if let Some((wanted, actual)) = wrong_peer(scene, machine, interface, peer_rank) {
        let found = format!("{name} leads to {actual}, not to {wanted}");
        findings.push(on(&catalogue::RDMA_WRONG_CABLE, found, interface, ""));
    }
    if !device.is_active() {
        let state = device.state.as_deref().unwrap_or("unknown");
        findings.push(on(&catalogue::RDMA_PORT_DOWN, format!("{name} is {state}"), interface, ""));
    } else if !has_ipv4(machine, device) {
        let found = format!("{name} has no IPv4-mapped GID");
        findings.push(on(&catalogue::RDMA_NO_IPV4_GID, found, interface, ""));
    }
    if let Some(bridge) = mac.bridge_of(interface) {
        let found = format!("{interface} is a member of {bridge}");
        findings.push(on(&catalogue::BRIDGE_MEMBER, found, interface, bridge));
    }
    findings
}

/// Returns true if the device has an IPv4 address. Only `ibv_devinfo -v` lists the device's GIDs;
/// without them, the addresses of its interface decide.
fn has_ipv4(machine: CheckedMachine<'_>, device: &RdmaDevice) -> bool {
    if !device.gids.is_empty() {
        return device.has_ipv4_gid();
    }
    machine.report.addrs().any(|(name, addr)| name == device.interface() && addr.ip.is_ipv4())
}

/// Returns the machine that the hostfile names at the other end and the one that is there, if they
/// differ.
fn wrong_peer<'a>(
    scene: &'a Scene<'_>,
    machine: CheckedMachine<'_>,
    interface: &str,
    peer_rank: usize,
) -> Option<(String, &'a str)> {
    let wanted = scene.hostfile?.hosts.get(peer_rank)?.name();
    let hosts = &scene.cabling.hosts;
    let own = hosts.iter().position(|host| host.name == machine.name)?;
    let cable = scene.cabling.cables.iter().find(|cable| {
        let end = cable.end_on(own);
        end.is_some_and(|end| scene.cabling.interface(end) == Some(interface))
    })?;
    let actual = &hosts[cable.end_facing(own)?.host_idx].name;
    (*actual != wanted).then_some((wanted, actual.as_str()))
}
