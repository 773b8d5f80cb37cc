//! The accepting side of control connections: the coordinator's port for ranks, and the agents'
//! port.
//!
//! ```text
//!   accepted ─▶ silent ──────────▶ shaking hands ─▶ authenticated
//!               one thread, poll    a worker each
//! ```
//!
//! One thread polls all connections until their opening (preamble, hint, first handshake message)
//! has arrived; only then does a worker take the connection. Both stages are bounded by
//! [`Admission`] and have deadlines. Refusals are logged at a bounded rate ([`RefusalLog`]).

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tracing::warn;

use crate::admission::{Admission, AdmissionId, AdmissionLimits, Admitted};
use crate::frame::FrameError;
use crate::refusals::{RefusalLog, Refusals};
use crate::secure::{Caller, Opening};

/// Maximum time from accepting a connection to the end of its opening.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// Maximum time from the end of the opening to authentication, and from there to the first message.
pub const HANDSHAKE: Duration = Duration::from_secs(3);
/// Limits on connections whose opening is incomplete.
const SILENT: AdmissionLimits = AdmissionLimits { total: 192, per_source: 48, reserve: 64 };
/// Limits on connections in the handshake, each with a thread.
const SHAKING: AdmissionLimits = AdmissionLimits { total: 64, per_source: 12, reserve: 32 };
/// Time after which an idle worker ends.
const WORKER_IDLE: Duration = Duration::from_secs(2);
/// Number of connections accepted before pending ones are polled again.
const BATCH: usize = 64;
/// Length of the listen queue.
const BACKLOG: i32 = 1024;
/// Pause after `accept` failed, so that a lack of file descriptors does not cause a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Maximum time between two wake-ups of the thread.
const POLL_MAX: Duration = Duration::from_secs(5);

/// Authenticates a caller and passes it on. Runs on a worker, until the caller's deadline at most.
pub type Prove = Box<dyn Fn(Caller) -> Result<(), FrameError> + Send + Sync>;

/// Configuration of a [`Gate`].
#[derive(Debug)]
pub struct GateConfig {
    /// The listening sockets, all with one port.
    pub listeners: Vec<TcpListener>,
    /// Addresses that callers are expected from. Addresses of authenticated peers are added to
    /// them.
    pub expected: Vec<IpAddr>,
    /// Purpose of the listeners, for the log.
    pub purpose: &'static str,
}

/// The listeners of a port and their unauthenticated connections. Dropping it closes them.
pub struct Gate {
    shared: Arc<GateState>,
    thread: Option<JoinHandle<()>>,
}

struct GateState {
    purpose: &'static str,
    prove: Prove,
    /// Becomes readable when the thread has to look at `state`.
    wake: UnixStream,
    state: Mutex<State>,
    has_work: Condvar,
}

struct State {
    is_over: bool,
    new_listeners: Vec<TcpListener>,
    /// Connections that a worker handles, or that wait for one.
    shaking: Admission<Shaking>,
    queue: VecDeque<(AdmissionId, Caller)>,
    num_workers: usize,
    num_idle: usize,
    refusals: RefusalLog,
    /// Addresses that have authenticated since the thread last looked.
    proved: Vec<IpAddr>,
}

/// Handle for closing a connection that a worker handles.
struct Shaking {
    stream: TcpStream,
    deadline: Instant,
}

impl Shaking {
    fn end(&self) {
        // Fails only if the connection is closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// A connection whose opening is incomplete.
struct Silent {
    stream: TcpStream,
    from: SocketAddr,
    deadline: Instant,
    opening: Opening,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("purpose", &self.shared.purpose).finish_non_exhaustive()
    }
}

impl Gate {
    /// Starts accepting connections.
    ///
    /// # Errors
    /// Fails if the system cannot create a thread or a socket.
    pub fn start(config: GateConfig, prove: Prove) -> io::Result<Gate> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let GateConfig { listeners, expected, purpose } = config;
        listeners.iter().try_for_each(prepare)?;
        let state = State {
            is_over: false,
            new_listeners: Vec::new(),
            shaking: Admission::new(SHAKING, expected.iter().copied()),
            queue: VecDeque::new(),
            num_workers: 0,
            num_idle: 0,
            refusals: RefusalLog::default(),
            proved: Vec::new(),
        };
        let state = Mutex::new(state);
        let shared = Arc::new(GateState { purpose, prove, wake, state, has_work: Condvar::new() });
        let silent = Admission::new(SILENT, expected);
        let porch = Porch { shared: Arc::clone(&shared), woken, listeners, silent };
        let thread = thread::Builder::new().name("gate".to_owned()).spawn(move || porch.run())?;
        Ok(Gate { shared, thread: Some(thread) })
    }

