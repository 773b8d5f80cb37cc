//! The engine's view of the ranks: something that is brought up, takes plans, answers, and breaks.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use jackalope_protocol::{Phase, RankFacts, RankMemory, StepOutput, StepPlan, StepTimings};

use crate::{BrokenLink, Failure};

/// All ranks together. Lives on the engine's thread and is driven by it; whatever blocks (sockets)
/// has threads of its own, which speak through the [`Reporter`].
///
/// ```text
///            start              Ready               Lost
///  (nothing) ─────▶ (forming) ───────▶ (standing) ───────▶ (broken)
///                       ▲    ─ Lost ─────────────────────▶    │
///                       └───────────── recover ───────────────┘
/// ```
pub trait RankGroup: Send + 'static {
    /// What the group's threads tell the engine's thread.
    type Report: Send + 'static;

    /// Number of ranks.
    fn num_ranks(&self) -> usize;
    /// The machine of each rank, for people; empty where all are on this one.
    fn hosts(&self) -> Vec<String> {
        vec![String::new(); self.num_ranks()]
    }
    /// Returns, for each pair of ranks, whether the connection between them is encrypted.
    fn encrypts(&self) -> Vec<Vec<bool>> {
        Vec::new()
    }
    /// Which rank cannot be replaced now because its machine cannot be reached, and why.
    fn trouble(&self) -> Option<Failure> {
        None
    }
    /// Begins to bring up every rank.
    fn start(&mut self, reporter: Reporter<Self::Report>, now: Instant);
    /// Takes a report from one of the group's threads.
    fn handle(&mut self, report: Self::Report, now: Instant);
    /// Called when [`RankGroup::deadline`] has passed, and at any other time.
    fn tick(&mut self, now: Instant);
    /// When `tick` wants to be called.
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
    /// Sends a plan to every rank. Only while the group stands.
    fn send(&mut self, plan: StepPlan, now: Instant);
    /// Replaces what was lost and forms the group anew, whatever state it is in.
    fn recover(&mut self, now: Instant);
    /// Replaces every rank, the living too.
    fn restart(&mut self, now: Instant);
    /// Ends every rank, politely first. Bounded.
    fn stop(&mut self);
    /// Leaves every rank without a word, so that those which may outlive us can be taken over. For
    /// ranks that may not it is an end.
    fn hand_over(&mut self) {
        self.stop();
    }
    /// The oldest event not yet taken.
    fn next_event(&mut self) -> Option<GroupEvent>;
}

/// What becomes of the ranks.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupEvent {
    /// A rank is in another phase, or loads.
    Phase {
        /// The rank.
        rank: usize,
        /// What it is busy with.
        phase: Phase,
        /// While loading: bytes in place, and in all.
        loaded_bytes: Option<(u64, u64)>,
        /// Its process, where the launcher knows it.
        pid: Option<u32>,
    },
    /// A rank is alive.
    Heartbeat {
        /// The rank.
        rank: usize,
        /// What it is busy with.
        phase: Phase,
        /// Steps completed in this epoch.
        steps_done: u64,
        /// Memory in use.
        memory: RankMemory,
        /// How long a message takes to it and back, if known.
        round_trip: Option<Duration>,
    },
    /// Other ranks than before are being brought up: machines have left or come back. Whatever was
    /// computed by the earlier ones is lost.
    Reseated {
        /// The machine of each rank, as of [`RankGroup::hosts`].
        hosts: Vec<String>,
    },
    /// The group stands, with empty caches. Plans may be sent, from step 0.
    Ready {
        /// Counts up with every group.
        epoch: u64,
        /// What each rank holds, by rank.
        facts: Vec<RankFacts>,
    },
    /// Rank 0 has computed a step.
    Output(StepOutput),
    /// Another rank has computed a step.
    Done {
        /// The rank.
        rank: usize,
        /// The plan's number.
        step: u64,
        /// Where its time went.
        timings: StepTimings,
    },
    /// Other links between machines than before are known to be broken.
    BrokenLinks(Vec<BrokenLink>),
    /// The group does not stand any more, or could not be formed. Whatever was in flight is lost.
    Lost {
        /// What happened.
        failure: Failure,
        /// True if trying again cannot help.
        is_fatal: bool,
    },
}

/// Hands reports of the group's threads to the engine's thread. Every report wakes it.
#[derive(Debug)]
pub struct Reporter<R> {
    messages: mpsc::Sender<crate::handle::Message<R>>,
}

impl<R> Clone for Reporter<R> {
    fn clone(&self) -> Reporter<R> {
        Reporter { messages: self.messages.clone() }
    }
}

impl<R> Reporter<R> {
    pub(crate) fn new(messages: mpsc::Sender<crate::handle::Message<R>>) -> Reporter<R> {
        Reporter { messages }
    }

    /// False if the engine is gone.
    pub fn report(&self, report: R) -> bool {
        self.messages.send(crate::handle::Message::Report(report)).is_ok()
    }
}
