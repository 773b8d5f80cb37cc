//! Executes a plan: keeps the sequences' caches, runs the model, samples, and sends the sampled
//! tokens to the ranks that need them. All ranks do the same in the same order, except that only
//! rank 0 samples. In a pipeline rank 0 holds the last layers, and the others run ahead of it as
//! far as they know the tokens.
//!
//! With MLX's own operations the device samples too. A step is then submitted without waiting for it,
//! and the next one may be built meanwhile: its rows take the tokens that the device has not computed
//! yet.

mod ahead;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use jackalope_mlx::{Array, Dtype, Group, HostCounters, dim, host_counters};
use jackalope_models::{Batch, Model, Pool, SequenceCache, Span};
use jackalope_protocol::split::Split;
use jackalope_protocol::{
    CacheId, Embedded, Forget, Fork, Input, Logprob, Row, Sampled, Sampling, Scored, StepOutput,
    StepPlan, StepTimings, TokenId, WindowDrop, counted,
};
use jackalope_transport::GroupStats;

use crate::micro_batch::micro_batches;
use crate::pending_step::PendingStep;
use crate::sampled_tokens::SampledTokens;
use crate::step_error::{StepError, lost_peers};
use crate::{embed, sampler};

use self::ahead::{LastSampled, PreviousToken, UnknownToken};

/// Maximum size of the f32 logits that are computed at once, in bytes. Both forms (this rank's
/// part, and the whole) stay far below what a rank may use beside weights, keys and values,
/// whatever the number of positions of a step and the size of the vocabulary.
const LOGITS_BYTES_MAX: usize = 48 << 20;

/// One sequence on this rank.
struct Sequence {
    cache: SequenceCache,
    /// Tokens whose keys and values are cached.
    tokens: Vec<TokenId>,
    /// Token that the last step sampled for this sequence.
    last_sampled: Option<LastSampled>,
    /// The token of `tokens` that is not known yet; `None` if all are known.
    unknown: Option<UnknownToken>,
    /// Pooled hidden states; on rank 0, while the sequence is embedded.
    pool: Option<Pool>,
}

/// The sequences of one epoch and the group that computes them.
pub(crate) struct Stepper {
    rank: u32,
    group: Group,
    num_stages: usize,
    sampled_tokens: SampledTokens,
    sequences: HashMap<CacheId, Sequence>,
    /// Steps that the device computes, oldest first; at most [`ahead::PENDING_STEPS_MAX`].
    pending: VecDeque<PendingStep>,
    /// End of the last step; `None` before the first. `link_seen` has the counters of the
    /// collectives at that time.
    last_end: Option<Instant>,
    link_seen: GroupStats,
}

/// The tokens of all rows, concatenated, and the range of each row.
struct Inputs {
    tokens: Vec<TokenId>,
    spans: Vec<Span>,
    /// Tokens that the last submitted step computes, by their index in `tokens`; ascending.
    previous: Vec<PreviousToken>,
}

/// Positions of a step whose logits and hidden states are needed.
#[derive(Default)]
struct NeededPositions {
    /// Token indices of the step whose logits are computed.
    logits_at: Vec<usize>,
    /// For each row that samples: its index in the plan and its index in `logits_at`; both ascend.
    sampled: Vec<(usize, usize)>,
    /// For each row that scores: its index in the plan and its first index in `logits_at`; both
    /// ascend.
    scored: Vec<(usize, usize)>,
    /// Token indices of the step whose hidden states are embedded.
    states_at: Vec<usize>,
    /// For each row that embeds: its index in the plan and its range of `states_at`; both ascend.
    embedded: Vec<(usize, Range<usize>)>,
}

/// The logits of some of the positions that need them.
struct Logits<'a> {
    /// Range of these positions in [`NeededPositions::logits_at`].
    range: Range<usize>,
    /// `[positions, vocab]`.
    values: &'a Array,
}

/// Results that rank 0 computes from the last layer's output, in plan order.
#[derive(Default)]
struct Answers {
    scored: Vec<Scored>,
    sampled_tokens: Vec<(Option<TokenId>, Option<Logprob>)>,
    embedded: Vec<Embedded>,
    /// Time that sampling and scoring took.
    sampling_time: Duration,
}