    /// Accepts the connections of one more listener.
    ///
    /// # Errors
    /// Fails if the listener cannot be used.
    pub fn listen_also(&self, listener: TcpListener) -> io::Result<()> {
        prepare(&listener)?;
        self.shared.lock().new_listeners.push(listener);
        self.shared.wake();
        Ok(())
    }

    /// Returns the reason for the last refusal.
    pub fn last_refusal(&self) -> Option<String> {
        self.shared.lock().refusals.last_reason().map(str::to_owned)
    }

    /// Returns the number of refused connections.
    pub fn num_refused(&self) -> u64 {
        self.shared.lock().refusals.num_refused()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.is_over = true;
            // Wakes workers that are blocked in a read; they are not joined.
            state.shaking.iter().for_each(|(_, shaking)| shaking.end());
            self.shared.has_work.notify_all();
        }
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn prepare(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    // A longer queue than the standard library's, which a burst of connections would fill.
    rustix::net::listen(listener, BACKLOG)?;
    Ok(())
}

impl GateState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // Fails only if the pipe is full, which wakes the thread too.
        let _ = (&self.wake).write(&[0]);
    }

    fn refused(&self, from: SocketAddr, reason: &str) {
        let line = self.lock().refusals.refused(from.ip(), reason, Instant::now());
        if let Some(line) = line {
            warn!(purpose = self.purpose, "{line}");
        }
    }

    /// Passes a connection to a worker.
    fn hand_on(self: &Arc<GateState>, silent: Silent) {
        let Silent { stream, from, opening, .. } = silent;
        let handle = stream.set_nonblocking(false).and_then(|()| stream.try_clone());
        let deadline = Instant::now() + HANDSHAKE;
        let handle = match handle {
            Ok(stream) => Shaking { stream, deadline },
            Err(err) => return self.refused(from, &err.to_string()),
        };
        let caller = Caller { stream, from, deadline, opening };
        let mut state = self.lock();
        let Admitted { id, evicted } = state.shaking.admit(from.ip(), handle);
        evicted.iter().for_each(Shaking::end);
        state.queue.push_back((id, caller));
        self.has_work.notify_one();
        // An evicted connection still occupies its worker for a moment, hence twice the limit.
        if state.queue.len() <= state.num_idle || 2 * SHAKING.total <= state.num_workers {
            return;
        }
        state.num_workers += 1;
        drop(state);
        let shared = Arc::clone(self);
        // Not joined: the deadlines end it, and it holds nothing that outlives the gate.
        let work = move || shared.work();
        if thread::Builder::new().name("handshake".to_owned()).spawn(work).is_err() {
            self.lock().num_workers -= 1;
        }
    }

    /// Authenticates callers until none arrive for a while.
    fn work(&self) {
        let mut state = self.lock();
        while !state.is_over {
            let Some((id, caller)) = state.queue.pop_front() else {
                state.num_idle += 1;
                let (woken, waited) = self
                    .has_work
                    .wait_timeout(state, WORKER_IDLE)
                    .unwrap_or_else(PoisonError::into_inner);
                state = woken;
                state.num_idle -= 1;
                if waited.timed_out() && state.queue.is_empty() {
                    break;
                }
                continue;
            };
            drop(state);
            let from = caller.from;
            let proved = (self.prove)(caller);
            if let Err(err) = &proved {
                self.refused(from, &reason(err));
            }
            state = self.lock();
            state.shaking.remove(id);
            if proved.is_ok() {
                state.shaking.proved(from.ip());
                state.proved.push(from.ip());
                self.wake();
            }
        }
        state.num_workers -= 1;
    }
}

fn reason(err: &FrameError) -> String {
    match err {
        FrameError::Closed => "it closed the connection before it proved itself".to_owned(),
        err => err.to_string(),
    }
}

/// State of the accepting thread: the listeners and the connections whose opening is incomplete.
struct Porch {
    shared: Arc<GateState>,
    woken: UnixStream,
    listeners: Vec<TcpListener>,
    silent: Admission<Silent>,
}

