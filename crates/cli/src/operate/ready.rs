//! Waiting for a server that becomes ready.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::bail;
use jackalope_console::output;
use jackalope_deploy::log_file::tail_from;
use jackalope_deploy::server_record::ServeRecord;
use jackalope_fleet::home::Home;
use jackalope_fleet::record::is_alive;
use serde_json::Value;

use crate::client::{health_of, recorded};

/// Interval of polling a server that is to become ready.
pub(super) const READY_POLL: Duration = Duration::from_millis(50);
/// Timeout of one request to a server that is to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after which a server that listens but does not answer is given up.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// Number of lines of the log in the error of a failed start.
const LAST_LINES: usize = 12;

/// The log of a server, and where the lines of this start begin.
pub(super) struct Log {
    pub(super) path: PathBuf,
    pub(super) from: u64,
}

/// Waits until a server, the process `pid`, is ready, and reports what it waits for meanwhile.
///
/// # Errors
/// If the server ends, fails, does not answer, or is not ready at the deadline. The end of the `log`,
/// if one is given, says why the server has ended.
pub(super) fn wait_until_ready(
    home: &Home,
    pid: u32,
    deadline: Instant,
    log: Option<&Log>,
) -> anyhow::Result<ServeRecord> {
    let mut told = String::new();
    let mut silent_since = None;
    loop {
        if let Some(running) = ServeRecord::running(home).filter(|it| it.process.pid == pid) {
            match recorded(&running).ask("/health/ready", None, READY_TIMEOUT) {
                Ok(answer) if answer.is_ok() => return Ok(running),
                Ok(answer) => {
                    silent_since = None;
                    refuse_failed(&running, &answer.body)?;
                    tell(&answer.body, &mut told);
                }
                Err(err) => {
                    let since = *silent_since.get_or_insert_with(Instant::now);
                    refuse_silent(&running, since, &err)?;
                }
            }
        }
        if !is_alive(pid) {
            let end = log.map(|it| format!("\n{}", last_lines(it))).unwrap_or_default();
            bail!("the server ended before it was ready{end}");
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

/// Fails if the server's model has failed: it stays so until somebody acts.
fn refuse_failed(running: &ServeRecord, readiness: &Value) -> anyhow::Result<()> {
    if readiness["status"] != "failed" {
        return Ok(());
    }
    // Unlike the answer about readiness, which needs no key, this one says everything.
    let health = health_of(running);
    let reason = health["reason"].as_str().or(readiness["reason"].as_str());
    bail!(
        "the server of {}, pid {}, runs but has failed: {}\n\
         hint: `jackalope restart` starts it anew; `jackalope logs` shows what happened",
        running.model(),
        running.process.pid,
        reason.unwrap_or("it gives no reason")
    )
}

/// Fails if the server has not answered for too long.
fn refuse_silent(running: &ServeRecord, since: Instant, err: &anyhow::Error) -> anyhow::Result<()> {
    if since.elapsed() < SILENCE_MAX {
        return Ok(());
    }
    bail!(
        "the server of {}, pid {}, runs but has not answered for {} s: {}\n\
         hint: `jackalope restart` replaces it; `jackalope doctor` examines it",
        running.model(),
        running.process.pid,
        since.elapsed().as_secs(),
        crate::report::text(err)
    )
}

/// Reports what a server that is not ready waits for, once.
fn tell(readiness: &Value, told: &mut String) {
    let reason = readiness["reason"].as_str().or(readiness["status"].as_str());
    if let Some(reason) = reason.filter(|it| *it != told) {
        output::note(&format!("not ready yet: {reason}"));
        reason.clone_into(told);
    }
}

fn last_lines(log: &Log) -> String {
    let lines = tail_from(&log.path, log.from, LAST_LINES).unwrap_or_default();
    format!("its log {} ends:\n{}", log.path.display(), lines.join("\n"))
}