impl Stepper {
    pub(crate) fn new(rank: u32, group: Group, split: &Split) -> Stepper {
        let (num_stages, sampled_tokens) = match split {
            Split::Tensor(_) => (1, SampledTokens::Summed),
            Split::Pipeline(layers) => (layers.len(), SampledTokens::sent(layers.len())),
        };
        let link_seen = group.stats().unwrap_or_default();
        Stepper {
            rank,
            group,
            num_stages,
            sampled_tokens,
            sequences: HashMap::new(),
            pending: VecDeque::new(),
            last_end: None,
            link_seen,
        }
    }

    /// Returns the size of all sequences' keys and values in bytes.
    pub(crate) fn kv_bytes(&self) -> u64 {
        self.sequences.values().map(|it| it.cache.bytes() as u64).sum()
    }

    /// Returns the counters of the collectives so far; zero for stock groups, which do not count.
    fn link(&self) -> GroupStats {
        self.group.stats().unwrap_or_default()
    }

    /// Computes one plan. Returns `None` if the device computes it and [`Stepper::finish`] returns the
    /// output. After an error the contents of the caches are unusable.
    ///
    /// # Panics
    /// Panics if the plan cannot begin; see [`Stepper::can_begin`].
    pub(crate) fn execute(
        &mut self,
        model: &Model,
        plan: &StepPlan,
    ) -> Result<Option<StepOutput>, StepError> {
        assert!(self.can_begin(model, plan), "a plan waits for the steps that it needs");
        let (began, counters) = (Instant::now(), host_counters());
        let mut timings = StepTimings::default();
        self.move_caches(plan)?;
        let mut output = StepOutput { step: plan.step, ..StepOutput::default() };
        if !plan.rows.is_empty() {
            self.take_sampled(&plan.rows)?;
            let inputs = self.take_inputs(model, &plan.rows)?;
            let needed = needed_positions(&plan.rows, &inputs.spans);
            let (hidden, computing) = self.forward(model, plan, &inputs, &needed)?;
            self.keep_lengths(&plan.rows);
            timings.planning_us = micros(began.elapsed().saturating_sub(computing));
            if model.computes_with_mlx() && model.has_last_layer() && needed.embedded.is_empty() {
                let mut pending = self.submit(model, plan, &needed, &hidden)?;
                pending.began = began;
                pending.timings.planning_us = micros(began.elapsed().saturating_sub(computing));
                pending.counters = host_counters() - counters;
                self.pending.push_back(pending);
                return if self.num_stages == 1 { Ok(None) } else { self.finish().map(Some) };
            }
            let answers = if model.has_last_layer() {
                self.answer(model, plan, &needed, &hidden)?
            } else {
                self.evaluate(plan, &hidden)?;
                Answers::default()
            };
            timings.sampling_us = micros(answers.sampling_time);
            output.scored = answers.scored;
            output.embedded = answers.embedded;
            self.share_sampled(plan, &needed, answers.sampled_tokens, &mut output)?;
        }
        output.timings = self.ended(timings, began, host_counters() - counters);
        Ok(Some(output))
    }

    /// Returns a step's timings, completed at its end with the total time, the counters of the
    /// collectives and those of the host.
    fn ended(
        &mut self,
        timings: StepTimings,
        began: Instant,
        counters: HostCounters,
    ) -> StepTimings {
        let (now, link) = (Instant::now(), self.link());
        let before = std::mem::replace(&mut self.link_seen, link);
        // A step that was submitted ahead begins when the one before it ends.
        let began = self.last_end.map_or(began, |last_end| last_end.max(began));
        self.last_end = Some(now);
        StepTimings {
            collectives_us: micros(link.spent - before.spent),
            waiting_us: micros(link.waited - before.waited),
            sent_bytes: link.bytes_sent - before.bytes_sent,
            received_bytes: link.bytes_received - before.bytes_received,
            total_us: micros(now - began),
            nodes: number(counters.nodes),
            device_waits: number(counters.waits),
            copied_bytes: counters.bytes_written + counters.bytes_read,
            ..timings
        }
    }

