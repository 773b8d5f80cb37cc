//! Decides which sequences run: admits waiting ones while there is memory, and preempts running
//! ones when memory is short. [`AdmissionQueue`](super::admission_queue::AdmissionQueue) gives the
//! order of admission.
//!
//! A running sequence is promised memory for every position that it can compute with the tokens
//! known now. An admitted sequence can therefore compute its whole prompt, and only growing outputs
//! cause preemption.

use jackalope_protocol::{Fork, PressureTier, StepPlan};

use super::Scheduler;
use super::sequence::Sequence;
use crate::RequestId;
use crate::cache_capacity::CacheDemand;
use crate::kept_lengths::KeepHints;
use crate::kv_cache::{PrefixHit, PrefixSearch};

pub(super) enum Admission {
    Admitted,
    /// A running sequence is about to compute this one's prefix.
    Waits,
    NoRoom,
}

/// Divisor of the maximum number of running sequences while the memory pressure is `Warn`.
const WARN_RUNNING_PART: usize = 4;

impl Scheduler {
    /// Preempts sequences, the least important and youngest first, until the remaining ones fit.
    /// Returns the memory promised to these.
    pub(super) fn preempt_for_memory(&mut self) -> CacheDemand {
        let mut promised = self.promised_to_all();
        while !self.caches.holds(promised) {
            promised -= self.promised(self.least_important());
            self.preempt_one();
        }
        promised
    }

    /// Preempts the least important running sequence.
    pub(super) fn preempt_one(&mut self) {
        let mut sequence = self.running.remove(self.least_important());
        self.release(&sequence);
        sequence.reset();
        sequence.num_preemptions += 1;
        self.stats.preemptions += 1;
        self.wait(sequence);
    }

    /// Returns the index of the running sequence to preempt next. The most important and oldest one
    /// is never preempted, so some sequence always makes progress.
    fn least_important(&self) -> usize {
        let key = |idx: &usize| (self.running[*idx].importance(), self.running[*idx].id);
        let all = 0..self.running.len();
        all.max_by_key(key).expect("who alone runs fits")
    }

    /// Returns the memory promised to all running sequences.
    pub(super) fn promised_to_all(&self) -> CacheDemand {
        (0..self.running.len()).map(|idx| self.promised(idx)).sum()
    }

    /// Returns the memory for all positions that a running sequence can compute now.
    fn promised(&self, idx: usize) -> CacheDemand {
        let sequence = &self.running[idx];
        let cache = sequence.cache.expect("a running sequence has a cache");
        self.caches.demand_with(cache, sequence.num_computable())
    }

    /// Admits waiting sequences in the order of
    /// [`AdmissionQueue`](super::admission_queue::AdmissionQueue) while the step has tokens left
    /// for them. Skips only suspects and sequences whose prefix another one is computing.
    pub(super) fn admit(&mut self, mut promised: CacheDemand, plan: &mut StepPlan) {
        let lookahead = self.limits.lookahead;
        let mut num_tokens: usize = self.running.iter().map(|it| it.num_wanted(lookahead)).sum();
        let step_tokens = self.step_tokens();
        if !self.has_room_for_another(num_tokens, step_tokens) {
            return;
        }
        let order = self.admission_queue.order(&self.waiting);
        let mut order = order.into_iter();
        // The last sequence that was tried because it was due.
        let mut tried = None;
        while self.has_room_for_another(num_tokens, step_tokens) {
            let due = self.oldest_due().filter(|due| tried != Some(*due));
            tried = due.or(tried);
            let Some(id) = due.or_else(|| order.next()) else { return };
            let Ok(idx) = self.waiting.binary_search_by_key(&id, |it| it.id) else { continue };
            if self.waiting[idx].suspicion.is_suspect() {
                continue;
            }
            match self.admit_one(idx, &mut promised, &mut num_tokens, plan) {
                Admission::Admitted | Admission::Waits => {}
                Admission::NoRoom => return,
            }
        }
    }

