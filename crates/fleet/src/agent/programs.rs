//! The programs of a machine and their owners.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use jackalope_protocol::PublicKey;
use jackalope_protocol::agent::{FromAgent, Order, OrderedProgram, ProgramStatus, Stream};
use tracing::{info, warn};

use super::process::{Adopted, Process};
use crate::platform;
use crate::process::{LINE_BYTES_MAX, Spawn};

/// Lines of standard error that are kept to explain how a program ended.
const LAST_LINES_MAX: usize = 20;

/// Maximum number of programs that an agent supervises.
const PROGRAMS_MAX: usize = 64;

/// How long to wait for the last output after the process is gone; children of its own may keep its
/// pipes open.
const OUTPUT_GRACE: Duration = Duration::from_millis(200);

/// Channel to the owner of a program.
pub(super) type Outbox = SyncSender<FromAgent>;

/// A connected client.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub(super) session: u64,
    /// Key of the machine that has connected.
    pub(super) key: PublicKey,
    /// Identifies the client across its connections.
    pub(super) client: Option<u64>,
    pub(super) outbox: Outbox,
}

/// A running program, as reported to its owner.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Started {
    pub(super) pid: u32,
    /// Start time of its process, as the system reports it.
    pub(super) began: Option<String>,
}

/// The programs of one agent. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    shared: Arc<Mutex<HashMap<String, Running>>>,
    rank_program: PathBuf,
    files_dir: PathBuf,
}

#[derive(Debug)]
struct Running {
    tag: u64,
    /// Key of the machine that ordered the program.
    ordered_by: PublicKey,
    order: Order,
    process: Process,
    /// Start time of the process, as the system reports it.
    began: Option<String>,
    started_at: Instant,
    owner: Arc<Mutex<Option<Owner>>>,
    /// When the program is killed unless an owner claims it; `None` while it has an owner.
    lease_until: Option<Instant>,
    last_lines: Arc<Mutex<VecDeque<String>>>,
    /// Threads that read the program's output; they end when the output ends.
    readers: Vec<thread::JoinHandle<()>>,
    files: Vec<PathBuf>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Programs {
    pub(super) fn new(rank_program: PathBuf, files_dir: &Path) -> Programs {
        Programs { shared: Arc::default(), rank_program, files_dir: files_dir.to_owned() }
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.shared).is_empty()
    }

    /// Starts a program for its owner, or hands over the one that already runs for the same order.
    /// Returns the process.
    pub(super) fn start(&self, tag: u64, order: Order, owner: &Owner) -> Result<Started, String> {
        let mut programs = lock(&self.shared);
        if let Some(running) = programs.get_mut(&order.name) {
            if running.is_owned_by_another(owner) {
                return Err(format!(
                    "another session runs `{}` on this machine\n\
                     hint: `jackalope status` shows it, `jackalope stop` ends it",
                    order.name
                ));
            }
            if !running.process.has_ended() && running.order == order {
                info!(order.name, "taken over");
                running.hand_to(owner, tag);
                return Ok(running.started());
            }
            // Another order of the same name replaces the program.
            programs.remove(&order.name);
        }
        if PROGRAMS_MAX <= programs.len() {
            return Err(format!("{PROGRAMS_MAX} programs run on this machine, which is the limit"));
        }
        let running = self.spawn(tag, order, owner)?;
        let started = running.started();
        programs.insert(running.order.name.clone(), running);
        Ok(started)
    }

    /// Hands a program whose process is `known` to an owner that had it before. Returns false if
    /// this agent has no such program, its pid differs, or another session owns it.
    pub(super) fn resume(&self, tag: u64, name: &str, known: &Started, owner: &Owner) -> bool {
        let mut programs = lock(&self.shared);
        let Some(running) = programs.get_mut(name) else { return false };
        let is_known = running.process.pid() == known.pid;
        let is_handed_over = is_known && !running.is_owned_by_another(owner);
        if is_handed_over {
            running.hand_to(owner, tag);
        }
        is_handed_over
    }

