//! The real [`RankGroup`]: processes that speak the protocol over sockets.
//!
//! One thread accepts connections and drops strangers, one thread per rank reads its messages; all
//! else happens on the engine's thread. Every wait has a deadline, and every failure names the rank,
//! what it was doing, and for how long.
//!
//! ```text
//!            launch            hello             Loaded            all loaded        Joined
//!  (absent) ───────▶ launched ───────▶ loading ─────────▶ loaded ────────────▶ joining ──▶ standing
//!      ▲                │ dies, stalls    │                 ▲ │                   │           │
//!      └────────────────┴─────────────────┼─────────────────┼─┴───────────────────┤           │
//!                                         │                 └────── Leave ────────┴───────────┤
//!                                         └──────────────────────── dies, stalls ─────────────┘
//! ```
//!
//! When a rank is lost the others leave the group and keep their weights; those on a stock backend
//! cannot, and are replaced too.

mod accept;
mod process;
mod slot;
mod watch;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use jackalope_protocol::{
    FailureKind, FrameError, FromRank, HeardBeat, Join, Phase, RankFailure, Secret, StepPlan,
    ToRank, frame,
};
use thiserror::Error;
use tracing::{debug, info, warn};

use crate::{Failure, GroupEvent, RankGroup, Reporter};
use accept::Acceptor;
pub use process::{LaunchError, LaunchOrder, Launcher, RankProcess, Seat};
use slot::{Slot, State};

/// What the link needs to know.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Where ranks connect to; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// What ranks prove themselves with.
    pub secret: Secret,
    /// Who computes, by rank.
    pub seats: Vec<Seat>,
    /// How long to wait for what.
    pub timeouts: LinkTimeouts,
    /// Groups are counted from here. Greater than any epoch of an earlier brain, where ranks may
    /// outlive one.
    pub first_epoch: u64,
}

/// How long the link waits for what.
#[derive(Clone, Copy, Debug)]
pub struct LinkTimeouts {
    /// From starting a process to its hello.
    pub hello: Duration,
    /// Loading, without progress.
    pub load_stall: Duration,
    /// Loading, in all.
    pub load: Duration,
    /// Beyond the ranks' own bound of forming a group.
    pub join_margin: Duration,
    /// A step of few tokens, without progress; see [`LinkTimeouts::step_of`].
    pub step: Duration,
    /// Between two signs of life of a rank.
    pub heartbeat: Duration,
    /// Between two of ours.
    pub beat: Duration,
    /// Writing one frame.
    pub write: Duration,
    /// A polite end.
    pub stop: Duration,
}

impl Default for LinkTimeouts {
    fn default() -> LinkTimeouts {
        LinkTimeouts {
            hello: Duration::from_secs(30),
            load_stall: Duration::from_secs(60),
            load: Duration::from_secs(1800),
            join_margin: Duration::from_secs(5),
            step: Duration::from_secs(10),
            heartbeat: Duration::from_secs(10),
            beat: Duration::from_secs(1),
            write: Duration::from_secs(10),
            stop: Duration::from_secs(1),
        }
    }
}

impl LinkTimeouts {
    /// A long prompt on a slow device rightly takes long: the bound of a step grows with its tokens.
    pub fn step_of(&self, num_tokens: usize) -> Duration {
        const TOKENS_INCLUDED: u32 = 64;
        self.step * (1 + u32::try_from(num_tokens).unwrap_or(u32::MAX) / TOKENS_INCLUDED)
    }
}

/// Why there is no link.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The address cannot be listened on.
    #[error("listening for ranks on {addr} failed: {source}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// All ranks, each a process behind a socket.
pub struct Link {
    config: LinkConfig,
    listener: Option<TcpListener>,
    control_addr: SocketAddr,
    acceptor: Option<Acceptor>,
    launcher: Box<dyn Launcher>,
    reporter: Option<Reporter<LinkReport>>,
    slots: Vec<Slot>,
    stage: Stage,
    epoch: u64,
    num_connections: u64,
    /// Plans that not every rank has answered, oldest first.
    sent: VecDeque<SentStep>,
    /// A group that broke although no process is known to be dead, and when to stop looking for one.
    broken: Option<(Failure, Instant)>,
    /// Why the last connection was refused; told if a rank does not arrive.
    refused: Option<String>,
    /// When processes and deadlines were last looked after.
    looked_at: Instant,
    /// What beats count their time from.
    began: Instant,
    /// When ranks were last told that we live.
    beat_at: Instant,
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
    /// Nothing is expected of the ranks.
    Down,
    Forming,
    Standing,
}

