//! One rank as the link sees it: a process, a connection, and what is expected next.

use std::io::Write;
use std::net::{Shutdown, SocketAddr};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jackalope_protocol::{FrameError, FromRank, Hello, RankFacts, frame, secure};

use super::accept::Arrival;
use super::{LinkReport, RankProcess, Report};
use crate::Reporter;

/// A process whose socket closed shows how it ended within this time.
pub(super) const EXIT_GRACE: Duration = Duration::from_millis(300);
/// A killed process is gone within this time.
const KILL_GRACE: Duration = Duration::from_millis(500);
const EXIT_POLL: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// No process.
    Absent,
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
    process: Option<Box<dyn RankProcess>>,
    connection: Option<Connection>,
}

struct Connection {
    id: u64,
    sender: secure::Sender,
    reader: Option<JoinHandle<()>>,
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
            process: None,
            connection: None,
        }
    }

    pub(super) fn enter(&mut self, state: State, now: Instant) {
        self.state = state;
        self.entered_at = now;
    }

    pub(super) fn launched(&mut self, process: Box<dyn RankProcess>, now: Instant) {
        self.process = Some(process);
        self.num_launches += 1;
        self.enter(State::Launched, now);
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
        let reader = std::thread::Builder::new()
            .name(format!("rank {rank}"))
            .spawn(move || read_all(rank, id, receiver, &reporter))?;
        self.data_addr = Some(hello.data_addr);
        self.mlx = Some(hello.mlx);
        self.heard_at = Instant::now();
        self.connection = Some(Connection { id, sender, reader: Some(reader) });
        Ok(())
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        let connection = self.connection.as_mut().ok_or(FrameError::Closed)?;
        Ok(connection.sender.write_all(bytes)?)
    }

    pub(super) fn has_exited(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.try_wait().is_some())
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether its process may come back on a new connection: it is not known to have ended within
    /// `grace`.
    pub(super) fn may_return(&mut self, grace: Duration) -> bool {
        let Some(process) = &mut self.process else { return false };
        wait_for_exit(process.as_mut(), grace).is_none()
    }

    /// Why nobody can say how its process is, if so.
    pub(super) fn trouble(&self) -> Option<String> {
        self.process.as_ref().and_then(|process| process.trouble())
    }

    /// Gives up the connection, not the process.
    pub(super) fn detach(&mut self, now: Instant) {
        self.connection = None;
        self.enter(State::Launched, now);
    }

    /// Gives up the connection and the process without a word to either.
    pub(super) fn release(&mut self) {
        self.connection = None;
        self.process = None;
        self.facts = None;
    }

    /// Waits at most `grace` for the process to end by itself, then kills it. Says how it ended by
    /// itself, if it did, and its last words.
    pub(super) fn end(&mut self, grace: Duration) -> (Option<String>, String) {
        let mut exit = None;
        let mut last_words = String::new();
        if let Some(mut process) = self.process.take() {
            exit = wait_for_exit(process.as_mut(), grace);
            if exit.is_none() {
                process.kill();
                wait_for_exit(process.as_mut(), KILL_GRACE);
            }
            last_words = process.last_words();
        }
        self.connection = None;
        self.facts = None;
        (exit, last_words)
    }
}

fn wait_for_exit(process: &mut dyn RankProcess, grace: Duration) -> Option<String> {
    let deadline = Instant::now() + grace;
    loop {
        if let Some(exit) = process.try_wait() {
            return Some(exit);
        }
        if deadline <= Instant::now() {
            return None;
        }
        std::thread::sleep(EXIT_POLL);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Wakes the reader; an error means it is awake already.
        let _ = self.sender.stream().shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn read_all(
    rank: usize,
    connection: u64,
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
