//! A server with several ranks on this machine, and the faults that can be inflicted on it.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::Signal;
use serde_json::Value;

use crate::flood::Flood;
use crate::plan::{Fault, Kind, STALL};
use crate::program::{RankProcess, command, ranks_of, send, wait_until};
use crate::streams;

/// How long a server may take to become ready. Large models are written to disk before.
const READY_TIMEOUT: Duration = Duration::from_secs(300);

/// How long to look for a victim or its replacement.
const VICTIM_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the server may take to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Log lines at the end of a report.
const LAST_LINES: usize = 20;

/// Clients that disconnect in one fault.
const NUM_LEAVING: usize = 6;

/// A running server.
pub(crate) struct Machine {
    child: Child,
    pub(crate) url: String,
    log: Arc<Log>,
}

/// The server's standard error: a pipe that is read unless it is blocked.
struct Log {
    is_blocked: AtomicBool,
    last_lines: Mutex<VecDeque<String>>,
    /// A second handle of the pipe's write end, for filling the pipe.
    writer: PipeWriter,
}

/// Effects of a fault: the processes that must disappear, the time, and a description.
#[derive(Debug, Default)]
pub(crate) struct Harm {
    pub(crate) victims: Vec<u32>,
    /// Time of the last harm, in seconds of the run.
    pub(crate) at_s: f64,
    /// Description for the log of the run.
    pub(crate) words: String,
}

impl Machine {
    /// Starts `program serve` with a verbose log, in a process group of its own.
    pub(crate) fn start(program: &Path, model: &Path, num_ranks: usize) -> anyhow::Result<Machine> {
        let mut serve = command(program);
        serve.args(["serve", "--port", "0", "--json", "--model"]).arg(model);
        serve.args(["--ranks", &num_ranks.to_string()]);
        serve.args(["--stall-timeout", &STALL.as_secs().to_string()]);
        serve.env("JACKALOPE_HOME", home()).env_remove("JACKALOPE_CPU").env("RUST_LOG", "debug");
        // An interrupt of this run must not reach the server.
        std::os::unix::process::CommandExt::process_group(&mut serve, 0);
        let (stderr, writer) = std::io::pipe()?;
        serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(writer.try_clone()?);
        let mut child = serve.spawn()?;
        let (is_blocked, last_lines) = (AtomicBool::new(false), Mutex::default());
        let log = Arc::new(Log { is_blocked, last_lines, writer });
        let reader = Arc::clone(&log);
        std::thread::spawn(move || reader.drain(stderr));
        let stdout = child.stdout.take().expect("it is piped");
        let (sender, lines) = sync_channel(1);
        std::thread::spawn(move || {
            let mut line = String::new();
            let mut stdout = BufReader::new(stdout);
            stdout.read_line(&mut line).ok();
            // The receiver is gone after the deadline.
            sender.send(line).ok();
            std::io::copy(&mut stdout, &mut std::io::sink()).ok();
        });
        let mut machine = Machine { child, url: String::new(), log };
        let line = lines.recv_timeout(READY_TIMEOUT).unwrap_or_default();
        let ready: Value = serde_json::from_str(&line).unwrap_or_default();
        let Some(url) = ready["url"].as_str() else {
            anyhow::bail!("the server did not become ready\n{}", machine.last_lines());
        };
        machine.url = url.to_owned();
        Ok(machine)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Describes how the server ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("the server ended: {status}\n{}", self.last_lines()))
    }

    pub(crate) fn last_lines(&self) -> String {
        let lines = self.log.last_lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().cloned().collect::<Vec<String>>().join("\n")
    }

    /// Asks the server to end; the error says why that failed.
    pub(crate) fn end(mut self) -> Result<(), String> {
        send(self.pid(), Signal::TERM);
        let ended =
            wait_until(Instant::now() + END_TIMEOUT, || self.child.try_wait().ok().flatten());
        match ended {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("the server ended with {status} when asked to end")),
            None => Err(format!("the server did not end within {END_TIMEOUT:?} of SIGTERM")),
        }
    }

    /// Returns the rank that a random number selects; waits if there is none.
    fn rank(&self, choice: usize) -> Option<RankProcess> {
        wait_until(Instant::now() + VICTIM_TIMEOUT, || {
            let ranks = ranks_of(self.pid());
            (!ranks.is_empty()).then(|| ranks[choice % ranks.len()].clone())
        })
    }

    fn signal_rank(&self, choice: usize, signal: Signal, harm: &mut Harm) -> Option<RankProcess> {
        let rank = self.rank(choice)?;
        send(rank.pid, signal);
        harm.victims.push(rank.pid);
        harm.words += &format!(" rank {} ({})", rank.rank, rank.pid);
        Some(rank)
    }

    /// Inflicts a planned fault. Returns once the last harm is done and a lasting fault has ended.
    pub(crate) fn inflict(&self, fault: &Fault, now_s: impl Fn() -> f64) -> Harm {
        let mut harm = Harm { at_s: now_s(), ..Harm::default() };
        let first = fault.victims[0];
        match fault.kind {
            Kind::Kill | Kind::Burst | Kind::Storm => {
                for (idx, (victim, gap)) in fault.victims.iter().zip(&fault.gaps).enumerate() {
                    if idx != 0 {
                        std::thread::sleep(*gap);
                    }
                    harm.at_s = now_s();
                    self.signal_rank(*victim, Signal::KILL, &mut harm);
                }
            }
            Kind::Freeze => {
                self.signal_rank(first, Signal::STOP, &mut harm);
            }
            Kind::FrozenReplacement => self.freeze_replacement(first, &mut harm, now_s),
            Kind::BlockedLog => {
                self.log.block();
                std::thread::sleep(fault.length / 2);
                self.signal_rank(first, Signal::KILL, &mut harm);
                std::thread::sleep(fault.length / 2);
                self.log.is_blocked.store(false, Ordering::SeqCst);
            }
            Kind::Flood => {
                let ports = self.ports();
                harm.words += &format!(" of ports {ports:?}");
                let flood = Flood::begin(ports, fault.length);
                std::thread::sleep(fault.length / 2);
                harm.at_s = now_s();
                self.signal_rank(first, Signal::KILL, &mut harm);
                harm.words += &format!(", {} connections", flood.end());
            }
            Kind::Disconnects => self.leave(fault),
            _ => unreachable!("this is not done on one machine"),
        }
        harm
    }

    /// Kills a rank and stops its replacement as soon as the system lists it, possibly before it
    /// executes the rank program.
    fn freeze_replacement(&self, choice: usize, harm: &mut Harm, now_s: impl Fn() -> f64) {
        let known = children_of(self.pid());
        if self.signal_rank(choice, Signal::KILL, harm).is_none() {
            return;
        }
        let deadline = Instant::now() + VICTIM_TIMEOUT;
        while Instant::now() < deadline {
            let new = children_of(self.pid()).into_iter().find(|pid| !known.contains(pid));
            if let Some(pid) = new {
                send(pid, Signal::STOP);
                harm.at_s = now_s();
                harm.victims.push(pid);
                harm.words += &format!(", its replacement {pid} frozen");
                return;
            }
        }
        harm.words += ", which nothing replaced";
    }

    /// Lets clients open streams and disconnect after different numbers of tokens.
    fn leave(&self, fault: &Fault) {
        let clients: Vec<_> = (0..NUM_LEAVING)
            .map(|idx| {
                let (url, gap) = (self.url.clone(), fault.gaps[idx]);
                std::thread::spawn(move || {
                    std::thread::sleep(gap);
                    streams::open_and_leave(&url, idx, 3 + 2 * idx);
                })
            })
            .collect();
        clients.into_iter().for_each(|client| drop(client.join()));
    }

    /// Returns the HTTP port, and the control port from a rank's command line.
    fn ports(&self) -> Vec<u16> {
        let control = ranks_of(self.pid()).iter().find_map(|rank| {
            let line = std::fs::read(format!("/proc/{}/cmdline", rank.pid)).ok()?;
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            let at = words.iter().position(|word| *word == b"--control")?;
            std::str::from_utf8(words.get(at + 1)?).ok()?.rsplit_once(':')?.1.parse().ok()
        });
        let http = self.url.rsplit_once(':').and_then(|it| it.1.parse().ok());
        http.into_iter().chain(control).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.log.is_blocked.store(false, Ordering::SeqCst);
        let ranks = ranks_of(self.pid());
        self.child.kill().ok();
        self.child.wait().ok();
        // A stopped rank does not notice that its server is gone.
        ranks.iter().for_each(|rank| send(rank.pid, Signal::KILL));
    }
}

