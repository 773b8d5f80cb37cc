//! `jackalope start`, `stop` and `restart`.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use jackalope_console::output;
use jackalope_deploy::log_file::{LOG_BYTES_MAX, rotate, serve_log};
use jackalope_deploy::server_record::{ServeRecord, ServerStart};
use jackalope_fleet::home::Home;
use jackalope_fleet::nodes::own_program;
use jackalope_fleet::process::{Spawn, describe};
use jackalope_fleet::record::{EndRequest, KILL_GRACE};
use jackalope_fleet::service::{ServiceKind, restart_command};
use jackalope_inspect::rdma_release;
use jackalope_protocol::counted;
use serde_json::{Value, json};

use super::ready::{Log, READY_POLL, wait_until_ready};
use super::start_lock::StartLock;
use crate::args::operate::{RestartArgs, StartArgs, StopArgs};
use crate::client::{off_runtime, recorded};
use crate::config::Resolved;
use crate::environment::Environment;

/// Maximum time for which a server that is ready may still write its arguments.
const REMEMBER_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the request for its ranks to a server that is to be ended.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a server is given to hand its ranks over, or to end.
const END_GRACE: Duration = Duration::from_secs(10);
/// Time that checking the arguments of a server may take; it reads files and no weights.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

/// What a command did with the server, and how it reports that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// `started`, `replaced`, `restarted`, `resumed` or `runs`.
    pub(super) event: &'static str,
    pub(super) json: bool,
}

pub(crate) async fn start(
    args: StartArgs,
    resolved: &Resolved,
    environment: &Environment,
) -> anyhow::Result<()> {
    let home = environment.home()?;
    resolved.notes.iter().for_each(|it| output::note(it));
    let start = ServerStart::here(&resolved.typed, environment.settings());
    let (json, wait) = (args.serve.json, Duration::from_secs(args.wait));
    off_runtime(move || {
        let deadline = Instant::now() + wait;
        let _lock = StartLock::take(&home, deadline)?;
        let Some(running) = ServeRecord::running(&home) else {
            return begin(&home, &start, deadline, Outcome { event: "started", json });
        };
        if running.start().as_ref() == Some(&start) {
            let running = wait_until_ready(&home, running.process.pid, deadline, None)?;
            return report(&running, Outcome { event: "runs", json }, &home);
        }
        refuse_service(&running)?;
        if args.no_replace {
            bail!(
                "a server with other arguments runs: {} at {}, pid {}\n\
                 hint: `jackalope stop` ends it; without `--no-replace` it is replaced",
                running.model(),
                running.url(),
                running.process.pid
            );
        }
        check(&home, &start)?;
        output::note(&format!(
            "replacing the server of {} at {}, pid {}",
            running.model(),
            running.url(),
            running.process.pid
        ));
        running.process.end(END_GRACE);
        begin(&home, &start, deadline, Outcome { event: "replaced", json })
    })
    .await
}

/// Fails if the running server is a service: its manager would not know a server that replaces it.
fn refuse_service(running: &ServeRecord) -> anyhow::Result<()> {
    let pid = running.process.pid;
    if let Some(command) = restart_command(ServiceKind::Server, pid) {
        bail!(
            "the server of {}, pid {pid}, is a service\n\
             hint: `{command}` restarts it; `jackalope service install server -- ARGUMENTS` \
             changes its arguments",
            running.model()
        );
    }
    Ok(())
}

pub(crate) async fn restart(args: RestartArgs, environment: &Environment) -> anyhow::Result<()> {
    let home = environment.home()?;
    let set_now = environment.settings().clone();
    off_runtime(move || {
        let deadline = Instant::now() + Duration::from_secs(args.wait);
        let _lock = StartLock::take(&home, deadline)?;
        let running = ServeRecord::running(&home);
        let known =
            running.as_ref().and_then(ServeRecord::start).or_else(|| ServerStart::last(&home));
        let Some(mut start) = known else {
            bail!(
                "nothing was started yet\n\
                 hint: `jackalope start --model DIR`; its arguments are remembered"
            );
        };
        start.set(&set_now);
        if let Some(running) = &running {
            refuse_service(running)?;
            check(&home, &start)?;
        }
        let request = if args.fresh { EndRequest::End } else { EndRequest::HandOver };
        if let Some(running) = running
            && !running.process.ask(request, END_GRACE)
        {
            output::note("the server did not end in time and is killed");
            running.process.end(Duration::ZERO);
        }
        begin(&home, &start, deadline, Outcome { event: "restarted", json: args.json })
    })
    .await
}

pub(crate) async fn stop(args: StopArgs, environment: &Environment) -> anyhow::Result<()> {
    let home = environment.home()?;
    off_runtime(move || {
        let devices = rdma_release::usable();
        let ended = end_server(&home, Duration::from_secs(args.grace))?;
        let busy =
            if ended.is_some() { rdma_release::wait_until_free(&devices) } else { Vec::new() };
        if args.json {
            return Ok(output::line(json!({ "ended": ended, "rdma_busy": busy }))?);
        }
        output::line(words_of(ended.as_ref()))?;
        if let Some(words) = rdma_release::busy_message(&busy) {
            output::note(&words);
        }
        Ok(())
    })
    .await
}

