//! The implementation of [`RankGroup`]: processes that speak the protocol over sockets.
//!
//! One thread accepts connections and rejects unauthenticated peers. Each connection has two
//! threads, one to read and one to write. Each start and each end of a process runs on a thread of
//! its own. Everything else runs on the engine's thread, which never blocks on any of these. Every
//! wait has a deadline, and every failure names the rank, what it was doing, and for how long.
//!
//! ```text
//!            launch            process           hello             Loaded            all loaded        Joined
//!  (absent) ───────▶ spawning ───────▶ launched ───────▶ loading ─────────▶ loaded ────────────▶ joining ──▶ standing
//!      ▲                │ stalls          │ dies, stalls    │                 ▲ │                   │           │
//!      └────────────────┴─────────────────┴─────────────────┼─────────────────┼─┴───────────────────┤           │
//!                                                           │                 └────── Leave ────────┴───────────┤
//!                                                           └──────────────────────── dies, stalls ─────────────┘
//! ```
//!
//! When a rank is lost, the other ranks leave the group and keep their weights. Ranks on a stock
//! backend cannot leave a group, so they are replaced too.

mod accept;
mod config;
mod connection;
mod ending;
mod forming;
mod launching;
mod loss;
mod process;
mod reach;
mod receiving;
mod slot;
mod watch;

use std::collections::VecDeque;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use jackalope_protocol::{FrameError, FromRank, Phase, StepPlan, ToRank, frame};

use crate::{BrokenLink, Failure, GroupEvent, RankGroup, RankTransport, Reporter};
use accept::{Acceptor, Tickets};
pub use config::{LinkConfig, LinkError, LinkTimeouts};
use ending::{Dying, EXIT_GRACE, KILL_GRACE, Remains, Spawned, aside, bury, have_ended_by};
pub use process::{Launch, LaunchError, LaunchOrder, Launcher, RankAssignment, RankProcess};
use slot::{Activity, Slot, State};

/// All ranks, each a process behind a socket.
pub struct Link {
    config: LinkConfig,
    /// Set until the group is started.
    listeners: Vec<TcpListener>,
    control_addr: SocketAddr,
    acceptor: Option<Acceptor>,
    /// Tickets that ranks authenticate with, by rank.
    tickets: Tickets,
    launcher: Box<dyn Launcher>,
    reporter: Option<Reporter<LinkReport>>,
    slots: Vec<Slot>,
    stage: Stage,
    epoch: u64,
    num_connections: u64,
    /// Plans that not every rank has answered, oldest first.
    sent: VecDeque<SentStep>,
    /// A loss that is reported once its process has been examined.
    dying: Option<Dying>,
    /// Counts the losses, to match each with the report on its process.
    num_examined: u64,
    /// Whether the group has been up at least once.
    has_stood: bool,
    /// Failure of a group that broke although no process is known to be dead, and the time at which
    /// to stop looking for a dead process.
    broken: Option<(Failure, Instant)>,
    /// Number of refused connections when the group was last up. If a rank fails to connect and
    /// more have been refused since, the failure message names the last refusal.
    num_refused: u64,
    /// Time at which processes and deadlines were last checked.
    checked_at: Instant,
    /// Origin of the times in heartbeats.
    began: Instant,
    /// Time at which the last heartbeat was sent to the ranks.
    heartbeat_sent_at: Instant,
    /// Description of the link between two machines that prevents the group from forming.
    broken_link: Option<String>,
    /// All broken links, as reported last.
    known_broken_links: Vec<BrokenLink>,
    /// Time at which the launcher was last asked to test links.
    suspected_at: Option<Instant>,
    events: VecDeque<GroupEvent>,
}

#[derive(Clone, Copy, Debug)]
struct SentStep {
    step: u64,
    at: Instant,
    num_tokens: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    /// The ranks are not in use: no group is up or being formed.
    Down,
    Forming,
    Standing,
}

/// A report from the link's threads.
#[derive(Debug)]
pub struct LinkReport(Report);

