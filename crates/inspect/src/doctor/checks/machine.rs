//! Checks memory, disk, clock and power of one machine.

use jackalope_protocol::counted;

use super::{CheckedMachine, gib};
use crate::doctor::{Finding, Severity, catalogue};

/// Memory that macOS itself may wire: some gigabytes, more on large machines.
const WIRED_BYTES_USUAL: u64 = 8 << 30;

/// Free memory below which ranks are of little use.
const FREE_BYTES_LOW: u64 = 2 << 30;

/// Free disk space below which programs fail.
const DISK_BYTES_LOW: u64 = 5 << 30;

/// Maximum difference between clocks, in seconds.
const CLOCK_SKEW_S: i64 = 2;

pub(super) fn check(machine: CheckedMachine<'_>, findings: &mut Vec<Finding>) {
    let facts = &machine.report.facts;
    let cores = counted(facts.cores, "core");
    findings.push(Finding::ok(
        machine.name,
        "system",
        format!("{}, {}, {cores}", facts.os, facts.chip),
    ));
    memory(machine, findings);
    disk(machine, findings);
    clock(machine, findings);
    power(machine, findings);
    let version = machine.report.jackalope.as_deref();
    let found = version.map_or("not installed yet".to_owned(), str::to_owned);
    findings.push(Finding::ok(machine.name, "jackalope", found));
}

fn memory(machine: CheckedMachine<'_>, findings: &mut Vec<Finding>) {
    let facts = &machine.report.facts;
    let (total, free) = (facts.total_bytes, facts.free_bytes);
    let found = format!("{} of {} free", gib(free), gib(total));
    if free < FREE_BYTES_LOW.max(total / 10) {
        findings.push(Finding::on(&catalogue::MEMORY_LOW, machine.name, found, &[]));
    } else {
        findings.push(Finding::ok(machine.name, "memory", found));
    }
    let wired = machine.report.mac.as_ref().and_then(|mac| mac.wired_bytes).unwrap_or(0);
    let is_idle = machine.report.engines.is_empty() && machine.report.programs.is_empty();
    if WIRED_BYTES_USUAL.max(total / 4) < wired && is_idle {
        let found = format!("{} are wired", gib(wired));
        findings.push(Finding::on(&catalogue::WIRED_MEMORY, machine.name, found, &[]));
    }
}

fn disk(machine: CheckedMachine<'_>, findings: &mut Vec<Finding>) {
    let Some(free) = machine.report.disk_free_bytes else { return };
    let found = format!("{} free", gib(free));
    if free < DISK_BYTES_LOW {
        findings.push(Finding::on(&catalogue::DISK_LOW, machine.name, found, &[]));
    } else {
        findings.push(Finding::ok(machine.name, "disk", found));
    }
}

fn clock(machine: CheckedMachine<'_>, findings: &mut Vec<Finding>) {
    let Some(ahead) = machine.report.clock_ahead_s else { return };
    if CLOCK_SKEW_S < ahead.abs() {
        let way = if 0 < ahead { "ahead" } else { "behind" };
        let found = format!("{} s {way} of this machine", ahead.abs());
        findings.push(Finding::on(&catalogue::CLOCK_SKEW, machine.name, found, &[]));
    }
}

fn power(machine: CheckedMachine<'_>, findings: &mut Vec<Finding>) {
    let Some(power) = machine.report.mac.as_ref().map(|mac| &mac.power) else { return };
    // The system's own assertions last only as long as the display is on.
    let is_held = power.awake_by.iter().any(|it| it == "caffeinate" || it.contains("jackalope"));
    if let Some(minutes) = power.sleep_minutes.filter(|it| *it != 0 && !is_held) {
        let found = format!("sleeps after {minutes} min");
        findings.push(Finding::on(&catalogue::SLEEP_ALLOWED, machine.name, found, &[]));
    }
    let is_held = !power.display_awake_by.is_empty();
    if let Some(minutes) = power.display_sleep_minutes.filter(|it| *it != 0 && !is_held) {
        let found = format!("the display sleeps after {minutes} min");
        let finding = Finding::on(&catalogue::DISPLAY_SLEEP, machine.name, found, &[]);
        findings.push(finding.at_most(Severity::Note));
    }
}
