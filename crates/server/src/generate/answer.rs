//! How an answer reaches the client, whole or as it comes. Endpoints differ only in their
//! [`Format`].
//!
//! ```text
//!            first delta, or ServerLimits::keep_alive has passed
//!  (waiting) ─────────────────────────────▶ (streaming) ──all over──▶ summary, end
//!      │ error: status and error object          │ error: told in the stream, end
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::response::Response;
use futures_util::{FutureExt, stream};
use jackalope_protocol::Logprob;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{Span, debug};

use super::answering::{Answering, Step};
use super::choice_text::Delta;
use super::job::Job;
use super::wishes::Wishes;
use crate::error::ApiError;
use crate::journal::{Opening, Recorder};
use crate::limits::ServerLimits;
use crate::models::Lease;
use crate::notes;
use crate::registry::Serving;
use crate::sse;

/// Bytes of events that are put into one write if they are there already.
const FRAME_BYTES: usize = 16 << 10;

/// How an endpoint writes answers. Choices are known by their `index`.
pub(crate) trait Format: Send + 'static {
    /// Content type of a stream.
    fn stream_type(&self) -> &'static str {
        sse::STREAM_TYPE
    }

    /// Takes how much of the prompts was found computed already, before the first delta.
    fn started(&mut self, _cached_tokens: u32) {}

    /// Takes the log-probabilities of a choice's prompt, before its first delta.
    fn prompt_scored(&mut self, _choice_idx: usize, _logprobs: Vec<Logprob>) {}

    /// Appends what a stream begins with, before anything of an answer is known.
    fn push_start(&mut self, _prompt_tokens: u32, _buffer: &mut Vec<u8>) {}

    /// Appends what keeps the connection alive while there is nothing to tell.
    fn push_keep_alive(&mut self, buffer: &mut Vec<u8>) {
        buffer.extend_from_slice(sse::KEEP_ALIVE.as_bytes());
    }

    /// Appends the events that tell what is newly known of a choice. Its first delta comes with its first
    /// token, and is empty if the text of that is held back.
    fn push_events(&mut self, choice_idx: usize, delta: Delta, buffer: &mut Vec<u8>);

    /// Appends what a stream ends with once every choice is over.
    fn push_end(&mut self, summary: &Summary, buffer: &mut Vec<u8>);

    /// Takes what is newly known of a choice that is told as a whole in the end.
    fn heard(&mut self, _choice_idx: usize, _delta: &Delta) {}
    /// The name that the answer carries, if it has one.
    fn answer_id(&self) -> Option<&str> {
        None
    }

    /// Appends the error that ends a stream.
    fn push_error(&mut self, err: &ApiError, buffer: &mut Vec<u8>) {
        sse::push_event(buffer, &err.to_json());
    }

    /// The whole answer; `choices[i]` is all there is of the choice with index `i`.
    fn whole(&self, choices: Vec<Delta>, summary: &Summary) -> Response;
}

/// What an answer took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Summary {
    /// Of all prompts.
    pub(crate) prompt_tokens: u32,
    /// Of those, found computed already.
    pub(crate) cached_tokens: u32,
    /// Drawn, over all choices.
    pub(crate) completion_tokens: u32,
    /// Of those, drawn while thinking.
    pub(crate) reasoning_tokens: u32,
    /// From the request to its first step.
    pub(crate) queue_time: Duration,
    /// From the first step to the first token.
    pub(crate) prefill_time: Duration,
    /// From the first token to the last.
    pub(crate) decode_time: Duration,
    /// From the request to the end.
    pub(crate) total_time: Duration,
}

impl Summary {
    /// Prompt tokens computed per second; 0 if there were none.
    pub(crate) fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens.min(self.prompt_tokens), self.prefill_time)
    }

    /// Tokens drawn per second after the first one; 0 if there were none.
    pub(crate) fn decode_rate(&self) -> f64 {
        rate(self.completion_tokens.saturating_sub(1), self.decode_time)
    }

    /// Tokens drawn per second of the whole time.
    pub(crate) fn total_rate(&self) -> f64 {
        rate(self.completion_tokens, self.total_time)
    }
}

fn rate(num_tokens: u32, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { f64::from(num_tokens) / time.as_secs_f64() }
}

/// What [`Answer`] has to know of a job.
#[derive(Debug)]
pub(crate) struct AnswerPlan {
    is_stream: bool,
    prompt_tokens: u32,
    /// Drawn for each prompt.
    choices_per_prompt: usize,
    num_choices: usize,
    /// Most that a choice may have.
    max_tokens: u32,
    /// Set if more were asked for than the context has room for.
    asked_tokens: Option<u32>,
    /// The field that the prompt came from.
    param: &'static str,
    /// How long the client waits.
    timeout: Option<Duration>,
}

impl AnswerPlan {
    pub(crate) fn new(job: &Job, wishes: &Wishes, param: &'static str) -> AnswerPlan {
        let prompt_tokens: usize = job.prompts.iter().map(|prompt| prompt.tokens().len()).sum();
        let max_tokens = job.prompts[0].requests[0].max_tokens();
        AnswerPlan {
            is_stream: wishes.is_stream,
            prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
            choices_per_prompt: job.num_choices(),
            num_choices: job.num_choices() * job.prompts.len(),
            max_tokens,
            asked_tokens: wishes.options.max_tokens.filter(|asked| max_tokens < *asked),
            param,
            timeout: wishes.timeout,
        }
    }
}