/// From the link's threads.
#[derive(Debug)]
pub struct LinkReport(Report);

#[derive(Debug)]
enum Report {
    Arrived(accept::Arrival),
    Refused { reason: String },
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
    /// Listens for ranks; starts none yet.
    ///
    /// # Errors
    /// [`LinkError::Listen`] if the address is not to be had.
    ///
    /// # Panics
    /// If there is no rank.
    pub fn bind(config: LinkConfig, launcher: Box<dyn Launcher>) -> Result<Link, LinkError> {
        assert!(!config.seats.is_empty(), "there is at least one rank");
        let addr = config.listen;
        let failed = |source| LinkError::Listen { addr, source };
        let listener = TcpListener::bind(addr).map_err(failed)?;
        let control_addr = listener.local_addr().map_err(failed)?;
        let (now, first_epoch) = (Instant::now(), config.first_epoch);
        Ok(Link {
            slots: config.seats.iter().map(|_| Slot::new(now)).collect(),
            config,
            listener: Some(listener),
            control_addr,
            acceptor: None,
            launcher,
            reporter: None,
            stage: Stage::Down,
            epoch: first_epoch,
            num_connections: 0,
            sent: VecDeque::new(),
            broken: None,
            refused: None,
            looked_at: now,
            began: Instant::now(),
            beat_at: now,
            events: VecDeque::new(),
        })
    }

    /// Where ranks connect to.
    pub fn control_addr(&self) -> SocketAddr {
        self.control_addr
    }

    fn launch(&mut self, rank: usize, now: Instant) {
        let order = LaunchOrder {
            rank,
            attempt: self.slots[rank].num_launches,
            control_addr: self.control_addr,
            secret: self.config.secret,
        };
        match self.launcher.launch(&order) {
            Ok(process) => {
                debug!(rank, order.attempt, pid = process.pid(), "rank launched");
                self.slots[rank].launched(process, now);
                self.tell_phase(rank);
            }
            Err(err) => {
                let failure = self.failure(rank, Phase::Starting, err.to_string());
                self.lose(failure, true);
            }
        }
    }

    fn arrive(&mut self, arrival: accept::Arrival, now: Instant) {
        let rank = arrival.hello.rank as usize;
        let reporter = self.reporter.clone().expect("connections are accepted after the start");
        let Some(slot) = self.slots.get_mut(rank).filter(|slot| slot.expects(&arrival.hello))
        else {
            warn!(
                rank,
                pid = arrival.hello.pid,
                "a connection of a rank not waited for is dropped"
            );
            return;
        };
        info!(rank, pid = arrival.hello.pid, "rank connected");
        let mlx = arrival.hello.mlx.clone();
        self.num_connections += 1;
        let attached = slot.attach(
            rank,
            arrival,
            (self.num_connections, reporter),
            self.config.timeouts.write,
        );
        if let Err(err) = attached {
            return self.rank_died(rank, &format!("its connection failed: {err}"), now);
        }
        slot.enter(State::Loading { progressed_at: now, done_bytes: 0, total_bytes: 0 }, now);
        self.tell_phase(rank);
        if let Some(message) = self.other_mlx(rank, &mlx) {
            self.slots[rank].end(Duration::ZERO);
            self.slots[rank].enter(State::Absent, now);
            let failure = self.failure(rank, Phase::Starting, message);
            return self.lose(failure, true);
        }
        let setup = ToRank::Setup(self.config.seats[rank].setup.clone());
        self.write(rank, &setup, now);
    }

    /// What is wrong if a rank's libmlx is another version than its peers'.
    fn other_mlx(&self, rank: usize, mlx: &str) -> Option<String> {
        let mut peers = self.slots.iter().enumerate().filter(|(peer, _)| *peer != rank);
        let (peer, theirs) = peers.find_map(|(peer, slot)| {
            Some((peer, slot.mlx.as_deref().filter(|theirs| *theirs != mlx)?))
        })?;
        let name = |rank: usize| match self.config.seats[rank].host.as_str() {
            "" => format!("rank {rank}"),
            host => format!("rank {rank} on {host}"),
        };
        Some(format!(
            "libmlx versions differ: {} has {mlx}, {} has {theirs}\n\
             hint: bring every machine to one version with `jackalope sync --hosts FILE`",
            name(rank),
            name(peer)
        ))
    }

