//! `jackalope start`, `stop` and `restart`.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use jackalope_console::client::Server;
use jackalope_console::output;
use jackalope_deploy::log_file::{LOG_BYTES_MAX, rotate, serve_log, tail_from};
use jackalope_deploy::server_record::{ServeRecord, ServerStart};
use jackalope_fleet::home::Home;
use jackalope_fleet::nodes::own_program;
use jackalope_fleet::process::Spawn;
use jackalope_fleet::record::{EndRequest, KILL_GRACE, is_alive};
use jackalope_fleet::service::{ServiceKind, restart_command};
use jackalope_inspect::rdma_release;
use jackalope_protocol::counted;
use serde_json::{Value, json};

use crate::args::operate::{RestartArgs, StartArgs, StopArgs};
use crate::client::{off_runtime, recorded};
use crate::config::Resolved;
use crate::environment::Environment;
use crate::serve;

/// Interval of polling a server that is to become ready.
const READY_POLL: Duration = Duration::from_millis(50);

/// Maximum time for which a server that is ready may still write its arguments.
const REMEMBER_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of one request to a server that is to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of the request for its ranks to a server that is to be ended.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a server is given to hand its ranks over, or to end.
const END_GRACE: Duration = Duration::from_secs(10);
/// Number of lines of the log in the error of a failed start.
const LAST_LINES: usize = 12;

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
    let environment = environment.clone();
    off_runtime(move || {
        let Some(running) = ServeRecord::running(&home) else {
            return begin(&home, &start, wait, Outcome { event: "started", json });
        };
        if running.start().as_ref() == Some(&start) {
            wait_until_ready(&home, running.process.pid, Instant::now() + wait, &Log::default())?;
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
        // Before a server that works ends.
        serve::check(args.serve, &environment)?;
        home.check_space()?;
        output::note(&format!(
            "replacing the server of {} at {}, pid {}",
            running.model(),
            running.url(),
            running.process.pid
        ));
        running.process.end(END_GRACE);
        begin(&home, &start, wait, Outcome { event: "replaced", json })
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
        let running = ServeRecord::running(&home);
        let known =
            running.as_ref().and_then(ServeRecord::start).or_else(|| ServerStart::last(&home));
        let Some(mut start) = known else {
            bail!(
                "nothing was started yet\n\
                 hint: `jackalope start --model DIR`; its arguments are remembered"
            );
        };
        if let Some(running) = &running {
            refuse_service(running)?;
            // Before a server that works ends.
            home.check_space()?;
        }
        start.set(&set_now);
        let request = if args.fresh { EndRequest::End } else { EndRequest::HandOver };
        if let Some(running) = running
            && !running.process.ask(request, END_GRACE)
        {
            output::note("the server did not end in time and is killed");
            running.process.end(Duration::ZERO);
        }
        let wait = Duration::from_secs(args.wait);
        begin(&home, &start, wait, Outcome { event: "restarted", json: args.json })
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

/// The log of a server, and where the lines of this start begin.
#[derive(Default)]
struct Log {
    path: PathBuf,
    from: u64,
}

/// Starts a server in the background and waits until it is ready.
pub(super) fn begin(
    home: &Home,
    start: &ServerStart,
    wait: Duration,
    outcome: Outcome,
) -> anyhow::Result<()> {
    home.dir("logs")?;
    home.check_space()?;
    let path = serve_log(home);
    rotate(&path, LOG_BYTES_MAX).with_context(|| format!("rotating {}", path.display()))?;
    let log = OpenOptions::new().create(true).append(true).open(&path);
    let log = log.with_context(|| format!("opening {}", path.display()))?;
    let from = log.metadata().map_or(0, |it| it.len());
    let mut spawn = Spawn::new(own_program()?, "serve");
    let words = ["--verbose", "serve"].map(str::to_owned).into_iter();
    let words = words.chain(start.words.iter().cloned()).chain(["--detached".to_owned()]);
    spawn.args = words.map(Into::into).collect();
    spawn.env = start.environment().map(|(name, value)| (name, value.into())).collect();
    spawn.cwd = Some(start.cwd.clone()).filter(|it| it.is_dir());
    let pid = spawn.start_detached(log).context("starting the server")?;
    let log = Log { path, from };
    let running = wait_until_ready(home, pid, Instant::now() + wait, &log);
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

fn wait_until_ready(
    home: &Home,
    pid: u32,
    deadline: Instant,
    log: &Log,
) -> anyhow::Result<ServeRecord> {
    loop {
        let running = ServeRecord::running(home).filter(|it| it.process.pid == pid);
        let answer = running.as_ref().map(recorded).map(|it: Server| {
            let is_up = it.ask("/health/ready", None, READY_TIMEOUT);
            is_up.is_ok_and(|answer| answer.is_ok())
        });
        if let (Some(running), Some(true)) = (running, answer) {
            return Ok(running);
        }
        if !is_alive(pid) {
            bail!("the server ended before it was ready\n{}", last_lines(log));
        }
        if deadline <= Instant::now() {
            bail!(
                "the server, pid {pid}, is not ready yet and keeps running\nhint: `jackalope \
                 status` and `jackalope logs -f` show it, `jackalope stop` ends it"
            );
        }
        std::thread::sleep(READY_POLL);
    }
}

fn last_lines(log: &Log) -> String {
    let lines = tail_from(&log.path, log.from, LAST_LINES).unwrap_or_default();
    format!("its log {} ends:\n{}", log.path.display(), lines.join("\n"))
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
