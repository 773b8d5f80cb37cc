//! Steps that are submitted to the device, which samples too. The next step can be built while the
//! device computes: the tokens that it continues with are arrays.

use std::time::Instant;

use jackalope_mlx::{Array, Dtype, HostCounters, host_counters};
use jackalope_models::Model;
use jackalope_protocol::{CacheId, Sampled, Scored, StepOutput, StepPlan, StepTimings, TokenId};

use super::{
    Inputs, Logits, NeededPositions, Sequence, Stepper, dim, micros, num_scored, rows, slices,
};
use crate::device_sampler::{self, SampledRow};
use crate::pending_step::{
    DeviceAnswers, PendingStep, SampledRows, ScoredPosition, ScoredPositions, SliceAnswers,
};
use crate::step_error::StepError;

/// Maximum number of steps that are submitted and not finished.
pub(super) const PENDING_STEPS_MAX: usize = 2;

/// A sampled token.
#[derive(Clone, Copy, Debug)]
pub(super) enum LastSampled {
    Known(TokenId),
    /// The device still computes the token, as token `idx` of a step.
    Pending {
        step: u64,
        idx: usize,
    },
}

/// A token that a step still computes and that later positions follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnknownToken {
    pub(super) step: u64,
    /// Position of the token in the sequence.
    pub(super) at: usize,
}

/// A token that a step computes and the next one takes.
pub(super) struct PreviousToken {
    /// Index of the token among the tokens of the next step.
    pub(super) at: usize,
    /// Index of the token among those that the earlier step samples.
    pub(super) idx: usize,
}

impl Stepper {
    /// Returns the number of steps that [`Stepper::finish`] can finish.
    pub(crate) fn num_pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether the device still computes the oldest step. False if the group has failed, because such
    /// a step never ends.
    pub(crate) fn is_computing(&self) -> bool {
        let is_computing = self.pending.front().is_some_and(PendingStep::is_computing);
        is_computing && self.group.failure().is_none()
    }

    /// Whether a plan can be computed before the results of the submitted steps are known.
    pub(crate) fn can_begin(&self, model: &Model, plan: &StepPlan) -> bool {
        if self.pending.is_empty() {
            return true;
        }
        let num_logits =
            plan.rows.iter().map(|row| num_scored(row) + usize::from(row.sample.is_some()));
        let num_slices = slices(num_logits.sum(), model.facts().vocab_size as usize).len();
        self.pending.len() < PENDING_STEPS_MAX
            && plan.forks.is_empty()
            && !plan.returns_memory
            && num_slices <= 1
            && plan.rows.iter().all(|row| row.embed.is_none())
    }

    /// Submits the rest of a step to the device: sampling and scoring on rank 0, and the sum that gives
    /// the tokens to the other ranks.
    pub(super) fn submit(
        &mut self,
        model: &Model,
        plan: &StepPlan,
        needed: &NeededPositions,
        hidden: &Array,
    ) -> Result<PendingStep, StepError> {
        let ranges = slices(needed.logits_at.len(), model.facts().vocab_size as usize);
        if 1 < ranges.len() {
            self.evaluate(plan, hidden)?;
        }
        let mut answers = DeviceAnswers { scored: scored_rows(plan, needed), slices: Vec::new() };
        let mut done = vec![hidden.clone()];
        for (nth, range) in ranges.iter().enumerate() {
            let logits = model.logits(&rows(hidden, range));
            let slice = match self.rank {
                0 => self.slice(plan, needed, &Logits { range: range.clone(), values: &logits }),
                _ => SliceAnswers::default(),
            };
            // The other ranks take part in gathering the logits.
            done = if self.rank == 0 { slice.arrays() } else { vec![logits] };
            if nth + 1 < ranges.len() {
                let done: Vec<&Array> = done.iter().collect();
                jackalope_mlx::eval(&done).map_err(|err| self.classify(&err))?;
            }
            answers.slices.push(slice);
        }
        let caches = needed.sampled.iter().map(|&(row_idx, _)| plan.rows[row_idx].cache);
        let caches: Vec<CacheId> = caches.collect();
        let found = answers.slices.iter().filter_map(|slice| Some(&slice.sampled.as_ref()?.found));
        let found: Vec<&Array> = found.map(|found| &found.tokens).collect();
        let own = match found.as_slice() {
            [] => Array::zeros(&[dim(caches.len())], Dtype::U32).after(&[&done[0]]),
            [one] => (*one).clone(),
            several => Array::concatenate(several, 0),
        };
        let tokens = self.sampled_tokens.share_on_device(&self.group, own);
        done.push(tokens.clone());
        let mut roots = self.cache_arrays(plan);
        roots.extend(done.iter().cloned());
        let refs: Vec<&Array> = roots.iter().collect();
        jackalope_mlx::async_eval(&refs).map_err(|err| self.classify(&err))?;
        if needed.logits_at.is_empty() {
            // Nothing that is read depends on the layers, so their caches are waited for.
            done = roots;
        }
        for (idx, cache) in caches.iter().enumerate() {
            let sequence = self.sequences.get_mut(cache).expect("rows hold their sequences");
            sequence.last_sampled = Some(LastSampled::Pending { step: plan.step, idx });
        }
        Ok(PendingStep {
            step: plan.step,
            began: Instant::now(),
            timings: StepTimings::default(),
            counters: HostCounters::default(),
            caches,
            tokens,
            answers,
            done,
        })
    }

