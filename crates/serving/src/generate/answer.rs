//! Sends an answer to the client, whole or as a stream. Endpoints differ only in their [`AnswerWriter`].
//!
//! ```text
//!            first delta, or ServerLimits::keep_alive has passed
//!  (waiting) ─────────────────────────────▶ (streaming) ──all choices ended──▶ summary, end
//!      │ error: status and error object          │ error: an event in the stream, end
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::response::Response;
use futures_util::{FutureExt, stream};
use jackalope_engine::PrefixMiss;
use jackalope_protocol::Logprob;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{Span, debug};

use super::answering::{Answering, Step, TimedStep};
use super::choice_text::Delta;
use super::job::Job;
use crate::error::ApiError;
use crate::journal::{AnswerStart, Recorder};
use crate::limits::ServerLimits;
use crate::models::Lease;
use crate::notes;
use crate::outcome::AnswerSummary;
use crate::sse;
use crate::state::Serving;

/// Size in bytes up to which events that are already available are merged into one frame.
const FRAME_BYTES: usize = 16 << 10;

/// Writes the answers of one endpoint. Choices are identified by their `index`.
pub trait AnswerWriter: Send + 'static {
    /// Content type of a stream.
    fn stream_type(&self) -> &'static str {
        sse::STREAM_TYPE
    }

    /// Receives the number of prompt tokens found in the cache so far, whenever the computation of
    /// a prompt begins.
    fn started(&mut self, _cached_tokens: u32) {}

    /// Receives the log-probabilities of a choice's prompt, before its first delta.
    fn prompt_scored(&mut self, _choice_idx: usize, _logprobs: Vec<Logprob>) {}

    /// Appends the beginning of a stream, before any part of the answer is known.
    fn push_start(&mut self, _prompt_tokens: u32, _buffer: &mut Vec<u8>) {}

    /// Appends a frame that keeps the connection alive while there is no data to send.
    fn push_keep_alive(&mut self, buffer: &mut Vec<u8>) {
        buffer.extend_from_slice(sse::KEEP_ALIVE.as_bytes());
    }

    /// Appends the events for a delta of a choice. The first delta of a choice comes with its first
    /// token, and is empty if the text of that token is held back.
    fn push_events(&mut self, choice_idx: usize, delta: Delta, buffer: &mut Vec<u8>);

    /// Appends the end of a stream, once every choice has ended.
    fn push_end(&mut self, summary: &AnswerSummary, buffer: &mut Vec<u8>);

    /// Receives each delta of a choice if the answer is sent whole.
    fn observe(&mut self, _choice_idx: usize, _delta: &Delta) {}

    /// The id that the answer carries, if it has one.
    fn answer_id(&self) -> Option<&str> {
        None
    }

    /// Appends the error that ends a stream.
    fn push_error(&mut self, err: &ApiError, buffer: &mut Vec<u8>);

    /// Builds the whole answer; `choices[i]` is everything generated for the choice with index `i`.
    fn whole(&self, choices: Vec<Delta>, summary: &AnswerSummary) -> Response;
}

/// The properties of a job that [`Answer`] needs.
#[derive(Debug)]
struct AnswerPlan {
    is_stream: bool,
    prompt_tokens: u32,
    /// Number of choices sampled for each prompt.
    choices_per_prompt: usize,
    num_choices: usize,
    /// Maximum number of tokens per choice.
    max_tokens: u32,
    /// The requested `max_tokens`, if it exceeds what the context has room for.
    requested_tokens: Option<u32>,
}

impl AnswerPlan {
    fn of(job: &Job) -> AnswerPlan {
        let prompt_tokens: usize = job.prompts.iter().map(|prompt| prompt.tokens().len()).sum();
        let max_tokens = job.prompts[0].requests[0].max_tokens();
        AnswerPlan {
            is_stream: job.rules.output.is_stream,
            prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
            choices_per_prompt: job.num_choices(),
            num_choices: job.num_choices() * job.prompts.len(),
            max_tokens,
            requested_tokens: job.requested_tokens.filter(|requested| max_tokens < *requested),
        }
    }
}

