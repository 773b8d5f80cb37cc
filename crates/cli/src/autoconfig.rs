//! `jackalope autoconfig`: writes a hostfile from the cables it finds. Shows every command before
//! it runs any, asks once, and saves the commands that undo each one.

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use jackalope_console::output;
use jackalope_fleet::home::Home;
use jackalope_fleet::shell::SystemShell;
use jackalope_inspect::autoconfig::{
    self as planning, ApplyError, AssignedAddress, Over, Plan, ReportedMachine, Step, Undo,
    hostfile_json,
};
use jackalope_inspect::probe::{self, Echo};
use jackalope_inspect::report::{NodeReport, RdmaSwitch};
use jackalope_protocol::{Backend, counted};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::args::{AutoconfigArgs, OverArg, WantedBackend};
use crate::doctor::distinct;
use crate::environment::Environment;

/// Timeout for the report of one machine.
const REPORT_TIMEOUT: Duration = Duration::from_secs(20);

/// File of the addresses that cables were given, to restore them after a reboot.
const GIVEN_FILE: &str = "addresses.json";

/// File of the commands that undo what `resume` did.
const RESUME_UNDO_FILE: &str = "resume-undo.json";

/// File of the commands that undo a run; numbered if such a file exists.
const UNDO_FILE: &str = "autoconfig-undo.json";

pub(crate) fn run(args: &AutoconfigArgs, environment: &Environment) -> anyhow::Result<()> {
    let shell = environment.shell(args.ssh.as_deref());
    if let Some(path) = &args.undo {
        take_back(&shell, path, args.yes)?;
        forget(environment);
        return Ok(());
    }
    distinct(&args.hosts)?;
    let reports = ask(&shell, &args.hosts)?;
    let members: Vec<ReportedMachine<'_>> = args
        .hosts
        .iter()
        .zip(&reports)
        .map(|(name, report)| ReportedMachine { name, report })
        .collect();
    let over = match args.over {
        OverArg::Thunderbolt => Over::Thunderbolt,
        OverArg::Ethernet => Over::Ethernet,
    };
    let plan = Plan::new(&members, over, wanted(args.backend)).context(
        "these machines cannot form a cluster\n\
         hint: `jackalope doctor --host ...` shows why",
    )?;
    if args.dot {
        output::piece(planning::dot(&plan.cabling))?;
        return Ok(());
    }
    if args.json {
        output::line(object(&plan))?;
    } else {
        show(&plan, over)?;
    }
    if args.dry_run {
        return Ok(());
    }
    ensure!(
        plan.choice.is_as_wanted || !args.yes,
        "the cables do not allow this backend\nhint: `--backend auto` takes {}",
        plan.choice.backend.name()
    );
    if !plan.steps.is_empty() {
        consent(args.yes, "run these commands?")?;
        let undo = args.undo_out.clone().unwrap_or_else(|| free_name(UNDO_FILE));
        carry_out(&shell, &plan, &undo)?;
    }
    remember(&plan, &args.hosts, environment)?;
    write_hostfile(&plan, args.out.as_deref(), args.json)
}

/// Data that a run saves for [`again`].
#[derive(Debug, Deserialize, Serialize)]
struct Remembered {
    hosts: Vec<String>,
    backend: Backend,
    given: Vec<AssignedAddress>,
}

/// Saves the addresses of the cables.
fn remember(plan: &Plan, hosts: &[String], environment: &Environment) -> anyhow::Result<()> {
    if plan.given.is_empty() {
        return Ok(());
    }
    let (backend, given) = (plan.choice.backend, plan.given.clone());
    let text = serde_json::to_string(&Remembered { hosts: hosts.to_vec(), backend, given })?;
    Ok(environment.home()?.write(GIVEN_FILE, text.as_bytes())?)
}

fn forget(environment: &Environment) {
    if let Ok(home) = environment.home() {
        // The file may not exist.
        std::fs::remove_file(home.join(GIVEN_FILE)).ok();
    }
}

/// How commands are confirmed and printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConfirmOptions {
    pub(crate) dry_run: bool,
    pub(crate) yes: bool,
    /// Whether only JSON is printed, and by the caller.
    pub(crate) json: bool,
}

