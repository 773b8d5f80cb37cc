//! A client of an agent: one connection that is made again whenever it breaks.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use jackalope_protocol::{FrameError, Secret, frame, secure};
use tracing::{debug, info};

use super::messages::{FromAgent, Order, ProgramStatus, Stream, ToAgent};
use super::session::{BEAT, SILENCE};
use crate::exchange::{ExchangeError, LibraryClient};
use crate::facts::NodeFacts;
use crate::platform::MemoryPressure;

/// One attempt to connect to one address.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between attempts.
const DIAL_PAUSE: Duration = Duration::from_millis(200);
/// An agent that was there a moment ago may be about to come back by itself.
const REVIVE_PAUSE: Duration = Duration::from_secs(1);
/// Messages that may wait for a slow connection.
const OUTBOX_LEN: usize = 1024;
/// How long the end waits for the last words to be sent.
const BYE_GRACE: Duration = Duration::from_millis(500);

/// Hears every line of every program.
pub type OnLine = Box<dyn Fn(&str, Stream, &str) + Send + Sync>;

/// Starts an agent that is gone from a machine that is there.
pub type Revive = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// A machine's agent, for as long as this lives. Programs ordered through it end with it.
pub struct Agent {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// How an agent is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AgentState {
    /// It can be spoken to.
    Up,
    /// It cannot.
    Down {
        /// Since when.
        since: Instant,
        /// Why.
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
    /// In words.
    pub exit: String,
    /// As shells count.
    pub code: i32,
    /// The end of its standard error.
    pub last_words: String,
}

struct Shared {
    host: String,
    addrs: Vec<SocketAddr>,
    secret: Secret,
    on_line: OnLine,
    revive: Option<Revive>,
    /// Tells us from other clients, also when we connect again.
    client: u64,
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    state: AgentState,
    our_ip: Option<IpAddr>,
    programs: HashMap<String, Known>,
    /// Present while connected.
    outbox: Option<SyncSender<ToAgent>>,
    facts: Option<NodeFacts>,
    status: Option<Vec<ProgramStatus>>,
    memory: Option<Option<MemoryPressure>>,
    num_orders: u64,
    is_over: bool,
}

struct Known {
    tag: u64,
    order: Order,
    pid: Option<u32>,
    ended: Option<Ended>,
    is_killed: bool,
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

    /// Waits until `found` finds something, or the time is over.
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
    /// What cannot be sent now is told when the connection stands again.
    fn tell(&self, message: ToAgent) {
        if let Some(outbox) = &self.outbox {
            // A full outbox means a connection that is about to be given up.
            outbox.try_send(message).ok();
        }
    }
}

impl Agent {
    /// Begins to connect to the agent at one of `addrs`; goes on whenever the connection breaks.
    pub fn connect(host: &str, addrs: Vec<SocketAddr>, secret: Secret, on_line: OnLine) -> Agent {
        Agent::connect_or_revive(host, addrs, secret, (on_line, None))
    }