/// An answer on its way. Dropping it cancels what has not been drawn.
#[derive(Debug)]
pub(crate) struct Answer<F: Format> {
    answering: Answering,
    format: F,
    plan: AnswerPlan,
    /// Choices that something was drawn for.
    has_begun: Vec<bool>,
    cached_tokens: u32,
    times: Times,
    limits: Arc<ServerLimits>,
    span: Span,
    is_over: bool,
    recorder: Recorder,
    /// The model stays until the answer is whole.
    _lease: Arc<Lease>,
    _place: OwnedSemaphorePermit,
}

impl<F: Format> Drop for Answer<F> {
    fn drop(&mut self) {
        self.recorder.sum_up(self.summary());
    }
}

impl<F: Format> Answer<F> {
    /// Hands a job to the engine.
    pub(crate) fn start(
        job: Job,
        format: F,
        plan: AnswerPlan,
        serving: &Serving,
        place: OwnedSemaphorePermit,
    ) -> Result<Answer<F>, ApiError> {
        let limits = Arc::clone(serving.state().limits());
        let timeout = limits.request_timeout.into_iter().chain(plan.timeout).min();
        let bounds = (plan.param, timeout);
        let answering = Answering::start(job, serving.engine(), serving.text(), bounds)?;
        let opening = Opening {
            answer_id: format.answer_id().map(str::to_owned),
            engine_ids: answering.engine_ids(),
            is_stream: plan.is_stream,
            num_choices: plan.num_choices,
            prompt_tokens: plan.prompt_tokens,
            max_tokens: plan.max_tokens,
        };
        debug!(engine_ids = ?opening.engine_ids, answer = opening.answer_id, "submitted");
        Ok(Answer {
            recorder: Recorder::begin(serving, opening),
            answering,
            format,
            has_begun: vec![false; plan.num_choices],
            plan,
            cached_tokens: 0,
            times: Times::new(),
            limits,
            span: Span::current(),
            is_over: false,
            _lease: serving.lease(),
            _place: place,
        })
    }

    pub(crate) async fn respond(self) -> Result<Response, ApiError> {
        let AnswerPlan { asked_tokens, max_tokens, .. } = self.plan;
        let mut response = match self.plan.is_stream {
            true => self.stream().await?,
            false => self.whole().await?,
        };
        if let Some(asked) = asked_tokens {
            let note = format!(
                "at most {max_tokens} tokens are generated, not {asked}: the context has room for no more"
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
                    self.format.heard(choice_idx, &delta);
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

    /// A failure that comes at once still gets its own status; one that comes later is told in the
    /// stream.
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

    /// The next bytes of a stream; none once all has been told.
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

    /// Appends what was heard to a stream.
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

    /// What is newly known of which choice; none once all are over. Cancel safe.
    async fn next_delta(&mut self) -> Result<Option<(usize, Delta)>, ApiError> {
        loop {
            let Some(step) = self.answering.next().await else { return Ok(None) };
            let (choice_idx, step) = step?;
            match step {
                // The other choices of a prompt find what the first one has left.
                Step::Started { cached_tokens } => {
                    if choice_idx.is_multiple_of(self.plan.choices_per_prompt) {
                        self.cached_tokens += cached_tokens;
                        self.format.started(self.cached_tokens);
                    }
                    self.times.started();
                }
                Step::PromptScored(logprobs) => self.format.prompt_scored(choice_idx, logprobs),
                Step::Delta(delta) => {
                    self.times.drew();
                    self.recorder.drew(self.answering.completion_tokens());
                    if let Some(finish) = delta.finish {
                        self.recorder.choice_finished(finish);
                    }
                    // The first one says that there is an answer, also if its text is held back.
                    let is_first = !std::mem::replace(&mut self.has_begun[choice_idx], true);
                    if is_first || !delta.is_empty() {
                        return Ok(Some((choice_idx, delta)));
                    }
                }
            }
        }
    }

    fn summary(&self) -> Summary {
        let times = &self.times;
        let started = times.started.unwrap_or(times.last);
        let first_token = times.first_token.unwrap_or(times.last);
        Summary {
            prompt_tokens: self.plan.prompt_tokens,
            cached_tokens: self.cached_tokens,
            completion_tokens: self.answering.completion_tokens(),
            reasoning_tokens: self.answering.reasoning_tokens(),
            queue_time: started.duration_since(times.submitted),
            prefill_time: first_token.duration_since(started),
            decode_time: times.last.duration_since(first_token),
            total_time: times.last.duration_since(times.submitted),
        }
    }
}

/// When things happened to an answer, over all of its choices.
#[derive(Debug)]
struct Times {
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    /// Of whatever was heard last.
    last: Instant,
}

impl Times {
    fn new() -> Times {
        let now = Instant::now();
        Times { submitted: now, started: None, first_token: None, last: now }
    }

    fn started(&mut self) {
        self.last = Instant::now();
        self.started.get_or_insert(self.last);
    }

    fn drew(&mut self) {
        self.last = Instant::now();
        self.first_token.get_or_insert(self.last);
    }
}
