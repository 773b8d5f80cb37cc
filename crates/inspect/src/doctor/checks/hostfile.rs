//! Checks whether the machine has the addresses that the hostfile gives it.

use super::{CheckedMachine, Scene};
use crate::doctor::{Finding, catalogue};

pub(super) fn check(scene: &Scene<'_>, machine: CheckedMachine<'_>, findings: &mut Vec<Finding>) {
    let ips = scene.ips(machine.name);
    let mut have = Vec::new();
    for ip in &ips {
        match machine.report.interface_of(*ip) {
            Some(interface) => have.push(format!("{ip} on {interface}")),
            None if ip.is_loopback() => {}
            None => {
                let found = format!("{ip} is on none of its interfaces");
                let text = ip.to_string();
                let blanks = [("ip", text.as_str()), ("hosts", scene.hosts.as_str())];
                findings.push(Finding::on(&catalogue::ADDRESS_LOST, machine.name, found, &blanks));
            }
        }
    }
    if !have.is_empty() {
        findings.push(Finding::ok(machine.name, "addresses", have.join(", ")));
    }
}