    /// As [`Agent::connect`]. If the machine answers and the agent, which was there before, does not,
    /// `revive` is asked to start it.
    pub fn connect_or_revive(
        host: &str,
        addrs: Vec<SocketAddr>,
        secret: Secret,
        (on_line, revive): (OnLine, Option<Revive>),
    ) -> Agent {
        let reason = "not connected yet".to_owned();
        let shared = Arc::new(Shared {
            host: host.to_owned(),
            addrs,
            secret,
            on_line,
            revive,
            client: RandomState::new().hash_one(0),
            inner: Mutex::new(Inner {
                state: AgentState::Down { since: Instant::now(), reason },
                our_ip: None,
                programs: HashMap::new(),
                outbox: None,
                facts: None,
                status: None,
                memory: None,
                num_orders: 0,
                is_over: false,
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

    /// The machine, as people call it.
    pub fn host(&self) -> &str {
        &self.shared.host
    }

    /// Where it may listen.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.shared.addrs
    }

    /// A connection of its own to the library of its machine.
    ///
    /// # Errors
    /// [`ExchangeError::Unreachable`].
    pub fn library(&self) -> Result<LibraryClient, ExchangeError> {
        LibraryClient::dial(&self.shared.host, &self.shared.addrs, &self.shared.secret)
    }

    /// How it is now.
    pub fn state(&self) -> AgentState {
        self.shared.lock().state.clone()
    }

    /// Our address as the machine saw it last.
    pub fn our_ip(&self) -> Option<IpAddr> {
        self.shared.lock().our_ip
    }

    /// Waits until it can be spoken to.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn wait_until_up(&self, timeout: Duration) -> Result<(), String> {
        self.shared.wait(timeout, |inner| match inner.state {
            AgentState::Up => Some(()),
            AgentState::Down { .. } => None,
        })
    }

    /// What the machine is and has.
    ///
    /// # Errors
    /// Why it does not tell.
    pub fn facts(&self, timeout: Duration) -> Result<NodeFacts, String> {
        let mut asked = false;
        self.shared.wait(timeout, |inner| {
            if !asked && inner.outbox.is_some() {
                (asked, inner.facts) = (true, None);
                inner.tell(ToAgent::Facts);
            }
            inner.facts.take()
        })
    }

    /// The programs it looks after, whoever ordered them.
    ///
    /// # Errors
    /// Why it does not tell.
    pub fn status(&self, timeout: Duration) -> Result<Vec<ProgramStatus>, String> {
        let mut asked = false;
        self.shared.wait(timeout, |inner| {
            if !asked && inner.outbox.is_some() {
                (asked, inner.status) = (true, None);
                inner.tell(ToAgent::Status);
            }
            inner.status.take()
        })
    }

    /// How the machine's memory is.
    ///
    /// # Errors
    /// Why it does not tell.
    pub fn memory(&self, timeout: Duration) -> Result<MemoryPressure, String> {
        let mut asked = false;
        let told = self.shared.wait(timeout, |inner| {
            if !asked && inner.outbox.is_some() {
                (asked, inner.memory) = (true, None);
                inner.tell(ToAgent::Memory);
            }
            inner.memory.take()
        });
        told?.ok_or_else(|| "its system does not tell".to_owned())
    }

    /// Orders a program; does not wait. While the machine cannot be reached the order stands.
    pub fn start(&self, order: Order) -> Program {
        let name = order.name.clone();
        let mut inner = self.shared.lock();
        inner.num_orders += 1;
        let tag = inner.num_orders;
        inner.tell(ToAgent::Start { tag, order: order.clone() });
        let known = Known { tag, order, pid: None, ended: None, is_killed: false };
        inner.programs.insert(name.clone(), known);
        Program { shared: Arc::clone(&self.shared), name }
    }

    /// Ends the agent and all its programs, if it can be reached.
    pub fn stop(&self) {
        self.shared.lock().tell(ToAgent::Stop);
    }

    /// Leaves without a word, so that the programs live on for their lease.
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
            inner.tell(last);
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

impl Program {
    /// Its process, once it runs.
    pub fn pid(&self) -> Option<u32> {
        self.known(|known| known.pid)
    }

    /// How it ended, once that is known.
    pub fn ended(&self) -> Option<Ended> {
        self.known(|known| known.ended.clone())
    }

    /// Waits until it runs or has ended.
    ///
    /// # Errors
    /// Why neither is known.
    pub fn wait_until_started(&self, timeout: Duration) -> Result<(), String> {
        self.shared.wait(timeout, |inner| {
            let known = inner.programs.get(&self.name)?;
            (known.pid.is_some() || known.ended.is_some()).then_some(())
        })
    }

    /// Why its machine cannot be spoken to now, if so.
    pub fn trouble(&self) -> Option<String> {
        match &self.shared.lock().state {
            AgentState::Up => None,
            AgentState::Down { since, reason } => {
                Some(format!("{reason} (for {:.0} s)", since.elapsed().as_secs_f32()))
            }
        }
    }

    /// Ends it at once; if its machine cannot be reached, as soon as it can.
    pub fn kill(&self) {
        let mut inner = self.shared.lock();
        if let Some(known) = inner.programs.get_mut(&self.name) {
            known.is_killed = true;
        }
        inner.tell(ToAgent::Kill { name: self.name.clone() });
    }

    /// Sends it a signal, by number.
    pub fn signal(&self, signal: i32) {
        self.shared.lock().tell(ToAgent::Signal { name: self.name.clone(), signal });
    }

    /// Writes to its standard input; nothing closes it.
    pub fn input(&self, bytes: Vec<u8>) {
        self.shared.lock().tell(ToAgent::Input { name: self.name.clone(), bytes });
    }

    fn known<T>(&self, read: impl Fn(&Known) -> Option<T>) -> Option<T> {
        self.shared.lock().programs.get(&self.name).and_then(read)
    }
}

fn connect_again_and_again(shared: &Arc<Shared>) {
    // None while it was never there.
    let mut revived_at: Option<Instant> = None;
    loop {
        let reason = match dial(shared) {
            Ok((sender, receiver)) => {
                revived_at = Some(Instant::now());
                match talk(shared, sender, receiver) {
                    Ok(()) => return,
                    Err(err) => err.to_string(),
                }
            }
            Err(undialled) => {
                let is_due = revived_at.is_some_and(|at| REVIVE_PAUSE <= at.elapsed());
                if let (true, true, Some(revive)) = (is_due, undialled.is_gone, &shared.revive) {
                    info!(host = shared.host, "starting its agent again");
                    let revived = revive();
                    revived_at = Some(Instant::now());
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

/// No address led to an agent of ours.
struct Undialled {
    reason: String,
    /// The machine answers: no agent is there, or another than ours.
    is_gone: bool,
}

fn dial(shared: &Shared) -> Result<(secure::Sender, secure::Receiver), Undialled> {
    let mut reasons = Vec::new();
    let mut is_gone = false;
    for addr in &shared.addrs {
        match secure::dial(*addr, &shared.secret, DIAL_TIMEOUT) {
            Ok(connection) => return Ok(connection),
            Err(err) => {
                is_gone |= match &err {
                    FrameError::Io(err) => err.kind() == std::io::ErrorKind::ConnectionRefused,
                    FrameError::Secret | FrameError::Version { .. } => true,
                    _ => false,
                };
                reasons.push(format!("no agent at {addr}: {err}"));
            }
        }
    }
    let reason =
        if reasons.is_empty() { "it has no address".to_owned() } else { reasons.join("; ") };
    Err(Undialled { reason, is_gone })
}

/// Until the connection breaks (an error) or is not wanted any more.
fn talk(
    shared: &Arc<Shared>,
    sender: secure::Sender,
    mut receiver: secure::Receiver,
) -> Result<(), FrameError> {
    receiver.stream().set_read_timeout(Some(SILENCE))?;
    sender.stream().set_write_timeout(Some(SILENCE))?;
    let our_ip = sender.stream().local_addr()?.ip();
    let (outbox, messages) = sync_channel(OUTBOX_LEN);
    let client = shared.client;
    let writer = thread::Builder::new()
        .name(format!("to {}", shared.host))
        .spawn(move || write(sender, client, &messages))?;
    {
        let mut inner = shared.lock();
        if inner.is_over {
            return Ok(());
        }
        for (name, known) in inner.programs.iter().filter(|(_, known)| known.ended.is_none()) {
            let message = match (known.is_killed, known.pid) {
                (true, _) => ToAgent::Kill { name: name.clone() },
                (false, Some(pid)) => ToAgent::Resume { name: name.clone(), pid, tag: known.tag },
                (false, None) => ToAgent::Start { tag: known.tag, order: known.order.clone() },
            };
            outbox.try_send(message).ok();
        }
        inner.outbox = Some(outbox);
        (inner.state, inner.our_ip) = (AgentState::Up, Some(our_ip));
        shared.changed.notify_all();
    }
    debug!(host = shared.host, "agent connected");
    let err = loop {
        match frame::read::<FromAgent>(&mut receiver) {
            Ok(message) => hear(shared, message),
            Err(err) => break err,
        }
    };
    shared.lock().outbox = None;
    let _ = receiver.stream().shutdown(Shutdown::Both);
    let _ = writer.join();
    if shared.lock().is_over { Ok(()) } else { Err(err) }
}

fn write(mut sender: secure::Sender, client: u64, messages: &Receiver<ToAgent>) {
    // The first word says what kind of connection this is. One that is broken is seen by the reader.
    frame::write(&mut sender, &ToAgent::Hello { client }).ok();
    loop {
        let message = match messages.recv_timeout(BEAT) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => ToAgent::Beat,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if frame::write(&mut sender, &message).is_err() {
            break;
        }
    }
    // Wakes the reader.
    let _ = sender.stream().shutdown(Shutdown::Both);
}

fn hear(shared: &Shared, message: FromAgent) {
    if let FromAgent::Line { name, stream, text } = &message {
        return (shared.on_line)(name, *stream, text);
    }
    let mut inner = shared.lock();
    match message {
        FromAgent::Started { name, tag, pid } => {
            let known = inner.programs.get_mut(&name).filter(|known| known.tag == tag);
            let is_killed = known.is_some_and(|known| {
                known.pid = Some(pid);
                known.is_killed
            });
            if is_killed {
                inner.tell(ToAgent::Kill { name });
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
        FromAgent::Memory(memory) => inner.memory = Some(memory),
        FromAgent::Beat | FromAgent::Line { .. } => return,
    }
    shared.changed.notify_all();
}
