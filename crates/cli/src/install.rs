//! `bootstrap`, `sync` and `uninstall`: install Jackalope on other machines and remove it.

use std::io::BufRead;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, bail, ensure};
use indicatif::HumanBytes;
use jackalope_console::output;
use jackalope_deploy::machines;
use jackalope_fleet::hostfile::Host;
use jackalope_fleet::install::{
    self, Activated, Bundle, Install, InstallProgress, Installed, Removed,
};
use jackalope_fleet::local::find_rank_program;
use jackalope_fleet::nodes::{self, own_program};
use jackalope_fleet::shell::{Shell, SystemShell};
use jackalope_fleet::trust::{Credentials, TrustStore};
use jackalope_protocol::counted;
use serde_json::{Value, json};

use crate::args::install::{BootstrapArgs, SyncArgs, UninstallArgs};
use crate::environment::Environment;
use crate::progress::Uploads;

/// Machines to install or roll back, and the output format.
struct Order {
    hosts: Vec<String>,
    rollback: bool,
    json: bool,
}

pub(crate) async fn bootstrap(
    args: BootstrapArgs,
    environment: &Environment,
) -> anyhow::Result<()> {
    let BootstrapArgs { hosts, ssh, rollback, json } = args;
    let hosts = names(hosts)?;
    bring(Order { hosts, rollback, json }, ssh.ssh.as_deref(), environment).await
}

/// Installs this version on all machines of a hostfile except this one, which runs it already.
pub(crate) async fn sync(args: SyncArgs, environment: &Environment) -> anyhow::Result<()> {
    let hosts = remote_hosts(&args.hosts)?;
    ensure!(!hosts.is_empty(), "`{}` names no other machine than this one", args.hosts);
    let order = Order { hosts, rollback: args.rollback, json: args.json };
    bring(order, args.ssh.ssh.as_deref(), environment).await
}

