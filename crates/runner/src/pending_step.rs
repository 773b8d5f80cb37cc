//! A step that the device computes, and what the host reads of it afterwards: tokens and the
//! log-probabilities that were asked for, never whole logits.

use std::time::Instant;

use jackalope_mlx::{Array, Error, HostCounters};
use jackalope_protocol::{CacheId, Logprob, Scored, StepTimings, TokenId};

use crate::device_sampler::{DeviceLogprobs, DeviceTokens};

/// A step that was submitted to the device and whose results have not been read.
pub(crate) struct PendingStep {
    /// Number of the plan.
    pub(crate) step: u64,
    pub(crate) began: Instant,
    pub(crate) timings: StepTimings,
    /// The host's work to build and submit the step.
    pub(crate) counters: HostCounters,
    /// Caches of the rows that sample, in plan order.
    pub(crate) caches: Vec<CacheId>,
    /// Tokens of the rows that sample, u32 `[rows that sample]`, on the ranks that know them.
    pub(crate) tokens: Array,
    pub(crate) answers: DeviceAnswers,
    /// Arrays to wait for: once all of them are computed, the step is done.
    pub(crate) done: Vec<Array>,
}

impl PendingStep {
    /// Returns the index among `tokens` of the token that the step samples for `cache`.
    pub(crate) fn row_of(&self, cache: CacheId) -> Option<usize> {
        self.caches.iter().position(|it| *it == cache)
    }

    /// Whether the device still computes the step.
    pub(crate) fn is_computing(&self) -> bool {
        !self.done.iter().all(Array::is_available)
    }
}

/// Results of rank 0 on the device.
#[derive(Default)]
pub(crate) struct DeviceAnswers {
    /// Results of the needed positions, slice by slice, in plan order.
    pub(crate) slices: Vec<SliceAnswers>,
    /// The rows that score, without their log-probabilities.
    pub(crate) scored: Vec<Scored>,
}

/// Results of some of the positions whose logits are needed.
#[derive(Default)]
pub(crate) struct SliceAnswers {
    pub(crate) sampled: Option<SampledRows>,
    pub(crate) scored: Option<ScoredPositions>,
}

/// Results of the rows that sample.
pub(crate) struct SampledRows {
    pub(crate) found: DeviceTokens,
    /// Log-probabilities of all these rows; `None` if none of them asks for any.
    pub(crate) logprobs: Option<DeviceLogprobs>,
    /// For each row, the number of most likely tokens that it asks for; `None` if it asks for no
    /// log-probabilities.
    pub(crate) num_tops: Vec<Option<u8>>,
}

/// Results of positions whose next tokens are known.
pub(crate) struct ScoredPositions {
    pub(crate) logprobs: DeviceLogprobs,
    pub(crate) positions: Vec<ScoredPosition>,
}

/// A position whose next token is known.
pub(crate) struct ScoredPosition {
    /// Index of the position's row among those that score.
    pub(crate) scored_idx: usize,
    pub(crate) num_top: u8,
    /// Whether the vocabulary has the next token.
    pub(crate) is_known: bool,
}

/// Results of a step that the host has read from the device.
#[derive(Default)]
pub(crate) struct ReadAnswers {
    pub(crate) sampled: Vec<(Option<TokenId>, Option<Logprob>)>,
    pub(crate) scored: Vec<Scored>,
}

impl SliceAnswers {
    /// Returns all arrays that are read.
    pub(crate) fn arrays(&self) -> Vec<Array> {
        let of_logprobs =
            |it: &DeviceLogprobs| [&it.own, &it.top, &it.top_values].map(Clone::clone).into_iter();
        let sampled = self
            .sampled
            .iter()
            .flat_map(|it| [&it.found.tokens, &it.found.are_numbers].map(Clone::clone).into_iter());
        let logprobs = self.sampled.iter().filter_map(|it| it.logprobs.as_ref());
        let scored = self.scored.iter().map(|it| &it.logprobs);
        sampled.chain(logprobs.chain(scored).flat_map(of_logprobs)).collect()
    }
}

impl DeviceAnswers {
    /// Reads the results, and waits for them if they are not there yet.
    ///
    /// # Errors
    /// Fails if computing fails.
    pub(crate) fn read(self) -> Result<ReadAnswers, Error> {
        let mut read = ReadAnswers { sampled: Vec::new(), scored: self.scored };
        for SliceAnswers { sampled, scored } in self.slices {
            if let Some(SampledRows { found, logprobs, num_tops }) = sampled {
                let tokens: Vec<TokenId> = found.tokens.to_vec()?;
                let are_numbers = found.are_numbers.pin()?;
                let are_numbers = are_numbers.values::<u8>();
                let logprobs = logprobs.map(HostLogprobs::read).transpose()?;
                for (row, num_top) in num_tops.iter().enumerate() {
                    if are_numbers[row] == 0 {
                        read.sampled.push((None, None));
                        continue;
                    }
                    let asked = logprobs.as_ref().zip(*num_top);
                    let logprob = asked.map(|(logprobs, num_top)| logprobs.row(row, num_top));
                    read.sampled.push((Some(tokens[row]), logprob));
                }
            }
            if let Some(ScoredPositions { logprobs, positions }) = scored {
                let logprobs = HostLogprobs::read(logprobs)?;
                for (row, position) in positions.iter().enumerate() {
                    let mut logprob = logprobs.row(row, position.num_top);
                    if !position.is_known {
                        logprob.logprob = f32::NEG_INFINITY;
                    }
                    read.scored[position.scored_idx].logprobs.push(logprob);
                }
            }
        }
        Ok(read)
    }
}

/// Log-probabilities on the host.
struct HostLogprobs {
    own: Vec<f32>,
    top: Vec<TokenId>,
    top_values: Vec<f32>,
    /// Number of most likely tokens of each row.
    num_top: usize,
}

impl HostLogprobs {
    fn read(logprobs: DeviceLogprobs) -> Result<HostLogprobs, Error> {
        let num_top = logprobs.top.dim(1) as usize;
        let DeviceLogprobs { own, top, top_values } = logprobs;
        let (own, top) = (own.to_vec()?, top.to_vec()?);
        Ok(HostLogprobs { own, top, top_values: top_values.to_vec()?, num_top })
    }

    fn row(&self, row: usize, num_top: u8) -> Logprob {
        let own = row * self.num_top..row * self.num_top + self.num_top.min(num_top.into());
        let top = self.top[own.clone()].iter().copied().zip(self.top_values[own].iter().copied());
        Logprob { logprob: self.own[row], top: top.collect() }
    }
}