    /// What became of a rank.
    fn failure(&self, rank: usize, phase: Phase, message: String) -> Failure {
        let host = Some(self.config.seats[rank].host.clone()).filter(|host| !host.is_empty());
        Failure { rank: Some(rank), host, phase, message, last_words: String::new() }
    }

    /// True for MLX's own transports, which cannot lose a peer and go on.
    fn is_stock(&self) -> bool {
        self.config.seats[0].setup.backend.is_stock()
    }

    fn on_message(&mut self, rank: usize, message: FromRank, now: Instant) {
        let slot = &mut self.slots[rank];
        slot.heard_at = now;
        match message {
            FromRank::Progress { done_bytes, total_bytes } => {
                if let State::Loading { .. } = slot.state {
                    slot.state = State::Loading { progressed_at: now, done_bytes, total_bytes };
                    self.tell_phase(rank);
                }
            }
            // Who came back while it was loading may say so twice.
            FromRank::Loaded(_) if !matches!(slot.state, State::Loading { .. }) => {}
            FromRank::Loaded(facts) => {
                info!(rank, facts.weights_bytes, facts.load_ms, "shard loaded");
                slot.facts = Some(facts);
                slot.enter(State::Loaded, now);
                self.tell_phase(rank);
                self.join_if_loaded(now);
            }
            FromRank::Joined { epoch } => {
                if epoch == self.epoch && matches!(slot.state, State::Joining) {
                    slot.enter(State::Standing, now);
                    self.tell_phase(rank);
                    self.stand_if_joined();
                }
            }
            FromRank::Output { epoch, output } if rank == 0 => {
                if self.is_current(rank, epoch) {
                    self.note_step(rank, now);
                    self.events.push_back(GroupEvent::Output(output));
                }
            }
            FromRank::Output { .. } => self.rank_died(rank, "it answered in place of rank 0", now),
            FromRank::Done { epoch, step, timings } => {
                if self.is_current(rank, epoch) {
                    self.note_step(rank, now);
                    self.events.push_back(GroupEvent::Done { rank, step, timings });
                }
            }
            FromRank::Heartbeat { phase, steps_done, waiting_ms, memory, heard } => {
                slot.waiting = Duration::from_millis(waiting_ms);
                let round_trip = heard.and_then(|it| self.round_trip(it, now));
                let beat = GroupEvent::Heartbeat { rank, phase, steps_done, memory, round_trip };
                self.events.push_back(beat);
            }
            FromRank::Failed(failure) => self.on_failed(rank, failure, now),
        }
    }

    /// How long a beat and the message that tells of it were under way; `None` if the beat is another
    /// brain's.
    fn round_trip(&self, heard: HeardBeat, now: Instant) -> Option<Duration> {
        let HeardBeat { sent_us, held_us } = heard;
        self.micros(now).checked_sub(sent_us)?.checked_sub(held_us).map(Duration::from_micros)
    }

    /// Time by the clock of beats.
    fn micros(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }

