//! `jackalope service`: runs the server or the agent as a service that starts with the machine or
//! at login and restarts when it fails. A systemd unit on Linux, a launchd property list on macOS.

mod unit;

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use jackalope_deploy::server_record::{secret_flag, variable_of};
use jackalope_fleet::home::Home;
use jackalope_fleet::nodes::own_program;
use jackalope_fleet::process::output_of;
use serde_json::{Value, json};

use crate::args::Args;
use crate::args::service::{ManagerArg, ServiceArgs, ServiceCommand, ServiceInstallArgs};
use crate::environment::Environment;
use crate::{config, output};
use unit::{Job, Manager, STOP_SECONDS, Scope, Service};

pub(crate) use unit::ServiceKind;

/// Timeout for commands of the service manager, which waits for a program that ends.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(STOP_SECONDS + 15);

/// Timeout for its report on a service.
const SHOW_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &ServiceArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    match &args.command {
        ServiceCommand::Install(how) => install(how, environment)?,
        ServiceCommand::Remove { service, system } => remove(*service, scope(*system))?,
        ServiceCommand::Status { json } => return status(*json),
    }
    Ok(ExitCode::SUCCESS)
}

fn scope(is_system: bool) -> Scope {
    if is_system { Scope::System } else { Scope::User }
}

fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

fn here(kind: ServiceKind, scope: Scope) -> Service {
    Service { manager: Manager::here(), kind, scope, uid: uid() }
}

fn own_home() -> anyhow::Result<PathBuf> {
    std::env::home_dir().context("this user has no home folder")
}

/// Returns the home directory of an account, as the shell knows it.
fn home_of(account: &str) -> anyhow::Result<PathBuf> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    ensure!(
        !account.is_empty() && account.chars().all(is_name) && !account.starts_with('-'),
        "{account:?} is no name of an account"
    );
    let script = format!("echo ~{account}");
    let home = output_of("sh", &["-c", &script], SHOW_TIMEOUT)?;
    let home = PathBuf::from(home.trim());
    ensure!(
        home.is_absolute(),
        "there is no account {account}\nhint: `--user` names one that exists"
    );
    Ok(home)
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
fn job(how: &ServiceInstallArgs, environment: &Environment) -> anyhow::Result<Job> {
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
        None if how.service == ServiceKind::Server && how.user.is_none() => {
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
    Ok(Job { program, args: how.args.clone(), home, dir, account: how.user.clone() })
}

/// Writes the service's file and starts the service.
pub(crate) fn install(how: &ServiceInstallArgs, environment: &Environment) -> anyhow::Result<()> {
    check_arguments(how.service, &how.args)?;
    let job = job(how, environment)?;
    let mut service = here(how.service, scope(how.system));
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
        !how.system || uid() == 0,
        "a system's service is installed by root\nhint: run it with `sudo`, or leave out `--system`"
    );
    warn_of_variables(how.service, &job, environment);
    prepare(&job)?;
    write(service, &path, &service.text(&job))?;
    output::line(format_args!("installed: {}", path.display()))?;
    if service.manager == Manager::Systemd && service.scope == Scope::User {
        linger();
    }
    output::line(format_args!("restart it  {}", service.restart()))?;
    if let Some(journal) = service.journal() {
        output::line(format_args!("its log     {journal}"))?;
    }
    Ok(())
}

/// Warns that the service has none of the variables of this shell.
fn warn_of_variables(kind: ServiceKind, job: &Job, environment: &Environment) {
    let set: Vec<&str> = environment.settings().keys().map(String::as_str).collect();
    if kind == ServiceKind::Server && !set.is_empty() {
        output::note(&format!(
            "warning: the service does not get this shell's {}\nhint: write them to {}",
            set.join(", "),
            job.dir.join(".env").display()
        ));
    }
}

/// Creates the directories and the secret that the service needs before it starts.
fn prepare(job: &Job) -> anyhow::Result<()> {
    let home = Home::new(&job.home);
    let Some(account) = &job.account else {
        // The agent would not know a secret that a server creates later.
        home.secret()?;
        home.dir("logs")?;
        return Ok(());
    };
    let owner = std::fs::metadata(home_of(account)?).context("reading the account's home")?;
    let (uid, gid) =
        (std::os::unix::fs::MetadataExt::uid(&owner), std::os::unix::fs::MetadataExt::gid(&owner));
    for path in [home.dir("")?, home.dir("logs")?] {
        chown(&path, Some(uid), Some(gid)).with_context(|| format!("chown {}", path.display()))?;
    }
    Ok(())
}

