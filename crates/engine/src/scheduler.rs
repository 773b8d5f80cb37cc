//! Chooses what every step computes. Pure: no clock, no thread, no I/O, no randomness; the same
//! calls give the same plans. Only the [`GuidePool`] of a real engine has threads: when a slow guide answers
//! decides when its sequence goes on.
//!
//! ```text
//!  submit        plan: admit              plan, commit, plan, commit …
//!  ──────▶ waiting ──────▶ running ──────────────────────────────────▶ finished
//!             ▲               │ memory is short, or the ranks were lost
//!             └── preempted ──┘
//! ```
//!
//! A plan may be made while the one before is computed: a row then takes `Previous` as its input,
//! whatever that turns out to be. If it turns out to end the sequence, the row's answer is dropped.

mod admission;
mod guided;
mod isolation;
mod sequence;
mod share_out;
mod turns;

use std::collections::VecDeque;

use jackalope_protocol::{
    CACHE_GRANULE_TOKENS, CacheId, Embedded, MAX_STEPS_IN_FLIGHT, PressureTier, Sampled, Scored,
    StepOutput, StepPlan,
};
use thiserror::Error;

use crate::caches::{CacheLimits, Caches};
use crate::guide_pool::GuidePool;
use crate::planted::{Bug, Planted};
use crate::status::PrefixStats;
use crate::{Event, FinishReason, Request, RequestId};
use sequence::Sequence;
use turns::Turns;

#[cfg(test)]
pub(crate) use turns::PASSED_OVER_MAX;

/// Upper bounds that hold in every step, and choices.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerLimits {
    /// Tokens computed per step, over all sequences.
    pub step_tokens: usize,
    /// Sequences that own a cache at once.
    pub running_max: usize,
    /// Tokens are below this.
    pub vocab_size: u32,
    /// Granules of cache there are.
    pub capacity_granules: usize,
    /// Positions by which a cache grows.
    pub granule_tokens: usize,
    /// Shortest prefix worth finding in the cache.
    pub least_prefix_tokens: usize,
    /// Whether finished sequences are kept.
    pub keep_prefixes: bool,
    /// Whether a step is planned while the one before runs.
    pub lookahead: bool,
    /// Ranks that compute one after the other. So many steps are under way, if there is look-ahead,
    /// and those that decode take turns, so that all of these ranks have something to do.
    pub num_stages: usize,
}

impl SchedulerLimits {
    /// The bounds of a real engine around the given capacity.
    pub fn new(vocab_size: u32, capacity_granules: usize) -> SchedulerLimits {
        SchedulerLimits {
            step_tokens: 512,
            running_max: 64,
            vocab_size,
            capacity_granules,
            granule_tokens: CACHE_GRANULE_TOKENS as usize,
            least_prefix_tokens: 16,
            keep_prefixes: true,
            lookahead: true,
            num_stages: 1,
        }
    }
}

/// Rank 0 answered something that was not asked.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum OutputMismatch {
    /// Another step, or none was asked for.
    #[error("step {found} was answered, expected {expected:?}")]
    Step {
        /// The step answered.
        found: u64,
        /// The oldest one under way.
        expected: Option<u64>,
    },
    /// Other rows than those that were to draw.
    #[error("step {step}: {found} rows drew a token, expected {expected} or others")]
    Sampled {
        /// The step.
        step: u64,
        /// Rows answered.
        found: usize,
        /// Rows asked for.
        expected: usize,
    },
    /// Other rows or positions than those that were to be scored.
    #[error("step {step}: the scored positions are not those asked for")]
    Scored {
        /// The step.
        step: u64,
    },
    /// Other rows than those whose embeddings were to be completed.
    #[error("step {step}: the embeddings are not those asked for")]
    Embedded {
        /// The step.
        step: u64,
    },
    /// A token the model does not have.
    #[error("step {step}: token {token} is outside the vocabulary")]
    Token {
        /// The step.
        step: u64,
        /// The token.
        token: u32,
    },
}

/// What was counted while planning.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ScheduleStats {
    /// Requests that ran to their end.
    pub finished: u64,
    /// Tokens told.
    pub drawn_tokens: u64,
    /// Tokens drawn for requests that had ended.
    pub dropped_tokens: u64,
    /// Requests that ended because the model's output was not a number.
    pub not_a_number: u64,
    /// Times a sequence was sent back to wait for want of memory.
    pub preemptions: u64,
}