impl Porch {
    fn run(mut self) {
        while self.take_news() {
            self.accept_all();
            self.read_openings();
            for line in self.look_after(Instant::now()) {
                warn!(purpose = self.shared.purpose, "{line}");
            }
            if self.sleep().is_err() {
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }

    /// Takes in changes made by other threads. Returns false when the gate is closed.
    fn take_news(&mut self) -> bool {
        while (&self.woken).read(&mut [0; 64]).is_ok_and(|num_read| 0 < num_read) {}
        let mut state = self.shared.lock();
        self.listeners.append(&mut state.new_listeners);
        for ip in state.proved.drain(..) {
            self.silent.proved(ip);
        }
        !state.is_over
    }

    fn accept_all(&mut self) {
        for at in 0..self.listeners.len() {
            for _ in 0..BATCH {
                match self.listeners[at].accept() {
                    Ok((stream, from)) => self.let_in(stream, from),
                    Err(err) if err.kind() == io::ErrorKind::WouldBlock => break,
                    // The peer closed the connection before it was accepted.
                    Err(err) if err.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(_) => {
                        thread::sleep(ACCEPT_PAUSE);
                        break;
                    }
                }
            }
        }
    }

    /// Closes connections whose handshake has passed its deadline. Returns the refusals to log now.
    fn look_after(&self, now: Instant) -> Vec<Refusals> {
        let mut state = self.shared.lock();
        let late = state.shaking.iter().filter(|(_, shaking)| shaking.deadline <= now);
        late.for_each(|(_, shaking)| shaking.end());
        state.refusals.due(now)
    }

    fn let_in(&mut self, stream: TcpStream, from: SocketAddr) {
        if let Err(err) = stream.set_nonblocking(true).and_then(|()| Opening::greet(&stream)) {
            return self.shared.refused(from, &err.to_string());
        }
        let (deadline, opening) = (Instant::now() + SILENCE_MAX, Opening::default());
        let mut silent = Silent { stream, from, deadline, opening };
        // If the opening arrived while the connection was in the listen queue, no slot is needed.
        match silent.opening.read(&silent.stream) {
            Ok(true) => return self.shared.hand_on(silent),
            Ok(false) => {}
            Err(err) => return self.shared.refused(from, &reason(&err)),
        }
        if let Some(evicted) = self.silent.admit(from.ip(), silent).evicted {
            self.shared.refused(evicted.from, "it said nothing while others wanted its place");
        }
    }

    /// Reads from the connections whose opening is incomplete.
    fn read_openings(&mut self) {
        let now = Instant::now();
        let mut done = Vec::new();
        for (id, silent) in self.silent.iter_mut() {
            match silent.opening.read(&silent.stream) {
                Ok(true) => done.push((id, None)),
                Ok(false) if now < silent.deadline => {}
                Ok(false) => done.push((id, Some("it said nothing, or not enough".to_owned()))),
                Err(err) => done.push((id, Some(reason(&err)))),
            }
        }
        for (id, refused) in done {
            let silent = self.silent.remove(id).expect("it was there a moment ago");
            match refused {
                None => self.shared.hand_on(silent),
                Some(reason) => self.shared.refused(silent.from, &reason),
            }
        }
    }

    /// Blocks until there is something to do.
    fn sleep(&self) -> io::Result<()> {
        let now = Instant::now();
        let mut wake_at = now + POLL_MAX;
        let mut fds = vec![PollFd::from_borrowed_fd(self.woken.as_fd(), PollFlags::IN)];
        for listener in &self.listeners {
            fds.push(PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN));
        }
        for (_, silent) in self.silent.iter() {
            wake_at = wake_at.min(silent.deadline);
            fds.push(PollFd::from_borrowed_fd(silent.stream.as_fd(), PollFlags::IN));
        }
        {
            let state = self.shared.lock();
            wake_at = state.refusals.deadline().map_or(wake_at, |due| wake_at.min(due));
            // A connection past its deadline has been closed already; its worker is about to
            // notice.
            let deadlines = state.shaking.iter().map(|(_, shaking)| shaking.deadline);
            let next = deadlines.filter(|deadline| now < *deadline).min();
            wake_at = next.map_or(wake_at, |next| wake_at.min(next));
        }
        // Rounded up, so that the thread does not wake up repeatedly just before a deadline.
        let left = wake_at.saturating_duration_since(now) + Duration::from_millis(1);
        let timeout = left.try_into().map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(err) => Err(err.into()),
        }
    }
}

#[cfg(test)]
mod tests;
