//! `jackalope service`: runs the server or the agent as a service that starts with the machine or
//! at login and restarts when it fails. A systemd unit on Linux, a launchd property list on macOS.

use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use jackalope_console::output;
use jackalope_deploy::server_record::{secret_flag, variable_of};
use jackalope_fleet::nodes::own_program;
use jackalope_fleet::service::{
    Manager, Scope, Service, ServiceJob, ServiceKind, State, home_of, own_home,
};
use serde_json::{Value, json};

use crate::args::Args;
use crate::args::service::{
    ManagerArg, ServiceArg, ServiceArgs, ServiceCommand, ServiceInstallArgs,
};
use crate::config;
use crate::environment::Environment;
pub(crate) fn run(args: &ServiceArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    match &args.command {
        ServiceCommand::Install(how) => install(how, environment)?,
        ServiceCommand::Remove { service, system } => remove((*service).into(), scope(*system))?,
        ServiceCommand::Status { json } => return status(*json),
    }
    Ok(ExitCode::SUCCESS)
}

fn scope(is_system: bool) -> Scope {
    if is_system { Scope::System } else { Scope::User }
}

/// Fails on arguments that the program would refuse, and on secrets among them.
fn check_arguments(kind: ServiceKind, args: &[String]) -> anyhow::Result<()> {
    for word in args {
        ensure!(!word.contains(char::is_control), "{word:?} contains a control character");
        if let Some(flag) = secret_flag(word) {
            let instead = match flag {
                "token" => {
                    format!("write `{}=...` to the file `.env` of `--dir`", variable_of(flag))
                }
                _ => format!("give `--{flag}-file FILE`"),
            };
            bail!("`--{flag}` would be readable in the service's file\nhint: {instead}");
        }
    }
    let words = ["jackalope", kind.subcommand()].map(str::to_owned).into_iter();
    let words: Vec<String> = words.chain(args.iter().cloned()).collect();
    match kind {
        // The model may be named in the file `.env`.
        ServiceKind::Server => config::check_serve(&words),
        ServiceKind::Agent => Args::try_parse_from(&words).map(drop),
    }
    .unwrap_or_else(|err| err.exit());
    Ok(())
}

/// Returns the program and the arguments that the service will run.
fn job(how: &ServiceInstallArgs, environment: &Environment) -> anyhow::Result<ServiceJob> {
    let (user_home, home) = match &how.user {
        Some(account) => {
            let user_home = home_of(account)?;
            let home = user_home.join(".jackalope");
            (user_home, home)
        }
        None => (own_home()?, environment.home()?.path().to_owned()),
    };
    let installed = home.join("current/bin/jackalope");
    let program = if installed.is_file() { installed } else { own_program()? };
    let dir = match &how.dir {
        Some(dir) => std::path::absolute(dir)?,
        None if how.service == ServiceArg::Server && how.user.is_none() => {
            std::env::current_dir().context("this folder has no path")?
        }
        None => user_home,
    };
    ensure!(
        dir.is_dir(),
        "{} is no folder\nhint: `--dir` names the folder to start in",
        dir.display()
    );
    for path in [&program, &home, &dir] {
        ensure!(
            !path.to_string_lossy().contains(char::is_control),
            "{path:?} contains a control character"
        );
    }
    Ok(ServiceJob { program, args: how.args.clone(), home, dir, account: how.user.clone() })
}

/// Writes the service's file and starts the service.
pub(crate) fn install(how: &ServiceInstallArgs, environment: &Environment) -> anyhow::Result<()> {
    let kind = how.service.into();
    check_arguments(kind, &how.args)?;
    let job = job(how, environment)?;
    let mut service = Service::here(kind, scope(how.system));
    if let Some(manager) = how.manager {
        service.manager = match manager {
            ManagerArg::Systemd => Manager::Systemd,
            ManagerArg::Launchd => Manager::Launchd,
        };
    }
    let path = service.path(&own_home()?);
    if how.dry_run {
        let commands: Vec<String> = service.enable(&path).iter().map(|it| it.join(" ")).collect();
        let (path, text) = (path.display(), service.text(&job));
        return Ok(output::line(format_args!("{path}:\n{text}\n{}", commands.join("\n")))?);
    }
    ensure!(
        !how.system || service.uid == 0,
        "a system's service is installed by root\nhint: run it with `sudo`, or leave out `--system`"
    );
    warn_of_variables(kind, &job, environment);
    service.install(&path, &job)?;
    output::line(format_args!("installed: {}", path.display()))?;
    if !service.starts_at_boot() {
        output::note(
            "warning: the service starts when you log in, not at boot\n\
             hint: sudo loginctl enable-linger \"$USER\"",
        );
    }
    output::line(format_args!("restart it  {}", service.restart()))?;
    if let Some(journal) = service.journal() {
        output::line(format_args!("its log     {journal}"))?;
    }
    Ok(())
}

/// Warns that the service has none of the variables of this shell.
fn warn_of_variables(kind: ServiceKind, job: &ServiceJob, environment: &Environment) {
    let set: Vec<&str> = environment.settings().keys().map(String::as_str).collect();
    if kind == ServiceKind::Server && !set.is_empty() {
        output::note(&format!(
            "warning: the service does not get this shell's {}\nhint: write them to {}",
            set.join(", "),
            job.dir.join(".env").display()
        ));
    }
}

/// Ends a service of this user and removes its file.
pub(crate) fn remove_own(kind: ServiceKind) -> anyhow::Result<()> {
    remove(kind, Scope::User)
}

fn remove(kind: ServiceKind, scope: Scope) -> anyhow::Result<()> {
    match Service::here(kind, scope).remove()? {
        Some(path) => Ok(output::line(format_args!("removed: {}", path.display()))?),
        None => {
            let (name, scope) = (kind.name(), scope.name());
            Ok(output::line(format_args!("the {name} is no {scope} service here"))?)
        }
    }
}

/// Prints the state of all services. Fails unless at least one is installed and all are active.
fn status(is_json: bool) -> anyhow::Result<ExitCode> {
    let mut rows: Vec<Value> = Vec::new();
    let mut are_active = true;
    for (kind, scope) in
        ServiceKind::ALL.into_iter().flat_map(|kind| Scope::ALL.map(|it| (kind, it)))
    {
        let service = Service::here(kind, scope);
        let path = service.path(&own_home()?);
        if !path.is_file() {
            continue;
        }
        let State { is_active, word, pid } = service.state();
        are_active &= is_active;
        if !is_json {
            let pid = pid.map_or(String::new(), |pid| format!(", pid {pid}"));
            let name = kind.name();
            output::line(format_args!(
                "{name}: {word}{pid} ({} service {})",
                scope.name(),
                path.display()
            ))?;
        }
        rows.push(json!({
            "service": kind.name(), "scope": scope.name(), "file": path, "state": word, "pid": pid,
            "active": is_active,
        }));
    }
    if is_json {
        output::line(json!({ "services": rows }))?;
    } else if rows.is_empty() {
        output::line("no service is installed")?;
    }
    let is_well = are_active && !rows.is_empty();
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
