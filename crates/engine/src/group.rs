//! The engine's view of the ranks: a group that is started, takes plans, answers, and fails.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use jackalope_protocol::{Phase, RankFacts, RankMemory, StepOutput, StepPlan, StepTimings};

use crate::command::Message;
use crate::{BrokenLink, Failure, RankTransport};

/// All ranks together. Lives on the engine's thread and is driven by it; blocking operations
/// (sockets) run on threads of their own, which send reports through the [`Reporter`].
///
/// ```text
///            start              Ready               Lost
///  (nothing) ─────▶ (forming) ───────▶ (standing) ───────▶ (broken)
///                       ▲    ─ Lost ─────────────────────▶    │
///                       └───────────── recover ───────────────┘
/// ```
pub trait RankGroup: Send + 'static {
    /// A message from the group's threads to the engine's thread.
    type Report: Send + 'static;

    /// Returns the number of ranks.
    fn num_ranks(&self) -> usize;
    /// Returns the machine of each rank, for messages; empty strings if all are on this one.
    fn hosts(&self) -> Vec<String> {
        vec![String::new(); self.num_ranks()]
    }
    /// Returns, for each pair of ranks, whether the connection between them is encrypted.
    fn encrypts(&self) -> Vec<Vec<bool>> {
        Vec::new()
    }
    /// Returns the transport of each rank's collectives; empty if there is one rank or none is known.
    fn transports(&self) -> Vec<RankTransport> {
        Vec::new()
    }
    /// Returns a failure for each rank that cannot be replaced now because its machine is
    /// unreachable, or one without a rank if machines do not reach each other.
    fn unreachable(&self) -> Vec<Failure> {
        Vec::new()
    }
    /// Starts every rank, without waiting for it.
    fn start(&mut self, reporter: Reporter<Self::Report>, now: Instant);
    /// Takes a report from one of the group's threads.
    fn handle(&mut self, report: Self::Report, now: Instant);
    /// Does work that is due. Called when [`RankGroup::deadline`] has passed, and possibly earlier.
    fn tick(&mut self, now: Instant);
    /// Returns the time at which `tick` has to be called.
    fn deadline(&self) -> Option<Instant>;
    /// Whether plans may be sent. False as soon as the group is known to be lost, even before
    /// [`GroupEvent::Lost`] is emitted.
    fn takes_plans(&self) -> bool {
        true
    }
    /// Maximum time for a step of `num_tokens` tokens, after which a rank counts as lost.
    fn step_timeout(&self, num_tokens: usize) -> Duration {
        let _ = num_tokens;
        Duration::from_secs(60)
    }
    /// Sends a plan to every rank. Must be called only while the group is up.
    fn send(&mut self, plan: StepPlan, now: Instant);
    /// Replaces lost ranks and forms the group again, whatever state it is in.
    fn recover(&mut self, now: Instant);
    /// Replaces every rank, including those that are alive.
    fn restart(&mut self, now: Instant);
    /// Stops every rank, gracefully first. Takes bounded time.
    fn stop(&mut self);
    /// Disconnects from every rank without stopping it, so that ranks which can outlive this
    /// process can be taken over. The other ranks end.
    fn hand_over(&mut self) {
        self.stop();
    }
    /// Returns the oldest event that was not taken yet.
    fn next_event(&mut self) -> Option<GroupEvent>;
}

/// A change of the ranks' state.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupEvent {
    /// A rank has entered another phase, or has loaded more.
    Phase {
        /// The rank.
        rank: usize,
        /// Phase of the rank.
        phase: Phase,
        /// How far the rank has got in this phase: bytes loaded, or reports of its first steps; 0 in others.
        progress: u64,
        /// Bytes loaded and total bytes, while the rank loads.
        loaded_bytes: Option<(u64, u64)>,
        /// Id of the rank's process, if the launcher knows it.
        pid: Option<u32>,
    },
    /// A rank has sent a heartbeat.
    Heartbeat {
        /// The rank.
        rank: usize,
        /// Phase of the rank.
        phase: Phase,
        /// Number of steps completed in this epoch.
        steps_done: u64,
        /// Memory usage of the rank.
        memory: RankMemory,
        /// Round-trip time of a message to the rank, if known.
        round_trip: Option<Duration>,
    },
    /// Ranks are being brought up on another set of machines, because machines have left or come
    /// back. The caches of the earlier ranks are lost.
    Reassigned {
        /// Machine of each rank, as in [`RankGroup::hosts`].
        hosts: Vec<String>,
    },
    /// The group is up, with empty caches. Plans may be sent, from step 0.
    Ready {
        /// Number of the group's epoch; increases with every group.
        epoch: u64,
        /// Facts about each rank, by rank.
        facts: Vec<RankFacts>,
    },
    /// Rank 0 has computed a step.
    Output(StepOutput),
    /// Another rank has computed a step.
    Done {
        /// The rank.
        rank: usize,
        /// Number of the plan.
        step: u64,
        /// Breakdown of the step's time.
        timings: StepTimings,
    },
    /// The set of links between machines that are known to be broken has changed.
    BrokenLinks(Vec<BrokenLink>),
    /// The group is down, or could not be formed. Steps in flight are lost.
    Lost {
        /// Failure that caused the loss.
        failure: Failure,
        /// Whether a retry cannot help.
        is_fatal: bool,
    },
}

/// Sends reports of the group's threads to the engine's thread. Every report wakes it.
#[derive(Debug)]
pub struct Reporter<R> {
    messages: mpsc::Sender<Message<R>>,
}

impl<R> Clone for Reporter<R> {
    fn clone(&self) -> Reporter<R> {
        Reporter { messages: self.messages.clone() }
    }
}

impl<R> Reporter<R> {
    pub(crate) fn new(messages: mpsc::Sender<Message<R>>) -> Reporter<R> {
        Reporter { messages }
    }

    /// Sends a report; returns false if the engine has ended.
    pub fn report(&self, report: R) -> bool {
        self.messages.send(Message::Report(report)).is_ok()
    }
}
