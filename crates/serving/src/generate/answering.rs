//! Runs all choices of a job concurrently.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use jackalope_engine::{EngineHandle, Event, Generation, PrefixMiss};
use jackalope_protocol::Logprob;
use jackalope_text::ModelText;
use tokio::time::{Instant, timeout_at};

use super::choice_text::{ChoiceText, Delta};
use super::job::Job;
use crate::error::ApiError;

/// One event of a choice.
#[derive(Debug)]
pub(super) enum Step {
    /// The computation of the prompt has begun.
    Started { cached_tokens: u32, miss: Option<PrefixMiss> },
    /// Log-probabilities of the prompt's tokens, from the second one on.
    PromptScored(Vec<Logprob>),
    /// More text or tokens, or the end of the choice.
    Delta(Delta),
}

/// A step of a choice, and when the engine sent its event.
#[derive(Debug)]
pub(super) struct TimedStep {
    pub(super) choice_idx: usize,
    pub(super) at: Instant,
    pub(super) step: Step,
}

/// The choices of a job while they are being sampled. Choice `c` of prompt `p` has the index `p *
/// num_choices + c`.
#[derive(Debug)]
pub(super) struct Answering {
    choices: Vec<Choice>,
    /// Index of the choice to poll first, rotated so that no choice starves the others.
    next_idx: usize,
    num_open: usize,
    /// Deadline of the answer, and the timeout it follows from.
    deadline: Option<(Instant, Duration)>,
}

#[derive(Debug)]
struct Choice {
    /// None once the choice has ended; dropping an open generation cancels it.
    generation: Option<Generation>,
    text: ChoiceText,
}

impl Answering {
    /// Submits every choice to the engine. If one is rejected, those submitted before it are
    /// cancelled.
    pub(super) fn start(
        job: Job,
        engine: &EngineHandle,
        text: &ModelText,
        timeout: Option<Duration>,
    ) -> Result<Answering, ApiError> {
        let texts = job.choice_texts(text);
        let param = job.param;
        let requests = job.prompts.into_iter().flat_map(|prompt| prompt.requests);
        let mut choices = Vec::with_capacity(texts.len());
        for (request, text) in requests.zip(texts) {
            let generation =
                engine.submit(request).map_err(|err| ApiError::from_submit(err, param))?;
            choices.push(Choice { generation: Some(generation), text });
        }
        let deadline = timeout.map(|timeout| (Instant::now() + timeout, timeout));
        Ok(Answering { num_open: choices.len(), choices, next_idx: 0, deadline })
    }

    /// Waits for the next step; none once all choices have ended. An error ends all choices. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Result<TimedStep, ApiError>> {
        let Some((deadline, timeout)) = self.deadline else {
            return poll_fn(|context| self.poll_next(context)).await;
        };
        let next = timeout_at(deadline, poll_fn(|context| self.poll_next(context))).await;
        next.unwrap_or_else(|_| {
            self.end_all();
            Some(Err(ApiError::TimedOut { timeout }))
        })
    }

    /// Number of tokens sampled so far, over all choices.
    pub(super) fn completion_tokens(&self) -> u32 {
        self.choices.iter().map(|choice| choice.text.num_tokens()).sum()
    }

    /// Number of the tokens sampled so far that belong to reasoning.
    pub(super) fn reasoning_tokens(&self) -> u32 {
        self.choices.iter().map(|choice| choice.text.num_reasoning_tokens()).sum()
    }

    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<TimedStep, ApiError>>> {
        if self.num_open == 0 {
            return Poll::Ready(None);
        }
        let num_choices = self.choices.len();
        for offset in 0..num_choices {
            let idx = (self.next_idx + offset) % num_choices;
            let Some(generation) = &mut self.choices[idx].generation else { continue };
            let Poll::Ready(event) = generation.poll_next(context) else { continue };
            let at = generation.event_at().into();
            self.next_idx = (idx + 1) % num_choices;
            let step = match event {
                Some(event) => self.take(idx, event),
                None => Err(ApiError::ShuttingDown),
            };
            if step.is_err() {
                self.end_all();
            }
            return Poll::Ready(Some(step.map(|step| TimedStep { choice_idx: idx, at, step })));
        }
        Poll::Pending
    }

    fn take(&mut self, idx: usize, event: Event) -> Result<Step, ApiError> {
        let choice = &mut self.choices[idx];
        let delta = match event {
            Event::Started { cached_tokens, miss } => {
                return Ok(Step::Started { cached_tokens, miss });
            }
            Event::PromptScored { logprobs } => return Ok(Step::PromptScored(logprobs)),
            Event::Token { token, logprob } => choice.text.push(token, logprob),
            Event::Embedded { .. } => unreachable!("no embedding was asked for"),
            Event::Finished { reason, .. } => choice.text.finish(reason),
            Event::NotANumber { .. } => return Err(ApiError::NotANumber),
            Event::ConstraintFailed { message, fault, .. } => {
                return Err(ApiError::ConstraintFailed { message, fault });
            }
            Event::Poisonous(failure) => {
                return Err(ApiError::Poisonous { message: failure.to_string() });
            }
            Event::Failed(failure) => return Err(ApiError::from_failure(failure)),
        };
        if delta.finish.is_some() {
            // A stop string or the first tool call may have ended the choice before the engine did.
            choice.generation.take().into_iter().for_each(Generation::complete);
            self.num_open -= 1;
        }
        Ok(Step::Delta(delta))
    }

    /// The engine's ids of the choices that have not ended.
    pub(super) fn engine_ids(&self) -> Vec<u64> {
        let generations = self.choices.iter().filter_map(|choice| choice.generation.as_ref());
        generations.map(|generation| generation.id().0).collect()
    }

    fn end_all(&mut self) {
        self.num_open = 0;
        for choice in &mut self.choices {
            choice.generation = None;
        }
    }
}