    /// Computes the results from the last layer's output: samples, scores and embeddings.
    fn answer(
        &mut self,
        model: &Model,
        plan: &StepPlan,
        needed: &NeededPositions,
        hidden: &Array,
    ) -> Result<Answers, StepError> {
        let slices = slices(needed.logits_at.len(), model.facts().vocab_size as usize);
        if slices.len() != 1 {
            self.evaluate(plan, hidden)?;
        }
        let mut answers = Answers::default();
        for range in slices {
            let logits = model.logits(&rows(hidden, &range));
            self.evaluate(plan, &logits)?;
            let began = Instant::now();
            self.sample(plan, needed, &Logits { range, values: &logits }, &mut answers)?;
            answers.sampling_time += began.elapsed();
        }
        answers.embedded = self.embed(model, plan, needed, hidden)?;
        Ok(answers)
    }

    /// Forks caches, then gives up kept lengths and blocks of windows, then drops caches, as the plan
    /// says.
    fn move_caches(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        plan.forks.iter().try_for_each(|fork| self.fork(*fork))?;
        for Forget { cache, num_tokens } in &plan.forgets {
            let sequence = self.sequences.get_mut(cache);
            let sequence = sequence.ok_or_else(|| {
                StepError::Plan(format!("cache {} to give up a length of is unknown", cache.0))
            })?;
            sequence.cache.forget(*num_tokens as usize);
        }
        for WindowDrop { cache, start, end } in &plan.window_drops {
            let sequence = self.sequences.get_mut(cache);
            let sequence = sequence.ok_or_else(|| {
                StepError::Plan(format!("cache {} to free blocks of is unknown", cache.0))
            })?;
            let freed = sequence.cache.free_windows(*start as usize..*end as usize);
            freed.map_err(|err| StepError::Device(err.to_string()))?;
        }
        for cache in &plan.drops {
            if self.sequences.remove(cache).is_none() {
                return Err(StepError::Plan(format!("cache {} to drop is unknown", cache.0)));
            }
        }
        if plan.returns_memory {
            jackalope_mlx::memory::clear_cache()
                .map_err(|err| StepError::Device(err.to_string()))?;
        }
        Ok(())
    }

    fn fork(&mut self, fork: Fork) -> Result<(), StepError> {
        let Fork { source: from, target, num_tokens, window_start } = fork;
        let source = self
            .sequences
            .get(&from)
            .ok_or_else(|| StepError::Plan(format!("cache {} to copy from is unknown", from.0)))?;
        let num_tokens = num_tokens as usize;
        let num_held = source.tokens.len();
        if num_held < num_tokens || self.sequences.contains_key(&target) {
            let target = target.0;
            return Err(StepError::Plan(format!(
                "cannot copy {num_tokens} of {} from cache {} to {target}",
                counted(num_held, "token"),
                from.0
            )));
        }
        require_cut(from, &source.cache, num_tokens)?;
        let cache = source.cache.fork(num_tokens, window_start as usize);
        let copy = Sequence {
            cache: cache.map_err(|err| StepError::Device(err.to_string()))?,
            tokens: source.tokens[..num_tokens].to_vec(),
            last_sampled: None,
            unknown: None,
            pool: None,
        };
        self.sequences.insert(target, copy);
        Ok(())
    }

    /// Keeps the states after the rows that ask for it. All of their tokens are in the graph.
    fn keep_lengths(&mut self, rows: &[Row]) {
        for row in rows.iter().filter(|row| row.keeps) {
            let sequence = self.sequences.get_mut(&row.cache);
            sequence.expect("rows hold their sequences").cache.keep();
        }
    }

    /// Cuts caches to the rows' starts and gathers the tokens of all rows, concatenated.
    fn take_inputs(&mut self, model: &Model, rows: &[Row]) -> Result<Inputs, StepError> {
        let mut tokens = Vec::new();
        let mut previous = Vec::new();
        let mut spans = Vec::with_capacity(rows.len());
        for row in rows {
            let start = row.start as usize;
            let sequence = self.sequences.entry(row.cache).or_insert_with(|| Sequence {
                cache: model.new_cache(),
                tokens: Vec::new(),
                last_sampled: None,
                unknown: None,
                pool: None,
            });
            if sequence.tokens.len() < start {
                return Err(StepError::Plan(format!(
                    "cache {} holds {}, the row starts at {start}",
                    row.cache.0,
                    counted(sequence.tokens.len(), "token")
                )));
            }
            require_cut(row.cache, &sequence.cache, start)?;
            sequence.cache.truncate(start);
            sequence.tokens.truncate(start);
            let start_idx = tokens.len();
            match &row.input {
                Input::Tokens(known) => tokens.extend(known),
                Input::Previous => match sequence.last_sampled {
                    Some(LastSampled::Known(token)) => tokens.push(token),
                    Some(LastSampled::Pending { step, idx }) => {
                        previous.push(PreviousToken { at: start_idx, idx });
                        sequence.unknown = Some(UnknownToken { step, at: start });
                        tokens.push(TokenId::default());
                    }
                    None => {
                        let id = row.cache.0;
                        return Err(StepError::Plan(format!("cache {id} has sampled nothing yet")));
                    }
                },
            }
            sequence.tokens.extend(&tokens[start_idx..]);
            sequence.last_sampled = None;
            spans.push(Span { start_idx, len: tokens.len() - start_idx });
        }
        Ok(Inputs { tokens, spans, previous })
    }

