//! `jackalope kill-all`: the emergency stop. Ends the recorded processes on every machine, and
//! nothing else.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use jackalope_console::output;
use jackalope_deploy::agent::RECORD as AGENT_RECORD;
use jackalope_deploy::machines;
use jackalope_deploy::server_record::{ServeRecord, ServerStart};
use jackalope_fleet::home::Home;
use jackalope_fleet::hostfile::Host;
use jackalope_fleet::nodes;
use jackalope_fleet::record::Recorded;
use jackalope_fleet::shell::Shell;
use jackalope_inspect::rdma_release;
use serde_json::{Value, json};

use super::start::{end_server, words_of};
use crate::args::operate::KillAllArgs;
use crate::client::off_runtime;
use crate::environment::Environment;

/// Time between the request to end and the kill.
const GRACE: Duration = Duration::from_secs(3);

/// Timeout for ending one machine's agent through the shell.
const HOST_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) async fn kill_all(
    args: KillAllArgs,
    environment: &Environment,
) -> anyhow::Result<ExitCode> {
    let home = environment.home()?;
    let known = ServeRecord::read(&home);
    let ssh = args.ssh.clone().or_else(|| Some(known.as_ref()?.ssh()?.to_owned()));
    let shell = environment.shell(ssh.as_deref());
    off_runtime(move || {
        let hosts = hosts(args.hosts.as_deref(), known.as_ref(), &home);
        let devices = rdma_release::usable();
        let server = end_server(&home, GRACE);
        let mut ended = end_agents(hosts.as_deref().unwrap_or(&[this_machine()]), &home, &shell);
        // If the hostfile cannot be read, the processes known here are ended nevertheless.
        if let Err(err) = hosts {
            ended.push(json!({"host": "others", "ok": false, "said": crate::report::text(&err)}));
        }
        let (server, is_ended) = match server {
            Ok(server) => (json!({ "ended": server }), true),
            Err(err) => (json!({ "error": crate::report::text(&err) }), false),
        };
        let busy = rdma_release::wait_until_free(&devices);
        if let Some(words) = rdma_release::busy_message(&busy) {
            output::note(&words);
        }
        if args.json {
            output::line(json!({ "serve": server, "hosts": ended, "rdma_busy": busy }))?;
        } else {
            let said = server["error"].as_str().map(str::to_owned);
            let ended = Some(&server["ended"]).filter(|it| !it.is_null());
            output::line(said.unwrap_or_else(|| words_of(ended)))?;
        }
        let mut are_ended = true;
        for host in &ended {
            are_ended &= host["ok"] == true;
            if !args.json {
                let said = host["said"].as_str().unwrap_or_default();
                output::line(format_args!("{}: {said}", host["host"].as_str().unwrap_or("?")))?;
            }
        }
        Ok(if is_ended && are_ended { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
    .await
}

/// Returns the machines that were named, or those of the running server, or those of the last one;
/// always includes this machine.
fn hosts(
    given: Option<&str>,
    known: Option<&ServeRecord>,
    home: &Home,
) -> anyhow::Result<Vec<Host>> {
    let last = || {
        let ServerStart { words, env, cwd, .. } = ServerStart::last(home)?;
        let at = words.iter().position(|word| word == "--hosts");
        let after = at.and_then(|at| words.get(at + 1).cloned());
        let joined = || words.iter().find_map(|it| it.strip_prefix("--hosts=").map(str::to_owned));
        let named = after.or_else(joined).or_else(|| env.get("HOSTFILE").cloned())?;
        let file = cwd.join(&named);
        Some(if file.is_file() { file.to_string_lossy().into_owned() } else { named })
    };
    let remembered = || known.and_then(|it| it.hosts().map(str::to_owned)).or_else(last);
    let mut hosts = match (given, remembered()) {
        (Some(given), _) => machines::hostfile(given)?.hosts,
        (None, Some(remembered)) => {
            machines::hostfile(&remembered).context("reading the machines of the last start")?.hosts
        }
        (None, None) => Vec::new(),
    };
    hosts.push(this_machine());
    Ok(nodes::machines(&hosts).0)
}

fn this_machine() -> Host {
    Host { ssh: "127.0.0.1".to_owned(), ..Host::default() }
}

/// Ends the agents of all machines at the same time.
fn end_agents(hosts: &[Host], home: &Home, shell: &dyn Shell) -> Vec<Value> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            hosts.iter().map(|host| scope.spawn(|| end_agent(host, home, shell))).collect();
        threads.into_iter().map(|it| it.join().expect("it does not panic")).collect()
    })
}

fn end_agent(host: &Host, home: &Home, shell: &dyn Shell) -> Value {
    let name = if host.is_local() { "127.0.0.1".to_owned() } else { host.name() };
    if host.is_local() {
        let recorded = Recorded::read(home, AGENT_RECORD);
        let ended = recorded.is_some_and(|it| it.end(GRACE));
        let said = if ended { "the agent has ended" } else { "no agent runs here" };
        return json!({"host": name, "ok": true, "said": said});
    }
    let ssh = if host.ssh.is_empty() { name.as_str() } else { host.ssh.as_str() };
    let (ok, said) = match shell.run(ssh, &nodes::on_machine("agent stop"), b"", HOST_TIMEOUT) {
        Ok(output) if output.status == 0 => (true, output.stdout.trim().to_owned()),
        Ok(output) => (false, format!("exit status {}: {}", output.status, output.stderr.trim())),
        Err(err) => (false, format!("{err}\nhint: {}", err.kind.hint(&err.host))),
    };
    json!({"host": name, "ok": ok, "said": said})
}