    fn on_failed(&mut self, rank: usize, failure: RankFailure, now: Instant) {
        let RankFailure { epoch, phase, kind, message } = failure;
        let slot = &mut self.slots[rank];
        match kind {
            FailureKind::Group => {
                if epoch != self.epoch || !slot.is_in_group() {
                    return;
                }
                if !self.is_stock() {
                    self.slots[rank].enter(State::Loaded, now);
                }
                // The rank that noticed is seldom the one at fault. A dead process shows within
                // moments, and is then what people want to read of.
                let failure = self.failure(rank, phase, message);
                self.broken.get_or_insert((failure, now + slot::EXIT_GRACE));
            }
            FailureKind::Model | FailureKind::Device => {
                let last_words = slot.end(slot::EXIT_GRACE).1;
                slot.enter(State::Absent, now);
                self.tell_phase(rank);
                let failure = Failure { last_words, ..self.failure(rank, phase, message) };
                self.lose(failure, kind == FailureKind::Model);
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
        if self.stage != Stage::Forming || !self.slots.iter().all(is_ready) {
            return;
        }
        self.epoch += 1;
        info!(epoch = self.epoch, "forming the group");
        for slot in &mut self.slots {
            slot.enter(State::Joining, now);
            (slot.steps_done, slot.progressed_at, slot.waiting) = (0, now, Duration::ZERO);
        }
        for rank in 0..self.slots.len() {
            let join = ToRank::Join(Join { epoch: self.epoch, peers: self.peers_of(rank) });
            self.write(rank, &join, now);
        }
        (0..self.slots.len()).for_each(|rank| self.tell_phase(rank));
    }

    /// Where a rank reaches each rank's data plane.
    fn peers_of(&self, rank: usize) -> Vec<SocketAddr> {
        let routes = &self.config.seats[rank].routes;
        let addr = |(peer, slot): (usize, &Slot)| {
            let told = slot.data_addr.expect("a rank that said hello told its address");
            routes.get(peer).map_or(told, |ip| SocketAddr::new(*ip, told.port()))
        };
        self.slots.iter().enumerate().map(addr).collect()
    }

    /// A connection broke, or nothing comes over it any more. Where ranks outlive their connection,
    /// and the process is not known to have ended or to be silent on its own account, it is waited
    /// for: its weights are worth it.
    fn connection_lost(&mut self, rank: usize, reason: &str, now: Instant) {
        let is_patient = 0 < self.config.seats[rank].setup.orphan_ms;
        if !is_patient || self.is_stock() || !self.slots[rank].may_return(slot::EXIT_GRACE) {
            return self.rank_died(rank, reason, now);
        }
        let (phase, _) = self.phase_of(rank);
        let message = format!("the connection to it was lost: {reason}");
        let failure = self.failure(rank, phase, message);
        self.slots[rank].detach(now);
        self.tell_phase(rank);
        self.lose(failure, false);
    }

    /// Others compute from now on.
    fn reseat(&mut self, seats: Vec<Seat>, now: Instant) {
        assert!(!seats.is_empty(), "there is at least one rank");
        info!(ranks = seats.len(), "the cluster is planned anew");
        for slot in &mut self.slots {
            slot.end(Duration::ZERO);
        }
        self.sent.clear();
        self.broken = None;
        self.slots = seats.iter().map(|_| Slot::new(now)).collect();
        let hosts = seats.iter().map(|seat| seat.host.clone()).collect();
        self.config.seats = seats;
        self.events.push_back(GroupEvent::Reseated { hosts });
    }

    fn stand_if_joined(&mut self) {
        if self.stage != Stage::Forming
            || !self.slots.iter().all(|slot| matches!(slot.state, State::Standing))
        {
            return;
        }
        self.stage = Stage::Standing;
        self.refused = None;
        let facts = self.slots.iter().map(|slot| slot.facts.clone());
        let facts = facts.map(|facts| facts.expect("a rank that joined has loaded")).collect();
        self.events.push_back(GroupEvent::Ready { epoch: self.epoch, facts });
    }

    /// Ends a rank and tells so, with whatever its process leaves behind.
    fn rank_died(&mut self, rank: usize, reason: &str, now: Instant) {
        let (phase, since) = self.phase_of(rank);
        let elapsed_s = now.saturating_duration_since(since).as_secs_f32();
        let (exit, last_words) = self.slots[rank].end(slot::EXIT_GRACE);
        self.slots[rank].enter(State::Absent, now);
        self.tell_phase(rank);
        let mut message = match exit {
            Some(exit) => format!("the process ended: {exit}"),
            None => reason.to_owned(),
        };
        message += &format!(", {elapsed_s:.1} s after it began {}", phase.name());
        if let (Phase::Starting, Some(refused)) = (phase, &self.refused) {
            message += &format!("\na connection was refused: {refused}");
        }
        let failure = Failure { last_words, ..self.failure(rank, phase, message) };
        self.lose(failure, false);
    }

    /// The group is no more. Those that still stand are told to leave it.
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
                self.slots[rank].end(Duration::ZERO);
                self.slots[rank].enter(State::Absent, now);
            } else {
                self.slots[rank].enter(State::Loaded, now);
                self.write(rank, &leave, now);
            }
            self.tell_phase(rank);
        }
    }

    fn write(&mut self, rank: usize, message: &ToRank, now: Instant) {
        let written = frame::encode(message).and_then(|bytes| self.slots[rank].write(&bytes));
        if let Err(err) = written {
            self.rank_died(rank, &format!("writing to it failed: {err}"), now);
        }
    }

    /// The same bytes to every rank.
    fn write_all(&mut self, message: &ToRank, now: Instant) {
        let bytes = frame::encode(message).expect("plans and joins are far below the limit");
        for rank in 0..self.slots.len() {
            if let Err(err) = self.slots[rank].write(&bytes) {
                return self.rank_died(rank, &format!("writing to it failed: {err}"), now);
            }
        }
    }

    /// What a rank is doing, and since when.
    fn phase_of(&self, rank: usize) -> (Phase, Instant) {
        let slot = &self.slots[rank];
        let phase = match slot.state {
            State::Absent | State::Launched => Phase::Starting,
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

    fn tell_phase(&mut self, rank: usize) {
        let loaded_bytes = match self.slots[rank].state {
            State::Loading { done_bytes, total_bytes, .. } => Some((done_bytes, total_bytes)),
            _ => None,
        };
        let (phase, _) = self.phase_of(rank);
        let pid = self.slots[rank].pid();
        self.events.push_back(GroupEvent::Phase { rank, phase, loaded_bytes, pid });
    }
}

impl RankGroup for Link {
    type Report = LinkReport;

    fn num_ranks(&self) -> usize {
        self.slots.len()
    }

    fn hosts(&self) -> Vec<String> {
        self.config.seats.iter().map(|seat| seat.host.clone()).collect()
    }

    fn trouble(&self) -> Option<Failure> {
        let mut slots = self.slots.iter().enumerate();
        let (rank, trouble) = slots.find_map(|(rank, slot)| Some((rank, slot.trouble()?)))?;
        let message = format!("its machine cannot be reached: {trouble}");
        Some(self.failure(rank, self.phase_of(rank).0, message))
    }

    fn start(&mut self, reporter: Reporter<LinkReport>, now: Instant) {
        let listener = self.listener.take().expect("a link is started once");
        let secret = self.config.secret;
        self.acceptor =
            Some(Acceptor::start(listener, self.control_addr, secret, reporter.clone()));
        self.reporter = Some(reporter);
        self.recover(now);
    }

    fn handle(&mut self, report: LinkReport, now: Instant) {
        match report.0 {
            Report::Arrived(arrival) => self.arrive(arrival, now),
            Report::Refused { reason } => {
                warn!(reason, "a connection was refused");
                self.refused = Some(reason);
            }
            Report::Message { rank, connection, message } => {
                if self.slots.get(rank).is_some_and(|slot| slot.is_connected_by(connection)) {
                    self.on_message(rank, message, now);
                }
            }
            Report::Gone { rank, connection, err } => {
                // Of ranks of an earlier seating nothing is heard any more.
                if self.slots.get(rank).is_some_and(|slot| slot.is_connected_by(connection)) {
                    self.connection_lost(rank, &err.to_string(), now);
                }
            }
        }
    }

    fn tick(&mut self, now: Instant) {
        self.look_after(now);
    }

    fn deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    fn send(&mut self, plan: StepPlan, now: Instant) {
        let sent = SentStep { step: plan.step, at: now, num_tokens: plan.num_tokens() };
        self.sent.push_back(sent);
        self.write_all(&ToRank::Step { epoch: self.epoch, plan }, now);
    }

    fn recover(&mut self, now: Instant) {
        self.disband(now);
        if let Some(seats) = self.launcher.reseat() {
            self.reseat(seats, now);
        }
        self.stage = Stage::Forming;
        for rank in 0..self.slots.len() {
            // What took one rank down may have taken others.
            if self.slots[rank].has_exited() {
                self.slots[rank].end(Duration::ZERO);
                self.slots[rank].enter(State::Absent, now);
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
        if let Some(seats) = self.launcher.reseat() {
            self.reseat(seats, now);
        }
        for slot in &mut self.slots {
            slot.end(Duration::ZERO);
            slot.enter(State::Absent, now);
        }
        self.recover(now);
    }

    fn stop(&mut self) {
        self.stage = Stage::Down;
        let bytes = frame::encode(&ToRank::Stop).expect("a short message");
        for slot in &mut self.slots {
            // Whoever does not hear it is killed below.
            let _ = slot.write(&bytes);
        }
        let deadline = Instant::now() + self.config.timeouts.stop;
        for slot in &mut self.slots {
            slot.end(deadline.saturating_duration_since(Instant::now()));
            slot.enter(State::Absent, Instant::now());
        }
        self.acceptor = None;
    }

    fn hand_over(&mut self) {
        self.stage = Stage::Down;
        self.acceptor = None;
        for slot in &mut self.slots {
            slot.release();
            slot.enter(State::Absent, Instant::now());
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