/// Replaces the service's file, and starts the service.
fn write(service: Service, path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().context("a service's file lies in a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let is_again = path.is_file();
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    if is_again {
        // The service may run with other arguments; if it cannot be ended, the next step fails.
        run_all(&service.disable()).ok();
    }
    if let Err(err) = run_all(&service.enable(path)) {
        std::fs::remove_file(path).ok();
        return Err(err.context("the service was not installed"));
    }
    Ok(())
}

/// Enables lingering. Without it systemd starts a user's services when the user logs in, not with
/// the machine.
fn linger() {
    if output_of("loginctl", &["enable-linger"], SHOW_TIMEOUT).is_err() {
        output::note(
            "warning: the service starts when you log in, not at boot\n\
             hint: sudo loginctl enable-linger \"$USER\"",
        );
    }
}

fn is_file_of(kind: ServiceKind, scope: Scope) -> anyhow::Result<bool> {
    Ok(here(kind, scope).path(&own_home()?).is_file())
}

/// Whether this is installed as a service on this machine, of the user or of the system.
pub(crate) fn is_installed(kind: ServiceKind) -> anyhow::Result<bool> {
    Ok(is_file_of(kind, Scope::User)? || is_file_of(kind, Scope::System)?)
}

/// Ends a service of this user and removes its file.
pub(crate) fn remove_own(kind: ServiceKind) -> anyhow::Result<()> {
    remove(kind, Scope::User)
}

fn remove(kind: ServiceKind, scope: Scope) -> anyhow::Result<()> {
    let service = here(kind, scope);
    let path = service.path(&own_home()?);
    if !path.is_file() {
        let (name, scope) = (kind.name(), scope.name());
        return Ok(output::line(format_args!("the {name} is no {scope} service here"))?);
    }
    let ended = run_all(&service.disable());
    std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    ended?;
    Ok(output::line(format_args!("removed: {}", path.display()))?)
}

/// State of a service.
#[derive(Debug)]
struct State {
    is_active: bool,
    /// State as the manager names it.
    word: String,
    pid: Option<u32>,
}

/// Parses the output of systemd or launchd.
fn parse_state(manager: Manager, text: &str) -> State {
    let value = |name: &str, between: &str| {
        let lines = text.lines().map(str::trim);
        lines.filter_map(|it| it.strip_prefix(name)?.strip_prefix(between)).next()
    };
    let (word, pid) = match manager {
        Manager::Systemd => (value("ActiveState", "="), value("MainPID", "=")),
        Manager::Launchd => (value("state", " = "), value("pid", " = ")),
    };
    let word = word.unwrap_or("unknown").to_owned();
    let pid = pid.and_then(|it| it.parse().ok()).filter(|pid| *pid != 0);
    State { is_active: ["active", "running"].contains(&&*word), word, pid }
}

fn state(service: Service) -> State {
    let command = service.show();
    let args: Vec<&str> = command[1..].iter().map(String::as_str).collect();
    match output_of(&command[0], &args, SHOW_TIMEOUT) {
        Ok(text) => parse_state(service.manager, &text),
        Err(_) => State { is_active: false, word: "not loaded".to_owned(), pid: None },
    }
}

/// Returns the command that restarts the service with this process, if it is one.
pub(crate) fn restart_command(kind: ServiceKind, pid: u32) -> Option<String> {
    let installed = Scope::ALL.into_iter().filter(|it| is_file_of(kind, *it).unwrap_or(false));
    let mut services = installed.map(|scope| here(kind, scope));
    services.find(|it| state(*it).pid == Some(pid)).map(Service::restart)
}

/// Prints the state of all services. Fails unless at least one is installed and all are active.
fn status(is_json: bool) -> anyhow::Result<ExitCode> {
    let mut rows: Vec<Value> = Vec::new();
    let mut are_active = true;
    for (kind, scope) in
        ServiceKind::ALL.into_iter().flat_map(|kind| Scope::ALL.map(|it| (kind, it)))
    {
        let service = here(kind, scope);
        let path = service.path(&own_home()?);
        if !path.is_file() {
            continue;
        }
        let State { is_active, word, pid } = state(service);
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

fn run_all(commands: &[Vec<String>]) -> anyhow::Result<()> {
    for command in commands {
        let Some((program, args)) = command.split_first() else { bail!("an empty command") };
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        output_of(program, &args, COMMAND_TIMEOUT)
            .with_context(|| format!("running `{}`", command.join(" ")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_read_as_each_manager_prints_it() {
        let systemd = parse_state(Manager::Systemd, "ActiveState=active\nMainPID=42\n");
        assert!(systemd.is_active && systemd.pid == Some(42), "{systemd:?}");
        let ended = parse_state(Manager::Systemd, "MainPID=0\nActiveState=failed\n");
        assert!(!ended.is_active && ended.pid.is_none() && ended.word == "failed", "{ended:?}");
        let launchd = "gui/501/jackalope.server = {\n\tstate = running\n\n\tpid = 7\n}\n";
        let launchd = parse_state(Manager::Launchd, launchd);
        assert!(launchd.is_active && launchd.pid == Some(7), "{launchd:?}");
    }
}
