//! Who runs: preemption when memory is short, admission when there is room. Whose turn it is says
//! [`Turns`](super::turns::Turns).
//!
//! A running sequence is promised the memory for every position it can compute as things stand, so
//! whoever is admitted can compute its whole prompt, and only the growth of outputs preempts.

use std::cmp::Reverse;

use jackalope_protocol::{Fork, PressureTier, StepPlan};

use super::Scheduler;
use super::sequence::Sequence;
use crate::RequestId;
use crate::caches::Start;
use crate::planted::Bug;

pub(super) enum Admission {
    Admitted,
    /// A running sequence is about to compute this one's prefix.
    Waits,
    NoRoom,
}

/// While memory is short, one part in so many of the usual number of sequences runs side by side.
const WARN_RUNNING_PART: usize = 4;

impl Scheduler {
    /// Sends the least important back, of these the youngest, until all that run fit; returns the
    /// granules promised to these.
    pub(super) fn preempt_for_memory(&mut self) -> usize {
        let mut promised = self.promised_to_all();
        while self.caches.capacity_granules() < promised {
            promised -= self.promised(self.least_important());
            self.preempt_one();
        }
        promised
    }

    /// Sends the least important of those that run back to wait.
    pub(super) fn preempt_one(&mut self) {
        let mut sequence = self.running.remove(self.least_important());
        self.release(&sequence);
        sequence.reset();
        sequence.num_preemptions += 1;
        self.stats.preemptions += 1;
        self.wait(sequence);
    }

    /// Which running sequence is preempted next. The one that comes first by importance and age never
    /// is, so somebody always gets on.
    fn least_important(&self) -> usize {
        let key = |idx: &usize| (self.running[*idx].importance(), self.running[*idx].id);
        let all = 0..self.running.len();
        let idx = match self.planted.has(Bug::OldestPreempted) {
            true => all.max_by_key(|idx| Reverse(key(idx))),
            false => all.max_by_key(key),
        };
        idx.expect("who alone runs fits")
    }

    /// Number of granules that all running sequences can need for what is computable now.
    pub(super) fn promised_to_all(&self) -> usize {
        (0..self.running.len()).map(|idx| self.promised(idx)).sum()
    }

    /// Granules for all that a running sequence can compute.
    fn promised(&self, idx: usize) -> usize {
        let sequence = &self.running[idx];
        let cache = sequence.cache.expect("a running sequence has a cache");
        self.caches.granules_with(cache, sequence.num_computable())
    }

    /// Lets waiting sequences run, in the order of their turns, while the step has tokens left for
    /// them. Only those whose prefix is being computed by another are passed over.
    pub(super) fn admit(&mut self, mut promised: usize, plan: &mut StepPlan) {
        let lookahead = self.limits.lookahead;
        let mut num_tokens: usize = self.running.iter().map(|it| it.num_wanted(lookahead)).sum();
        if !self.has_room_for_another(num_tokens) {
            return;
        }
        let order = self.turns.order(&self.waiting, self.planted);
        let mut order = order.into_iter();
        // The oldest one that was due and could not go.
        let mut tried = None;
        while self.has_room_for_another(num_tokens) {
            let due = self.oldest_due().filter(|due| tried != Some(*due));
            tried = due.or(tried);
            let Some(id) = due.or_else(|| order.next()) else { return };
            let Ok(idx) = self.waiting.binary_search_by_key(&id, |it| it.id) else { continue };
            if self.is_isolated(&self.waiting[idx]) {
                continue;
            }
            match self.admit_one(idx, &mut promised, &mut num_tokens, plan) {
                Admission::Admitted | Admission::Waits => {}
                Admission::NoRoom if self.planted.has(Bug::OvertakenForEver) => {}
                Admission::NoRoom => return,
            }
        }
    }

    fn has_room_for_another(&self, num_tokens: usize) -> bool {
        !self.waiting.is_empty()
            && self.running.len() < self.running_max()
            && num_tokens < self.limits.step_tokens
    }

    /// Sequences that may run side by side as things stand.
    pub(super) fn running_max(&self) -> usize {
        match self.pressure {
            _ if self.planted.has(Bug::AdmittedUnderPressure) => self.limits.running_max,
            PressureTier::Normal => self.limits.running_max,
            PressureTier::Warn => (self.limits.running_max / WARN_RUNNING_PART).max(1),
            PressureTier::Critical => 1,
        }
    }

    /// The oldest sequence that waits, if others were admitted before it for long enough.
    fn oldest_due(&self) -> Option<RequestId> {
        let is_due = self.turns.is_oldest_due(self.planted);
        self.waiting.front().filter(|_| is_due).map(|oldest| oldest.id)
    }

    pub(super) fn admit_one(
        &mut self,
        idx: usize,
        promised: &mut usize,
        num_tokens: &mut usize,
        plan: &mut StepPlan,
    ) -> Admission {
        let sequence = &self.waiting[idx];
        // What was under way when it was preempted has to arrive first.
        if 0 < sequence.num_awaited && !self.planted.has(Bug::ReadmittedTooEarly) {
            return Admission::NoRoom;
        }
        let num_computable = sequence.num_computable();
        let free = self.caches.capacity_granules().saturating_sub(*promised);
        if free < self.caches.granules(num_computable) {
            return Admission::NoRoom;
        }
        let num_reusable = sequence.num_reusable(self.planted);
        let scope = sequence.request.cache_scope();
        let start = self.caches.find(scope, &sequence.tokens, num_reusable);
        if start == Start::Wait {
            return Admission::Waits;
        }
        let Some(start) = self.caches.settle(start, num_computable, *promised) else {
            return Admission::NoRoom;
        };
        let sequence = self.run(idx, start, plan);
        *num_tokens += sequence.num_wanted(true);
        let (cache, num_computable) = (sequence.cache, sequence.num_computable());
        let cache = cache.expect("a running sequence has a cache");
        *promised += self.caches.granules_with(cache, num_computable);
        Admission::Admitted
    }

    fn run(&mut self, idx: usize, start: Start, plan: &mut StepPlan) -> &Sequence {
        let is_due = self.oldest_due().is_some() && idx == 0;
        let mut sequence = self.waiting.remove(idx).expect("callers name a waiting sequence");
        sequence.is_aged |= is_due;
        self.turns.note(sequence.request.tenant(), sequence.has_run(), idx == 0);
        let cache = self.caches.open(start, sequence.request.cache_scope(), &sequence.tokens);
        let num_tokens = u32::try_from(start.num_tokens()).expect("no longer than the context");
        if let Start::Fork { source, .. } = start {
            plan.forks.push(Fork { source, target: cache, num_tokens });
        }
        sequence.cache = Some(cache);
        sequence.num_computed = start.num_tokens();
        sequence.last_step = plan.step;
        if sequence.cached_tokens.is_none() {
            sequence.cached_tokens = Some(num_tokens);
            self.tell_started(&sequence, num_tokens);
        }
        let place = self.running.partition_point(|it| it.id < sequence.id);
        self.running.insert(place, sequence);
        &self.running[place]
    }
}
