//! One rank as the link sees it: a process, a connection, and what is expected next.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use jackalope_protocol::{FrameError, FromRank, Hello, Phase, RankFacts, frame, secure};

use super::accept::Arrival;
use super::{LinkReport, RankProcess, Report};
use crate::Reporter;

/// Messages that wait for a rank to read those before. A rank is a few plans behind at most, and is
/// sent a heartbeat a second.
const WRITE_QUEUE_MAX: usize = 64;

/// Connections of a rank that are kept until it is known which process was started.
const EARLY_ARRIVALS_MAX: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// No process.
    Absent,
    /// The system is starting its process.
    Spawning,
    /// Started, has not connected.
    Launched,
    Loading {
        progressed_at: Instant,
        done_bytes: u64,
        total_bytes: u64,
    },
    /// Has its weights, without a group.
    Loaded,
    Joining,
    /// Member of the group.
    Standing,
}

pub(super) struct Slot {
    pub(super) state: State,
    pub(super) entered_at: Instant,
    pub(super) num_launches: u64,
    pub(super) data_addr: Option<SocketAddr>,
    /// Version of its libmlx.
    pub(super) mlx: Option<String>,
    pub(super) facts: Option<RankFacts>,
    /// When it last sent anything.
    pub(super) heard_at: Instant,
    /// Steps answered in this epoch.
    pub(super) steps_done: u64,
    /// When it last answered a step.
    pub(super) progressed_at: Instant,
    /// How long its collective had waited for peers at its last heartbeat.
    pub(super) waiting: Duration,
    /// Attempts to start a process that have neither succeeded nor failed.
    pub(super) num_spawning: usize,
    /// Launches in a row that were not followed by a hello.
    pub(super) num_silent: u32,
    /// While its connection is lost and its process is not: what it was doing, and since when.
    pub(super) detached_in: Option<(Phase, Instant)>,
    /// Connections that came before the launcher said which process it had started.
    early: Vec<Arrival>,
    process: Option<Box<dyn RankProcess>>,
    connection: Option<Connection>,
}

/// One thread reads it, one writes to it; both end with it, and nobody waits for them.
struct Connection {
    id: u64,
    stream: TcpStream,
    queue: SyncSender<Arc<[u8]>>,
}

impl Slot {
    pub(super) fn new(now: Instant) -> Slot {
        Slot {
            state: State::Absent,
            entered_at: now,
            num_launches: 0,
            data_addr: None,
            mlx: None,
            facts: None,
            heard_at: now,
            steps_done: 0,
            progressed_at: now,
            waiting: Duration::ZERO,
            num_spawning: 0,
            num_silent: 0,
            detached_in: None,
            early: Vec::new(),
            process: None,
            connection: None,
        }
    }

    pub(super) fn enter(&mut self, state: State, now: Instant) {
        self.state = state;
        self.entered_at = now;
        self.detached_in = None;
    }

    /// Its process is about to be started. Returns the number of this launch.
    pub(super) fn spawning(&mut self, now: Instant) -> u64 {
        self.num_launches += 1;
        self.num_spawning += 1;
        self.early.clear();
        self.enter(State::Spawning, now);
        self.num_launches
    }

    /// Its process was started. Returns the connections that were there before.
    pub(super) fn launched(&mut self, process: Box<dyn RankProcess>, now: Instant) -> Vec<Arrival> {
        self.process = Some(process);
        self.num_silent = self.num_silent.saturating_add(1);
        self.enter(State::Launched, now);
        std::mem::take(&mut self.early)
    }

    /// True if the launch of this number is the one that is waited for.
    pub(super) fn awaits(&self, launch: u64) -> bool {
        matches!(self.state, State::Spawning) && self.num_launches == launch
    }

    /// Keeps a connection until it is known which process was started; returns one too many.
    pub(super) fn keep_early(&mut self, arrival: Arrival) -> Option<Arrival> {
        self.early.push(arrival);
        (EARLY_ARRIVALS_MAX < self.early.len()).then(|| self.early.remove(0))
    }

