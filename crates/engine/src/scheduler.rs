//! Chooses what every step computes. Pure: no clock, no thread, no I/O, no randomness; the same
//! calls give the same plans. The caller asks the constraints on tokens (see
//! [`Scheduler::ask_constraints`]).
//!
//! ```text
//!  submit        plan: admit              plan, commit, plan, commit …
//!  ──────▶ waiting ──────▶ running ──────────────────────────────────▶ finished
//!             ▲               │ memory is short, or the ranks were lost
//!             └── preempted ──┘
//! ```
//!
//! The scheduler may plan a step while the ranks still compute the previous one. The input of a
//! row is then `Previous`: the token that the previous step samples. If that token ends the
//! sequence, the scheduler drops the row's output.

mod admission;
mod admission_queue;
mod constraint;
mod isolation;
mod sequence;
mod suspicion;
mod token_budget;

use std::collections::VecDeque;

use jackalope_protocol::{
    CacheId, Embedded, KV_BLOCK_TOKENS, MAX_STEPS_IN_FLIGHT, PressureTier, Sampled, Scored,
    StepOutput, StepPlan, counted,
};
use thiserror::Error;

use crate::cache_capacity::{CacheCapacity, CacheDemand};
use crate::kv_cache::{CacheLimits, KvCacheManager};
use crate::status::PrefixStats;
use crate::{Event, FinishReason, Request, RequestId, Usage};
use admission_queue::AdmissionQueue;
use sequence::Sequence;

#[cfg(test)]
pub(crate) use admission_queue::PASSED_OVER_MAX;

/// Default of [`SchedulerLimits::lattice_tokens`].
const LATTICE_TOKENS: usize = 2048;

/// Limits that hold in every step, and settings of the scheduler.
#[derive(Clone, Debug)]
pub struct SchedulerLimits {
    /// Maximum number of tokens per step, over all sequences; [`Scheduler::set_prompt_step_tokens`] allows more in some.
    pub step_tokens: usize,
    /// Maximum number of sequences that run, and so own a cache, at the same time.
    pub running_max: usize,
    /// Vocabulary size; token ids are less than this.
    pub vocab_size: u32,
    /// Memory of the ranks for caches.
    pub capacity: CacheCapacity,
    /// Number of positions per block, the unit in which a cache grows.
    pub block_tokens: usize,
    /// Minimum number of shared tokens for which a sequence starts from an existing cache.
    pub least_prefix_tokens: usize,
    /// Whether the caches of finished sequences are kept for prefix reuse.
    pub keep_prefixes: bool,
    /// Smallest distance of the lengths at which the states of long sequences are kept, in tokens;
    /// 0 disables this. Of no effect for models without states and windows.
    pub lattice_tokens: usize,
    /// Whether a step is planned while the ranks compute the previous one.
    pub lookahead: bool,
    /// Number of pipeline stages: ranks that compute one after the other. With lookahead, this many
    /// steps are in flight, and decoding sequences alternate between them, so that every stage has
    /// work.
    pub num_stages: usize,
}

impl SchedulerLimits {
    /// Returns the default limits with the given capacity.
    pub fn new(vocab_size: u32, capacity: CacheCapacity) -> SchedulerLimits {
        SchedulerLimits {
            step_tokens: 512,
            running_max: 64,
            vocab_size,
            capacity,
            block_tokens: KV_BLOCK_TOKENS as usize,
            least_prefix_tokens: 16,
            keep_prefixes: true,
            lattice_tokens: LATTICE_TOKENS,
            lookahead: true,
            num_stages: 1,
        }
    }
}

/// An output of rank 0 that does not match the plan.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum OutputMismatch {
    /// The output is of another step, or no step is in flight.
    #[error("step {found} was answered, expected {expected:?}")]
    Step {
        /// The step of the output.
        found: u64,
        /// The oldest step in flight.
        expected: Option<u64>,
    },
    /// The sampled rows are not those that the plan asked for.
    #[error(
        "step {step}: {} sampled a token, expected {expected} or others",
        counted(found, "row")
    )]
    Sampled {
        /// The step.
        step: u64,
        /// Number of sampled rows in the output.
        found: usize,
        /// Number of sampled rows that the plan asked for.
        expected: usize,
    },
    /// The scored rows or positions are not those that the plan asked for.
    #[error("step {step}: the scored positions are not those asked for")]
    Scored {
        /// The step.
        step: u64,
    },
    /// The rows with embeddings are not those that the plan asked for.
    #[error("step {step}: the embeddings are not those asked for")]
    Embedded {
        /// The step.
        step: u64,
    },
    /// A token id is outside the vocabulary.
    #[error("step {step}: token {token} is outside the vocabulary")]
    Token {
        /// The step.
        step: u64,
        /// The token.
        token: u32,
    },
}