/// Gives cables the addresses that they had before, if they have lost them. Does nothing if
/// autoconfig gave no addresses.
pub(crate) fn again(home: &Home, shell: &SystemShell, asked: ConfirmOptions) -> anyhow::Result<()> {
    let Ok(text) = std::fs::read_to_string(home.join(GIVEN_FILE)) else {
        output::note("autoconfig has assigned no addresses on this machine: cables are unchanged");
        return Ok(());
    };
    let before: Remembered = serde_json::from_str(&text).with_context(|| {
        format!(
            "reading {}\nhint: run `jackalope autoconfig` again",
            home.join(GIVEN_FILE).display()
        )
    })?;
    let reports = ask(shell, &before.hosts)?;
    let members: Vec<ReportedMachine<'_>> = before
        .hosts
        .iter()
        .zip(&reports)
        .map(|(name, report)| ReportedMachine { name, report })
        .collect();
    let is_off = |it: &&ReportedMachine<'_>| {
        it.report.mac.as_ref().is_some_and(|mac| mac.rdma == RdmaSwitch::Disabled)
    };
    let off: Vec<&str> = members.iter().filter(is_off).map(|it| it.name).collect();
    ensure!(
        before.backend != Backend::Jaccl || off.is_empty(),
        "RDMA is switched off on {}\nhint: start it in Recovery, open Utilities > Terminal and type \
         `rdma_ctl enable`",
        off.join(", ")
    );
    let wanted = Some(before.backend);
    let plan = Plan::again(&members, Over::Thunderbolt, wanted, &before.given)?;
    if !asked.json {
        show(&plan, Over::Thunderbolt)?;
    }
    if asked.dry_run || plan.steps.is_empty() {
        return Ok(());
    }
    consent(asked.yes, "run these commands?")?;
    carry_out(shell, &plan, &home.join(RESUME_UNDO_FILE))
}

fn wanted(backend: WantedBackend) -> Option<Backend> {
    match backend {
        WantedBackend::Auto => None,
        WantedBackend::Jaccl => Some(Backend::Jaccl),
        WantedBackend::Ring => Some(Backend::Ring),
        WantedBackend::Tcp => Some(Backend::Tcp),
    }
}

/// Asks all machines for their reports. Fails if one does not answer, because its cables would be
/// missing.
fn ask(shell: &SystemShell, hosts: &[String]) -> anyhow::Result<Vec<NodeReport>> {
    let reports = probe::reports(shell, hosts, REPORT_TIMEOUT);
    let lost: Vec<String> = reports
        .iter()
        .filter_map(|it| it.as_ref().err())
        .map(|err| format!("{err}\nhint: {}", err.kind.hint(&err.host)))
        .collect();
    ensure!(lost.is_empty(), "{}", lost.join("\n"));
    Ok(reports.into_iter().flatten().collect())
}

/// Prints the cables, the choice and the commands for people.
fn show(plan: &Plan, over: Over) -> anyhow::Result<()> {
    if over == Over::Thunderbolt {
        output::piece(planning::terminal(&plan.cabling, &plan.choice))?;
    }
    let choice = &plan.choice;
    let instead = if choice.is_as_wanted { "" } else { " instead of the one asked for" };
    output::line(format!("backend {}{instead}", choice.backend.name()))?;
    for line in &choice.because {
        output::line(format!("  {line}"))?;
    }
    for cable in &choice.missing {
        output::line(format!("  missing cable: {cable}"))?;
    }
    output::line("")?;
    if plan.steps.is_empty() {
        output::line(match plan.checks.len() {
            0 => "nothing to do: there is no cable to configure",
            _ => "nothing to do: every cable has its addresses",
        })?;
        return Ok(());
    }
    let mut host = "";
    for step in &plan.steps {
        if step.host != host {
            host = &step.host;
            output::line(format!("on {host}:"))?;
        }
        output::line(format!("  sudo {:<58} # {}", step.command, step.purpose))?;
    }
    for risk in &plan.risks {
        output::line(format!("careful: {risk}"))?;
    }
    output::line("")?;
    Ok(())
}

fn object(plan: &Plan) -> Value {
    let choice = &plan.choice;
    let end = |end: planning::End| {
        let port = plan.cabling.port(end);
        let host = &plan.cabling.hosts[end.host_idx].name;
        json!({"host": host, "receptacle": port.receptacle, "interface": port.interface})
    };
    let cables = plan.cabling.cables.iter();
    let cables: Vec<Value> =
        cables.map(|it| json!({"ends": it.ends.map(end), "bits_per_s": it.bits_per_s})).collect();
    let hostfile: Value =
        serde_json::from_str(&hostfile_json(&plan.hostfile)).expect("it was just written");
    json!({
        "backend": choice.backend.name(),
        "shape": choice.shape.name(),
        "as_wanted": choice.is_as_wanted,
        "because": choice.because,
        "missing": choice.missing,
        "cables": cables,
        "steps": plan.steps,
        "risks": plan.risks,
        "hostfile": hostfile,
    })
}

