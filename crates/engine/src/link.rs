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
mod ending;
mod launching;
mod process;
mod reach;
mod slot;
mod watch;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use jackalope_protocol::{
    FailureKind, FrameError, FromRank, HeartbeatEcho, Join, Phase, RankFailure, Secret, StepPlan,
    ToRank, frame,
};
use thiserror::Error;
use tracing::info;

use crate::{BrokenLink, Failure, GroupEvent, RankGroup, Reporter};
use accept::{Acceptor, Tickets};
use ending::{
    Dying, EXIT_GRACE, KILL_GRACE, Remains, Spawned, aside, bury, examine, have_ended_by,
};
pub use process::{Launch, LaunchError, LaunchOrder, Launcher, RankAssignment, RankProcess};
use slot::{Slot, State};

/// Configuration of a link.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Addresses to listen on for ranks, all with the port of the first; port 0 lets the system
    /// choose.
    pub listen: Vec<SocketAddr>,
    /// Addresses from which ranks are expected to connect. Their unauthenticated connections have
    /// reserved slots, which a flood from other addresses cannot take.
    pub expected: Vec<IpAddr>,
    /// Assignment of each rank to a machine, by rank.
    pub assignments: Vec<RankAssignment>,
    /// Timeouts of the link.
    pub timeouts: LinkTimeouts,
    /// Epoch of the first group. Must be greater than any epoch of an earlier coordinator if ranks
    /// can outlive one.
    pub first_epoch: u64,
}

/// Timeouts of the link.
#[derive(Clone, Copy, Debug)]
pub struct LinkTimeouts {
    /// Starting a process. A process that starts later than this is killed.
    pub spawn: Duration,
    /// From the start of a process to its hello. Applies until the group has been up once, and to
    /// ranks whose connection was lost.
    pub hello: Duration,
    /// The same for replacements. Doubles with each process in a row that sends no hello, up to
    /// `hello`.
    pub replacement_hello: Duration,
    /// Loading without progress.
    pub load_stall: Duration,
    /// Loading in total.
    pub load: Duration,
    /// Forming a group, in addition to the ranks' own timeout.
    pub join_margin: Duration,
    /// A step of few tokens, without progress; see [`LinkTimeouts::step_of`].
    pub step: Duration,
    /// Silence of a rank after its hello, in every state.
    pub heartbeat: Duration,
    /// Interval between two heartbeats to the ranks.
    pub heartbeat_interval: Duration,
    /// Writing one frame; no other rank is blocked by it.
    pub write: Duration,
    /// Stopping all ranks gracefully.
    pub stop: Duration,
}

impl Default for LinkTimeouts {
    fn default() -> LinkTimeouts {
        LinkTimeouts {
            spawn: Duration::from_secs(10),
            hello: Duration::from_secs(30),
            replacement_hello: Duration::from_secs(10),
            load_stall: Duration::from_secs(60),
            load: Duration::from_secs(1800),
            join_margin: Duration::from_secs(5),
            step: Duration::from_secs(10),
            heartbeat: Duration::from_secs(10),
            heartbeat_interval: Duration::from_secs(1),
            write: Duration::from_secs(10),
            stop: Duration::from_secs(1),
        }
    }
}

impl LinkTimeouts {
    /// Returns the timeout of a step, which grows with its tokens, because a long prompt on a slow
    /// device legitimately takes long.
    pub fn step_of(&self, num_tokens: usize) -> Duration {
        const TOKENS_INCLUDED: u32 = 64;
        self.step * (1 + u32::try_from(num_tokens).unwrap_or(u32::MAX) / TOKENS_INCLUDED)
    }
}

