//! A client of an agent: one connection, which is re-established whenever it breaks.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use jackalope_protocol::agent::{FromAgent, Order, ProgramStatus, Stream, ToAgent};
use jackalope_protocol::machine::{MachineReadings, NodeFacts};
use jackalope_protocol::secure::{Coordinator as _, Introduction};
use jackalope_protocol::{FrameError, PublicKey, frame, secure};
use tracing::{debug, info, warn};

use super::refusal::AgentRefusal;
use super::session::{BEAT, SILENCE};
use super::trust::REREAD_INTERVAL;
use crate::trust::Credentials;

/// Time for one attempt to connect to one address.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two attempts to connect.
const DIAL_PAUSE: Duration = Duration::from_millis(200);
/// Minimum time from connecting to an agent or starting it until it is started again; within that
/// time it may come back by itself.
const REVIVE_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of queued messages on a slow connection.
const OUTBOX_LEN: usize = 1024;
/// How long dropping an [`Agent`] waits for the last messages to be sent.
const BYE_GRACE: Duration = Duration::from_millis(500);

/// Consecutive attempts that connect and get no answer before an agent counts as hung. Its
/// connection was already silent for [`SILENCE`] before the first of them.
const SILENT_DIALS: u32 = 2;
/// How long to wait for a TCP connection that shows whether the machine of a silent agent is up.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Processes that wait to be killed by the next agent; the oldest is dropped first.
const DOOMED_MAX: usize = 16;
/// Probes whose results are kept; the oldest is dropped first.
const PROBES_MAX: usize = 256;

/// Callback for every output line of every program: name of the program, stream, text.
pub type OnLine = Box<dyn Fn(&str, Stream, &str) + Send + Sync>;

/// Starts an agent again on a machine that is reachable while its agent is gone or hung.
pub type Revive = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// A machine's agent, and the connection to it. Dropping this ends the programs ordered through it.
pub struct Agent {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// State of the connection to an agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AgentState {
    /// The agent is connected.
    Up,
    /// The agent is not connected.
    Down {
        /// When the connection was lost.
        since: Instant,
        /// Why there is no connection.
        reason: String,
    },
}

/// A program on a machine. Dropping this does not end it.
#[derive(Clone)]
pub struct Program {
    shared: Arc<Shared>,
    name: String,
}

/// How a program ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ended {
    /// Description of how the program ended, for people.
    pub exit: String,
    /// Exit code as shells report it.
    pub code: i32,
    /// The last lines that the program wrote to its standard error.
    pub last_words: String,
}

struct Shared {
    host: String,
    addrs: Vec<SocketAddr>,
    ours: Credentials,
    on_line: OnLine,
    revive: Option<Revive>,
    /// Identifies this client to the agent, also across connections.
    client: u64,
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    state: AgentState,
    /// Why the last attempt to connect was refused; `None` if it was not.
    refusal: Option<AgentRefusal>,
    /// Key of the agent that was reached last.
    key: Option<PublicKey>,
    our_ip: Option<IpAddr>,
    programs: HashMap<String, Known>,
    /// Queue of messages to the agent; present while connected.
    outbox: Option<SyncSender<ToAgent>>,
    facts: Option<NodeFacts>,
    status: Option<Vec<ProgramStatus>>,
    readings: Option<MachineReadings>,
    num_orders: u64,
    is_over: bool,
    /// Consecutive attempts that connected and got no answer.
    num_silent_dials: u32,
    /// Replaced processes that are still to be killed, each with its start time.
    doomed: VecDeque<(u32, String)>,
    /// Probes by tag, oldest first. The outer option is set once the probe is answered; the inner
    /// one holds the reason if it failed.
    probes: VecDeque<(u64, Option<Option<String>>)>,
    num_probes: u64,
}

struct Known {
    tag: u64,
    order: Order,
    pid: Option<u32>,
    /// Start time of the process, as its system reports it.
    began: Option<String>,
    ended: Option<Ended>,
    is_killed: bool,
}