    /// Adopts a process that an earlier agent of this machine started. Returns false if there is no
    /// such process, the name is taken, or the limit of programs is reached.
    pub(super) fn adopt(&self, tag: u64, order: Order, known: &Started, owner: &Owner) -> bool {
        let mut programs = lock(&self.shared);
        if programs.contains_key(&order.name) {
            return false;
        }
        if PROGRAMS_MAX <= programs.len() {
            return false;
        }
        let adopted = known.began.as_ref().and_then(|began| Adopted::find(known.pid, began));
        let Some(adopted) = adopted else { return false };
        info!(order.name, pid = known.pid, "adopted: an earlier agent started it");
        let name = order.name.clone();
        let running = Running {
            tag,
            ordered_by: owner.key,
            order,
            process: Process::Adopted(adopted),
            began: known.began.clone(),
            started_at: Instant::now(),
            owner: Arc::new(Mutex::new(Some(owner.clone()))),
            lease_until: None,
            last_lines: Arc::default(),
            readers: Vec::new(),
            files: Vec::new(),
        };
        programs.insert(name, running);
        true
    }

    fn spawn(&self, tag: u64, order: Order, owner: &Owner) -> Result<Running, String> {
        let failed = |err: io::Error| match &order.program {
            OrderedProgram::Rank => format!("starting `{}` failed: {err}", order.name),
            OrderedProgram::Other(program) => format!(
                "starting `{}` failed: {program}: {err}\nhint: every machine needs this program",
                order.name
            ),
        };
        let files = self.write_files(&order).map_err(failed)?;
        let mut spawn = match &order.program {
            OrderedProgram::Rank => Spawn::new(&self.rank_program, &order.name),
            OrderedProgram::Other(program) => Spawn::new(program, &order.name),
        };
        if let Some(ticket) = &order.ticket {
            spawn.input = format!("{}\n", ticket.to_hex()).into_bytes();
        }
        spawn.args = order.args.iter().map(OsString::from).collect();
        spawn.env = order.env.iter().map(|(key, value)| (key.clone(), value.into())).collect();
        spawn.env.extend(
            order.files.iter().zip(&files).map(|(file, path)| (file.variable.clone(), path.into())),
        );
        spawn.cwd = order.cwd.as_ref().map(PathBuf::from).filter(|cwd| cwd.is_dir());
        (spawn.reads_stdout, spawn.reads_stderr) = (true, true);
        let mut child = spawn.start().map_err(|err| {
            remove_files(&files);
            failed(err)
        })?;
        info!(order.name, pid = child.pid(), "started");
        let ordered_by = owner.key;
        let owner = Arc::new(Mutex::new(Some(owner.clone())));
        let last_lines = Arc::new(Mutex::new(VecDeque::new()));
        let stdout = child.take_stdout().expect("asked for");
        let stderr = child.take_stderr().expect("asked for");
        let readers = vec![
            forward(stdout, &order.name, Stream::Out, Arc::clone(&owner), None),
            forward(
                stderr,
                &order.name,
                Stream::Err,
                Arc::clone(&owner),
                Some(Arc::clone(&last_lines)),
            ),
        ];
        let started_at = Instant::now();
        Ok(Running {
            tag,
            ordered_by,
            order,
            began: platform::current::process_began(child.pid()),
            process: Process::Child(child),
            started_at,
            owner,
            lease_until: None,
            last_lines,
            readers,
            files,
        })
    }