/// Counters of the scheduler.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ScheduleStats {
    /// Number of requests that finished.
    pub finished: u64,
    /// Number of tokens sampled and reported.
    pub sampled_tokens: u64,
    /// Number of sampled tokens that were dropped, mostly because their request had ended.
    pub dropped_tokens: u64,
    /// Number of requests that ended because the model's output was not a number.
    pub not_a_number: u64,
    /// Number of preemptions because memory was short.
    pub preemptions: u64,
}

/// Continuous batching over all open requests.
#[derive(Debug)]
pub struct Scheduler {
    limits: SchedulerLimits,
    caches: KvCacheManager,
    /// Oldest first; [`AdmissionQueue`] gives the order of admission.
    waiting: VecDeque<Sequence>,
    /// Oldest first. The least important sequence is preempted first; among equals, the youngest.
    running: Vec<Sequence>,
    admission_queue: AdmissionQueue,
    pressure: PressureTier,
    /// Maximum number of tokens of a step in which no sequence decodes.
    prompt_step_tokens: usize,
    /// Kept prefixes were cleared on request, so the next plan with drops lets the ranks return the
    /// memory to the system.
    is_clearing: bool,
    /// Planned steps whose output has not arrived, oldest first.
    in_flight: VecDeque<InFlight>,
    step: u64,
    /// Number of steps completed without a suspect since the ranks started; see [`isolation`].
    num_control: u32,
    events: Vec<(RequestId, Event)>,
    stats: ScheduleStats,
}

/// A step in flight, and what its output has to contain.
#[derive(Debug, Default)]
struct InFlight {
    step: u64,
    /// Each request with rows in this step, and the number of its positions computed after the
    /// step.
    rows: Vec<(RequestId, usize)>,
    samples: Vec<(RequestId, CacheId)>,
    /// Each with the position of its first target and the number of targets.
    scores: Vec<(RequestId, CacheId, u32, usize)>,
    embeds: Vec<(RequestId, CacheId)>,
}

impl Scheduler {
    /// Creates a scheduler without requests.
    ///
    /// # Panics
    /// If `step_tokens` or `running_max` is 0.
    pub fn new(limits: SchedulerLimits) -> Scheduler {
        assert!(0 < limits.step_tokens && 0 < limits.running_max);
        // With this limit, a step has room for at least one token of every running sequence.
        let running_max = limits.running_max.min(limits.step_tokens);
        let caches = CacheLimits {
            block_tokens: limits.block_tokens,
            row_tokens: limits.step_tokens,
            capacity: limits.capacity.clone(),
            least_prefix_tokens: limits.least_prefix_tokens,
            keep_prefixes: limits.keep_prefixes,
            lattice_tokens: limits.lattice_tokens,
        };
        Scheduler {
            prompt_step_tokens: limits.step_tokens,
            limits: SchedulerLimits { running_max, ..limits },
            caches: KvCacheManager::new(caches),
            waiting: VecDeque::new(),
            running: Vec::new(),
            admission_queue: AdmissionQueue::default(),
            pressure: PressureTier::Normal,
            is_clearing: false,
            in_flight: VecDeque::new(),
            step: 0,
            num_control: 0,
            events: Vec::new(),
            stats: ScheduleStats::default(),
        }
    }

    /// Returns true if the ranks' memory can hold this request when it runs alone.
    pub fn could_hold(&self, request: &Request) -> bool {
        self.caches.holds(self.caches.demand(request.max_cached_tokens() as usize))
    }

    /// Adds a request. Its id must be greater than all ids before it.
    ///
    /// # Panics
    /// If the request does not fit even alone; callers check [`Scheduler::could_hold`] first.
    pub fn submit(&mut self, id: RequestId, request: Request) {
        assert!(self.could_hold(&request), "{id:?} could never be held");
        let sequence = Sequence::new(id, request, self.caches.has_states());
        if sequence.is_trivial() {
            self.emit_started(&sequence);
            return self.emit_finished(&sequence, FinishReason::Length);
        }
        self.wait(sequence);
    }