/// Continuous batching over every request under way.
#[derive(Debug)]
pub struct Scheduler {
    limits: SchedulerLimits,
    caches: Caches,
    /// By age, oldest first; [`Turns`] says who goes next.
    waiting: VecDeque<Sequence>,
    /// By age, oldest first; the least important is preempted first, of these the youngest.
    running: Vec<Sequence>,
    turns: Turns,
    pressure: PressureTier,
    /// Kept prefixes were cleared on request: the ranks return that memory to the system.
    is_clearing: bool,
    /// Plans made and not answered, oldest first.
    in_flight: VecDeque<InFlight>,
    step: u64,
    /// Steps completed without a suspect since the ranks came up.
    num_control: u32,
    events: Vec<(RequestId, Event)>,
    stats: ScheduleStats,
    planted: Planted,
    /// Asks guides; they are asked where they are needed if there is none.
    guide_pool: Option<GuidePool>,
}

/// What the answer to a plan has to consist of.
#[derive(Debug, Default)]
struct InFlight {
    step: u64,
    /// Each request with rows in this step, and the number of its positions computed after the
    /// step.
    rows: Vec<(RequestId, usize)>,
    draws: Vec<(RequestId, CacheId)>,
    /// With the position of the first target, and the number of targets.
    scores: Vec<(RequestId, CacheId, u32, usize)>,
    embeds: Vec<(RequestId, CacheId)>,
}

impl Scheduler {
    /// A scheduler without requests.
    ///
    /// # Panics
    /// If nothing could ever be computed within the limits.
    pub fn new(limits: SchedulerLimits) -> Scheduler {
        Scheduler::with_planted(limits, Planted::default())
    }

    pub(crate) fn with_planted(limits: SchedulerLimits, planted: Planted) -> Scheduler {
        assert!(0 < limits.step_tokens && 0 < limits.running_max && 0 < limits.capacity_granules);
        // Then a step has room for at least one token of every running sequence.
        let running_max = limits.running_max.min(limits.step_tokens);
        let caches = CacheLimits {
            granule_tokens: limits.granule_tokens,
            capacity_granules: limits.capacity_granules,
            least_prefix_tokens: limits.least_prefix_tokens,
            keep_prefixes: limits.keep_prefixes,
        };
        Scheduler {
            limits: SchedulerLimits { running_max, ..limits },
            caches: Caches::new(caches, planted),
            waiting: VecDeque::new(),
            running: Vec::new(),
            turns: Turns::default(),
            pressure: PressureTier::Normal,
            is_clearing: false,
            in_flight: VecDeque::new(),
            step: 0,
            num_control: 0,
            events: Vec::new(),
            stats: ScheduleStats::default(),
            planted,
            guide_pool: None,
        }
    }

    /// Whether the ranks' memory could hold this request, if it were alone.
    pub fn could_hold(&self, request: &Request) -> bool {
        self.caches.granules(request.max_cached_tokens() as usize) <= self.limits.capacity_granules
    }

    /// Takes a request. Ids count up.
    ///
    /// # Panics
    /// If the request could not be held even alone; whoever submits has to see to that.
    pub fn submit(&mut self, id: RequestId, request: Request) {
        assert!(self.could_hold(&request), "{id:?} could never be held");
        let sequence = Sequence::new(id, request);
        if sequence.is_trivial() {
            self.tell_started(&sequence, 0);
            return self.tell_finished(&sequence, FinishReason::Length);
        }
        self.wait(sequence);
        self.ask_guides();
    }