#[derive(Debug)]
enum Report {
    Launched { rank: usize, launch: u64, result: Result<Spawned, LaunchError> },
    Examined { number: u64, remains: Remains },
    Arrived(accept::Arrival),
    Message { rank: usize, connection: u64, message: FromRank },
    Gone { rank: usize, connection: u64, err: FrameError },
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("stage", &self.stage)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Listens for ranks without starting any.
    ///
    /// # Errors
    /// Fails with [`LinkError::Listen`] if an address cannot be bound.
    ///
    /// # Panics
    /// Panics if there is no rank or no address to listen on.
    pub fn bind(config: LinkConfig, launcher: Box<dyn Launcher>) -> Result<Link, LinkError> {
        assert!(!config.assignments.is_empty(), "there is at least one rank");
        assert!(!config.listen.is_empty(), "ranks connect to some address");
        let mut listeners: Vec<TcpListener> = Vec::new();
        let mut control_addr = config.listen[0];
        for addr in &config.listen {
            let addr = SocketAddr::new(addr.ip(), control_addr.port());
            let failed = |source| LinkError::Listen { addr, source };
            let listener = TcpListener::bind(addr).map_err(failed)?;
            if listeners.is_empty() {
                control_addr = listener.local_addr().map_err(failed)?;
            }
            listeners.push(listener);
        }
        let (now, first_epoch) = (Instant::now(), config.first_epoch);
        Ok(Link {
            slots: config.assignments.iter().map(|_| Slot::new(now)).collect(),
            config,
            listeners,
            control_addr,
            acceptor: None,
            tickets: Tickets::default(),
            launcher,
            reporter: None,
            stage: Stage::Down,
            epoch: first_epoch,
            num_connections: 0,
            sent: VecDeque::new(),
            dying: None,
            num_examined: 0,
            has_stood: false,
            broken: None,
            num_refused: 0,
            checked_at: now,
            began: Instant::now(),
            heartbeat_sent_at: now,
            broken_link: None,
            known_broken_links: Vec::new(),
            suspected_at: None,
            events: VecDeque::new(),
        })
    }

    /// Returns the address that ranks connect to.
    pub fn control_addr(&self) -> SocketAddr {
        self.control_addr
    }

    /// Creates a failure of a rank.
    fn failure(&self, rank: usize, phase: Phase, message: String) -> Failure {
        let host = Some(self.config.assignments[rank].host.clone()).filter(|host| !host.is_empty());
        Failure { rank: Some(rank), host, phase, message, last_words: String::new() }
    }

    /// Whether the ranks use one of MLX's own transports, which cannot continue after the loss of a
    /// peer.
    fn is_stock(&self) -> bool {
        self.config.assignments[0].setup.backend.is_stock()
    }

    fn write(&mut self, rank: usize, message: &ToRank, now: Instant) {
        let written = frame::encode(message).and_then(|it| self.slots[rank].write(&it.into()));
        if let Err(err) = written {
            let reason = format!("writing to it failed: {err}");
            self.rank_died(rank, &reason, EXIT_GRACE, now);
        }
    }

    /// Queues the same bytes for every rank.
    fn write_all(&mut self, message: &ToRank, now: Instant) {
        let bytes = frame::encode(message).expect("plans and joins are far below the limit").into();
        for rank in 0..self.slots.len() {
            if let Err(err) = self.slots[rank].write(&bytes) {
                let reason = format!("writing to it failed: {err}");
                return self.rank_died(rank, &reason, EXIT_GRACE, now);
            }
        }
    }

    /// Returns what a rank is doing, and since when.
    fn activity_of(&self, rank: usize) -> Activity {
        let slot = &self.slots[rank];
        let phase = match slot.state {
            State::Absent | State::Spawning | State::Launched => Phase::Starting,
            State::Loading { .. } => Phase::Loading,
            State::WarmingUp { .. } => Phase::WarmingUp,
            State::Loaded => Phase::Waiting,
            State::Joining => Phase::Joining,
            State::Standing => {
                let begun = slot.progressed_at.max(slot.entered_at);
                return match self.sent.iter().find(|sent| sent.step == slot.steps_done) {
                    Some(sent) => Activity { phase: Phase::Computing, since: begun.max(sent.at) },
                    None => Activity { phase: Phase::Idle, since: begun },
                };
            }
        };
        Activity { phase, since: slot.entered_at }
    }

    fn report_phase(&mut self, rank: usize) {
        let loaded_bytes = match self.slots[rank].state {
            State::Loading { done_bytes, total_bytes, .. } => Some((done_bytes, total_bytes)),
            _ => None,
        };
        let progress = match self.slots[rank].state {
            State::Loading { done_bytes, .. } => done_bytes,
            State::WarmingUp { num_reports } => num_reports,
            _ => 0,
        };
        let phase = self.activity_of(rank).phase;
        let pid = self.slots[rank].pid();
        self.events.push_back(GroupEvent::Phase { rank, phase, progress, loaded_bytes, pid });
    }
}

impl RankGroup for Link {
    type Report = LinkReport;

    fn num_ranks(&self) -> usize {
        self.slots.len()
    }

    fn hosts(&self) -> Vec<String> {
        self.config.assignments.iter().map(|assignment| assignment.host.clone()).collect()
    }

    fn encrypts(&self) -> Vec<Vec<bool>> {
        let of_assignment =
            |(rank, assignment): (usize, &RankAssignment)| match assignment.encrypt.as_slice() {
                _ if assignment.setup.backend.is_stock() => vec![false; self.slots.len()],
                [] => (0..self.slots.len()).map(|peer| peer != rank).collect(),
                given => given.to_vec(),
            };
        self.config.assignments.iter().enumerate().map(of_assignment).collect()
    }

