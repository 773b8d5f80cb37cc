//! Checks the programs on a machine: our own by their answers, others by their visible state, and
//! the ports in use.

use super::{CheckedMachine, gib};
use crate::doctor::{Finding, Severity, catalogue};
use crate::report::{OwnProgram, ProgramKind};

/// Ports of this system and of those that it replaces: HTTP, the control plane, MLX's own
/// transports.
const PORTS: [u16; 5] = [8000, 8080, 18080, 18081, 32323];

/// Maximum number of characters shown of a command line.
const COMMAND_CHARS: usize = 60;

pub(super) fn check(machine: CheckedMachine<'_>, findings: &mut Vec<Finding>) {
    let own = &machine.report.programs;
    for program in own {
        match program.kind {
            ProgramKind::Serve => findings.push(server(machine.name, program)),
            ProgramKind::Agent => findings.push(agent(machine.name, program)),
            ProgramKind::Rank => {}
        }
    }
    ranks(machine, findings);
    others(machine, findings);
    ports(machine, findings);
}

/// Reports a program that does not answer, with the command that kills it, or resumes it if a
/// signal has stopped it.
fn silent(name: &str, program: &OwnProgram, what: &str) -> Finding {
    let pid = program.pid.to_string();
    let home = program.home.as_deref().unwrap_or("$HOME/.jackalope");
    let blanks = [("pid", pid.as_str()), ("home", home)];
    if program.is_stopped {
        let found = format!("{what}, process {pid}, was stopped by a signal");
        return Finding::on(&catalogue::PROGRAM_STOPPED, name, found, &blanks);
    }
    let found = format!("{what}, process {pid}, does not answer");
    Finding::on(&catalogue::SERVER_SILENT, name, found, &blanks)
}

fn server(name: &str, program: &OwnProgram) -> Finding {
    let model = program.model.as_deref().unwrap_or("a model");
    let OwnProgram { pid, .. } = program;
    let what = format!("the server of {model}");
    if program.is_stopped || program.is_alive() == Some(false) {
        return silent(name, program, &what);
    }
    let Some(answer) = program.http() else {
        return Finding::ok(
            name,
            "server",
            format!("{what}, process {pid}, runs; it was not asked"),
        );
    };
    let url = &answer.url;
    match answer.ready {
        Some(200) => Finding::ok(name, "server", format!("{what} answers at {url}, process {pid}")),
        _ => {
            let home = program.home.as_deref().unwrap_or("$HOME/.jackalope");
            let found = format!("{what} at {url}, process {pid}, answers and is not ready");
            Finding::on(&catalogue::SERVER_NOT_READY, name, found, &[("home", home)])
        }
    }
}

fn agent(name: &str, program: &OwnProgram) -> Finding {
    if program.is_stopped {
        return silent(name, program, "the agent");
    }
    Finding::ok(name, "agent", format!("runs, process {}", program.pid))
}

/// Reports the ranks in one line, and each stopped or stale rank as a finding of its own.
fn ranks(machine: CheckedMachine<'_>, findings: &mut Vec<Finding>) {
    let own = &machine.report.programs;
    let mut pids: Vec<String> = Vec::new();
    let mut bytes = 0;
    for rank in own.iter().filter(|it| it.kind == ProgramKind::Rank) {
        let pid = rank.pid.to_string();
        let blanks = [("pid", pid.as_str()), ("home", "")];
        let is_looked_after = own.iter().any(|it| it.pid == rank.parent_pid);
        if rank.is_stopped {
            findings.push(silent(machine.name, rank, "a rank"));
        } else if rank.has_coordinator == Some(true) || is_looked_after {
            pids.push(pid);
            bytes += rank.resident_bytes;
        } else if rank.parent_pid == 1 && rank.has_coordinator == Some(false) {
            let memory = gib(rank.resident_bytes);
            let found = format!("rank, process {pid} ({memory}), has no coordinator and no parent");
            findings.push(Finding::on(&catalogue::STALE_PROCESS, machine.name, found, &blanks));
        } else {
            // A person or another program started this rank, so it is not stale.
            pids.push(pid);
            bytes += rank.resident_bytes;
        }
    }
    if !pids.is_empty() {
        let noun = if pids.len() == 1 { "process" } else { "processes" };
        let found = format!("{noun} {} ({})", pids.join(", "), gib(bytes));
        findings.push(Finding::ok(machine.name, "ranks", found));
    }
}

/// Reports other programs that compute models. A program that listens counts as a server in use,
/// whatever its parent is.
fn others(machine: CheckedMachine<'_>, findings: &mut Vec<Finding>) {
    for process in &machine.report.engines {
        let command: String = process.command.chars().take(COMMAND_CHARS).collect();
        let memory = gib(process.resident_bytes);
        let listens = machine.report.listeners.iter().any(|it| it.pid == Some(process.pid));
        let is_alone = process.parent_pid == 1 && !listens;
        let how = if is_alone { "has no parent and listens nowhere" } else { "runs" };
        let found = format!("process {} ({memory}) {how}: {command}", process.pid);
        let pid = process.pid.to_string();
        let finding = Finding::on(&catalogue::STALE_PROCESS, machine.name, found, &[("pid", &pid)]);
        let severity = if is_alone { Severity::Warn } else { Severity::Note };
        findings.push(finding.at_most(severity));
    }
}

fn ports(machine: CheckedMachine<'_>, findings: &mut Vec<Finding>) {
    let own = &machine.report.programs;
    let is_own = |pid: Option<u32>| own.iter().any(|it| Some(it.pid) == pid);
    let mut ours: Vec<String> = Vec::new();
    for listener in machine.report.listeners.iter().filter(|it| PORTS.contains(&it.port)) {
        let port = listener.port.to_string();
        if is_own(listener.pid) {
            ours.push(port);
            continue;
        }
        let by = match (&listener.program, listener.pid) {
            (Some(program), Some(pid)) => format!(" by {program} (process {pid})"),
            _ => String::new(),
        };
        let found = format!("port {port} is taken{by}");
        let blanks = [("port", port.as_str())];
        findings.push(Finding::on(&catalogue::PORT_TAKEN, machine.name, found, &blanks));
    }
    if !ours.is_empty() {
        let found = format!("{} held by the programs above", ours.join(", "));
        findings.push(Finding::ok(machine.name, "ports", found));
    }
}
