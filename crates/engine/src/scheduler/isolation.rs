//! Which request makes ranks fail.
//!
//! Ranks die for many reasons, and whatever they were computing shares the loss. A failure counts for
//! each request that had rows in flight, until it has a token more, or a position of it is computed that
//! never was before. So the failures of a request are those in a row without progress of its own.
//!
//! ```text
//!           in flight when the ranks failed, twice in a row           alone, again and again
//!  (sound) ────────────────────────────────────────────────▶ suspect ───────────────────────▶ ended
//!     ▲                                                         │
//!     └───────── a token, or a position more than before ───────┘
//! ```
//!
//! A suspect is computed alone, and only after steps without any suspect: that ranks fail with it tells
//! something only if they do not fail without it. The steps without grow with each failure, so that
//! losses from outside, which come in storms, do not meet one request time and again. Where all requests
//! are suspects the one with the fewest failures is first; those that are innocent need one step each to
//! prove it, and are the ones without which nothing is told from then on. A request that has nobody
//! beside it is ended after more failures instead.

use jackalope_protocol::StepPlan;

use super::Scheduler;
use super::admission::Admission;
use super::sequence::Sequence;
use crate::RequestId;
use crate::planted::{Bug, Planted};

/// Failures in a row after which a request is computed alone.
const SUSPECT_FAILURES: u32 = 2;

/// Failures alone, and after steps without it, for which a request is ended. One or two may be losses
/// from outside that met it by chance.
const ALONE_FAILURES: usize = 3;

/// Steps without any suspect that are completed before each of these.
const CONTROL_STEPS: [u32; ALONE_FAILURES] = [1, 8, 32];

/// Failures in a row, in the last of which nothing else was in flight, for which a request is ended.
const LONE_FAILURES: u32 = 8;

/// What ranks' failures say about a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Suspicion {
    /// Failures in a row without progress in between.
    num_failures: u32,
    /// Those of them in which nothing else was in flight, after steps without it.
    num_alone: usize,
    /// Whether nothing else was in flight in the last of them.
    was_alone: bool,
    /// Positions that answers have covered, at most.
    computed_max: usize,
}

impl Suspicion {
    /// Takes into account that positions below `end` have been computed.
    pub(super) fn note_computed(&mut self, end: usize, planted: Planted) {
        let is_progress = self.computed_max < end || planted.has(Bug::RepetitionIsProgress);
        self.computed_max = self.computed_max.max(end);
        if is_progress {
            self.note_progress(planted);
        }
    }

    /// It has got further: a position more, or a token.
    pub(super) fn note_progress(&mut self, planted: Planted) {
        if !planted.has(Bug::SuspectForEver) {
            (self.num_failures, self.num_alone) = (0, 0);
        }
    }

    fn note_failure(&mut self, is_alone: bool, num_control: u32) {
        let is_controlled = self.is_suspect() && self.control_steps() <= num_control;
        self.num_failures += 1;
        self.num_alone += usize::from(is_alone && is_controlled);
        self.was_alone = is_alone;
    }

    /// Steps without any suspect before it is computed.
    fn control_steps(&self) -> u32 {
        CONTROL_STEPS[self.num_alone.min(ALONE_FAILURES - 1)]
    }

    pub(super) fn is_suspect(&self) -> bool {
        SUSPECT_FAILURES <= self.num_failures
    }

    fn is_poisonous(&self, planted: Planted) -> bool {
        if planted.has(Bug::SuspectsTogether) {
            return SUSPECT_FAILURES < self.num_failures;
        }
        let named_too_early = planted.has(Bug::NamedTooEarly) && self.was_alone;
        ALONE_FAILURES <= self.num_alone
            || (LONE_FAILURES <= self.num_failures && self.was_alone)
            || (SUSPECT_FAILURES < self.num_failures && named_too_early)
    }
}

impl Scheduler {
    /// The ranks failed while they computed what is in flight, and come back with empty caches; see
    /// [`Scheduler::ranks_restarted`]. Gives up, and returns, the requests that make ranks fail.
    pub fn ranks_failed(&mut self) -> Vec<RequestId> {
        let rows = self.in_flight.iter().flat_map(|it| &it.rows);
        let mut ids: Vec<RequestId> = rows.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        let num_control = self.num_control;
        for id in &ids {
            if let Some(sequence) = self.sequence_mut(*id) {
                sequence.suspicion.note_failure(ids.len() == 1, num_control);
            }
        }
        self.ranks_restarted();
        let planted = self.planted;
        let is_poisonous = |it: &Sequence| it.suspicion.is_poisonous(planted);
        let poisonous: Vec<RequestId> =
            self.waiting.iter().filter(|it| is_poisonous(it)).map(|it| it.id).collect();
        self.waiting.retain(|it| !is_poisonous(it));
        poisonous
    }

    /// The suspect that is computed alone next, if there is one.
    pub(super) fn suspect(&self) -> Option<RequestId> {
        let all = self.waiting.iter().chain(&self.running);
        let suspects = all.filter(|it| self.is_isolated(it));
        suspects.min_by_key(|it| (it.suspicion.num_failures, it.id)).map(|it| it.id)
    }

    /// True while a request is computed alone or not at all.
    pub(super) fn is_isolated(&self, sequence: &Sequence) -> bool {
        sequence.suspicion.is_suspect() && !self.planted.has(Bug::SuspectsTogether)
    }

    /// True if steps without suspects come before this one is computed, and there are requests for
    /// them.
    pub(super) fn needs_control(&self, suspect: RequestId) -> bool {
        let suspect = self.waiting.iter().find(|it| it.id == suspect);
        let wanted = suspect.map_or(0, |it| it.suspicion.control_steps());
        let mut all = self.waiting.iter().chain(&self.running);
        self.num_control < wanted && all.any(|it| !self.is_isolated(it))
    }

    /// Counts a completed step, with rows of these requests, if no suspect is among them.
    pub(super) fn note_control(&mut self, rows: &[(RequestId, usize)]) {
        let is_suspect = |sequence: &Sequence| {
            self.is_isolated(sequence) && rows.iter().any(|(id, _)| *id == sequence.id)
        };
        let has_suspect = self.waiting.iter().chain(&self.running).any(is_suspect);
        if !has_suspect && !rows.is_empty() {
            self.num_control = self.num_control.saturating_add(1);
        }
    }

    /// True if rows of other requests are in flight.
    pub(super) fn computes_others(&self, id: RequestId) -> bool {
        self.in_flight.iter().flat_map(|it| &it.rows).any(|(other, _)| *other != id)
    }

    /// Lets a suspect run, whatever others have to give up for it. Every request fits alone.
    pub(super) fn admit_suspect(&mut self, id: RequestId, plan: &mut StepPlan) {
        loop {
            let Ok(idx) = self.waiting.binary_search_by_key(&id, |it| it.id) else { return };
            if 0 < self.waiting[idx].num_awaited {
                return;
            }
            if self.running.len() < self.running_max() {
                let mut promised = self.promised_to_all();
                let admission = self.admit_one(idx, &mut promised, &mut 0, plan);
                if let Admission::Admitted = admission {
                    return;
                }
            }
            if self.running.is_empty() {
                return;
            }
            self.preempt_one();
        }
    }

    /// Tokens of a step that holds a suspect alone, for each running sequence.
    pub(super) fn share_of_suspect(&self, id: RequestId) -> Vec<usize> {
        let share = |it: &Sequence| match it.id == id {
            true => it.num_wanted(self.limits.lookahead).min(self.limits.step_tokens),
            false => 0,
        };
        self.running.iter().map(share).collect()
    }
}