    /// Writes the files that the order's variables name; only the user can read them.
    fn write_files(&self, order: &Order) -> io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for (idx, file) in order.files.iter().enumerate() {
            let name: String =
                order.name.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
            let path = self.files_dir.join(format!("{name}-{}-{idx}.json", std::process::id()));
            crate::home::write_private(&path, file.content.as_bytes())
                .inspect_err(|_| remove_files(&paths))?;
            paths.push(path);
        }
        Ok(paths)
    }

    pub(super) fn signal(&self, name: &str, signal: i32) {
        if let Some(running) = lock(&self.shared).get_mut(name) {
            running.process.signal(signal);
        }
    }

    pub(super) fn input(&self, name: &str, bytes: &[u8]) {
        if let Some(running) = lock(&self.shared).get_mut(name) {
            running.process.input(bytes);
        }
    }

    pub(super) fn kill(&self, name: &str) {
        if let Some(running) = lock(&self.shared).get_mut(name) {
            running.process.kill();
        }
    }

    /// Ends a session. Its programs are killed soon if it left on purpose, otherwise when their
    /// lease is over.
    pub(super) fn leave(&self, session: u64, on_purpose: bool) {
        for running in lock(&self.shared).values_mut() {
            let mut owner = lock(&running.owner);
            if owner.as_ref().is_none_or(|owner| owner.session != session) {
                continue;
            }
            *owner = None;
            let lease_ms = if on_purpose { 0 } else { running.order.lease_ms };
            running.lease_until = Some(Instant::now() + Duration::from_millis(lease_ms));
            info!(running.order.name, lease_ms, "nobody owns it now");
        }
    }

    pub(super) fn end_all(&self) {
        lock(&self.shared).clear();
    }

    /// Kills the programs whose coordinator is no longer trusted.
    pub(super) fn end_untrusted(&self, is_trusted: &dyn Fn(&PublicKey) -> bool) {
        for running in lock(&self.shared).values_mut() {
            if !is_trusted(&running.ordered_by) {
                warn!(running.order.name, key = %running.ordered_by, "its coordinator was revoked: killed");
                running.process.kill();
            }
        }
    }

    /// Reports programs that have ended, and kills those whose lease has expired. Called periodically.
    pub(super) fn look_after(&self) {
        let mut ended = Vec::new();
        {
            let mut programs = lock(&self.shared);
            let now = Instant::now();
            for running in programs.values_mut() {
                if running.lease_until.is_some_and(|until| until <= now) {
                    warn!(running.order.name, "nobody claimed it in time: killed");
                    running.process.kill();
                }
            }
            let names: Vec<String> = programs
                .iter_mut()
                .filter_map(|(name, it)| it.process.has_ended().then(|| name.clone()))
                .collect();
            ended.extend(names.iter().filter_map(|name| programs.remove(name)));
        }
        ended.into_iter().for_each(Running::report_end);
    }

    pub(super) fn status(&self) -> Vec<ProgramStatus> {
        let programs = lock(&self.shared);
        let status = |running: &Running| ProgramStatus {
            name: running.order.name.clone(),
            pid: running.process.pid(),
            is_owned: lock(&running.owner).is_some(),
            age_ms: u64::try_from(running.started_at.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        let mut all: Vec<ProgramStatus> = programs.values().map(status).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

impl Running {
    fn is_owned_by_another(&self, other: &Owner) -> bool {
        lock(&self.owner).as_ref().is_some_and(|owner| {
            let is_same_client =
                owner.client.is_some() && (owner.key, owner.client) == (other.key, other.client);
            owner.session != other.session && !is_same_client
        })
    }

    fn started(&self) -> Started {
        Started { pid: self.process.pid(), began: self.began.clone() }
    }

    fn hand_to(&mut self, owner: &Owner, tag: u64) {
        (self.tag, self.ordered_by) = (tag, owner.key);
        *lock(&self.owner) = Some(owner.clone());
        self.lease_until = None;
    }

    fn report_end(mut self) {
        let (exit, code) = self.process.exit();
        let deadline = Instant::now() + OUTPUT_GRACE;
        while self.readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        let lines: Vec<String> = lock(&self.last_lines).iter().cloned().collect();
        info!(self.order.name, exit, "ended");
        let Some(owner) = lock(&self.owner).take() else { return };
        let (name, last_words) = (self.order.name.clone(), lines.join("\n"));
        let message = FromAgent::Ended { name, tag: self.tag, exit, code, last_words };
        // A session whose outbox is full is about to be closed.
        owner.outbox.try_send(message).ok();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.kill();
        remove_files(&self.files);
    }
}

fn remove_files(paths: &[PathBuf]) {
    for path in paths {
        // It does not matter if the file is gone already.
        std::fs::remove_file(path).ok();
    }
}

/// Sends a program's output lines to its current owner.
fn forward(
    stream: impl Read + Send + 'static,
    name: &str,
    which: Stream,
    owner: Arc<Mutex<Option<Owner>>>,
    last_lines: Option<Arc<Mutex<VecDeque<String>>>>,
) -> thread::JoinHandle<()> {
    let name = name.to_owned();
    thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        loop {
            line.clear();
            match reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
            if let Some(last_lines) = &last_lines {
                let mut last_lines = lock(last_lines);
                if last_lines.len() == LAST_LINES_MAX {
                    last_lines.pop_front();
                }
                last_lines.push_back(text.clone());
            }
            let outbox = lock(&owner).as_ref().map(|owner| owner.outbox.clone());
            if let Some(outbox) = outbox {
                // Blocks while the owner reads slowly; its session ends if it does not read at all.
                outbox.send(FromAgent::Line { name: name.clone(), stream: which, text }).ok();
            }
        }
    })
}
