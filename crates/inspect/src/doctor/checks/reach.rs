//! Checks whether the machine can be probed, and whether it reaches the others.

use std::time::Duration;

use jackalope_fleet::shell::{ShellError, ShellErrorKind, is_here};

use super::{CheckedMachine, Scene};
use crate::doctor::{Entry, ExaminedNode, Finding, Severity, catalogue};
use crate::probe::Echo;

/// Round-trip time above which a link is slow; cables and Ethernet stay well below it.
const ECHO_SLOW: Duration = Duration::from_millis(1);

/// Returns the finding for a machine that could not be probed.
pub(super) fn failed(scene: &Scene<'_>, name: &str, err: &ShellError) -> Finding {
    let entry: &'static Entry = match err.kind {
        ShellErrorKind::NoSsh => &catalogue::SSH_MISSING,
        ShellErrorKind::UnknownName => &catalogue::SSH_UNKNOWN_NAME,
        ShellErrorKind::HostKey => &catalogue::SSH_HOST_KEY,
        ShellErrorKind::Refused => &catalogue::SSH_REFUSED,
        ShellErrorKind::NoServer => &catalogue::SSH_NO_SERVER,
        // `ping` is Apple's own and always allowed: if it gets through, there is a route.
        ShellErrorKind::NoRoute if is_pinged_from_here(scene, name) => {
            &catalogue::LOCAL_NETWORK_DENIED
        }
        ShellErrorKind::NoRoute => &catalogue::SSH_NO_ROUTE,
        ShellErrorKind::Timeout => &catalogue::SSH_TIMEOUT,
        ShellErrorKind::Broken => &catalogue::SSH_BROKEN,
    };
    Finding::on(entry, name, err.to_string(), &[])
}

fn is_pinged_from_here(scene: &Scene<'_>, name: &str) -> bool {
    let mut pings = scene.here.iter().filter(|ping| ping.to == name);
    pings.any(|ping| matches!(ping.echo, Echo::Answers { .. }))
}

/// Returns the findings about a machine that reported: its missing tools, and the machines that it
/// reaches.
pub(super) fn answers(
    scene: &Scene<'_>,
    node: &ExaminedNode,
    machine: CheckedMachine<'_>,
    findings: &mut Vec<Finding>,
) {
    let name = machine.name;
    if !is_here(name) {
        findings.push(Finding::ok(name, "ssh", "answers without a password"));
    }
    for tool in &machine.report.stuck_tools {
        let found = format!("`{tool}` did not end in time");
        findings.push(Finding::on(&catalogue::TOOL_STUCK, name, found, &[("tool", tool)]));
    }
    for tool in &machine.report.missing_tools {
        // These tools have findings of their own.
        if !["rdma_ctl", "ibv_devices", "ibv_devinfo"].contains(&tool.as_str()) {
            let found = format!("`{tool}` is missing");
            findings.push(Finding::on(&catalogue::TOOL_MISSING, name, found, &[("tool", tool)]));
        }
    }
    pings(scene, node, findings);
}

fn pings(scene: &Scene<'_>, node: &ExaminedNode, findings: &mut Vec<Finding>) {
    let name = &node.name;
    let mut means = Vec::new();
    for ping in &node.echoes {
        let ip = ping.ip.to_string();
        let blanks = [("ip", ip.as_str()), ("peer", ping.to.as_str())];
        let other_works = node.echoes.iter().any(|it| {
            it.to == ping.to && it.ip != ping.ip && matches!(it.echo, Echo::Answers { .. })
        });
        match ping.echo {
            Echo::Answers { mean_us } => {
                means.push(format!("{} {ip} {mean_us:.0} µs", ping.to));
                if ECHO_SLOW.as_micros() as f64 <= mean_us {
                    let found = format!("{} at {ip} answers in {:.1} ms", ping.to, mean_us / 1e3);
                    let finding = Finding::on(&catalogue::PING_SLOW, name, found, &blanks);
                    findings.push(finding);
                }
            }
            Echo::Silent | Echo::NoRoute => {
                let how = if ping.echo == Echo::NoRoute { "no route" } else { "no answer" };
                let found = format!("{} at {ip}: {how}", ping.to);
                let finding = Finding::on(&catalogue::PING_SILENT, name, found, &blanks);
                // In a chain, not every address can be reached from every machine.
                let is_bad = !other_works && scene.hostfile.is_some();
                let severity = if is_bad { Severity::Error } else { Severity::Note };
                findings.push(finding.at_most(severity));
            }
            Echo::Untried => {}
        }
    }
    if !means.is_empty() {
        findings.push(Finding::ok(name, "ping", means.join(", ")));
    }
}