    /// Ends a request without an event. Returns false if it has ended already.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        if let Ok(idx) = self.waiting.binary_search_by_key(&id, |it| it.id) {
            self.waiting.remove(idx);
            return true;
        }
        let Ok(idx) = self.running.binary_search_by_key(&id, |it| it.id) else { return false };
        let sequence = self.running.remove(idx);
        self.release(&sequence);
        true
    }

    /// Ends a request and emits that it was cancelled. Returns false if it has ended already.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(usage) = self.sequence_mut(id).map(|it| it.usage()) else { return false };
        self.cancel(id);
        self.events.push((id, Event::Finished { reason: FinishReason::Cancelled, usage }));
        true
    }

    /// Drops the kept caches of finished sequences and lets the ranks return that memory to the
    /// system. Returns the number of dropped caches.
    pub fn clear_prefixes(&mut self) -> usize {
        let num_cleared = self.caches.clear_kept();
        self.is_clearing |= 0 < num_cleared;
        num_cleared
    }

    /// Adapts to the memory pressure on the machines; the engine calls this with each reading.
    /// Unless the tier is `Normal`, caches of finished sequences are not kept, and fewer sequences
    /// run at the same time. If it is `Critical`, half of the running sequences are preempted as
    /// well, the least important and youngest first.
    pub fn set_pressure(&mut self, tier: PressureTier) {
        self.pressure = tier;
        let is_enough = tier == PressureTier::Normal;
        self.caches.set_keeping(self.limits.keep_prefixes && is_enough);
        if !is_enough {
            self.caches.clear_kept();
        }
        if tier == PressureTier::Critical {
            let num_left = self.running.len().div_ceil(2);
            while num_left < self.running.len() {
                self.preempt_one();
            }
        }
    }

    /// Sets the maximum number of tokens of a step in which no sequence decodes, so that a long step delays no
    /// next token. The minimum and the default are `step_tokens`, which also applies while memory is short.
    pub fn set_prompt_step_tokens(&mut self, num_tokens: usize) {
        self.prompt_step_tokens = num_tokens.max(self.limits.step_tokens);
    }

    /// Returns true while the request owns a cache.
    pub fn is_running(&self, id: RequestId) -> bool {
        self.running.binary_search_by_key(&id, |it| it.id).is_ok()
    }

    /// Returns true if another step may be planned before the next output arrives.
    pub fn may_plan(&self) -> bool {
        let SchedulerLimits { lookahead, num_stages, .. } = self.limits;
        let most = if lookahead { MAX_STEPS_IN_FLIGHT.max(num_stages) } else { 1 };
        self.in_flight.len() < most
    }

    /// Plans the next step. Returns none if there is nothing to do until an output or a request
    /// arrives.
    ///
    /// # Panics
    /// If [`Scheduler::may_plan`] is false.
    pub fn plan(&mut self) -> Option<StepPlan> {
        assert!(self.may_plan(), "too many steps are in flight");
        let mut plan = StepPlan { step: self.step, ..StepPlan::default() };
        let in_flight = match self.suspect() {
            Some(suspect) if !self.needs_control(suspect) => {
                if self.computes_others(suspect) {
                    return None;
                }
                self.preempt_for_memory();
                self.admit_suspect(suspect, &mut plan);
                self.plan_rows(self.share_of_suspect(suspect), &mut plan)
            }
            _ => self.plan_all(&mut plan),
        };
        self.caches.finish_plan(&mut plan);
        let is_freeing = !plan.forgets.is_empty() || !plan.window_drops.is_empty();
        if !plan.drops.is_empty() || is_freeing {
            let is_clearing = std::mem::take(&mut self.is_clearing);
            plan.returns_memory = is_clearing || self.pressure != PressureTier::Normal;
        }
        if plan.is_empty() {
            return None;
        }
        assert!(plan.num_tokens() <= self.prompt_step_tokens);
        self.in_flight.push_back(in_flight);
        self.step += 1;
        Some(plan)
    }

    /// Admits waiting sequences and plans rows of every running sequence.
    fn plan_all(&mut self, plan: &mut StepPlan) -> InFlight {
        let promised = self.preempt_for_memory();
        self.admit(promised, plan);
        self.plan_rows(self.allocate_token_budget(), plan)
    }

    /// Applies the output of the oldest step in flight.
    ///
    /// # Errors
    /// [`OutputMismatch`] if the output does not match that step; nothing is applied then.
    pub fn commit(&mut self, output: StepOutput) -> Result<(), OutputMismatch> {
        self.check(&output)?;
        let in_flight = self.in_flight.pop_front().expect("the answer was just checked against it");
        self.note_control(&in_flight.rows);
        for (id, end) in in_flight.rows {
            if let Some(sequence) = self.sequence_mut(id) {
                sequence.suspicion.note_computed(end);
            }
        }
        for ((id, ..), scored) in in_flight.scores.into_iter().zip(output.scored) {
            self.commit_scores(id, scored);
        }
        for ((id, _), embedded) in in_flight.embeds.into_iter().zip(output.embedded) {
            self.commit_embedding(id, embedded);
        }
        for ((id, _), sampled) in in_flight.samples.into_iter().zip(output.sampled) {
            self.commit_token(id, sampled);
        }
        Ok(())
    }

    /// Handles a loss of the ranks, which restart with empty caches: the steps in flight are lost
    /// too. Every sequence is preempted. The scheduler knows all tokens, so every stream continues
    /// where it stopped.
    pub fn ranks_restarted(&mut self) {
        for mut sequence in std::mem::take(&mut self.running) {
            sequence.reset();
            self.wait(sequence);
        }
        for sequence in &mut self.waiting {
            sequence.num_pending = 0;
            sequence.num_awaited = 0;
            sequence.num_discarded = 0;
        }
        self.in_flight.clear();
        self.caches.clear();
        self.step = 0;
        self.num_control = 0;
    }

    /// Sets the capacity and the number of stages of the ranks that start after
    /// [`Scheduler::ranks_restarted`]. Removes and returns the requests that do not fit even alone.
    ///
    /// # Panics
    /// If a sequence owns a cache.
    pub fn set_ranks(&mut self, capacity: CacheCapacity, num_stages: usize) -> Vec<RequestId> {
        assert!(self.running.is_empty(), "the ranks are empty");
        self.limits.num_stages = num_stages;
        self.caches.set_capacity(capacity);
        let waiting = std::mem::take(&mut self.waiting);
        let (kept, lost): (VecDeque<_>, Vec<_>) = {
            let (kept, lost): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|sequence| self.could_hold(&sequence.request));
            (kept.into(), lost)
        };
        self.waiting = kept;
        lost.into_iter().map(|sequence| sequence.id).collect()
    }

    /// Removes and returns all requests, oldest first.
    pub fn give_up_all(&mut self) -> Vec<RequestId> {
        self.ranks_restarted();
        self.waiting.drain(..).map(|it| it.id).collect()
    }

    /// Returns the events since the last call, in order.
    pub fn take_events(&mut self) -> Vec<(RequestId, Event)> {
        std::mem::take(&mut self.events)
    }

    /// Returns true if there are no open requests, no steps in flight and no caches to drop.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.running.is_empty()
            && self.in_flight.is_empty()
            && !self.caches.has_drops()
    }

    /// Returns the numbers of waiting and of running requests.
    pub fn num_waiting_and_running(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// Returns the number of steps in flight.
    pub fn num_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the memory of the ranks for caches.
    pub fn capacity(&self) -> &CacheCapacity {
        self.caches.capacity()
    }

    /// Returns the memory of running sequences and of kept caches.
    pub fn used_and_kept(&self) -> (CacheDemand, CacheDemand) {
        self.caches.used_and_kept()
    }

    /// Returns the number of kept caches of finished sequences.
    pub fn num_kept(&self) -> usize {
        self.caches.num_kept()
    }

    /// Returns the number of tokens in the prefix index; shared ones count once.
    pub fn num_indexed_tokens(&self) -> usize {
        self.caches.num_indexed_tokens()
    }

    /// Returns the caches of running sequences, the most important and oldest first, and whether
    /// each could decode now. In a pipeline, a sequence with a token in flight could not.
    #[cfg(test)]
    pub(crate) fn running_caches(&self) -> Vec<(CacheId, bool)> {
        let lookahead = self.limits.lookahead && self.limits.num_stages == 1;
        let decodes = |it: &Sequence| it.num_wanted(lookahead) == 1;
        let mut running: Vec<&Sequence> = self.running.iter().collect();
        running.sort_by_key(|it| (it.importance(), it.id));
        running.into_iter().filter_map(|it| Some((it.cache?, decodes(it)))).collect()
    }

    /// True while a suspect is computed alone; see [`isolation`].
    #[cfg(test)]
    pub(crate) fn is_isolating(&self) -> bool {
        self.suspect().is_some()
    }

    /// Returns the cache of a running request.
    #[cfg(test)]
    pub(crate) fn cache_of(&self, id: RequestId) -> Option<CacheId> {
        self.running.iter().find(|it| it.id == id)?.cache
    }

    /// Returns the requests with rows in flight, oldest first.
    #[cfg(test)]
    pub(crate) fn ids_in_flight(&self) -> Vec<RequestId> {
        let mut ids: Vec<RequestId> =
            self.in_flight.iter().flat_map(|it| &it.rows).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Returns the counters.
    pub fn stats(&self) -> ScheduleStats {
        self.stats
    }

    /// Returns the counters of the prefix cache.
    pub fn prefix_stats(&self) -> PrefixStats {
        self.caches.stats
    }

    /// Inserts a sequence into the waiting ones by its age.
    fn wait(&mut self, sequence: Sequence) {
        let place = self.waiting.partition_point(|it| it.id < sequence.id);
        self.waiting.insert(place, sequence);
    }

    fn release(&mut self, sequence: &Sequence) {
        let cache = sequence.cache.expect("a running sequence has a cache");
        self.caches.release(cache, &sequence.tokens);
    }

    fn plan_rows(&mut self, shares: Vec<usize>, plan: &mut StepPlan) -> InFlight {
        let mut in_flight = InFlight { step: plan.step, ..InFlight::default() };
        for (sequence, num_tokens) in self.running.iter_mut().zip(shares) {
            if num_tokens == 0 {
                continue;
            }
            let start = sequence.num_computed;
            let cache = sequence.cache.expect("a running sequence has a cache");
            let row = sequence.row(self.caches.chunk(cache, start, num_tokens));
            sequence.last_step = plan.step;
            self.caches.grow(cache, start, sequence.num_computed);
            in_flight.rows.push((sequence.id, sequence.num_computed));
            if row.sample.is_some() {
                in_flight.samples.push((sequence.id, row.cache));
            }
            if let Some(score) = &row.score {
                let first = row.start + 1;
                in_flight.scores.push((sequence.id, row.cache, first, score.targets.len()));
            }
            if row.embed.is_some_and(|embed| embed.ends_at(sequence.num_computed)) {
                in_flight.embeds.push((sequence.id, row.cache));
            }
            plan.rows.push(row);
        }
        for row in &mut plan.rows {
            row.keeps = self.caches.keep(row.cache, row.start as usize + row.input.len());
        }
        in_flight
    }

    fn check(&self, output: &StepOutput) -> Result<(), OutputMismatch> {
        let step = output.step;
        let expected = match self.in_flight.front() {
            Some(in_flight) if in_flight.step == step => in_flight,
            other => {
                let expected = other.map(|it| it.step);
                return Err(OutputMismatch::Step { found: step, expected });
            }
        };
        let (found, wanted) = (output.sampled.len(), expected.samples.len());
        let mut pairs = expected.samples.iter().zip(&output.sampled);
        if found != wanted || pairs.any(|((_, cache), sampled)| *cache != sampled.cache) {
            return Err(OutputMismatch::Sampled { step, found, expected: wanted });
        }
        let mut pairs = expected.scores.iter().zip(&output.scored);
        let differs = |((_, cache, start, len), scored): (&(_, CacheId, u32, usize), &Scored)| {
            (scored.cache, scored.start, scored.logprobs.len()) != (*cache, *start, *len)
        };
        if output.scored.len() != expected.scores.len() || pairs.any(differs) {
            return Err(OutputMismatch::Scored { step });
        }
        let embeds = expected.embeds.iter().map(|(_, cache)| *cache);
        if !embeds.eq(output.embedded.iter().map(|embedded| embedded.cache)) {
            return Err(OutputMismatch::Embedded { step });
        }
        let vocab_size = self.limits.vocab_size;
        let mut tokens = output.sampled.iter().filter_map(|sampled| sampled.token);
        match tokens.find(|token| vocab_size <= *token) {
            Some(token) => Err(OutputMismatch::Token { step, token }),
            None => Ok(()),
        }
    }

    fn commit_scores(&mut self, id: RequestId, scored: Scored) {
        let Some(sequence) = self.sequence_mut(id) else { return };
        sequence.num_awaited -= 1;
        if scored.logprobs.iter().any(|it| it.logprob.is_nan()) {
            return self.fail(id);
        }
        let is_complete = sequence.add_scores(scored);
        if !is_complete {
            return;
        }
        let logprobs = sequence.scores.clone();
        let request = &sequence.request;
        let is_all = request.max_tokens() == 0 && request.embed().is_none();
        self.events.push((id, Event::PromptScored { logprobs }));
        if is_all {
            self.finish(id, FinishReason::Length);
        }
    }

    fn commit_embedding(&mut self, id: RequestId, embedded: Embedded) {
        let Some(sequence) = self.sequence_mut(id) else { return };
        sequence.num_awaited -= 1;
        let Some(vector) = embedded.vector else { return self.fail(id) };
        self.events.push((id, Event::Embedded { vector }));
        self.finish(id, FinishReason::Length);
    }

    fn commit_token(&mut self, id: RequestId, sampled: Sampled) {
        let Sampled { token, logprob, .. } = sampled;
        let Some(sequence) = self.sequence_mut(id) else {
            // The request ended, or its caller left, while this token was sampled.
            self.stats.dropped_tokens += 1;
            return;
        };
        sequence.num_awaited -= 1;
        if 0 < sequence.num_discarded {
            sequence.num_discarded -= 1;
            self.stats.dropped_tokens += 1;
            return;
        }
        sequence.num_pending -= 1;
        let Some(token) = token else { return self.fail(id) };
        let reason = sequence.add_token(token);
        sequence.suspicion.note_progress();
        self.stats.sampled_tokens += 1;
        self.events.push((id, Event::Token { token, logprob }));
        if let Some(reason) = reason {
            self.finish(id, reason);
        }
    }

    fn finish(&mut self, id: RequestId, reason: FinishReason) {
        let sequence = self.take(id);
        if sequence.cache.is_some() {
            self.release(&sequence);
        }
        self.emit_finished(&sequence, reason);
    }

    /// Ends a request whose output was not a number. Its cache is not kept, so no other sequence
    /// starts from it.
    fn fail(&mut self, id: RequestId) {
        let sequence = self.take(id);
        if let Some(cache) = sequence.cache {
            self.caches.release(cache, &[]);
        }
        self.stats.not_a_number += 1;
        let completion_tokens = sequence.usage().completion_tokens;
        self.events.push((id, Event::NotANumber { completion_tokens }));
    }

    /// Removes and returns the sequence of an open request.
    fn take(&mut self, id: RequestId) -> Sequence {
        if let Ok(idx) = self.running.binary_search_by_key(&id, |it| it.id) {
            return self.running.remove(idx);
        }
        // It was preempted while its last token was in flight, and has no cache.
        let idx = self.waiting.binary_search_by_key(&id, |it| it.id);
        self.waiting
            .remove(idx.expect("a sequence under way waits or runs"))
            .expect("the index was just found")
    }

    fn emit_started(&mut self, sequence: &Sequence) {
        let Usage { cached_tokens, prefix_miss: miss, .. } = sequence.usage();
        self.events.push((sequence.id, Event::Started { cached_tokens, miss }));
        if sequence.request.prompt_logprobs().is_some() && sequence.num_prompt_tokens() == 1 {
            // The first token has no log-probability, so there is nothing to wait for.
            self.events.push((sequence.id, Event::PromptScored { logprobs: Vec::new() }));
        }
    }

    fn emit_finished(&mut self, sequence: &Sequence, reason: FinishReason) {
        self.stats.finished += 1;
        let usage = sequence.usage();
        self.events.push((sequence.id, Event::Finished { reason, usage }));
    }

    fn sequence_mut(&mut self, id: RequestId) -> Option<&mut Sequence> {
        if let Ok(idx) = self.running.binary_search_by_key(&id, |it| it.id) {
            return self.running.get_mut(idx);
        }
        let idx = self.waiting.binary_search_by_key(&id, |it| it.id).ok()?;
        self.waiting.get_mut(idx)
    }
}