    /// Ends a request without a word. False if it has ended already.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        if let Ok(idx) = self.waiting.binary_search_by_key(&id, |it| it.id) {
            self.waiting.remove(idx);
            return true;
        }
        let Ok(idx) = self.running.binary_search_by_key(&id, |it| it.id) else { return false };
        let sequence = self.running.remove(idx);
        if !self.planted.has(Bug::CacheLeakedOnCancel) {
            self.release(&sequence);
        }
        true
    }

    /// Ends a request and tells so. False if it has ended already.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(usage) = self.sequence_mut(id).map(|it| it.usage()) else { return false };
        self.cancel(id);
        self.events.push((id, Event::Finished { reason: FinishReason::Cancelled, usage }));
        true
    }

    /// Drops what is kept of finished sequences, and lets the ranks return that memory to the
    /// system; returns the number of sequences.
    pub fn clear_prefixes(&mut self) -> usize {
        let num_cleared = self.caches.clear_kept();
        self.is_clearing |= 0 < num_cleared;
        num_cleared
    }

    /// Takes into account what other programs leave of the machines' memory; called with each reading.
    /// Unless that is enough, nothing is kept of finished sequences, and fewer run side by side. If it is
    /// critical, half of what runs is preempted besides; whoever comes first by importance and age goes on.
    pub fn set_pressure(&mut self, tier: PressureTier) {
        self.pressure = tier;
        let is_enough = tier == PressureTier::Normal;
        let keeps = is_enough || self.planted.has(Bug::KeptUnderPressure);
        self.caches.set_keeping(self.limits.keep_prefixes && keeps);
        if !keeps {
            self.caches.clear_kept();
        }
        if tier == PressureTier::Critical {
            let num_left = self.running.len().div_ceil(2);
            while num_left < self.running.len() {
                self.preempt_one();
            }
        }
    }

    /// True while the request owns a cache.
    pub fn is_running(&self, id: RequestId) -> bool {
        self.running.binary_search_by_key(&id, |it| it.id).is_ok()
    }

    /// True if another plan may be made before the next answer.
    pub fn may_plan(&self) -> bool {
        let SchedulerLimits { lookahead, num_stages, .. } = self.limits;
        let most = if lookahead { MAX_STEPS_IN_FLIGHT.max(num_stages) } else { 1 };
        self.in_flight.len() < most
    }

    /// The next step; none if there is nothing to do before an answer or a request comes.
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
        plan.drops = self.caches.take_drops();
        if !plan.drops.is_empty() {
            let is_clearing = std::mem::take(&mut self.is_clearing);
            plan.returns_memory = is_clearing || self.pressure != PressureTier::Normal;
        }
        if plan.is_empty() {
            return None;
        }
        assert!(plan.num_tokens() <= self.limits.step_tokens);
        self.in_flight.push_back(in_flight);
        self.step += 1;
        Some(plan)
    }

    /// Admits waiting sequences and plans rows of every running sequence.
    fn plan_all(&mut self, plan: &mut StepPlan) -> InFlight {
        let promised = self.preempt_for_memory();
        if !self.planted.has(Bug::ForkOfUnplannedRows) {
            self.admit(promised, plan);
        }
        let in_flight = self.plan_rows(self.share_out(), plan);
        if self.planted.has(Bug::ForkOfUnplannedRows) {
            self.admit(promised, plan);
        }
        in_flight
    }

    /// Applies an answer.
    ///
    /// # Errors
    /// [`OutputMismatch`] if it does not answer the oldest plan in flight; nothing is applied then.
    pub fn commit(&mut self, output: StepOutput) -> Result<(), OutputMismatch> {
        self.check(&output)?;
        let in_flight = self.in_flight.pop_front().expect("the answer was just checked against it");
        self.note_control(&in_flight.rows);
        let planted = self.planted;
        for (id, end) in in_flight.rows {
            if let Some(sequence) = self.sequence_mut(id) {
                sequence.suspicion.note_computed(end, planted);
            }
        }
        for ((id, ..), scored) in in_flight.scores.into_iter().zip(output.scored) {
            self.commit_scores(id, scored);
        }
        for ((id, _), embedded) in in_flight.embeds.into_iter().zip(output.embedded) {
            self.commit_embedding(id, embedded);
        }
        for ((id, _), sampled) in in_flight.draws.into_iter().zip(output.sampled) {
            self.commit_token(id, sampled);
        }
        self.ask_guides();
        Ok(())
    }

    /// The ranks were lost and come back with empty caches; what was in flight is lost too.
    /// Recovery is preemption of everyone: the tokens are here, so every stream goes on where it
    /// stopped.
    pub fn ranks_restarted(&mut self) {
        for mut sequence in std::mem::take(&mut self.running) {
            sequence.reset();
            self.wait(sequence);
        }
        for sequence in &mut self.waiting {
            if !self.planted.has(Bug::PendingKeptOnCrash) {
                sequence.num_pending = 0;
                sequence.num_awaited = 0;
                if !self.planted.has(Bug::DiscardedKeptOnCrash) {
                    sequence.num_discarded = 0;
                }
            }
        }
        self.in_flight.clear();
        if !self.planted.has(Bug::IndexKeptOnCrash) {
            self.caches.clear();
        }
        self.step = 0;
        self.num_control = 0;
    }

    /// The ranks that come back after [`Scheduler::ranks_restarted`] have other memory, and may be
    /// divided otherwise. Gives up, and returns, the requests that could never be held in it.
    ///
    /// # Panics
    /// If a sequence owns a cache, or there is no room at all.
    pub fn set_ranks(&mut self, capacity_granules: usize, num_stages: usize) -> Vec<RequestId> {
        assert!(self.running.is_empty(), "the ranks are empty");
        assert!(0 < capacity_granules, "there is room for something");
        self.limits = SchedulerLimits { capacity_granules, num_stages, ..self.limits };
        self.caches.set_capacity(capacity_granules);
        let waiting = std::mem::take(&mut self.waiting);
        let (kept, lost): (VecDeque<_>, Vec<_>) = {
            let (kept, lost): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|sequence| self.could_hold(&sequence.request));
            (kept.into(), lost)
        };
        self.waiting = kept;
        lost.into_iter().map(|sequence| sequence.id).collect()
    }

    /// Gives every request up, oldest first.
    pub fn give_up_all(&mut self) -> Vec<RequestId> {
        self.ranks_restarted();
        self.waiting.drain(..).map(|it| it.id).collect()
    }

    /// What there is to tell, in order.
    pub fn take_events(&mut self) -> Vec<(RequestId, Event)> {
        std::mem::take(&mut self.events)
    }

    /// True if no request is under way and no answer is awaited.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.running.is_empty()
            && self.in_flight.is_empty()
            && !self.caches.has_drops()
    }

    /// Requests that wait, and requests that own a cache.
    pub fn num_waiting_and_running(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// Steps planned and not answered.
    pub fn num_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Granules of running sequences, and of kept ones.
    pub fn used_and_kept_granules(&self) -> (usize, usize) {
        self.caches.used_and_kept()
    }

    /// Finished sequences kept.
    pub fn num_kept(&self) -> usize {
        self.caches.num_kept()
    }

    /// Tokens in the prefix index; shared ones count once.
    pub fn num_indexed_tokens(&self) -> usize {
        self.caches.num_indexed_tokens()
    }

    /// Caches of running sequences, by importance and age, and whether each could decode: in a
    /// pipeline, without waiting for a token that is under way.
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

    /// The cache of a running request.
    #[cfg(test)]
    pub(crate) fn cache_of(&self, id: RequestId) -> Option<CacheId> {
        self.running.iter().find(|it| it.id == id)?.cache
    }

    /// The requests with rows in flight, oldest first.
    #[cfg(test)]
    pub(crate) fn ids_in_flight(&self) -> Vec<RequestId> {
        let mut ids: Vec<RequestId> =
            self.in_flight.iter().flat_map(|it| &it.rows).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// What was counted.
    pub fn stats(&self) -> ScheduleStats {
        self.stats
    }

    /// Use of the prefix cache.
    pub fn prefix_stats(&self) -> PrefixStats {
        self.caches.stats
    }

    /// Puts a sequence where its age belongs.
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
            let row = sequence.row(num_tokens, self.planted);
            sequence.last_step = plan.step;
            self.caches.grow(row.cache, sequence.num_computed);
            in_flight.rows.push((sequence.id, sequence.num_computed));
            if row.sample.is_some() {
                in_flight.draws.push((sequence.id, row.cache));
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
        let (found, wanted) = (output.sampled.len(), expected.draws.len());
        let mut pairs = expected.draws.iter().zip(&output.sampled);
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
        let planted = self.planted;
        let Some(sequence) = self.sequence_mut(id) else { return };
        sequence.num_awaited -= 1;
        if scored.logprobs.iter().any(|it| it.logprob.is_nan()) {
            return self.fail(id);
        }
        let is_complete = sequence.add_scores(scored, planted);
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
        let planted = self.planted;
        let Some(sequence) = self.sequence_mut(id) else {
            // The request ended, or its caller left, while this token was drawn.
            self.stats.dropped_tokens += 1;
            if let Some(token) = token.filter(|_| planted.has(Bug::ExtraTokenTold)) {
                self.events.push((id, Event::Token { token, logprob }));
            }
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
        let reason = sequence.add_token(token, planted);
        sequence.suspicion.note_progress(planted);
        self.stats.drawn_tokens += 1;
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
        self.tell_finished(&sequence, reason);
    }

    /// Ends a request whose numbers are none; nobody may begin from its cache.
    fn fail(&mut self, id: RequestId) {
        let sequence = self.take(id);
        if let Some(cache) = sequence.cache {
            self.caches.release(cache, &[]);
        }
        self.stats.not_a_number += 1;
        let completion_tokens = sequence.usage().completion_tokens;
        self.events.push((id, Event::NotANumber { completion_tokens }));
    }

    /// Removes a sequence under way.
    fn take(&mut self, id: RequestId) -> Sequence {
        if let Ok(idx) = self.running.binary_search_by_key(&id, |it| it.id) {
            return self.running.remove(idx);
        }
        // Its last token was still under way when it was preempted, and it has no cache.
        let idx = self.waiting.binary_search_by_key(&id, |it| it.id);
        self.waiting
            .remove(idx.expect("a sequence under way waits or runs"))
            .expect("the index was just found")
    }

    fn tell_started(&mut self, sequence: &Sequence, cached_tokens: u32) {
        self.events.push((sequence.id, Event::Started { cached_tokens }));
        if sequence.request.prompt_logprobs().is_some() && sequence.num_prompt_tokens() == 1 {
            // The first token has no log-probability, so there is nothing to wait for.
            self.events.push((sequence.id, Event::PromptScored { logprobs: Vec::new() }));
        }
    }

    fn tell_finished(&mut self, sequence: &Sequence, reason: FinishReason) {
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