impl Known {
    /// Returns the message that claims the program on a new connection, or orders it if it never
    /// ran.
    fn resume(&self, name: &str) -> ToAgent {
        let (tag, order) = (self.tag, self.order.clone());
        match self.pid {
            Some(pid) => {
                let (name, began) = (name.to_owned(), self.began.clone());
                ToAgent::Resume { name, pid, tag, began, order }
            }
            None => ToAgent::Start { tag, order },
        }
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("host", &self.shared.host).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why the machine's key is no longer trusted; `None` if it is trusted. The list is
    /// read again each time; while it cannot be read, an open connection stays.
    fn distrust(&self) -> Option<FrameError> {
        let key = self.lock().key?;
        let err = self.ours.check(&self.host, &key).err()?;
        AgentRefusal::of(&err).is_some().then_some(err)
    }

    /// Counts a failed attempt to connect. Returns true if the agent counts as hung.
    fn note_silence(&self, is_silent: bool) -> bool {
        let mut inner = self.lock();
        inner.num_silent_dials = if is_silent { inner.num_silent_dials + 1 } else { 0 };
        SILENT_DIALS <= inner.num_silent_dials
    }

    /// Waits until `found` returns a value or the time is over.
    fn wait<T>(
        &self,
        timeout: Duration,
        mut found: impl FnMut(&mut Inner) -> Option<T>,
    ) -> Result<T, String> {
        let deadline = Instant::now() + timeout;
        let mut inner = self.lock();
        loop {
            if let Some(found) = found(&mut inner) {
                return Ok(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(match &inner.state {
                    AgentState::Down { reason, .. } => reason.clone(),
                    AgentState::Up => format!("no answer within {timeout:?}"),
                });
            }
            let waited = self.changed.wait_timeout(inner, left);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Inner {
    /// Remembers a process to kill; the message is sent once the agent is connected again.
    fn doom(&mut self, pid: u32, began: String) {
        if DOOMED_MAX <= self.doomed.len() {
            self.doomed.pop_front();
        }
        self.doomed.push_back((pid, began));
    }

    fn send(&self, message: ToAgent) {
        if let Some(outbox) = &self.outbox {
            // A full outbox means that the connection is about to be closed.
            outbox.try_send(message).ok();
        }
    }
}

impl Agent {
    /// Starts connecting to the agent at one of `addrs`, and reconnects whenever the connection
    /// breaks.
    pub fn connect(
        host: &str,
        addrs: Vec<SocketAddr>,
        ours: Credentials,
        on_line: OnLine,
    ) -> Agent {
        Agent::connect_or_revive(host, addrs, ours, on_line, None)
    }

    /// Like [`Agent::connect`]. If the machine answers but its agent, which was connected before,
    /// does not, `revive` is called to start it.
    pub fn connect_or_revive(
        host: &str,
        addrs: Vec<SocketAddr>,
        ours: Credentials,
        on_line: OnLine,
        revive: Option<Revive>,
    ) -> Agent {
        let reason = "not connected yet".to_owned();
        let shared = Arc::new(Shared {
            host: host.to_owned(),
            addrs,
            ours,
            on_line,
            revive,
            client: RandomState::new().hash_one(0),
            inner: Mutex::new(Inner {
                state: AgentState::Down { since: Instant::now(), reason },
                refusal: None,
                key: None,
                our_ip: None,
                programs: HashMap::new(),
                outbox: None,
                facts: None,
                status: None,
                readings: None,
                num_orders: 0,
                is_over: false,
                num_silent_dials: 0,
                doomed: VecDeque::new(),
                probes: VecDeque::new(),
                num_probes: 0,
            }),
            changed: Condvar::new(),
        });
        let connecting = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name(format!("agent of {host}"))
            .spawn(move || connect_again_and_again(&connecting))
            .expect("a process that just started can start a thread");
        Agent { shared, thread: Some(thread) }
    }

    /// Returns the name of the machine.
    pub fn host(&self) -> &str {
        &self.shared.host
    }

    /// Returns the addresses at which the agent may listen.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.shared.addrs
    }

    /// Returns the current state of the connection.
    pub fn state(&self) -> AgentState {
        self.shared.lock().state.clone()
    }

    /// Returns whether the machine accepts connections but its agent does not answer.
    pub fn is_hung(&self) -> bool {
        0 < self.shared.lock().num_silent_dials
    }

    /// Asks the agent to connect to addresses of another machine. Does not wait. Returns `None` if
    /// the agent is not connected.
    pub fn probe(&self, targets: Vec<SocketAddr>, deadline: Duration) -> Option<Probe> {
        let mut inner = self.shared.lock();
        inner.outbox.as_ref()?;
        inner.num_probes += 1;
        let tag = inner.num_probes;
        if PROBES_MAX <= inner.probes.len() {
            inner.probes.pop_front();
        }
        inner.probes.push_back((tag, None));
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        inner.send(ToAgent::Probe { tag, targets, deadline_ms });
        Some(Probe { shared: Arc::clone(&self.shared), tag })
    }

    /// Returns why either side refused the last attempt to connect; `None` if it was not refused.
    pub fn refusal(&self) -> Option<AgentRefusal> {
        self.shared.lock().refusal
    }

    /// Returns true if the machine is no longer trusted: its key was revoked here, or it proved
    /// another one.
    pub fn is_distrusted(&self) -> bool {
        self.refusal().is_some_and(AgentRefusal::is_distrust)
    }

    /// Returns the key that the agent has proved; `None` until it was first reached.
    pub fn key(&self) -> Option<PublicKey> {
        self.shared.lock().key
    }

    /// Returns the credentials that are presented to the agent.
    pub fn credentials(&self) -> &Credentials {
        &self.shared.ours
    }

    /// Returns our address on the latest connection to the machine.
    pub fn our_ip(&self) -> Option<IpAddr> {
        self.shared.lock().our_ip
    }

    /// Waits until the agent is connected.
    ///
    /// # Errors
    /// Why the agent is not connected.
    pub fn wait_until_up(&self, timeout: Duration) -> Result<(), String> {
        self.shared.wait(timeout, |inner| match inner.state {
            AgentState::Up => Some(()),
            AgentState::Down { .. } => None,
        })
    }

    /// Like [`Agent::wait_until_up`], but returns at once if either side refuses the other.
    ///
    /// # Errors
    /// Why the agent is not up.
    pub fn knock(&self, timeout: Duration) -> Result<(), String> {
        self.shared.wait(timeout, |inner| match &inner.state {
            AgentState::Up => Some(Ok(())),
            AgentState::Down { reason, .. } => inner.refusal.is_some().then(|| Err(reason.clone())),
        })?
    }

    /// Requests the machine's facts.
    ///
    /// # Errors
    /// Why no answer arrived.
    pub fn facts(&self, timeout: Duration) -> Result<NodeFacts, String> {
        let mut asked = false;
        self.shared.wait(timeout, |inner| {
            if !asked && inner.outbox.is_some() {
                (asked, inner.facts) = (true, None);
                inner.send(ToAgent::Facts);
            }
            inner.facts.take()
        })
    }

    /// Requests the state of all programs that the agent supervises, including those of other
    /// coordinators.
    ///
    /// # Errors
    /// Why no answer arrived.
    pub fn status(&self, timeout: Duration) -> Result<Vec<ProgramStatus>, String> {
        let mut asked = false;
        self.shared.wait(timeout, |inner| {
            if !asked && inner.outbox.is_some() {
                (asked, inner.status) = (true, None);
                inner.send(ToAgent::Status);
            }
            inner.status.take()
        })
    }

    /// Requests the machine's memory, temperature, power and GPU load.
    ///
    /// # Errors
    /// Why no answer arrived.
    pub fn readings(&self, timeout: Duration) -> Result<MachineReadings, String> {
        let mut asked = false;
        self.shared.wait(timeout, |inner| {
            if !asked && inner.outbox.is_some() {
                (asked, inner.readings) = (true, None);
                inner.send(ToAgent::Readings);
            }
            inner.readings.take()
        })
    }

    /// Orders a program; does not block. While the machine cannot be reached, the order stays
    /// pending.
    pub fn start(&self, order: Order) -> Program {
        let name = order.name.clone();
        let mut inner = self.shared.lock();
        inner.num_orders += 1;
        let tag = inner.num_orders;
        let (pid, began, ended) = (None, None, None);
        let known = Known { tag, order: order.clone(), pid, began, ended, is_killed: false };
        let earlier = inner.programs.insert(name.clone(), known);
        // An agent that ran the earlier process has killed it. An agent that replaced a hung one
        // does not know that process, so the next connection asks it to kill the process by pid.
        if let Some(Known {
            pid: Some(pid),
            began: Some(began),
            is_killed: true,
            ended: None,
            ..
        }) = earlier
        {
            inner.doom(pid, began);
        }
        inner.send(ToAgent::Start { tag, order });
        Program { shared: Arc::clone(&self.shared), name }
    }

    /// Stops the agent and all its programs, if it can be reached.
    pub fn stop(&self) {
        self.shared.lock().send(ToAgent::Stop);
    }

    /// Disconnects without a goodbye, so that the programs keep running for their lease.
    pub fn abandon(&self) {
        self.end(None);
    }

    fn end(&self, last: Option<ToAgent>) {
        let mut inner = self.shared.lock();
        if inner.is_over {
            return;
        }
        inner.is_over = true;
        if let Some(last) = last {
            inner.send(last);
        }
        // The writer sends what is in the outbox, then closes the connection.
        inner.outbox = None;
        self.shared.changed.notify_all();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end(Some(ToAgent::Bye));
        let Some(thread) = self.thread.take() else { return };
        let deadline = Instant::now() + BYE_GRACE;
        while !thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A test connection that an agent was asked to make.
#[derive(Clone)]
pub struct Probe {
    shared: Arc<Shared>,
    tag: u64,
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probe").field("tag", &self.tag).finish_non_exhaustive()
    }
}

impl Probe {
    /// Returns the result once the agent has reported it; the error says why no target answered.
    pub fn result(&self) -> Option<Result<(), String>> {
        let inner = self.shared.lock();
        let (_, answer) = inner.probes.iter().find(|(tag, _)| *tag == self.tag)?;
        Some(match answer.as_ref()? {
            None => Ok(()),
            Some(failure) => Err(failure.clone()),
        })
    }
}

impl Program {
    /// Returns the program's process id, once the program runs.
    pub fn pid(&self) -> Option<u32> {
        self.known(|known| known.pid)
    }

    /// Returns how the program ended, once that is known.
    pub fn ended(&self) -> Option<Ended> {
        self.known(|known| known.ended.clone())
    }

    /// Waits until the program runs or has ended.
    ///
    /// # Errors
    /// Why the program neither runs nor has ended within `timeout`.
    pub fn wait_until_started(&self, timeout: Duration) -> Result<(), String> {
        self.shared.wait(timeout, |inner| {
            let known = inner.programs.get(&self.name)?;
            (known.pid.is_some() || known.ended.is_some()).then_some(())
        })
    }

    /// Returns why the program's machine is not connected now; `None` if it is.
    pub fn trouble(&self) -> Option<String> {
        match &self.shared.lock().state {
            AgentState::Up => None,
            AgentState::Down { since, reason } => {
                Some(format!("{reason} (for {:.0} s)", since.elapsed().as_secs_f32()))
            }
        }
    }

    /// Returns why the program's machine is no longer trusted; `None` if it is.
    pub fn distrust(&self) -> Option<String> {
        let inner = self.shared.lock();
        match &inner.state {
            AgentState::Down { reason, .. }
                if inner.refusal.is_some_and(AgentRefusal::is_distrust) =>
            {
                Some(reason.clone())
            }
            _ => None,
        }
    }

    /// Kills the program; if its machine cannot be reached, as soon as it can be.
    pub fn kill(&self) {
        let mut inner = self.shared.lock();
        if let Some(known) = inner.programs.get_mut(&self.name) {
            known.is_killed = true;
        }
        inner.send(ToAgent::Kill { name: self.name.clone() });
    }

    /// Sends the program a signal, by number.
    pub fn signal(&self, signal: i32) {
        self.shared.lock().send(ToAgent::Signal { name: self.name.clone(), signal });
    }

    /// Writes to the program's standard input, or closes it if `bytes` is empty.
    pub fn input(&self, bytes: Vec<u8>) {
        self.shared.lock().send(ToAgent::Input { name: self.name.clone(), bytes });
    }

    fn known<T>(&self, read: impl Fn(&Known) -> Option<T>) -> Option<T> {
        self.shared.lock().programs.get(&self.name).and_then(read)
    }
}

fn connect_again_and_again(shared: &Arc<Shared>) {
    // When the agent was last connected or started; `None` until it was first reached.
    let mut revived_at: Option<Instant> = None;
    loop {
        let reason = match dial(shared) {
            Ok((sender, receiver)) => {
                revived_at = Some(Instant::now());
                shared.lock().num_silent_dials = 0;
                match talk(shared, sender, receiver) {
                    Ok(()) => return,
                    Err(err) => {
                        shared.lock().refusal = AgentRefusal::of(&err);
                        err.to_string()
                    }
                }
            }
            Err(undialled) => {
                shared.lock().refusal = undialled.refusal;
                let is_due = revived_at.is_some_and(|at| REVIVE_PAUSE <= at.elapsed());
                let is_gone = undialled.is_gone || shared.note_silence(undialled.is_silent);
                if let (true, true, Some(revive)) = (is_due, is_gone, &shared.revive) {
                    info!(host = shared.host, undialled.is_silent, "starting its agent again");
                    let revived = revive();
                    revived_at = Some(Instant::now());
                    shared.lock().num_silent_dials = 0;
                    match revived {
                        Ok(()) => continue,
                        Err(reason) => reason,
                    }
                } else {
                    undialled.reason
                }
            }
        };
        let mut inner = shared.lock();
        if inner.is_over {
            return;
        }
        inner.outbox = None;
        let since = match inner.state {
            AgentState::Down { since, .. } => since,
            AgentState::Up => {
                info!(host = shared.host, reason, "agent lost");
                Instant::now()
            }
        };
        inner.state = AgentState::Down { since, reason };
        shared.changed.notify_all();
        drop(inner);
        thread::sleep(DIAL_PAUSE);
    }
}

/// Describes why no address led to our agent.
struct Undialled {
    reason: String,
    /// The machine answers, but it runs no agent, or an agent of another cluster or version.
    is_gone: bool,
    /// The machine accepts connections, but nothing answers the handshake.
    is_silent: bool,
    refusal: Option<AgentRefusal>,
}

fn dial(shared: &Shared) -> Result<(secure::Sender, secure::Receiver), Undialled> {
    let mut reasons = Vec::new();
    let (mut is_gone, mut is_silent, mut refusal) = (false, false, None);
    let check = |key: &PublicKey| shared.ours.check(&shared.host, key);
    let (secret, identity) = (&shared.ours.secret, &shared.ours.identity);
    for addr in &shared.addrs {
        let introduction = Introduction { secret, identity, check: &check };
        match secure::dial_machine(*addr, introduction, DIAL_TIMEOUT) {
            Ok((key, sender, receiver)) => {
                let mut inner = shared.lock();
                (inner.key, inner.refusal) = (Some(key), None);
                return Ok((sender, receiver));
            }
            Err(err) => {
                is_gone |= match &err {
                    FrameError::Io(err) => err.kind() == std::io::ErrorKind::ConnectionRefused,
                    FrameError::Secret | FrameError::Version { .. } => true,
                    _ => false,
                };
                is_silent |=
                    has_timed_out(&err) && TcpStream::connect_timeout(addr, ANSWER_TIMEOUT).is_ok();
                refusal = refusal.or(AgentRefusal::of(&err));
                reasons.push(match refusal {
                    Some(_) => err.to_string(),
                    None => format!("no agent at {addr}: {err}"),
                });
            }
        }
    }
    let reason =
        if reasons.is_empty() { "it has no address".to_owned() } else { reasons.join("; ") };
    Err(Undialled { reason, is_gone, is_silent, refusal })
}

fn has_timed_out(err: &FrameError) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    matches!(err, FrameError::Io(err) if matches!(err.kind(), TimedOut | WouldBlock))
}

/// Exchanges messages until the connection breaks (an error) or is no longer needed.
fn talk(
    shared: &Arc<Shared>,
    sender: secure::Sender,
    mut receiver: secure::Receiver,
) -> Result<(), FrameError> {
    receiver.stream().set_read_timeout(Some(SILENCE))?;
    sender.stream().set_write_timeout(Some(SILENCE))?;
    let our_ip = sender.stream().local_addr()?.ip();
    let (outbox, messages) = sync_channel(OUTBOX_LEN);
    let writing = Arc::clone(shared);
    let writer = thread::Builder::new()
        .name(format!("to {}", shared.host))
        .spawn(move || write(sender, &writing, &messages))?;
    {
        let mut inner = shared.lock();
        if inner.is_over {
            return Ok(());
        }
        for (pid, began) in inner.doomed.drain(..) {
            outbox.try_send(ToAgent::KillProcess { pid, began }).ok();
        }
        for (name, known) in inner.programs.iter().filter(|(_, known)| known.ended.is_none()) {
            if known.pid.is_some() || !known.is_killed {
                outbox.try_send(known.resume(name)).ok();
            }
            if known.is_killed {
                outbox.try_send(ToAgent::Kill { name: name.clone() }).ok();
            }
        }
        inner.outbox = Some(outbox);
        (inner.state, inner.our_ip) = (AgentState::Up, Some(our_ip));
        shared.changed.notify_all();
    }
    debug!(host = shared.host, "agent connected");
    let err = loop {
        match frame::read::<FromAgent>(&mut receiver) {
            Ok(message) => on_message(shared, message),
            Err(err) => break err,
        }
    };
    shared.lock().outbox = None;
    let _ = receiver.stream().shutdown(Shutdown::Both);
    let _ = writer.join();
    // The writer closes the connection if the machine's key is revoked meanwhile.
    let err = shared.distrust().unwrap_or(err);
    if shared.lock().is_over { Ok(()) } else { Err(err) }
}

fn write(mut sender: secure::Sender, shared: &Shared, messages: &Receiver<ToAgent>) {
    // The first message says what kind of connection this is. If it cannot be sent, the reader
    // notices.
    frame::write(&mut sender, &ToAgent::Hello { client: shared.client }).ok();
    let (mut beat_at, mut checked_at) = (Instant::now(), Instant::now());
    loop {
        let message = match messages.recv_timeout(REREAD_INTERVAL) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) if BEAT <= beat_at.elapsed() => {
                beat_at = Instant::now();
                Some(ToAgent::Heartbeat)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if REREAD_INTERVAL <= checked_at.elapsed() {
            checked_at = Instant::now();
            if let Some(err) = shared.distrust() {
                warn!(host = shared.host, %err, "the machine is not trusted any more");
                // An honest agent ends the programs that were ordered.
                frame::write(&mut sender, &ToAgent::Bye).ok();
                break;
            }
        }
        if message.is_some_and(|message| frame::write(&mut sender, &message).is_err()) {
            break;
        }
    }
    // Wakes the reader.
    let _ = sender.stream().shutdown(Shutdown::Both);
}

fn on_message(shared: &Shared, message: FromAgent) {
    if let FromAgent::Line { name, stream, text } = &message {
        return (shared.on_line)(name, *stream, text);
    }
    let mut inner = shared.lock();
    match message {
        FromAgent::Started { name, tag, pid, began } => {
            let known = inner.programs.get_mut(&name).filter(|known| known.tag == tag);
            let is_killed = known.is_some_and(|known| {
                (known.pid, known.began) = (Some(pid), began);
                known.is_killed
            });
            if is_killed {
                inner.send(ToAgent::Kill { name });
            }
        }
        FromAgent::Ended { name, tag, exit, code, last_words } => {
            let known = inner.programs.get_mut(&name).filter(|known| known.tag == tag);
            if let Some(known) = known {
                known.ended = Some(Ended { exit, code, last_words });
            }
        }
        FromAgent::Facts(facts) => inner.facts = Some(facts),
        FromAgent::Status(status) => inner.status = Some(status),
        FromAgent::Readings(readings) => inner.readings = Some(readings),
        FromAgent::Probed { tag, failure } => {
            if let Some(probe) = inner.probes.iter_mut().find(|(known, _)| *known == tag) {
                probe.1 = Some(failure);
            }
        }
        FromAgent::Heartbeat | FromAgent::Line { .. } => return,
    }
    shared.changed.notify_all();
}