    /// The process that was started, where the launcher knows it.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().and_then(|process| process.pid())
    }

    /// True if this is the process that was started.
    pub(super) fn expects(&self, hello: &Hello) -> bool {
        matches!(self.state, State::Launched) && self.pid().is_none_or(|pid| pid == hello.pid)
    }

    /// True while it belongs to a group, or is about to.
    pub(super) fn is_in_group(&self) -> bool {
        matches!(self.state, State::Joining | State::Standing)
    }

    pub(super) fn is_connected_by(&self, id: u64) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.id == id)
    }

    pub(super) fn attach(
        &mut self,
        rank: usize,
        arrival: Arrival,
        (id, reporter): (u64, Reporter<LinkReport>),
        write_timeout: Duration,
    ) -> Result<(), FrameError> {
        let Arrival { hello, sender, receiver } = arrival;
        sender.stream().set_write_timeout(Some(write_timeout))?;
        let stream = sender.stream().try_clone()?;
        let (queue, messages) = sync_channel(WRITE_QUEUE_MAX);
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(format!("{name} rank {rank}")).spawn(work)
        };
        let writing = reporter.clone();
        start("to", Box::new(move || write_each((rank, id), sender, &messages, &writing)))?;
        start("from", Box::new(move || read_all((rank, id), receiver, &reporter)))?;
        self.data_addr = Some(hello.data_addr);
        self.mlx = Some(hello.mlx);
        self.heard_at = Instant::now();
        self.num_silent = 0;
        self.connection = Some(Connection { id, stream, queue });
        Ok(())
    }

    /// Has a message sent; does not wait for that.
    pub(super) fn write(&self, bytes: &Arc<[u8]>) -> Result<(), FrameError> {
        let connection = self.connection.as_ref().ok_or(FrameError::Closed)?;
        connection.queue.try_send(Arc::clone(bytes)).map_err(|err| match err {
            TrySendError::Full(_) => {
                let full = format!("it has not read {WRITE_QUEUE_MAX} messages");
                FrameError::Io(io::Error::new(io::ErrorKind::TimedOut, full))
            }
            TrySendError::Disconnected(_) => FrameError::Closed,
        })
    }

    pub(super) fn has_exited(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.try_wait().is_some())
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    pub(super) fn has_process(&self) -> bool {
        self.process.is_some()
    }

    pub(super) fn kill(&mut self) {
        if let Some(process) = &mut self.process {
            process.kill();
        }
    }

    /// Why nobody can say how its process is, if so.
    pub(super) fn trouble(&self) -> Option<String> {
        self.process.as_ref().and_then(|process| process.trouble())
    }

    /// Gives up the connection, not the process.
    pub(super) fn detach(&mut self, doing: (Phase, Instant), now: Instant) {
        self.connection = None;
        self.enter(State::Launched, now);
        self.detached_in = Some(doing);
    }

    /// Gives up the connection, and the process as the caller sees fit. The rank is absent then.
    pub(super) fn release(&mut self, now: Instant) -> Option<Box<dyn RankProcess>> {
        self.connection = None;
        self.facts = None;
        self.early.clear();
        self.enter(State::Absent, now);
        self.process.take()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Wakes both threads; an error means that they are awake already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Writes what is queued until the connection ends. A rank that does not read within the stream's
/// timeout is reported as gone.
fn write_each(
    (rank, connection): (usize, u64),
    mut sender: secure::Sender,
    messages: &Receiver<Arc<[u8]>>,
    reporter: &Reporter<LinkReport>,
) {
    for bytes in messages {
        if let Err(err) = sender.write_all(&bytes) {
            let err = match err.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    io::Error::new(io::ErrorKind::TimedOut, "it does not read what it is sent")
                }
                _ => err,
            };
            let report = Report::Gone { rank, connection, err: FrameError::Io(err) };
            reporter.report(LinkReport(report));
            return;
        }
    }
}

fn read_all(
    (rank, connection): (usize, u64),
    mut stream: secure::Receiver,
    reporter: &Reporter<LinkReport>,
) {
    loop {
        let report = match frame::read::<FromRank>(&mut stream) {
            Ok(message) => Report::Message { rank, connection, message },
            Err(err) => Report::Gone { rank, connection, err },
        };
        let is_gone = matches!(report, Report::Gone { .. });
        if !reporter.report(LinkReport(report)) || is_gone {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc;

    use jackalope_protocol::Secret;
    use jackalope_protocol::secure::{Accepted, Admission, HintedKey};

    use super::*;

    /// Lets in whoever holds this ticket.
    struct Ticket(Secret);

    impl Admission for Ticket {
        fn key_of(&self, _hint: &[u8]) -> Option<Secret> {
            Some(self.0)
        }
    }

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Whoever writes never waits: neither for a rank that reads nothing, nor for its timeout.
    #[test]
    fn a_rank_that_does_not_read_is_lost_and_holds_nobody_up() {
        let ticket = Ticket(Secret([1; 32]));
        let key = HintedKey::of_rank(0, ticket.0);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let dialling = std::thread::spawn(move || secure::dial(addr, &key, TIMEOUT).unwrap());
        let (stream, _) = listener.accept().unwrap();
        let accepted = secure::accept(stream, &ticket, TIMEOUT).unwrap();
        let Accepted { sender, receiver, .. } = accepted;
        let _deaf = dialling.join().unwrap();
        let hello = Hello { rank: 0, pid: 7, mlx: String::new(), data_addr: addr };
        let mut slot = Slot::new(Instant::now());
        let (reports, heard) = mpsc::channel();
        let arrival = Arrival { hello, sender, receiver };
        slot.attach(0, arrival, (1, Reporter::new(reports)), TIMEOUT).unwrap();
        let message: Arc<[u8]> = vec![0; 1 << 20].into();
        let began = Instant::now();
        let refused = (0..10 * WRITE_QUEUE_MAX).find_map(|_| slot.write(&message).err());
        assert!(
            matches!(&refused, Some(FrameError::Io(err)) if err.kind() == io::ErrorKind::TimedOut)
        );
        assert!(began.elapsed() < TIMEOUT, "the writes waited for the rank");
        assert!(heard.try_recv().is_err(), "its connection still stands");
        drop(slot);
        // Both threads end with the connection, and give their reporters back.
        while heard.recv().is_ok() {}
    }
}