    fn has_room_for_another(&self, num_tokens: usize, step_tokens: usize) -> bool {
        !self.waiting.is_empty()
            && self.running.len() < self.running_max()
            && num_tokens < step_tokens
    }

    /// Returns the maximum number of running sequences under the current memory pressure.
    pub(super) fn running_max(&self) -> usize {
        match self.pressure {
            PressureTier::Normal => self.limits.running_max,
            PressureTier::Warn => (self.limits.running_max / WARN_RUNNING_PART).max(1),
            PressureTier::Critical => 1,
        }
    }

    /// Returns the oldest waiting sequence if it was passed over so often that it goes next.
    fn oldest_due(&self) -> Option<RequestId> {
        let is_due = self.admission_queue.is_oldest_due();
        self.waiting.front().filter(|_| is_due).map(|oldest| oldest.id)
    }

    pub(super) fn admit_one(
        &mut self,
        idx: usize,
        promised: &mut CacheDemand,
        num_tokens: &mut usize,
        plan: &mut StepPlan,
    ) -> Admission {
        let sequence = &self.waiting[idx];
        // Outputs that were in flight when it was preempted have to arrive first.
        if 0 < sequence.num_awaited {
            return Admission::NoRoom;
        }
        let num_computable = sequence.num_computable();
        if !self.caches.holds(*promised + self.caches.demand(num_computable)) {
            return Admission::NoRoom;
        }
        let num_reusable = sequence.num_reusable();
        let scope = sequence.request.cache_scope();
        let mut search = self.caches.find(scope, &sequence.tokens, num_reusable);
        if let PrefixHit::Wait { cache, num_tokens } = search.hit {
            self.caches.want(cache, num_tokens);
            return Admission::Waits;
        }
        let Some(start) = self.caches.settle(search.hit, num_computable, *promised) else {
            return Admission::NoRoom;
        };
        search.hit = start;
        let sequence = self.run(idx, search, plan);
        *num_tokens += sequence.num_wanted(true);
        let (cache, num_computable) = (sequence.cache, sequence.num_computable());
        let cache = cache.expect("a running sequence has a cache");
        *promised += self.caches.demand_with(cache, num_computable);
        Admission::Admitted
    }

    fn run(&mut self, idx: usize, search: PrefixSearch, plan: &mut StepPlan) -> &Sequence {
        let start = search.hit;
        let is_due = self.oldest_due().is_some() && idx == 0;
        let mut sequence = self.waiting.remove(idx).expect("callers name a waiting sequence");
        sequence.is_aged |= is_due;
        self.admission_queue.note(sequence.request.tenant(), sequence.has_run(), idx == 0);
        let hints = KeepHints {
            num_stable: sequence.request.stable_tokens() as usize,
            num_shared: search.num_shared,
            num_prompt_tokens: sequence.num_prompt_tokens(),
        };
        let scope = sequence.request.cache_scope();
        let cache = self.caches.open(start, scope, &sequence.tokens, hints);
        let num_tokens = u32::try_from(start.num_tokens()).expect("no longer than the context");
        if let PrefixHit::Fork { source, .. } = start {
            let window_start = self.caches.first_copied_block(start.num_tokens());
            let window_start = u32::try_from(window_start).expect("no more blocks than tokens");
            plan.forks.push(Fork { source, target: cache, num_tokens, window_start });
        }
        sequence.cache = Some(cache);
        sequence.num_computed = start.num_tokens();
        sequence.last_step = plan.step;
        if sequence.cached_tokens.is_none() {
            sequence.cached_tokens = Some(num_tokens);
            let num_wanted = sequence.num_prompt_tokens() - 1;
            sequence.prefix_miss = self.caches.miss(&search, num_wanted, sequence.num_reusable());
            self.emit_started(&sequence);
        }
        let place = self.running.partition_point(|it| it.id < sequence.id);
        self.running.insert(place, sequence);
        &self.running[place]
    }
}
