//! How an answer reaches the client, whole or as it comes. The two endpoints differ only in their
//! [`Format`].
//!
//! ```text
//!            first delta, or ServerLimits::keep_alive has passed
//!  (waiting) ─────────────────────────────▶ (streaming) ──all over──▶ usage, [DONE]
//!      │ error: status and error object          │ error: data: {"error": …}, end
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::response::Response;
use futures_util::{FutureExt, stream};
use jackalope_protocol::Logprob;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{Span, debug};

use super::wishes::Wishes;
use crate::ServerState;
use crate::error::ApiError;
use crate::generate::{Answering, Delta, Job, Step};
use crate::limits::ServerLimits;
use crate::sse;

/// Bytes of events that are put into one write if they are there already.
const FRAME_BYTES: usize = 16 << 10;

/// How an endpoint writes answers. Choices are known by their `index`.
pub(super) trait Format: Send + 'static {
    /// Takes the log-probabilities of a choice's prompt, before its first delta.
    fn prompt_scored(&mut self, choice_idx: usize, logprobs: Vec<Logprob>);

    /// Appends the events that tell what is newly known of a choice.
    fn push_events(&mut self, choice_idx: usize, delta: Delta, buffer: &mut Vec<u8>);

    /// Appends the event that tells the usage of a stream.
    fn push_usage(&mut self, usage: Usage, buffer: &mut Vec<u8>);

    /// The whole answer; `choices[i]` is all there is of the choice with index `i`.
    fn whole(&self, choices: &[Delta], usage: Usage) -> Response;
}

/// Tokens counted, as the API tells them.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PromptTokensDetails {
    cached_tokens: u32,
}

/// What [`Answer`] has to know of a job.
#[derive(Debug)]
pub(super) struct AnswerPlan {
    is_stream: bool,
    include_usage: bool,
    prompt_tokens: u32,
    /// Drawn for each prompt.
    choices_per_prompt: usize,
    num_choices: usize,
    /// The field that the prompt came from.
    param: &'static str,
}

impl AnswerPlan {
    pub(super) fn new(job: &Job, wishes: &Wishes, param: &'static str) -> AnswerPlan {
        let prompt_tokens: usize = job.prompts.iter().map(|prompt| prompt.tokens().len()).sum();
        AnswerPlan {
            is_stream: wishes.is_stream,
            include_usage: wishes.include_usage,
            prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
            choices_per_prompt: job.num_choices(),
            num_choices: job.num_choices() * job.prompts.len(),
            param,
        }
    }
}

/// An answer on its way. Dropping it cancels what has not been drawn.
#[derive(Debug)]
pub(super) struct Answer<F> {
    answering: Answering,
    format: F,
    plan: AnswerPlan,
    cached_tokens: u32,
    limits: Arc<ServerLimits>,
    span: Span,
    is_over: bool,
    _place: OwnedSemaphorePermit,
}

impl<F: Format> Answer<F> {
    /// Hands a job to the engine.
    pub(super) fn start(
        job: Job,
        format: F,
        plan: AnswerPlan,
        state: &ServerState,
        place: OwnedSemaphorePermit,
    ) -> Result<Answer<F>, ApiError> {
        let bounds = (plan.param, state.limits().request_timeout);
        let answering = Answering::start(job, state.engine(), state.text(), bounds)?;
        Ok(Answer {
            answering,
            format,
            plan,
            cached_tokens: 0,
            limits: Arc::clone(state.limits()),
            span: Span::current(),
            is_over: false,
            _place: place,
        })
    }

    pub(super) async fn respond(self) -> Result<Response, ApiError> {
        match self.plan.is_stream {
            true => self.stream().await,
            false => self.whole().await,
        }
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        let mut choices = Vec::new();
        choices.resize_with(self.plan.num_choices, Delta::default);
        while let Some((choice_idx, delta)) = self.next_delta().await? {
            choices[choice_idx].absorb(delta);
        }
        let usage = self.usage();
        debug!(completion_tokens = usage.completion_tokens, "answered");
        Ok(self.format.whole(&choices, usage))
    }

    /// A failure that comes at once still gets its own status; one that comes later is told in the
    /// stream.
    async fn stream(mut self) -> Result<Response, ApiError> {
        let mut opening = Vec::new();
        let deadline = Instant::now() + self.limits.keep_alive;
        match timeout_at(deadline, self.next_delta()).await {
            Ok(first) => self.push(Ok(first?), &mut opening),
            Err(_) => opening.extend_from_slice(sse::KEEP_ALIVE.as_bytes()),
        }
        let opening = stream::iter([Ok::<_, Infallible>(Bytes::from(opening))]);
        let rest = stream::unfold(self, |mut answer| async {
            let frame = answer.next_frame().await?;
            Some((Ok(frame), answer))
        });
        Ok(sse::response(stream::StreamExt::chain(opening, rest)))
    }

    /// The next bytes of a stream; none once all has been told.
    async fn next_frame(&mut self) -> Option<Bytes> {
        let keep_alive: Duration = self.limits.keep_alive;
        let mut frame = Vec::new();
        while !self.is_over && frame.is_empty() {
            match timeout(keep_alive, self.next_delta()).await {
                Ok(next) => self.push(next, &mut frame),
                Err(_) => frame.extend_from_slice(sse::KEEP_ALIVE.as_bytes()),
            }
        }
        while !self.is_over && frame.len() < FRAME_BYTES {
            let Some(next) = self.next_delta().now_or_never() else { break };
            self.push(next, &mut frame);
        }
        (!frame.is_empty()).then(|| Bytes::from(frame))
    }

    /// Appends what was heard to a stream.
    fn push(&mut self, next: Result<Option<(usize, Delta)>, ApiError>, frame: &mut Vec<u8>) {
        match next {
            Ok(Some((choice_idx, delta))) => self.format.push_events(choice_idx, delta, frame),
            Ok(None) => {
                let usage = self.usage();
                if self.plan.include_usage {
                    self.format.push_usage(usage, frame);
                }
                frame.extend_from_slice(sse::DONE.as_bytes());
                self.is_over = true;
                self.span.in_scope(|| debug!(tokens = usage.completion_tokens, "stream ended"));
            }
            Err(err) => {
                sse::push_event(frame, &err.to_json());
                self.is_over = true;
                self.span.in_scope(|| debug!(%err, "stream failed"));
            }
        }
    }

    /// What is newly known of which choice; none once all are over. Cancel safe.
    async fn next_delta(&mut self) -> Result<Option<(usize, Delta)>, ApiError> {
        while let Some(step) = self.answering.next().await {
            let (choice_idx, step) = step?;
            match step {
                // The other choices of a prompt find what the first one has left.
                Step::Started { cached_tokens } => {
                    if choice_idx.is_multiple_of(self.plan.choices_per_prompt) {
                        self.cached_tokens += cached_tokens;
                    }
                }
                Step::PromptScored(logprobs) => self.format.prompt_scored(choice_idx, logprobs),
                Step::Delta(delta) if delta.is_empty() => {}
                Step::Delta(delta) => return Ok(Some((choice_idx, delta))),
            }
        }
        Ok(None)
    }

    fn usage(&self) -> Usage {
        let completion_tokens = self.answering.completion_tokens();
        let prompt_tokens = self.plan.prompt_tokens;
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            prompt_tokens_details: PromptTokensDetails { cached_tokens: self.cached_tokens },
        }
    }
}