    /// Receives the tokens that rows continue with and that only rank 0 knew so far.
    fn take_sampled(&mut self, rows: &[Row]) -> Result<(), StepError> {
        let needs = |cache| {
            rows.iter().any(|row| row.cache == cache && matches!(row.input, Input::Previous))
        };
        let known =
            self.sampled_tokens.take_in(&self.group, needs).map_err(|err| self.classify(&err))?;
        self.note_sampled(known);
        Ok(())
    }

    fn note_sampled(&mut self, known: Vec<(CacheId, TokenId)>) {
        for (cache, token) in known {
            // The sequence may have been dropped while its token was in flight.
            if let Some(sequence) = self.sequences.get_mut(&cache) {
                sequence.last_sampled = Some(LastSampled::Known(token));
            }
        }
    }

    /// Returns the last layer's output, first for logits, then for embeddings: `[logits_at +
    /// states_at, hidden]`; on a rank without the last layer, the array that it sends last. Of
    /// several parts only the last is not computed yet; also returns the time that computing the
    /// others took.
    fn forward(
        &mut self,
        model: &Model,
        plan: &StepPlan,
        inputs: &Inputs,
        needed: &NeededPositions,
    ) -> Result<(Array, Duration), StepError> {
        let mut computing = Duration::ZERO;
        let mut found: [Vec<Array>; 2] = [Vec::new(), Vec::new()];
        let parts = micro_batches(&inputs.spans, self.num_stages);
        // Only ranks without stages submit steps ahead, and those compute in one part.
        let device_tokens = self.device_tokens(inputs);
        let last = parts.len() - 1;
        for (idx, part) in parts.iter().enumerate() {
            let (logits_at, states_at) = (part.own(&needed.logits_at), part.own(&needed.states_at));
            let batch = Batch {
                tokens: &inputs.tokens[part.tokens.clone()],
                rows: part.spans.clone(),
                logits_at: [logits_at.as_slice(), &states_at].concat(),
            };
            let mut sequences = self.take_sequences(plan)?;
            let mut caches: Vec<&mut SequenceCache> =
                sequences[part.rows.clone()].iter_mut().map(|(_, it)| &mut it.cache).collect();
            let hidden = match &device_tokens {
                Some(tokens) => model.hidden_of_device_tokens(&batch, tokens, &mut caches),
                None => model.hidden(&batch, &mut caches),
            };
            self.sequences.extend(sequences);
            if idx < last {
                let evaluating = Instant::now();
                self.evaluate(plan, &hidden)?;
                computing += evaluating.elapsed();
            } else if last == 0 || !model.has_last_layer() {
                return Ok((hidden, computing));
            }
            let all = logits_at.len() + states_at.len();
            found[0].push(rows(&hidden, &(0..logits_at.len())));
            found[1].push(rows(&hidden, &(logits_at.len()..all)));
        }
        let found: Vec<&Array> = found.iter().flatten().filter(|it| 0 < it.dim(0)).collect();
        let hidden = match found.as_slice() {
            [] => Array::zeros(&[0, 1], Dtype::F32),
            found => Array::concatenate(found, 0),
        };
        Ok((hidden, computing))
    }

    /// Takes the rows' sequences, in plan order, out of the map so that all can be borrowed at
    /// once.
    fn take_sequences(&mut self, plan: &StepPlan) -> Result<Vec<(CacheId, Sequence)>, StepError> {
        plan.rows
            .iter()
            .map(|row| match self.sequences.remove_entry(&row.cache) {
                Some(entry) => Ok(entry),
                None => Err(StepError::Plan(format!("cache {} occurs twice", row.cache.0))),
            })
            .collect()
    }