impl Log {
    /// Stops reading, and fills the pipe.
    fn block(&self) {
        self.is_blocked.store(true, Ordering::SeqCst);
        // Opened again: the server's own descriptor must stay blocking.
        let path = format!("/proc/self/fd/{}", self.writer.as_raw_fd());
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let opened = OpenOptions::new().write(true).custom_flags(flags).open(path);
        let mut writer = opened.expect("our own end of the pipe");
        // Fills the pipe with whole lines, which the reader skips later.
        for piece in [&b"DEBUG filler\n".repeat(79)[..], b"\n"] {
            while writer.write_all(piece).is_ok() {}
        }
    }

    fn drain(&self, stderr: PipeReader) {
        let mut stderr = BufReader::with_capacity(1 << 10, stderr);
        let mut line = Vec::new();
        loop {
            while self.is_blocked.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            line.clear();
            match stderr.by_ref().take(1 << 12).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            // A report ends only with lines on which an operator would act.
            let is_detail = line.windows(5).any(|it| it == b"DEBUG" || it == b"TRACE");
            if is_detail || line.trim_ascii().is_empty() {
                continue;
            }
            let mut lines = self.last_lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() == LAST_LINES {
                lines.pop_front();
            }
            lines.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
    }
}

/// Children of a process, whatever program they run.
fn children_of(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name may contain anything; behind it are the state and the parent.
        let parent_pid = stat.rsplit_once(')').and_then(|it| it.1.split_whitespace().nth(1));
        parent_pid.and_then(|it| it.parse().ok()) == Some(parent)
    };
    pids.filter(is_child).collect()
}

/// The home folder of the server under test.
fn home() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-home-{}", std::process::id()))
}