/// Error of setting up a link.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The link cannot listen on an address.
    #[error(
        "listening for ranks on {addr} failed: {source}\n\
         hint: another program has the port, or this machine no longer has the address; \
         `--control-port` names another port"
    )]
    Listen {
        /// Address that could not be used.
        addr: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
}

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

    fn on_message(&mut self, rank: usize, message: FromRank, now: Instant) {
        let slot = &mut self.slots[rank];
        slot.heard_at = now;
        match message {
            FromRank::Progress { done_bytes, total_bytes } => {
                if let State::Loading { .. } = slot.state {
                    slot.state = State::Loading { progressed_at: now, done_bytes, total_bytes };
                    self.report_phase(rank);
                }
            }
            // A rank that reconnected while it was loading may report this twice.
            FromRank::Loaded(_) if !matches!(slot.state, State::Loading { .. }) => {}
            FromRank::Loaded(facts) => {
                info!(rank, facts.weights_bytes, facts.load_ms, "shard loaded");
                slot.facts = Some(facts);
                slot.enter(State::Loaded, now);
                self.report_phase(rank);
                self.join_if_loaded(now);
            }
            FromRank::Joined { epoch } => {
                if epoch == self.epoch && matches!(slot.state, State::Joining) {
                    slot.enter(State::Standing, now);
                    self.report_phase(rank);
                    self.stand_if_joined();
                }
            }
            FromRank::Output { epoch, output } if rank == 0 => {
                if self.is_current(rank, epoch) {
                    self.note_step(rank, now);
                    self.events.push_back(GroupEvent::Output(output));
                }
            }
            FromRank::Output { .. } => {
                self.rank_died(rank, "it answered in place of rank 0", Duration::ZERO, now);
            }
            FromRank::Done { epoch, step, timings } => {
                if self.is_current(rank, epoch) {
                    self.note_step(rank, now);
                    self.events.push_back(GroupEvent::Done { rank, step, timings });
                }
            }
            FromRank::Heartbeat { phase, steps_done, waiting_ms, memory, echo } => {
                slot.waiting = Duration::from_millis(waiting_ms);
                let round_trip = echo.and_then(|it| self.round_trip(it, now));
                let heartbeat =
                    GroupEvent::Heartbeat { rank, phase, steps_done, memory, round_trip };
                self.events.push_back(heartbeat);
            }
            FromRank::Failed(failure) => self.on_failed(rank, failure, now),
        }
    }

    /// Returns the round-trip time of a heartbeat and the message that answers it; `None` if the
    /// heartbeat was another coordinator's.
    fn round_trip(&self, echo: HeartbeatEcho, now: Instant) -> Option<Duration> {
        let HeartbeatEcho { sent_us, held_us } = echo;
        self.micros(now).checked_sub(sent_us)?.checked_sub(held_us).map(Duration::from_micros)
    }

    /// Returns the time in microseconds by the clock of the heartbeats.
    fn micros(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }

    fn on_failed(&mut self, rank: usize, failure: RankFailure, now: Instant) {
        let RankFailure { epoch, phase, kind, .. } = failure;
        match kind {
            FailureKind::Group => {
                if epoch != self.epoch || !self.slots[rank].is_in_group() {
                    return;
                }
                if !self.is_stock() {
                    self.slots[rank].enter(State::Loaded, now);
                }
                // The rank that noticed the failure is seldom the one at fault. A dead process is
                // detected within moments, and users should then read about that process.
                let failure = self.group_failure(rank, failure, now);
                self.broken.get_or_insert((failure, now + EXIT_GRACE));
            }
            FailureKind::Model | FailureKind::Device => {
                let dying = Dying {
                    number: 0,
                    failure: self.failure(rank, phase, failure.message),
                    is_fatal: kind == FailureKind::Model,
                    asks_exit: false,
                    circumstances: String::new(),
                    until: Dying::until(EXIT_GRACE, now),
                };
                self.end_rank(dying, EXIT_GRACE, now);
            }
        }
    }

    fn is_current(&self, rank: usize, epoch: u64) -> bool {
        epoch == self.epoch && matches!(self.slots[rank].state, State::Standing)
    }

    fn note_step(&mut self, rank: usize, now: Instant) {
        let slot = &mut self.slots[rank];
        slot.steps_done += 1;
        slot.progressed_at = now;
        let done_by_all = self.slots.iter().map(|slot| slot.steps_done).min().unwrap_or(0);
        while self.sent.front().is_some_and(|sent| sent.step < done_by_all) {
            self.sent.pop_front();
        }
    }

    fn join_if_loaded(&mut self, now: Instant) {
        let is_ready = |slot: &Slot| matches!(slot.state, State::Loaded);
        let may_form = self.stage == Stage::Forming && self.broken_link.is_none();
        if !may_form || !self.slots.iter().all(is_ready) {
            return;
        }
        let key = match Secret::random() {
            Ok(key) => key,
            Err(err) => {
                let message = format!("the system has no randomness for a group's key: {err}");
                return self.lose(self.failure(0, Phase::Waiting, message), false);
            }
        };
        self.epoch += 1;
        let encrypts = self.encrypts();
        info!(epoch = self.epoch, in_clear = pairs_in_clear(&encrypts), "forming the group");
        for slot in &mut self.slots {
            slot.enter(State::Joining, now);
            (slot.steps_done, slot.progressed_at, slot.waiting) = (0, now, Duration::ZERO);
        }
        for (rank, encrypt) in encrypts.into_iter().enumerate() {
            let (epoch, peers) = (self.epoch, self.peers_of(rank));
            let join = ToRank::Join(Join { epoch, peers, key, encrypt });
            self.write(rank, &join, now);
        }
        (0..self.slots.len()).for_each(|rank| self.report_phase(rank));
    }

    /// Returns the addresses at which a rank reaches each rank's data plane.
    fn peers_of(&self, rank: usize) -> Vec<SocketAddr> {
        let routes = &self.config.assignments[rank].routes;
        let addr = |(peer, slot): (usize, &Slot)| {
            let reported = slot.data_addr.expect("a rank that said hello reported its address");
            routes.get(peer).map_or(reported, |ip| SocketAddr::new(*ip, reported.port()))
        };
        self.slots.iter().enumerate().map(addr).collect()
    }

    /// Handles a connection that broke or went silent. If ranks can outlive their connection, and
    /// the process is not known to have exited or to be silent by its own fault, the link waits for
    /// the rank to reconnect, because reloading its weights is expensive.
    fn connection_lost(&mut self, rank: usize, reason: &str, now: Instant) {
        let is_patient = 0 < self.config.assignments[rank].setup.orphan_ms;
        let slot = &mut self.slots[rank];
        let may_return = slot.has_process() && !slot.has_exited();
        if !is_patient || self.is_stock() || !may_return {
            return self.rank_died(rank, reason, EXIT_GRACE, now);
        }
        let doing = self.phase_of(rank);
        let message = format!("the connection to it was lost: {reason}");
        let failure = self.failure(rank, doing.0, message);
        self.slots[rank].detach(doing, now);
        self.report_phase(rank);
        if self.stage != Stage::Down {
            // If the process turns out to have exited, its exit is reported instead.
            self.broken.get_or_insert((failure, now + EXIT_GRACE));
        }
    }

    /// Replaces all ranks by those of another assignment to machines.
    fn reassign(&mut self, assignments: Vec<RankAssignment>, now: Instant) {
        assert!(!assignments.is_empty(), "there is at least one rank");
        info!(ranks = assignments.len(), "the cluster is planned anew");
        for slot in &mut self.slots {
            bury(slot.release(now));
        }
        self.sent.clear();
        (self.broken, self.broken_link, self.dying) = (None, None, None);
        self.slots = assignments.iter().map(|_| Slot::new(now)).collect();
        let hosts = assignments.iter().map(|assignment| assignment.host.clone()).collect();
        self.tickets.set(&assignments);
        self.config.assignments = assignments;
        self.events.push_back(GroupEvent::Reassigned { hosts });
    }

    fn stand_if_joined(&mut self) {
        if self.stage != Stage::Forming
            || !self.slots.iter().all(|slot| matches!(slot.state, State::Standing))
        {
            return;
        }
        self.stage = Stage::Standing;
        self.num_refused = self.acceptor.as_ref().map_or(0, Acceptor::num_refused);
        self.has_stood = true;
        let facts = self.slots.iter().map(|slot| slot.facts.clone());
        let facts = facts.map(|facts| facts.expect("a rank that joined has loaded")).collect();
        self.events.push_back(GroupEvent::Ready { epoch: self.epoch, facts });
    }

    /// Ends a rank, whose process gets `grace` to exit by itself. The loss is reported together
    /// with the exit status and the last output of the process.
    fn rank_died(&mut self, rank: usize, reason: &str, grace: Duration, now: Instant) {
        let detached_in = self.slots[rank].detached_in.filter(|_| self.broken.is_some());
        let (phase, since) = detached_in.unwrap_or_else(|| self.phase_of(rank));
        let elapsed_s = now.saturating_duration_since(since).as_secs_f32();
        let mut circumstances = format!(", {elapsed_s:.1} s after it began {}", phase.name());
        let refusing = self.acceptor.as_ref().filter(|it| self.num_refused < it.num_refused());
        if let (Phase::Starting, Some(refused)) = (phase, refusing.and_then(Acceptor::last_refusal))
        {
            circumstances += &format!("\na connection was refused: {refused}");
        }
        // A rank that we end at once may exit because its connection closed, so its exit explains
        // nothing.
        let asks_exit = !grace.is_zero() || self.slots[rank].has_exited();
        let dying = Dying {
            number: 0,
            failure: self.failure(rank, phase, reason.to_owned()),
            is_fatal: false,
            asks_exit,
            circumstances,
            until: Dying::until(grace, now),
        };
        self.end_rank(dying, grace, now);
    }

    /// Ends the rank that the failure names.
    fn end_rank(&mut self, mut dying: Dying, grace: Duration, now: Instant) {
        let rank = dying.failure.rank.expect("the failure is about a rank");
        let process = self.slots[rank].release(now);
        self.report_phase(rank);
        let was_down = std::mem::replace(&mut self.stage, Stage::Down) == Stage::Down;
        self.disband(now);
        if was_down {
            // Another loss is being reported already, or the ranks are not in use.
            return bury(process);
        }
        self.num_examined += 1;
        dying.number = self.num_examined;
        match process {
            Some(process) => {
                let reporter = self.reporter.clone().expect("there was a process to end");
                examine(process, grace, dying.number, reporter);
                self.dying = Some(dying);
            }
            None => self.report_loss(dying, Remains::default()),
        }
    }

    fn report_loss(&mut self, dying: Dying, remains: Remains) {
        let (failure, is_fatal) = dying.conclude(remains);
        self.events.push_back(GroupEvent::Lost { failure, is_fatal });
    }

    /// Reports the loss of the group and orders its remaining ranks to leave it.
    fn lose(&mut self, failure: Failure, is_fatal: bool) {
        let was_down = std::mem::replace(&mut self.stage, Stage::Down) == Stage::Down;
        self.disband(Instant::now());
        if !was_down {
            self.events.push_back(GroupEvent::Lost { failure, is_fatal });
        }
    }

    fn disband(&mut self, now: Instant) {
        self.sent.clear();
        self.broken = None;
        let leave = ToRank::Leave { epoch: self.epoch };
        for rank in 0..self.slots.len() {
            if !self.slots[rank].is_in_group() {
                continue;
            }
            if self.is_stock() {
                bury(self.slots[rank].release(now));
            } else {
                self.slots[rank].enter(State::Loaded, now);
                self.write(rank, &leave, now);
            }
            self.report_phase(rank);
        }
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
    fn phase_of(&self, rank: usize) -> (Phase, Instant) {
        let slot = &self.slots[rank];
        let phase = match slot.state {
            State::Absent | State::Spawning | State::Launched => Phase::Starting,
            State::Loading { .. } => Phase::Loading,
            State::Loaded => Phase::Waiting,
            State::Joining => Phase::Joining,
            State::Standing => {
                let begun = slot.progressed_at.max(slot.entered_at);
                return match self.sent.iter().find(|sent| sent.step == slot.steps_done) {
                    Some(sent) => (Phase::Computing, begun.max(sent.at)),
                    None => (Phase::Idle, begun),
                };
            }
        };
        (phase, slot.entered_at)
    }

    fn report_phase(&mut self, rank: usize) {
        let loaded_bytes = match self.slots[rank].state {
            State::Loading { done_bytes, total_bytes, .. } => Some((done_bytes, total_bytes)),
            _ => None,
        };
        let (phase, _) = self.phase_of(rank);
        let pid = self.slots[rank].pid();
        self.events.push_back(GroupEvent::Phase { rank, phase, loaded_bytes, pid });
    }
}

/// Returns the pairs of ranks whose connection is not encrypted, for the log: `0-1, 0-2`.
fn pairs_in_clear(encrypts: &[Vec<bool>]) -> String {
    let of_rank = |(a, row): (usize, &Vec<bool>)| -> Vec<String> {
        (a + 1..row.len()).filter(|&b| !row[b]).map(|b| format!("{a}-{b}")).collect()
    };
    encrypts.iter().enumerate().flat_map(of_rank).collect::<Vec<_>>().join(", ")
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

    fn trouble(&self) -> Option<Failure> {
        if let Some(failure) = self.link_failure() {
            return Some(failure);
        }
        let mut slots = self.slots.iter().enumerate();
        let (rank, trouble) = slots.find_map(|(rank, slot)| Some((rank, slot.trouble()?)))?;
        let message = format!("its machine cannot be reached: {trouble}");
        Some(self.failure(rank, self.phase_of(rank).0, message))
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
            Report::Launched { rank, launch, result } => self.launched((rank, launch), result, now),
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