/// Ends the server of this machine, if one runs, and returns a description of it.
pub(super) fn end_server(home: &Home, grace: Duration) -> anyhow::Result<Option<Value>> {
    let Some(running) = ServeRecord::running(home) else {
        if let Some(stale) = ServeRecord::read(home) {
            stale.forget(home);
        }
        return Ok(None);
    };
    let health = recorded(&running).ask("/health", None, LAST_WORD_TIMEOUT);
    let ranks = health.map(|it| it.body["ranks"].clone()).unwrap_or_default();
    let pid = running.process.pid;
    let is_killed = !running.process.ask(EndRequest::End, grace);
    if is_killed && !running.process.ask(EndRequest::Kill, KILL_GRACE) {
        bail!("the server, pid {pid}, does not end, not even when killed");
    }
    running.forget(home);
    let ranks = ranks.as_array().into_iter().flatten();
    let ranks = ranks.map(|it| json!({"rank": it["rank"], "host": it["host"], "pid": it["pid"]}));
    Ok(Some(json!({
        "pid": pid, "url": running.url(), "model": running.model(), "killed": is_killed,
        "ranks": ranks.collect::<Vec<Value>>(),
    })))
}

/// Formats the result of [`end_server`] for people.
pub(super) fn words_of(ended: Option<&Value>) -> String {
    let Some(ended) = ended else { return "no server runs here".to_owned() };
    let how = if ended["killed"] == true { "was killed" } else { "has ended" };
    let ranks = counted(ended["ranks"].as_array().map_or(0, Vec::len), "rank");
    format!(
        "the server of {} at {}, pid {}, {how} with {ranks}",
        ended["model"].as_str().unwrap_or("a model"),
        ended["url"].as_str().unwrap_or_default(),
        ended["pid"]
    )
}

/// Checks what a new server needs, as far as its ranks and port are not involved, before one that
/// works ends for it.
fn check(home: &Home, start: &ServerStart) -> anyhow::Result<()> {
    home.check_space()?;
    let mut checking = serve_command(start, "--only-check")?.start()?;
    match checking.wait_until(Instant::now() + CHECK_TIMEOUT) {
        Some(status) if status.success() => Ok(()),
        Some(status) => {
            let words = checking.last_words();
            let error = words.find("error: ").map(|at| &words[at + "error: ".len()..]);
            bail!("{}", error.map_or_else(|| describe(status), str::to_owned))
        }
        None => bail!(
            "checking the arguments of the server took longer than {} s\n\
             hint: is the file system of its model reachable?",
            CHECK_TIMEOUT.as_secs()
        ),
    }
}

/// Returns the command `serve` with a server's arguments and variables, and the option `further`.
fn serve_command(start: &ServerStart, further: &str) -> anyhow::Result<Spawn> {
    let mut spawn = Spawn::new(own_program()?, "serve");
    let words = ["--verbose", "serve"].map(str::to_owned).into_iter();
    let words = words.chain(start.words.iter().cloned()).chain([further.to_owned()]);
    spawn.args = words.map(Into::into).collect();
    spawn.env = start.environment().map(|(name, value)| (name, value.into())).collect();
    spawn.cwd = Some(start.cwd.clone()).filter(|it| it.is_dir());
    Ok(spawn)
}

/// Starts a server in the background and waits until it is ready.
pub(super) fn begin(
    home: &Home,
    start: &ServerStart,
    deadline: Instant,
    outcome: Outcome,
) -> anyhow::Result<()> {
    home.dir("logs")?;
    home.check_space()?;
    let path = serve_log(home);
    rotate(&path, LOG_BYTES_MAX).with_context(|| format!("rotating {}", path.display()))?;
    let log = OpenOptions::new().create(true).append(true).open(&path);
    let log = log.with_context(|| format!("opening {}", path.display()))?;
    let from = log.metadata().map_or(0, |it| it.len());
    let spawn = serve_command(start, "--detached")?;
    let pid = spawn.start_detached(log).context("starting the server")?;
    let log = Log { path, from };
    let running = wait_until_ready(home, pid, deadline, Some(&log));
    // On a full disk the log does not show the cause, so the space is checked.
    let running = running.map_err(|err| match home.check_space() {
        Ok(()) => err,
        Err(full) => anyhow::anyhow!("{}\n{full}", crate::report::text(&err)),
    })?;
    wait_until_remembered(home, start);
    report(&running, outcome, home)
}

/// Waits until the server has recorded its arguments for `restart`, which it does when it is ready. A
/// server that cannot write them logs that and serves all the same, so the wait is short.
fn wait_until_remembered(home: &Home, start: &ServerStart) {
    let deadline = Instant::now() + REMEMBER_TIMEOUT;
    while ServerStart::last(home).as_ref() != Some(start) && Instant::now() < deadline {
        std::thread::sleep(READY_POLL);
    }
}

/// Prints what was done with the server.
pub(super) fn report(running: &ServeRecord, outcome: Outcome, home: &Home) -> anyhow::Result<()> {
    let (url, model, pid) = (running.url(), running.model(), running.process.pid);
    let log: &Path = &serve_log(home);
    let Outcome { event, json } = outcome;
    if json {
        return Ok(output::line(json!({
            "event": event, "url": url, "model": model, "pid": pid, "log": log,
        }))?);
    }
    let event = if event == "runs" { "runs already" } else { event };
    Ok(output::line(format_args!(
        "{model}: {event}, pid {pid}\n{url}\n  \
         log      jackalope logs -f\n  \
         stop it  jackalope stop"
    ))?)
}
