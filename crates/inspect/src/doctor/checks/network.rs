//! Checks the addresses on cables, the default route, and the firewall of one machine.

use std::net::{IpAddr, Ipv4Addr};

use jackalope_protocol::machine::InterfaceAddr;

use super::{CheckedMachine, Scene};
use crate::autoconfig::cable_interfaces;
use crate::doctor::{Finding, Severity, catalogue};
use crate::report::Network;

/// Minimum prefix length of a cable's network, which needs no more than two addresses.
const CABLE_PREFIX_LEN: u8 = 30;

pub(super) fn check(scene: &Scene<'_>, machine: CheckedMachine<'_>, findings: &mut Vec<Finding>) {
    let cables = cable_interfaces(machine.report);
    let is_cable = |name: &str| cables.contains(&name) || is_cable_bridge(machine, name, &cables);
    for (interface, addr) in machine.report.addrs().filter(|(name, _)| is_cable(name)) {
        let is_single = cables.contains(&interface);
        findings.extend(address(scene, machine, interface, addr, is_single));
    }
    if let Some(route) = machine.report.default_route().filter(|route| is_cable(&route.interface)) {
        let found = format!("the default route leads through {}", route.interface);
        findings.push(Finding::on(&catalogue::DEFAULT_OVER_CABLE, machine.name, found, &[]));
    }
    match machine.report.firewall {
        Some(true) => {
            let interface = cables.first().copied().unwrap_or("INTERFACE");
            let blanks = [("interface", interface)];
            findings.push(Finding::on(&catalogue::FIREWALL_ON, machine.name, "it is on", &blanks));
        }
        Some(false) => findings.push(Finding::ok(machine.name, "firewall", "off")),
        None => {}
    }
}

/// Returns true for `bridge0`, to which macOS adds all Thunderbolt ports.
fn is_cable_bridge(machine: CheckedMachine<'_>, name: &str, cables: &[&str]) -> bool {
    let bridges = machine.report.mac.iter().flat_map(|mac| &mac.bridges);
    let mut own = bridges.filter(|bridge| bridge.name == name);
    own.any(|bridge| bridge.members.iter().any(|it| cables.contains(&it.as_str())))
}

/// Returns the finding for an address on a cable. Only the worst one is reported.
fn address(
    scene: &Scene<'_>,
    machine: CheckedMachine<'_>,
    interface: &str,
    addr: InterfaceAddr,
    is_single: bool,
) -> Option<Finding> {
    let IpAddr::V4(ip) = addr.ip else { return None };
    if ip.is_link_local() {
        return None;
    }
    let network = Network::of(addr);
    let default = machine.report.default_route();
    let gateway = default.and_then(|route| route.gateway);
    let text = ip.to_string();
    let gateway_text = gateway.map(|it| it.to_string()).unwrap_or_default();
    let blanks = [
        ("interface", interface),
        ("ip", text.as_str()),
        ("gateway", gateway_text.as_str()),
        ("hosts", scene.hosts.as_str()),
    ];
    let leads_out = default.is_some_and(|route| route.interface == interface);
    let covers = |it: IpAddr| network.holds(it) && !leads_out;
    if let Some(gateway) = gateway.filter(|it| covers(*it)) {
        let found = format!("{interface} has {ip}/{}, the router is {gateway}", addr.prefix_len);
        return Some(Finding::on(&catalogue::GATEWAY_OVERLAP, machine.name, found, &blanks));
    }
    let found = format!("{interface} has {ip}/{}", addr.prefix_len);
    let homes = [Ipv4Addr::new(192, 168, 0, 0), Ipv4Addr::new(192, 168, 1, 0)];
    let home = |it: Ipv4Addr| Network { ip: it.into(), prefix_len: 24 }.holds(addr.ip);
    if homes.into_iter().any(home) && !leads_out {
        return Some(Finding::on(&catalogue::HOME_NETWORK, machine.name, found, &blanks));
    }
    if is_single && addr.prefix_len < CABLE_PREFIX_LEN && !leads_out {
        let num_cables = cable_interfaces(machine.report).len();
        let finding = Finding::on(&catalogue::WIDE_NETWORK, machine.name, found, &blanks);
        let is_harmless = num_cables < 2;
        return Some(finding.at_most(if is_harmless { Severity::Note } else { Severity::Warn }));
    }
    None
}