    fn transports(&self) -> Vec<RankTransport> {
        let assignments = &self.config.assignments;
        let of_assignment = |it: &RankAssignment| RankTransport {
            backend: it.setup.backend,
            rdma: it.rdma.clone(),
        };
        let has_peers = 1 < assignments.len();
        assignments.iter().filter(|_| has_peers).map(of_assignment).collect()
    }

    fn unreachable(&self) -> Vec<Failure> {
        if let Some(failure) = self.link_failure() {
            return vec![failure];
        }
        let failure = |(rank, slot): (usize, &Slot)| {
            let message = format!("its machine cannot be reached: {}", slot.trouble()?);
            Some(self.failure(rank, self.activity_of(rank).phase, message))
        };
        self.slots.iter().enumerate().filter_map(failure).collect()
    }

    fn start(&mut self, reporter: Reporter<LinkReport>, now: Instant) {
        let listeners = std::mem::take(&mut self.listeners);
        self.tickets.set(&self.config.assignments);
        let (expected, tickets) = (self.config.expected.clone(), self.tickets.clone());
        self.acceptor = Some(Acceptor::start(listeners, expected, tickets, reporter.clone()));
        self.reporter = Some(reporter);
        self.recover(now);
    }

    fn handle(&mut self, report: LinkReport, now: Instant) {
        match report.0 {
            Report::Launched { rank, launch, result } => self.launched(rank, launch, result, now),
            Report::Examined { number, remains } => {
                if let Some(dying) = self.dying.take_if(|dying| dying.number == number) {
                    self.report_loss(dying, remains);
                }
            }
            Report::Arrived(arrival) => self.arrive(arrival, now),
            Report::Message { rank, connection, message } => {
                if self.slots.get(rank).is_some_and(|slot| slot.is_connected_by(connection)) {
                    self.on_message(rank, message, now);
                }
            }
            Report::Gone { rank, connection, err } => {
                // Connections of ranks of an earlier assignment are ignored.
                if self.slots.get(rank).is_some_and(|slot| slot.is_connected_by(connection)) {
                    self.connection_lost(rank, &err.to_string(), now);
                }
            }
        }
    }

    fn tick(&mut self, now: Instant) {
        self.check_deadlines(now);
    }

    fn deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    fn takes_plans(&self) -> bool {
        self.stage == Stage::Standing && self.broken.is_none()
    }

    fn step_timeout(&self, num_tokens: usize) -> Duration {
        self.config.timeouts.step_of(num_tokens)
    }

    fn send(&mut self, plan: StepPlan, now: Instant) {
        let sent = SentStep { step: plan.step, at: now, num_tokens: plan.num_tokens() };
        self.sent.push_back(sent);
        self.write_all(&ToRank::Step { epoch: self.epoch, plan }, now);
    }

    fn recover(&mut self, now: Instant) {
        self.dying = None;
        self.disband(now);
        if let Some(assignments) = self.launcher.reassign() {
            self.reassign(assignments, now);
        }
        self.stage = Stage::Forming;
        for rank in 0..self.slots.len() {
            // The event that ended one rank may have ended others.
            if self.slots[rank].has_exited() {
                bury(self.slots[rank].release(now));
            }
            if let State::Absent = self.slots[rank].state
                && self.stage == Stage::Forming
            {
                self.launch(rank, now);
            }
        }
        self.join_if_loaded(now);
    }

    fn restart(&mut self, now: Instant) {
        self.stage = Stage::Down;
        if let Some(assignments) = self.launcher.reassign() {
            self.reassign(assignments, now);
        }
        for slot in &mut self.slots {
            bury(slot.release(now));
        }
        self.recover(now);
    }

    fn stop(&mut self) {
        self.stage = Stage::Down;
        let bytes = frame::encode(&ToRank::Stop).expect("a short message").into();
        for slot in &mut self.slots {
            // Ranks that do not receive it are killed below.
            let _ = slot.write(&bytes);
        }
        let slots = &mut self.slots;
        let is_gone = |slot: &mut Slot| !slot.has_process() || slot.has_exited();
        let deadline = Instant::now() + self.config.timeouts.stop;
        if !have_ended_by(|| slots.iter_mut().all(is_gone), deadline) {
            slots.iter_mut().for_each(Slot::kill);
            have_ended_by(|| slots.iter_mut().all(is_gone), Instant::now() + KILL_GRACE);
        }
        for slot in slots {
            bury(slot.release(Instant::now()));
        }
        self.acceptor = None;
    }

    fn hand_over(&mut self) {
        self.stage = Stage::Down;
        self.acceptor = None;
        for slot in &mut self.slots {
            // The launcher decides whether the process survives this.
            if let Some(process) = slot.release(Instant::now()) {
                aside("let go", move || drop(process));
            }
        }
        self.launcher.hand_over();
    }

    fn next_event(&mut self) -> Option<GroupEvent> {
        self.events.pop_front()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop();
    }
}
