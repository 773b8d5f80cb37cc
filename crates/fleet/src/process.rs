//! Child processes whose lifetime is tied to ours. The only module that starts programs.
//!
//! A child gets a pipe as its standard input and is expected to exit when that pipe closes, so that
//! it does not outlive us even if we are killed. It runs in its own process group, so that Ctrl-C
//! in a terminal reaches only us and we decide how it ends. Dropping a [`Child`] kills it.

mod unexecuted;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tracing::info;

pub use unexecuted::kill_unexecuted_children;

/// Maximum number of lines of standard error that are kept.
const LAST_LINES_MAX: usize = 20;

/// Maximum length of a line in bytes; longer lines are cut, so that a child cannot fill our memory.
pub(crate) const LINE_BYTES_MAX: u64 = 4096;

/// How long to wait for the end of standard error after the process has exited.
const STDERR_GRACE: Duration = Duration::from_millis(200);

/// Time within which the system executes a program, unless [`Spawn::start_timeout`] says otherwise.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between two checks of a child that is overdue.
const STUCK_POLL: Duration = Duration::from_millis(50);

/// The parameters with which a program is started.
#[derive(Clone, Debug)]
pub struct Spawn {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments of the program.
    pub args: Vec<OsString>,
    /// Variables to add to our environment.
    pub env: Vec<(String, OsString)>,
    /// Working directory; ours if absent.
    pub cwd: Option<PathBuf>,
    /// Label in our log for each line that the child writes to its standard error.
    pub label: String,
    /// Bytes to write to the child's standard input, which stays open afterwards.
    pub input: Vec<u8>,
    /// Whether the child's standard output is read through [`Child::take_stdout`]; else it is
    /// discarded.
    pub reads_stdout: bool,
    /// Whether the child's standard error is read through [`Child::take_stderr`]; else its lines go
    /// to our log and the last of them are kept.
    pub reads_stderr: bool,
    /// Time within which the system has to execute the program. A child that has not executed it by
    /// then, because it was stopped or its file system hangs, is killed.
    pub start_timeout: Duration,
}

/// A running program; killed when dropped.
#[derive(Debug)]
pub struct Child {
    child: std::process::Child,
    /// Kept open while the child should run: the child exits when its standard input ends.
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    tail: Arc<Mutex<Tail>>,
    ended: Option<ExitStatus>,
}

/// The last lines that a child wrote to its standard error.
#[derive(Debug, Default)]
struct Tail {
    lines: VecDeque<String>,
    is_closed: bool,
}

impl Spawn {
    /// Creates the parameters of a program without arguments, variables or input.
    pub fn new(program: impl Into<PathBuf>, label: impl Into<String>) -> Spawn {
        Spawn {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: None,
            label: label.into(),
            input: Vec::new(),
            reads_stdout: false,
            reads_stderr: false,
            start_timeout: START_TIMEOUT,
        }
    }

    /// Starts the program.
    ///
    /// # Errors
    /// If the system cannot start the program; [`io::ErrorKind::TimedOut`] if the system does not execute it in
    /// time. A program that ends before it has read its input was started: [`Child::last_words`] may say why it
    /// ended.
    pub fn start(self) -> io::Result<Child> {
        #[expect(clippy::disallowed_methods, reason = "this is the wrapper that others must use")]
        let mut command = Command::new(&self.program);
        let stdout = if self.reads_stdout { Stdio::piped() } else { Stdio::null() };
        command
            .args(&self.args)
            .envs(self.env)
            .current_dir(self.cwd.as_deref().unwrap_or(Path::new(".")))
            .stdin(Stdio::piped())
            .stdout(stdout)
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = execute(&mut command, self.start_timeout)?;
        let mut stdin = child.stdin.take().expect("standard input is piped");
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let tail = Arc::new(Mutex::new(Tail::default()));
        // Killed when dropped, should something fail below.
        let mut child = Child { child, stdin: None, stdout, stderr, tail, ended: None };
        let label = self.label;
        if let Some(stderr) = child.stderr.take_if(|_| !self.reads_stderr) {
            let writer = Arc::clone(&child.tail);
            thread::Builder::new()
                .name(format!("stderr of {label}"))
                .spawn(move || keep_tail(stderr, &label, &writer))?;
        }
        // Without its input, a program that still runs finds the end of it, and ends.
        let sent = stdin.write_all(&self.input).and_then(|()| stdin.flush());
        child.stdin = sent.is_ok().then_some(stdin);
        Ok(child)
    }
}

impl Spawn {
    /// Starts the program so that it outlives us: its output goes to `log`, and its standard input
    /// is closed once `input` is written. The program should leave our session itself. Returns its
    /// process id.
    ///
    /// # Errors
    /// If the system cannot start the program.
    pub fn start_detached(self, log: std::fs::File) -> io::Result<u32> {
        #[expect(clippy::disallowed_methods, reason = "this is the wrapper that others must use")]
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.env)
            .current_dir(self.cwd.as_deref().unwrap_or(Path::new(".")))
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut child = execute(&mut command, self.start_timeout)?;
        let mut stdin = child.stdin.take().expect("standard input is piped");
        stdin.write_all(&self.input)?;
        Ok(child.id())
    }
}