/// An answer in progress. Dropping it cancels the choices that have not ended.
#[derive(Debug)]
pub struct Answer<F: AnswerWriter> {
    answering: Answering,
    format: F,
    plan: AnswerPlan,
    /// Whether each choice has sent its first delta.
    has_begun: Vec<bool>,
    cached_tokens: u32,
    /// Why the first prompt with a prefix miss was not taken from the prefix cache as far as
    /// possible.
    prefix_miss: Option<PrefixMiss>,
    times: Times,
    limits: Arc<ServerLimits>,
    span: Span,
    is_over: bool,
    recorder: Recorder,
    /// Keeps the model loaded until the answer is complete.
    _lease: Arc<Lease>,
    _place: OwnedSemaphorePermit,
}

impl<F: AnswerWriter> Drop for Answer<F> {
    fn drop(&mut self) {
        self.recorder.sum_up(self.summary());
    }
}

impl<F: AnswerWriter> Answer<F> {
    /// Submits a job to the engine.
    pub fn start(
        job: Job,
        format: F,
        serving: &Serving,
        place: OwnedSemaphorePermit,
    ) -> Result<Answer<F>, ApiError> {
        let limits = Arc::clone(serving.state().limits());
        let plan = AnswerPlan::of(&job);
        let timeout = limits.request_timeout.into_iter().chain(job.timeout).min();
        // Before the engine begins.
        let times = Times::new();
        let answering = Answering::start(job, &serving.engine, &serving.text, timeout)?;
        let opening = AnswerStart {
            answer_id: format.answer_id().map(str::to_owned),
            engine_ids: answering.engine_ids(),
            is_stream: plan.is_stream,
            num_choices: plan.num_choices,
            prompt_tokens: plan.prompt_tokens,
            max_tokens: plan.max_tokens,
        };
        debug!(engine_ids = ?opening.engine_ids, answer = opening.answer_id, "submitted");
        Ok(Answer {
            recorder: Recorder::begin(serving.state().journal(), serving, opening),
            answering,
            format,
            has_begun: vec![false; plan.num_choices],
            plan,
            cached_tokens: 0,
            prefix_miss: None,
            times,
            limits,
            span: Span::current(),
            is_over: false,
            _lease: serving.lease(),
            _place: place,
        })
    }

    /// Sends the answer, complete or as a stream.
    ///
    /// # Errors
    /// Returns an error if the answer fails before its first byte was sent.
    pub async fn respond(self) -> Result<Response, ApiError> {
        let AnswerPlan { requested_tokens, max_tokens, .. } = self.plan;
        let mut response =
            if self.plan.is_stream { self.stream().await? } else { self.whole().await? };
        if let Some(requested) = requested_tokens {
            let note = format!(
                "at most {} will be generated, not {requested}: the context has room for no more",
                jackalope_protocol::counted(max_tokens, "token")
            );
            notes::append(&mut response, &note);
        }
        Ok(response)
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        let mut choices = Vec::new();
        choices.resize_with(self.plan.num_choices, Delta::default);
        loop {
            let next = self.next_delta().await;
            match next.inspect_err(|err| self.recorder.failed(err, false))? {
                Some((choice_idx, delta)) => {
                    self.format.observe(choice_idx, &delta);
                    choices[choice_idx].absorb(delta);
                }
                None => break,
            }
        }
        let summary = self.summary();
        self.recorder.succeeded();
        debug!(completion_tokens = summary.completion_tokens, "answered");
        Ok(self.format.whole(choices, &summary))
    }

    /// Streams the answer. An error within the first `keep_alive` period still gets its own HTTP
    /// status; a later one is sent as an event in the stream.
    async fn stream(mut self) -> Result<Response, ApiError> {
        let mut opening = Vec::new();
        let deadline = Instant::now() + self.limits.keep_alive;
        let first = timeout_at(deadline, self.next_delta()).await.ok().transpose();
        let first = first.inspect_err(|err| self.recorder.failed(err, false))?;
        self.format.push_start(self.plan.prompt_tokens, &mut opening);
        match first {
            Some(first) => self.push(Ok(first), &mut opening),
            None => self.format.push_keep_alive(&mut opening),
        }
        let stream_type = self.format.stream_type();
        let opening = stream::iter([Ok::<_, Infallible>(Bytes::from(opening))]);
        let rest = stream::unfold(self, |mut answer| async {
            let frame = answer.next_frame().await?;
            Some((Ok(frame), answer))
        });
        Ok(sse::response(stream_type, stream::StreamExt::chain(opening, rest)))
    }

