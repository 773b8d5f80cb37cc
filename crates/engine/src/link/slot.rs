//! One rank as the link sees it: its process, its connection, and its state.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jackalope_protocol::{FrameError, Hello, Phase, RankFacts};

use super::accept::Arrival;
use super::connection::{Connection, ConnectionId};
use super::{LinkReport, RankProcess};
use crate::Reporter;

/// Maximum number of connections kept for a rank whose process is still being started.
const EARLY_ARRIVALS_MAX: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// Without a process.
    Absent,
    /// The system is starting its process.
    Spawning,
    /// The process has started but not connected.
    Launched,
    Loading {
        progressed_at: Instant,
        done_bytes: u64,
        total_bytes: u64,
    },
    /// Has its weights, and has reported so often that it computes its first steps.
    WarmingUp {
        num_reports: u64,
    },
    /// Has its weights, but is not in a group.
    Loaded,
    Joining,
    /// Member of the group.
    Standing,
}

/// What a rank is doing, and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activity {
    pub(super) phase: Phase,
    pub(super) since: Instant,
}

pub(super) struct Slot {
    pub(super) state: State,
    pub(super) entered_at: Instant,
    pub(super) num_launches: u64,
    pub(super) data_addr: Option<SocketAddr>,
    /// Version of its libmlx.
    pub(super) mlx: Option<String>,
    pub(super) facts: Option<RankFacts>,
    /// Time at which it last sent anything.
    pub(super) heard_at: Instant,
    /// Number of steps answered in this epoch.
    pub(super) steps_done: u64,
    /// Time at which it last answered a step.
    pub(super) progressed_at: Instant,
    /// Time for which its collective had waited for peers at its last heartbeat.
    pub(super) waiting: Duration,
    /// Number of pending attempts to start a process.
    pub(super) num_spawning: usize,
    /// Number of consecutive launches without a hello.
    pub(super) num_silent: u32,
    /// Set while the connection is lost but the process is not: what the rank was doing, and since
    /// when.
    pub(super) detached_in: Option<Activity>,
    /// Connections that arrived before the launcher returned the process.
    early: Vec<Arrival>,
    process: Option<Box<dyn RankProcess>>,
    connection: Option<Connection>,
}

impl Slot {
    /// Whether its process has not said that it is loaded.
    pub(super) fn is_loading(&self) -> bool {
        matches!(self.state, State::Loading { .. } | State::WarmingUp { .. })
    }

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

    /// Records that a process is being started. Returns the number of this launch.
    pub(super) fn spawning(&mut self, now: Instant) -> u64 {
        self.num_launches += 1;
        self.num_spawning += 1;
        self.early.clear();
        self.enter(State::Spawning, now);
        self.num_launches
    }

    /// Records the started process. Returns the connections that arrived before.
    pub(super) fn launched(&mut self, process: Box<dyn RankProcess>, now: Instant) -> Vec<Arrival> {
        self.process = Some(process);
        self.num_silent = self.num_silent.saturating_add(1);
        self.enter(State::Launched, now);
        std::mem::take(&mut self.early)
    }

    /// Whether the launch with this number is the current one.
    pub(super) fn awaits(&self, launch: u64) -> bool {
        matches!(self.state, State::Spawning) && self.num_launches == launch
    }

    /// Keeps a connection until the process is known. Returns the oldest one if there are too many.
    pub(super) fn keep_early(&mut self, arrival: Arrival) -> Option<Arrival> {
        self.early.push(arrival);
        (EARLY_ARRIVALS_MAX < self.early.len()).then(|| self.early.remove(0))
    }

    /// Returns the id of the process that was started, if the launcher knows it.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().and_then(|process| process.pid())
    }

    /// Whether this is the hello of the process that was started, on a machine that is trusted.
    pub(super) fn expects(&self, hello: &Hello) -> bool {
        matches!(self.state, State::Launched)
            && self.pid().is_none_or(|pid| pid == hello.pid)
            && self.distrust().is_none()
    }

    /// Whether the rank belongs to a group, or is joining one.
    pub(super) fn is_in_group(&self) -> bool {
        matches!(self.state, State::Joining | State::Standing)
    }

    pub(super) fn is_connected_by(&self, number: u64) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.is_number(number))
    }

    /// Takes the connection of the process that was started.
    pub(super) fn attach(
        &mut self,
        arrival: Arrival,
        id: ConnectionId,
        write_timeout: Duration,
        reporter: Reporter<LinkReport>,
    ) -> Result<(), FrameError> {
        let Arrival { hello, sender, receiver } = arrival;
        self.connection = Some(Connection::start(id, sender, receiver, write_timeout, reporter)?);
        self.data_addr = Some(hello.data_addr);
        self.mlx = Some(hello.mlx);
        self.heard_at = Instant::now();
        self.num_silent = 0;
        Ok(())
    }

    /// Queues a message without blocking.
    pub(super) fn write(&self, bytes: &Arc<[u8]>) -> Result<(), FrameError> {
        self.connection.as_ref().ok_or(FrameError::Closed)?.write(bytes)
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

    /// Returns why the state of its process cannot be determined, if so.
    pub(super) fn trouble(&self) -> Option<String> {
        self.process.as_ref().and_then(|process| process.trouble())
    }

    /// Whether somebody else starts its process.
    pub(super) fn is_started_elsewhere(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.is_started_elsewhere())
    }

    /// Returns why its machine is not trusted any more, if so.
    pub(super) fn distrust(&self) -> Option<String> {
        self.process.as_ref().and_then(|process| process.distrust())
    }

    /// Drops the connection but keeps the process.
    pub(super) fn detach(&mut self, activity: Activity, now: Instant) {
        self.connection = None;
        self.enter(State::Launched, now);
        self.detached_in = Some(activity);
    }

    /// Drops the connection, marks the rank absent, and returns its process.
    pub(super) fn release(&mut self, now: Instant) -> Option<Box<dyn RankProcess>> {
        self.connection = None;
        self.facts = None;
        self.early.clear();
        self.enter(State::Absent, now);
        self.process.take()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc;

    use jackalope_protocol::secure::Accepted;

    use super::super::connection::WRITE_QUEUE_MAX;
    use super::super::connection::tests::{TIMEOUT, connect};
    use super::*;

    /// `write` never blocks, neither on a rank that reads nothing nor for its timeout.
    #[test]
    fn a_rank_that_does_not_read_is_lost_and_blocks_no_other() {
        let (Accepted { sender, receiver, .. }, _deaf) = connect();
        let addr = sender.stream().local_addr().unwrap();
        let hello = Hello { rank: 0, pid: 7, mlx: String::new(), data_addr: addr };
        let mut slot = Slot::new(Instant::now());
        let (reports, received) = mpsc::channel();
        let arrival = Arrival { hello, sender, receiver };
        slot.attach(arrival, ConnectionId { rank: 0, number: 1 }, TIMEOUT, Reporter::new(reports))
            .unwrap();
        let message: Arc<[u8]> = vec![0; 1 << 20].into();
        let began = Instant::now();
        let refused = (0..10 * WRITE_QUEUE_MAX).find_map(|_| slot.write(&message).err());
        assert!(
            matches!(&refused, Some(FrameError::Io(err)) if err.kind() == io::ErrorKind::TimedOut)
        );
        assert!(began.elapsed() < TIMEOUT, "the writes waited for the rank");
        assert!(received.try_recv().is_err(), "its connection still stands");
        drop(slot);
        // Both threads end with the connection and drop their reporters.
        while received.recv().is_ok() {}
    }
}