/// Starts a program. The caller blocks until the child executes the program, and does not learn the
/// child's process id before that. Therefore a second thread watches the time.
///
/// # Errors
/// If the system cannot start the program; [`io::ErrorKind::TimedOut`] if the child was killed
/// because it did not execute the program within `timeout`.
fn execute(command: &mut Command, timeout: Duration) -> io::Result<std::process::Child> {
    let (executed, is_executed) = mpsc::channel::<()>();
    let watch = thread::Builder::new().name("start".to_owned()).spawn(move || {
        let mut killed = Vec::new();
        let mut wait = timeout;
        while let Err(RecvTimeoutError::Timeout) = is_executed.recv_timeout(wait) {
            killed.extend(kill_unexecuted_children(timeout));
            wait = STUCK_POLL;
        }
        killed
    })?;
    let started = command.spawn();
    drop(executed);
    let killed = watch.join().unwrap_or_default();
    let mut child = started?;
    if !killed.contains(&child.id()) {
        return Ok(child);
    }
    child.wait()?;
    let program = Path::new(command.get_program()).display();
    let message = format!(
        "the system did not execute {program} within {:.1} s, and its process was killed\n\
         hint: was the process stopped, or does the file system of the program hang?",
        timeout.as_secs_f32()
    );
    Err(io::Error::new(io::ErrorKind::TimedOut, message))
}

impl Child {
    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes the child's standard output; `None` the second time or without
    /// [`Spawn::reads_stdout`].
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.stdout.take()
    }

    /// Takes the child's standard error; `None` the second time or without [`Spawn::reads_stderr`].
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.stderr.take()
    }

    /// Returns how the child ended, or `None` while it runs. Does not block.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Waits until the child ends or the deadline passes; `None` if it still runs then.
    pub fn wait_until(&mut self, deadline: Instant) -> Option<ExitStatus> {
        loop {
            if let Some(status) = self.try_wait() {
                return Some(status);
            }
            if deadline <= Instant::now() {
                return None;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Writes to the child's standard input.
    ///
    /// # Errors
    /// If the child has ended or closed its input.
    pub fn send_input(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(stdin) = &mut self.stdin else {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe));
        };
        stdin.write_all(bytes)?;
        stdin.flush()
    }

    /// Writes all of `bytes` to its standard input on a thread of its own, then closes it. The
    /// child may end without having read them.
    pub fn feed(&mut self, bytes: Vec<u8>) -> thread::JoinHandle<()> {
        let stdin = self.stdin.take();
        thread::spawn(move || {
            if let Some(mut stdin) = stdin {
                stdin.write_all(&bytes).ok();
            }
        })
    }

    /// Sends a signal, by number, to the child and to the processes that it has started.
    pub fn signal(&mut self, signal: i32) {
        let group = Pid::from_raw(self.child.id().cast_signed());
        let signal = Signal::from_named_raw(signal);
        if let (None, Some(group), Some(signal)) = (self.try_wait(), group, signal) {
            // Fails only if the process is gone already.
            kill_process_group(group, signal).ok();
        }
    }

    /// Closes the child's standard input, upon which the child is expected to exit.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Kills the process and those that it has started. Does not wait until it is gone.
    pub fn signal_kill(&mut self) {
        self.stdin = None;
        self.signal(Signal::KILL.as_raw());
    }

    /// Kills the process and those that it has started, and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal_kill();
        if self.try_wait().is_none() {
            // Fails only if the process is gone already; then `wait` returns its status.
            self.child.kill().ok();
            self.ended = self.child.wait().ok();
        }
    }

    /// Returns the last lines of the child's standard error; complete if the process has ended.
    pub fn last_words(&self) -> String {
        let deadline = Instant::now() + STDERR_GRACE;
        loop {
            let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
            if self.ended.is_none() || tail.is_closed || deadline <= Instant::now() {
                return tail.lines.iter().cloned().collect::<Vec<String>>().join("\n");
            }
            drop(tail);
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

fn keep_tail(stderr: ChildStderr, label: &str, tail: &Mutex<Tail>) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        info!(from = label, "{text}");
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.lines.len() == LAST_LINES_MAX {
            tail.lines.pop_front();
        }
        tail.lines.push_back(text);
    }
    tail.lock().unwrap_or_else(PoisonError::into_inner).is_closed = true;
}

/// Describes how a process ended: `exit status 1`, `killed by signal 9 (SIGKILL)`.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => match signal_name(signal) {
            Some(name) => format!("killed by signal {signal} ({name})"),
            None => format!("killed by signal {signal}"),
        },
        (None, None) => "ended in an unknown way".to_owned(),
    }
}

/// Returns the exit code as shells report it: 128 plus the number for a signal.
pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// Names of the signals whose numbers are the same on macOS and Linux.
fn signal_name(signal: i32) -> Option<&'static str> {
    match signal {
        1 => Some("SIGHUP"),
        2 => Some("SIGINT"),
        3 => Some("SIGQUIT"),
        4 => Some("SIGILL"),
        6 => Some("SIGABRT"),
        8 => Some("SIGFPE"),
        9 => Some("SIGKILL, often the system out of memory"),
        11 => Some("SIGSEGV"),
        13 => Some("SIGPIPE"),
        15 => Some("SIGTERM"),
        _ => None,
    }
}

/// Runs a short command that queries the system, and returns its standard output.
///
/// # Errors
/// If the command cannot be started, fails, or takes longer than `timeout`.
pub fn output_of(program: &str, args: &[&str], timeout: Duration) -> io::Result<String> {
    let mut spawn = Spawn::new(program, program);
    spawn.args = args.iter().map(OsString::from).collect();
    spawn.reads_stdout = true;
    let mut child = spawn.start()?;
    child.close_input();
    let mut stdout = child.take_stdout().expect("asked for");
    let reader = thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let status = child.wait_until(Instant::now() + timeout);
    let failed = |what: String| Err(io::Error::other(format!("`{program}` {what}")));
    match status {
        Some(status) if status.success() => {
            reader.join().unwrap_or_else(|_| failed("could not be read".to_owned()))
        }
        Some(status) => failed(format!("failed: {}", describe(status))),
        None => failed(format!("took longer than {timeout:?}")),
    }
}