/// Asks once for consent. Fails without a terminal unless `is_given` (`--yes`).
fn consent(is_given: bool, question: &str) -> anyhow::Result<()> {
    if is_given {
        return Ok(());
    }
    let stdin = std::io::stdin();
    ensure!(
        stdin.is_terminal(),
        "nothing was changed: no terminal to ask for confirmation\nhint: add `--yes` to run these \
         commands, or `--dry-run` to only see them"
    );
    output::piece(format!("{question} [yes/no] "))?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).context("reading the answer")?;
    ensure!(answer.trim().eq_ignore_ascii_case("yes"), "nothing was changed");
    Ok(())
}

/// Runs the commands and tests the cables.
fn carry_out(shell: &SystemShell, plan: &Plan, path: &Path) -> anyhow::Result<()> {
    // Written before anything changes: without a file of undo commands, nothing may be changed.
    keep(path, &[])?;
    let mut kept = Ok(());
    let mut has_run = false;
    let note = |step: &Step, undos: &[Undo]| {
        eprintln!("{}: {}", step.host, step.command);
        has_run = true;
        // The first failure is reported at the end; the commands have run by then anyway.
        if kept.is_ok() {
            kept = keep(path, undos);
        }
    };
    let done = planning::apply(shell, &plan.steps, note);
    if let Err(err) = done {
        let undo = match has_run {
            true => format!(
                "\nhint: `jackalope autoconfig --undo {}` undoes the commands that ran",
                path.display()
            ),
            false => {
                // The file is empty and would only be in the way of the next run.
                std::fs::remove_file(path).ok();
                "\nhint: nothing was changed".to_owned()
            }
        };
        bail!("{err}{}{undo}", sudo_hint(&err));
    }
    kept?;
    eprintln!("to undo this: jackalope autoconfig --undo {}", path.display());
    let mut silent = Vec::new();
    for (check, echo) in planning::verify(shell, &plan.checks) {
        match echo {
            Echo::Answers { mean_us } => {
                eprintln!(
                    "{} reaches {} at {} in {mean_us:.0} µs",
                    check.host, check.peer, check.ip
                );
            }
            Echo::Untried => eprintln!("{} has no `ping` to test {}", check.host, check.ip),
            Echo::Silent | Echo::NoRoute => {
                silent
                    .push(format!("{} does not reach {} at {}", check.host, check.peer, check.ip));
            }
        }
    }
    ensure!(
        silent.is_empty(),
        "{}\nhint: wait a moment and run this again; `jackalope doctor` shows details; `jackalope \
         autoconfig --undo {}` undoes it",
        silent.join("\n"),
        path.display()
    );
    Ok(())
}

fn sudo_hint(err: &ApplyError) -> String {
    match err {
        ApplyError::Password { host, .. } => format!(
            "\nhint: type the commands above on {host} yourself, or run `ssh -t {host} sudo -v` and \
             try again if your sudo remembers across sessions"
        ),
        _ => String::new(),
    }
}

fn keep(path: &Path, undos: &[Undo]) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(undos).expect("plain data");
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Returns the name, or one with a number if that file exists: undo commands are never overwritten.
fn free_name(name: &str) -> PathBuf {
    let numbered =
        (2..).map(|number| PathBuf::from(name.replace(".json", &format!("-{number}.json"))));
    let mut all = std::iter::once(PathBuf::from(name)).chain(numbered);
    all.find(|path| !path.exists()).expect("numbers do not end")
}

fn write_hostfile(plan: &Plan, out: Option<&Path>, is_json: bool) -> anyhow::Result<()> {
    let text = hostfile_json(&plan.hostfile);
    match out {
        Some(path) => {
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
            eprintln!("wrote {}; try it: jackalope doctor --hosts {0}", path.display());
        }
        None if is_json => {}
        None => output::piece(text)?,
    }
    Ok(())
}

/// Runs the undo commands that an earlier run saved.
fn take_back(shell: &SystemShell, path: &Path, is_given: bool) -> anyhow::Result<()> {
    let reading = || format!("reading {}", path.display());
    let text = std::fs::read_to_string(path).with_context(reading)?;
    let undos: Vec<Undo> = serde_json::from_str(&text).with_context(reading)?;
    for undo in &undos {
        output::line(format!("on {}: sudo {}", undo.host, undo.command))?;
    }
    consent(is_given, "run these commands?")?;
    let mut failed = 0;
    for undo in &undos {
        // A command that fails (the cable may be unplugged by now) must not keep the others from
        // running.
        if let Err(err) = planning::run_as_root(shell, &undo.host, &undo.command) {
            failed += 1;
            eprintln!("{err}{}", sudo_hint(&err));
        }
    }
    ensure!(failed == 0, "{failed} of {} failed; the others ran", counted(undos.len(), "command"));
    Ok(())
}