/// Trims host names and removes duplicates.
fn names(given: Vec<String>) -> anyhow::Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for name in given {
        let name = name.trim().to_owned();
        ensure!(!name.is_empty(), "an empty name of a host\nhint: separate names by single commas");
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Returns the machines of a hostfile that are reached over ssh, each once.
fn remote_hosts(text: &str) -> anyhow::Result<Vec<String>> {
    let (machines, _) = nodes::machines(&machines::hostfile(text)?.hosts);
    let remote = machines.iter().filter(|host| !host.is_local());
    Ok(remote.map(ssh_name).collect())
}

fn ssh_name(host: &Host) -> String {
    if host.ssh.is_empty() { host.name() } else { host.ssh.clone() }
}

/// Result for one machine.
type Outcome = anyhow::Result<Done>;

enum Done {
    Installed(Installed),
    RolledBack(Activated),
}

async fn bring(order: Order, ssh: Option<&str>, environment: &Environment) -> anyhow::Result<()> {
    let shell = environment.shell(ssh);
    let ours = environment.credentials(None)?;
    let json = order.json;
    let work = move || bring_all(&order, &ours, &shell);
    let outcomes = tokio::task::spawn_blocking(work).await??;
    let num_failed = outcomes.iter().filter(|(_, outcome)| outcome.is_err()).count();
    for (host, outcome) in &outcomes {
        match (json, outcome) {
            (true, outcome) => output::line(outcome_json(host, outcome))?,
            (false, Ok(done)) => output::line(outcome_text(host, done))?,
            (false, Err(err)) => output::note(&format!("error: {err}")),
        }
    }
    match num_failed {
        0 => Ok(()),
        _ => bail!("failed on {num_failed} of {}", counted(outcomes.len(), "machine")),
    }
}

/// Installs or rolls back all machines at the same time.
fn bring_all(
    order: &Order,
    ours: &Credentials,
    shell: &SystemShell,
) -> anyhow::Result<Vec<(String, Outcome)>> {
    let bundle = if order.rollback {
        None
    } else {
        Some(Arc::new(Bundle::of_programs(&own_program()?, &find_rank_program()?)?))
    };
    let uploads = Uploads::new();
    let one = |host: &String| -> Outcome {
        let Some(bundle) = &bundle else {
            return Ok(Done::RolledBack(install::roll_back(host, shell)?));
        };
        let bar = uploads.add(host);
        let progress = |step| match step {
            InstallProgress::Missing(bytes) => bar.expect(bytes),
            InstallProgress::Sent(bytes) => bar.add(bytes),
            InstallProgress::Lost(bytes) => bar.take_back(bytes),
            InstallProgress::Verifying => bar.say("verifying"),
        };
        let what = Install { bundle, ours: Some(ours), shell, progress: &progress };
        let installed = install::install(host, what);
        bar.finish();
        let installed = installed?;
        if let Some(key) = installed.activated.key {
            nodes::pin(ours, host, key)?;
        }
        Ok(Done::Installed(installed))
    };
    Ok(thread::scope(|scope| {
        let threads: Vec<_> =
            order.hosts.iter().map(|host| (host.clone(), scope.spawn(|| one(host)))).collect();
        let join = |(host, thread): (String, thread::ScopedJoinHandle<'_, Outcome>)| {
            (host, thread.join().expect("it does not panic"))
        };
        threads.into_iter().map(join).collect()
    }))
}

fn outcome_text(host: &str, done: &Done) -> String {
    let notes = |activated: &Activated| {
        let mut notes = String::new();
        if activated.secret_changed {
            notes += ", with this cluster's secret";
        }
        if activated.agent_restarted {
            notes += ", its agent was restarted";
        }
        notes
    };
    match done {
        Done::Installed(it) if it.was_there() => format!("{host}: {} is installed already", it.id),
        Done::Installed(it) => {
            let sent = HumanBytes(it.bytes_sent);
            format!("{host}: {} is installed ({sent} sent{})", it.id, notes(&it.activated))
        }
        Done::RolledBack(it) => format!("{host}: switched back to {}{}", it.current, notes(it)),
    }
}

fn outcome_json(host: &str, outcome: &Outcome) -> Value {
    match outcome {
        Ok(Done::Installed(it)) => json!({
            "host": host, "ok": true, "id": it.id, "bytes_sent": it.bytes_sent,
            "was_there": it.was_there(), "activated": it.activated,
        }),
        Ok(Done::RolledBack(it)) => json!({
            "host": host, "ok": true, "id": it.current, "activated": it,
        }),
        Err(err) => json!({"host": host, "ok": false, "error": err.to_string()}),
    }
}

pub(crate) async fn uninstall(
    args: UninstallArgs,
    environment: &Environment,
) -> anyhow::Result<()> {
    let hosts = match &args.hosts {
        Some(hosts) => remote_hosts(hosts)?,
        None => names(args.names)?,
    };
    if !args.yes {
        eprint!("remove jackalope and the cluster's secret from {}? [y/N] ", hosts.join(", "));
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer).context("reading the answer")?;
        let is_yes = matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes");
        ensure!(is_yes, "nothing was removed\nhint: answer y, or pass `--yes`");
    }
    let shell: Arc<dyn Shell> = Arc::new(environment.shell(args.ssh.ssh.as_deref()));
    let trust = TrustStore::new(&environment.home()?);
    let mut removals = Vec::new();
    for host in hosts {
        let (shell, trust) = (Arc::clone(&shell), trust.clone());
        removals.push(tokio::task::spawn_blocking(move || {
            let removed = install::uninstall(&host, &*shell);
            // Uninstalling has removed the machine's key, so it is forgotten here too; unless this was
            // this machine, whose list is gone and must not come back.
            let forgotten = (removed.is_ok() && trust.path().exists()).then(|| {
                trust.update(|list| {
                    list.forget_machine(&host);
                    Ok(())
                })
            });
            (host, removed, forgotten.transpose())
        }));
    }
    let (num_hosts, mut num_failed) = (removals.len(), 0);
    for removal in removals {
        let (host, removed, forgotten) = removal.await?;
        forgotten?;
        num_failed += usize::from(removed.is_err());
        match (args.json, &removed) {
            (true, Ok(removed)) => output::line(json!({
                "host": host, "ok": true, "was_there": *removed != Removed::WasAbsent,
            }))?,
            (true, Err(err)) => {
                output::line(json!({"host": host, "ok": false, "error": err.to_string()}))?;
            }
            (false, Ok(Removed::WasAbsent)) => {
                output::line(format_args!("{host}: nothing was installed"))?;
            }
            (false, Ok(Removed::Gone { home })) => {
                output::line(format_args!("{host}: {home} was removed"))?;
            }
            (false, Err(err)) => output::note(&format!("error: {err}")),
        }
    }
    ensure!(num_failed == 0, "failed on {num_failed} of {}", counted(num_hosts, "machine"));
    Ok(())
}