    /// Computes `result` and the caches; every collective of the model happens here.
    fn evaluate(&self, plan: &StepPlan, result: &Array) -> Result<(), StepError> {
        let roots = self.cache_arrays(plan);
        let roots: Vec<&Array> = roots.iter().chain([result]).collect();
        jackalope_mlx::eval(&roots).map_err(|err| self.classify(&err))
    }

    /// Returns the arrays of the caches of the step's rows.
    fn cache_arrays(&self, plan: &StepPlan) -> Vec<Array> {
        plan.rows.iter().flat_map(|row| self.sequences[&row.cache].cache.arrays()).collect()
    }

    /// Converts an error. While the group is broken, the group is the cause, whatever MLX wraps it
    /// in.
    fn classify(&self, err: &jackalope_mlx::Error) -> StepError {
        match self.group.failure() {
            Some(cause) => {
                StepError::Group { message: cause.to_string(), peers: lost_peers(&cause) }
            }
            None => StepError::Device(err.to_string()),
        }
    }

    /// On rank 0, scores and samples from logits.
    fn sample(
        &self,
        plan: &StepPlan,
        needed: &NeededPositions,
        logits: &Logits<'_>,
        answers: &mut Answers,
    ) -> Result<(), StepError> {
        if self.rank != 0 {
            return Ok(());
        }
        let range = &logits.range;
        let vocab_size = logits.values.dim(-1) as usize;
        let values = logits.values.pin().map_err(|err| self.classify(&err))?;
        let values = values.values::<f32>();
        let at = |idx: usize| &values[(idx - range.start) * vocab_size..][..vocab_size];
        for (nth, &(row_idx, first)) in needed.scored.iter().enumerate() {
            let row = &plan.rows[row_idx];
            if answers.scored.len() == nth {
                let logprobs = Vec::new();
                answers.scored.push(Scored { cache: row.cache, start: row.start + 1, logprobs });
            }
            let score = row.score.as_ref().expect("only scoring rows are listed");
            let last = first + num_scored(row);
            for idx in range.start.max(first)..range.end.min(last) {
                let logprob = sampler::logprob(at(idx), score.targets[idx - first], score.num_top);
                answers.scored[nth].logprobs.push(logprob);
            }
        }
        for &(row_idx, idx) in needed.sampled.iter().filter(|(_, idx)| range.contains(idx)) {
            let row = &plan.rows[row_idx];
            let sampling = row.sample.as_ref().expect("only sampling rows are listed");
            answers.sampled_tokens.push(self.sample_row(row.cache, at(idx), sampling));
        }
        Ok(())
    }

    /// On rank 0, pools the hidden states, and returns the embeddings of the rows that end a
    /// prompt.
    fn embed(
        &mut self,
        model: &Model,
        plan: &StepPlan,
        needed: &NeededPositions,
        hidden: &Array,
    ) -> Result<Vec<Embedded>, StepError> {
        if self.rank != 0 || needed.embedded.is_empty() {
            return Ok(Vec::new());
        }
        let first = needed.logits_at.len();
        let states = rows(hidden, &(first..first + needed.states_at.len()));
        let states = model.states(&states);
        self.evaluate(plan, &states)?;
        let width = states.dim(-1) as usize;
        let states = states.pin().map_err(|err| self.classify(&err))?;
        let states = states.values::<f32>();
        let mut embedded = Vec::new();
        for (row_idx, range) in &needed.embedded {
            let row = &plan.rows[*row_idx];
            let own = &states[range.start * width..range.end * width];
            let sequence = self.sequences.get_mut(&row.cache).expect("rows hold their sequences");
            embedded.extend(embed::take_in(row, own.chunks(width), &mut sequence.pool)?);
        }
        Ok(embedded)
    }

    /// Samples a token; returns `None` if logits are NaN or infinite.
    fn sample_row(
        &self,
        cache: CacheId,
        logits: &[f32],
        sampling: &Sampling,
    ) -> (Option<TokenId>, Option<Logprob>) {
        if !jackalope_kernels::logits::are_numbers(logits) {
            return (None, None);
        }
        let history = &self.sequences[&cache].tokens;
        let token = sampler::sample(logits, history, sampling);
        let logprob = sampling.logprobs.map(|num_top| sampler::logprob(logits, token, num_top));
        (Some(token), logprob)
    }