    /// Builds the sampling and scoring of some positions.
    fn slice(
        &self,
        plan: &StepPlan,
        needed: &NeededPositions,
        logits: &Logits<'_>,
    ) -> SliceAnswers {
        let range = &logits.range;
        // The step whose tokens this one continues with, if the device still computes them.
        let earlier = self.pending.back();
        let at = |indices: &[usize]| taken(logits.values, indices, range.start);
        let sampled = needed.sampled.iter().filter(|(_, idx)| range.contains(idx));
        let (row_indices, indices): (Vec<usize>, Vec<usize>) = sampled.copied().unzip();
        let sampled = (!indices.is_empty()).then(|| {
            let rows = row_indices.iter().map(|row_idx| {
                let row = &plan.rows[*row_idx];
                let sampling = row.sample.as_ref().expect("only sampling rows are listed");
                let Sequence { tokens, unknown, .. } = &self.sequences[&row.cache];
                let newest = unknown.filter(|it| it.at + 1 == tokens.len());
                let pending = newest.and_then(|it| {
                    earlier.filter(|earlier| earlier.step == it.step)?.row_of(row.cache)
                });
                SampledRow { sampling, history: tokens, pending }
            });
            let rows: Vec<SampledRow<'_>> = rows.collect();
            let own = at(&indices);
            let found = device_sampler::sample(&own, &rows, earlier.map(|earlier| &earlier.tokens));
            let num_tops: Vec<Option<u8>> = rows.iter().map(|it| it.sampling.logprobs).collect();
            let num_top = num_tops.iter().copied().max().flatten();
            let logprobs = num_top
                .map(|num_top| device_sampler::logprobs(&own, &found.tokens, num_top.into()));
            SampledRows { found, logprobs, num_tops }
        });
        let (mut indices, mut targets, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        let vocab_size = logits.values.dim(1);
        for (scored_idx, &(row_idx, first)) in needed.scored.iter().enumerate() {
            let row = &plan.rows[row_idx];
            let score = row.score.as_ref().expect("only scoring rows are listed");
            for idx in range.start.max(first)..range.end.min(first + num_scored(row)) {
                let target = score.targets[idx - first];
                let is_known = i64::from(target) < i64::from(vocab_size);
                indices.push(idx);
                targets.push(if is_known { target } else { 0 });
                positions.push(ScoredPosition { scored_idx, num_top: score.num_top, is_known });
            }
        }
        let scored = (!indices.is_empty()).then(|| {
            let num_top = positions.iter().map(|it| it.num_top).max().unwrap_or(0);
            let targets = Array::from_slice(&targets, &[dim(targets.len())]);
            let logprobs = device_sampler::logprobs(&at(&indices), &targets, num_top.into());
            ScoredPositions { logprobs, positions }
        });
        SliceAnswers { sampled, scored }
    }

    /// Waits for the oldest submitted step and returns its output.
    ///
    /// # Panics
    /// Panics if no step is submitted.
    pub(crate) fn finish(&mut self) -> Result<StepOutput, StepError> {
        let pending = self.pending.pop_front().expect("a step was submitted");
        let PendingStep { step, began, mut timings, counters, caches, tokens, answers, done } =
            pending;
        let (waiting, before) = (Instant::now(), host_counters());
        jackalope_mlx::eval(&done.iter().collect::<Vec<_>>()).map_err(|err| self.classify(&err))?;
        timings.device_wait_us = micros(waiting.elapsed());
        let reading = Instant::now();
        let read = answers.read().map_err(|err| self.classify(&err))?;
        let tokens: Vec<TokenId> = tokens.to_vec().map_err(|err| self.classify(&err))?;
        timings.sampling_us = micros(reading.elapsed());
        let mut output = StepOutput { step, scored: read.scored, ..StepOutput::default() };
        for (cache, (token, logprob)) in caches.iter().zip(read.sampled) {
            output.sampled.push(Sampled { cache: *cache, token, logprob });
        }
        self.note_computed(step, &caches, &tokens);
        if !caches.is_empty() {
            self.sampled_tokens.send_on(&self.group, &tokens).map_err(|err| self.classify(&err))?;
        }
        let counters = counters + (host_counters() - before);
        output.timings = self.ended(timings, began, counters);
        Ok(output)
    }

    /// Records the tokens that the submitted step `computed` has computed, one for each of
    /// `caches`.
    fn note_computed(&mut self, computed: u64, caches: &[CacheId], tokens: &[TokenId]) {
        for (cache, &token) in caches.iter().zip(tokens) {
            // The sequence may have been dropped while its token was computed.
            let Some(sequence) = self.sequences.get_mut(cache) else { continue };
            match sequence.last_sampled {
                Some(LastSampled::Pending { step, .. }) if step == computed => {
                    sequence.last_sampled = Some(LastSampled::Known(token));
                }
                _ => {}
            }
            if let Some(UnknownToken { step, at }) = sequence.unknown
                && step == computed
            {
                sequence.unknown = None;
                if let Some(unknown) = sequence.tokens.get_mut(at) {
                    *unknown = token;
                }
            }
        }
    }

    /// Returns the tokens of all rows as an array, u32 `[tokens]`, if the device still computes
    /// some of them; `None` if the host knows all.
    pub(super) fn device_tokens(&self, inputs: &Inputs) -> Option<Array> {
        let Inputs { tokens, previous, .. } = inputs;
        let computed = &self.pending.back().filter(|_| !previous.is_empty())?.tokens;
        let is_same = previous.iter().enumerate().all(|(at, it)| it.at == at && it.idx == at);
        if is_same && previous.len() == tokens.len() && computed.dim(0) == dim(tokens.len()) {
            return Some(computed.clone());
        }
        let mut sources: Vec<i32> = (0..tokens.len()).map(dim).collect();
        previous.iter().for_each(|it| sources[it.at] = dim(tokens.len() + it.idx));
        let known = Array::from_slice(tokens, &[dim(tokens.len())]);
        let sources = Array::from_slice(&sources, &[dim(tokens.len())]);
        Some(Array::concatenate(&[&known, computed], 0).take(&sources, 0))
    }
}

/// Returns the rows that score, without their log-probabilities.
fn scored_rows(plan: &StepPlan, needed: &NeededPositions) -> Vec<Scored> {
    let rows = needed.scored.iter().map(|(row_idx, _)| &plan.rows[*row_idx]);
    rows.map(|row| Scored { cache: row.cache, start: row.start + 1, logprobs: Vec::new() })
        .collect()
}

/// Returns the rows of `values` at `indices`, counted from `first`.
fn taken(values: &Array, indices: &[usize], first: usize) -> Array {
    if indices.len() == values.dim(0) as usize && indices.is_sorted() {
        return values.clone();
    }
    let indices: Vec<i32> = indices.iter().map(|idx| dim(idx - first)).collect();
    values.take(&Array::from_slice(&indices, &[dim(indices.len())]), 0)
}

#[cfg(test)]
mod tests;