    /// Returns the next bytes of a stream, or none once everything was sent.
    async fn next_frame(&mut self) -> Option<Bytes> {
        let keep_alive: Duration = self.limits.keep_alive;
        let mut frame = Vec::new();
        while !self.is_over && frame.is_empty() {
            match timeout(keep_alive, self.next_delta()).await {
                Ok(next) => self.push(next, &mut frame),
                Err(_) => self.format.push_keep_alive(&mut frame),
            }
        }
        while !self.is_over && frame.len() < FRAME_BYTES {
            let Some(next) = self.next_delta().now_or_never() else { break };
            self.push(next, &mut frame);
        }
        (!frame.is_empty()).then(|| Bytes::from(frame))
    }

    /// Appends a delta, the end or an error to a stream.
    fn push(&mut self, next: Result<Option<(usize, Delta)>, ApiError>, frame: &mut Vec<u8>) {
        match next {
            Ok(Some((choice_idx, delta))) => self.format.push_events(choice_idx, delta, frame),
            Ok(None) => {
                let summary = self.summary();
                self.format.push_end(&summary, frame);
                self.is_over = true;
                self.recorder.succeeded();
                self.span.in_scope(|| debug!(tokens = summary.completion_tokens, "stream ended"));
            }
            Err(err) => {
                self.format.push_error(&err, frame);
                self.is_over = true;
                self.recorder.failed(&err, true);
                self.span.in_scope(|| debug!(%err, "stream failed"));
            }
        }
    }

    /// Waits for the next delta and the index of its choice; none once all choices have ended.
    /// Cancel safe.
    async fn next_delta(&mut self) -> Result<Option<(usize, Delta)>, ApiError> {
        loop {
            let Some(step) = self.answering.next().await else { return Ok(None) };
            let TimedStep { choice_idx, at, step } = step?;
            match step {
                // Only the first choice of a prompt is counted: the others find the prefix that it
                // has just computed.
                Step::Started { cached_tokens, miss } => {
                    if choice_idx.is_multiple_of(self.plan.choices_per_prompt) {
                        self.cached_tokens += cached_tokens;
                        self.prefix_miss = self.prefix_miss.or(miss);
                        self.format.started(self.cached_tokens);
                    }
                    self.times.started(at);
                }
                Step::PromptScored(logprobs) => self.format.prompt_scored(choice_idx, logprobs),
                Step::Delta(delta) => {
                    self.times.sampled(at);
                    self.recorder.sampled(self.answering.completion_tokens());
                    if let Some(finish) = delta.finish {
                        self.recorder.choice_finished(finish);
                    }
                    // The first delta is sent even if its text is held back: it shows that the
                    // answer has begun.
                    let is_first = !std::mem::replace(&mut self.has_begun[choice_idx], true);
                    if is_first || !delta.is_empty() {
                        return Ok(Some((choice_idx, delta)));
                    }
                }
            }
        }
    }

    fn summary(&self) -> AnswerSummary {
        let times = &self.times;
        let started = times.started.unwrap_or(times.last);
        let first_token = times.first_token.unwrap_or(times.last);
        AnswerSummary {
            prompt_tokens: self.plan.prompt_tokens,
            cached_tokens: self.cached_tokens,
            prefix_miss: self.prefix_miss,
            completion_tokens: self.answering.completion_tokens(),
            reasoning_tokens: self.answering.reasoning_tokens(),
            queue_time: started.duration_since(times.submitted),
            prefill_time: first_token.duration_since(started),
            decode_time: times.last.duration_since(first_token),
            total_time: times.last.duration_since(times.submitted),
        }
    }
}

/// Timestamps of an answer, over all of its choices.
#[derive(Debug)]
struct Times {
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    /// Time of the latest event.
    last: Instant,
}

impl Times {
    fn new() -> Times {
        let now = Instant::now();
        Times { submitted: now, started: None, first_token: None, last: now }
    }

    fn started(&mut self, at: Instant) {
        self.started = Some(self.started.map_or(at, |it| it.min(at)));
        self.last = self.last.max(at);
    }

    fn sampled(&mut self, at: Instant) {
        self.first_token = Some(self.first_token.map_or(at, |it| it.min(at)));
        self.last = self.last.max(at);
    }
}
