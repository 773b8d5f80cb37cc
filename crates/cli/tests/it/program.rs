//! Processes: `jackalope`, its ranks, and how they end.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Timeout of waits, much longer than any of them takes even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Polls until there is an answer.
pub(crate) fn wait_for<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    wait_until(Instant::now() + PATIENCE, ask).unwrap_or_else(|| panic!("no {what} in time"))
}

/// Polls until there is an answer or the deadline has passed.
pub(crate) fn wait_until<T>(deadline: Instant, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        let is_late = deadline <= Instant::now();
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if is_late {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the command of any program.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    #[expect(clippy::disallowed_methods, reason = "tests watch the processes from outside")]
    Command::new(program)
}

/// A running `jackalope`, which is killed when this is dropped.
pub(crate) struct Program {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    stderr: Option<JoinHandle<String>>,
    /// Standard error that is not read here.
    unread: Option<ChildStderr>,
}

/// Output and exit status of a program.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Program {
    /// Starts `jackalope` with these arguments; `input` is its complete standard input.
    pub(crate) fn start<A: AsRef<OsStr>>(args: &[A], input: &str) -> Program {
        Program::start_with(args, input, &[])
    }

    /// Like [`Program::start`], with these environment variables.
    pub(crate) fn start_with<A: AsRef<OsStr>>(
        args: &[A],
        input: &str,
        env: &[(&str, &str)],
    ) -> Program {
        Program::start_command(jackalope(args, env), input)
    }

    /// Starts `jackalope` with these arguments and variables, and leaves its standard error unread
    /// in the pipe.
    pub(crate) fn start_unread<A: AsRef<OsStr>>(args: &[A], env: &[(&str, &str)]) -> Program {
        let mut child = jackalope(args, env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().map(BufReader::new);
        let unread = child.stderr.take();
        Program { child, stdout, stderr: None, unread }
    }

    /// Starts any command as [`Program::start`] does.
    pub(crate) fn start_command(mut command: Command, input: &str) -> Program {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Commands that read nothing may have ended already.
        child.stdin.take().unwrap().write_all(input.as_bytes()).ok();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let stderr = child.stderr.take().unwrap();
        let stderr = Some(std::thread::spawn(|| read(stderr)));
        Program { child, stdout: Some(stdout), stderr, unread: None }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line of its standard output; panics with its standard error if there is none.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        let stdout = self.stdout.as_mut().expect("the program is not at its end");
        if stdout.read_line(&mut line).unwrap() == 0 {
            self.child.kill().ok();
            panic!("nothing was said; standard error: {}", self.stderr_text());
        }
        line
    }

    /// Standard error of a program that was started with [`Program::start_unread`].
    pub(crate) fn take_unread(&mut self) -> ChildStderr {
        self.unread.take().expect("it is taken once")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Waits until it has ended by itself.
    pub(crate) fn end(mut self) -> Ended {
        let stdout = self.stdout.take().expect("a program ends once");
        let stdout = std::thread::spawn(|| read(stdout));
        let status = self.wait(Instant::now() + PATIENCE).expect("the program ends");
        // Its ranks hold none of its pipes, so that both end with it.
        Ended { status, stdout: stdout.join().unwrap(), stderr: self.stderr_text() }
    }

    /// Stops reading its output.
    pub(crate) fn close_output(&mut self) {
        self.stdout = None;
    }

    /// Closes the program's output, and waits until it ends by itself.
    pub(crate) fn end_unread(mut self) -> Ended {
        self.close_output();
        let status = self.wait(Instant::now() + PATIENCE).expect("the program ends");
        Ended { status, stdout: String::new(), stderr: self.stderr_text() }
    }

    /// Waits until it ends or the deadline passes.
    pub(crate) fn wait(&mut self, deadline: Instant) -> Option<ExitStatus> {
        wait_until(deadline, || self.child.try_wait().unwrap())
    }

    fn stderr_text(&mut self) -> String {
        self.stderr.take().map(|reader| reader.join().unwrap()).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Returns the command `jackalope` with these arguments and variables.
fn jackalope<A: AsRef<OsStr>>(args: &[A], env: &[(&str, &str)]) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_jackalope"));
    command.env_remove("RUST_LOG").env_remove("JACKALOPE_CPU");
    // The tests have their own home, so that a server of the machine's user is not found.
    command.env("JACKALOPE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/jackalope-home"));
    command.args(args).envs(env.iter().copied());
    command
}

/// Runs `jackalope` to its end.
pub(crate) fn run<A: AsRef<OsStr>>(args: &[A]) -> Ended {
    Program::start(args, "").end()
}

/// Runs `jackalope` and reads the JSON object that it prints.
pub(crate) fn run_json<A: AsRef<OsStr>>(args: &[A]) -> Value {
    let ended = run(args);
    assert!(ended.status.success(), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap_or_else(|err| panic!("{err}: {ended:?}"))
}

fn read(mut stream: impl Read) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    // The process may have ended already.
    kill_process(pid, signal).ok();
}

/// The process of a rank, according to the system.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct RankProcess {
    pub(crate) pid: u32,
    pub(crate) rank: usize,
}

/// Returns the running ranks that this process has started, by rank.
pub(crate) fn ranks_of(parent: u32) -> Vec<RankProcess> {
    let mut ranks: Vec<RankProcess> = processes()
        .into_iter()
        .filter(|process| process.parent == parent && process.is_rank())
        .map(|process| RankProcess { pid: process.pid, rank: process.rank() })
        .collect();
    ranks.sort_by_key(|process| process.rank);
    ranks
}

/// Returns those of `ranks` that have not ended, even if they have a new parent.
pub(crate) fn still_there(ranks: &[RankProcess]) -> Vec<u32> {
    let alive = processes().into_iter().filter(Process::is_rank).map(|process| process.pid);
    alive.filter(|pid| ranks.iter().any(|rank| rank.pid == *pid)).collect()
}

/// A process that is not a zombie.
struct Process {
    pid: u32,
    parent: u32,
    args: Vec<String>,
}

impl Process {
    fn is_rank(&self) -> bool {
        self.args.first().is_some_and(|program| program.ends_with("jackalope-rank"))
    }

    fn rank(&self) -> usize {
        let at = self.args.iter().position(|arg| arg == "--rank").expect("a rank knows its number");
        self.args[at + 1].parse().unwrap()
    }
}

fn processes() -> Vec<Process> {
    if !Path::new("/proc/self/stat").exists() {
        return processes_by_ps();
    }
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(process_of).collect()
}

fn process_of(pid: u32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may contain anything, including parentheses and spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
    let args = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let args = String::from_utf8_lossy(&args);
    let args = args.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
    (!"ZX".contains(state)).then_some(Process { pid, parent, args })
}

/// Lists processes on systems without `/proc`.
fn processes_by_ps() -> Vec<Process> {
    #[expect(clippy::disallowed_methods, reason = "tests watch the processes from outside")]
    let listed = Command::new("ps").args(["-A", "-o", "pid=,ppid=,stat=,args="]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let process = |line: &str| {
        let mut fields = line.split_whitespace();
        let (pid, parent) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let is_zombie = fields.next()?.starts_with('Z');
        (!is_zombie).then(|| Process { pid, parent, args: fields.map(str::to_owned).collect() })
    };
    listed.lines().filter_map(process).collect()
}
