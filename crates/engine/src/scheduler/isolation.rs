//! Identifies the request that makes ranks fail.
//!
//! Ranks fail for many reasons, and a failure interrupts every request that was being computed. It
//! therefore counts for each request with rows in flight, until the request makes progress: it
//! gets one more token, or a position of it is computed for the first time. The count of a request
//! is thus the number of failures in a row without progress of its own.
//!
//! ```text
//!           in flight when the ranks failed, twice in a row           alone, again and again
//!  (sound) ────────────────────────────────────────────────▶ suspect ───────────────────────▶ ended
//!     ▲                                                         │
//!     └───────── a token, or a position more than before ───────┘
//! ```
//!
//! A suspect is computed alone, and only after control steps without any suspect: a failure with it
//! is evidence only if the ranks do not fail without it. The number of control steps grows with
//! each failure, so that a burst of external losses does not hit the same request repeatedly. If
//! all requests are suspects, the one with the fewest failures goes first; an innocent one clears
//! itself with one successful step and can then serve as control. If a request is the only one,
//! there are no control steps, and it is ended after a higher number of failures instead.

use jackalope_protocol::StepPlan;

use super::Scheduler;
use super::admission::Admission;
use super::sequence::Sequence;
use crate::RequestId;

impl Scheduler {
    /// Records that the ranks failed while computing what is in flight and that they restart with
    /// empty caches; see [`Scheduler::ranks_restarted`]. Removes and returns the requests that make
    /// ranks fail.
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
        let is_poisonous = |it: &Sequence| it.suspicion.is_poisonous();
        let poisonous: Vec<RequestId> =
            self.waiting.iter().filter(|it| is_poisonous(it)).map(|it| it.id).collect();
        self.waiting.retain(|it| !is_poisonous(it));
        poisonous
    }

    /// Returns the suspect to compute alone next, if there is one.
    pub(super) fn suspect(&self) -> Option<RequestId> {
        let all = self.waiting.iter().chain(&self.running);
        let suspects = all.filter(|it| it.suspicion.is_suspect());
        suspects.min_by_key(|it| (it.suspicion.num_failures, it.id)).map(|it| it.id)
    }

    /// Returns true if this suspect needs more control steps before it, and there are requests for
    /// them.
    pub(super) fn needs_control(&self, suspect: RequestId) -> bool {
        let suspect = self.waiting.iter().find(|it| it.id == suspect);
        let wanted = suspect.map_or(0, |it| it.suspicion.control_steps());
        let mut all = self.waiting.iter().chain(&self.running);
        self.num_control < wanted && all.any(|it| !it.suspicion.is_suspect())
    }

    /// Counts a completed step as a control step if no suspect had rows in it.
    pub(super) fn note_control(&mut self, rows: &[(RequestId, usize)]) {
        let is_suspect = |sequence: &Sequence| {
            sequence.suspicion.is_suspect() && rows.iter().any(|(id, _)| *id == sequence.id)
        };
        let has_suspect = self.waiting.iter().chain(&self.running).any(is_suspect);
        if !has_suspect && !rows.is_empty() {
            self.num_control = self.num_control.saturating_add(1);
        }
    }

    /// Returns true if rows of other requests are in flight.
    pub(super) fn computes_others(&self, id: RequestId) -> bool {
        self.in_flight.iter().flat_map(|it| &it.rows).any(|(other, _)| *other != id)
    }

    /// Admits a suspect, preempting other sequences as needed. Every request fits if it runs alone.
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

    /// Returns the number of tokens for each running sequence in a step with only this suspect.
    pub(super) fn share_of_suspect(&self, id: RequestId) -> Vec<usize> {
        let share = |it: &Sequence| {
            if it.id == id {
                it.num_wanted(self.limits.lookahead).min(self.limits.step_tokens)
            } else {
                0
            }
        };
        self.running.iter().map(share).collect()
    }
}