    /// Sends the sampled tokens to the ranks that need them.
    fn share_sampled(
        &mut self,
        plan: &StepPlan,
        needed: &NeededPositions,
        sampled_tokens: Vec<(Option<TokenId>, Option<Logprob>)>,
        output: &mut StepOutput,
    ) -> Result<(), StepError> {
        if needed.sampled.is_empty() {
            return Ok(());
        }
        let caches = needed.sampled.iter().map(|&(row_idx, _)| plan.rows[row_idx].cache);
        let caches: Vec<CacheId> = caches.collect();
        let own = (self.rank == 0)
            .then(|| sampled_tokens.iter().map(|it| it.0.unwrap_or_default()).collect());
        let known = self.sampled_tokens.share(&self.group, caches, own);
        let known = known.map_err(|err| self.classify(&err))?;
        self.note_sampled(known);
        for (&(row_idx, _), (token, logprob)) in needed.sampled.iter().zip(sampled_tokens) {
            output.sampled.push(Sampled { cache: plan.rows[row_idx].cache, token, logprob });
        }
        Ok(())
    }
}

/// Fails if a cache cannot be cut or forked at a length because its states there are not kept.
fn require_cut(id: CacheId, cache: &SequenceCache, num_tokens: usize) -> Result<(), StepError> {
    if cache.can_cut(num_tokens) {
        return Ok(());
    }
    let (id, len, kept) = (id.0, cache.len(), cache.kept());
    Err(StepError::Plan(format!(
        "cache {id} of {len} tokens cannot be cut to {num_tokens}: its states are kept at {kept:?}, \
         and layers with windows hold what the coordinator has not freed"
    )))
}

/// Lists the positions whose logits the rows need, without listing any twice.
fn needed_positions(rows: &[Row], spans: &[Span]) -> NeededPositions {
    let mut needed = NeededPositions::default();
    for (row_idx, (row, span)) in rows.iter().zip(spans).enumerate() {
        let first = needed.logits_at.len();
        let num_scored = num_scored(row);
        needed.logits_at.extend(span.start_idx..span.start_idx + num_scored);
        if row.score.is_some() {
            needed.scored.push((row_idx, first));
        }
        if row.sample.is_some() {
            if num_scored < span.len {
                needed.logits_at.push(span.start_idx + span.len - 1);
            }
            needed.sampled.push((row_idx, needed.logits_at.len() - 1));
        }
        if let Some(states) = embed::states(row) {
            let first = needed.states_at.len();
            let tokens = span.start_idx + states.start..span.start_idx + states.end;
            needed.states_at.extend(tokens);
            needed.embedded.push((row_idx, first..needed.states_at.len()));
        }
    }
    needed
}

fn num_scored(row: &Row) -> usize {
    row.score.as_ref().map_or(0, |score| score.targets.len().min(row.input.len()))
}

fn number(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Cuts `num_logits` positions into parts that are computed one after the other.
fn slices(num_logits: usize, vocab_size: usize) -> Vec<Range<usize>> {
    let len = (LOGITS_BYTES_MAX / (size_of::<f32>() * vocab_size)).max(1);
    (0..num_logits).step_by(len).map(|start| start..num_logits.min(start + len)).collect()
}

/// Returns the rows `range` of `[rows, hidden]`.
fn rows(hidden: &Array, range: &Range<usize>) -> Array {
    if hidden.dim(0) == dim(range.len()) {
        hidden.clone()
    } else {
        hidden.slice_axis(0, dim(range.start), dim(range.end))
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_is_computed_once_and_few_at_a_time() {
        for vocab_size in [100, 2048, 151_936, 20_000_000] {
            for num_logits in [0, 1, 2, 79, 512, 5000] {
                let slices = slices(num_logits, vocab_size);
                let all: Vec<usize> = slices.iter().flat_map(Clone::clone).collect();
                assert_eq!(all, (0..num_logits).collect::<Vec<_>>());
                assert!(
                    slices.iter().all(|it| {
                        it.len() == 1 || 4 * it.len() * vocab_size <= LOGITS_BYTES_MAX
                    })
                );
            }
        }
    }
}
