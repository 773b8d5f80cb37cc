//! Answers of `Predict` and `PredictStream`.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::response::Response;
use jackalope_server::ChatLogprobs;
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{
    AnswerSummary, AnswerWriter, CallDelta, Delta, Job, ScoredToken,
};
use jackalope_serving::ids::new_id;
use jackalope_serving::state::Serving;
use jackalope_text::Tokenizer;

use crate::frames::{self, CONTENT, Ending, Status, push};
use crate::messages::{ChatDelta, Reply, ToolCallDelta};

/// Writes an answer as replies: text as it is generated, token counts and times in the last reply.
#[derive(Debug)]
pub(crate) struct ReplyFormat {
    tokenizer: Arc<Tokenizer>,
    has_logprobs: bool,
    /// Scored tokens of a stream, which are sent at its end.
    scored: Vec<ScoredToken>,
    num_calls: usize,
    ending: Ending,
}

impl ReplyFormat {
    pub(crate) fn new(job: &Job, serving: &Serving) -> ReplyFormat {
        ReplyFormat {
            tokenizer: Arc::clone(&serving.text.tokenizer),
            has_logprobs: job.has_logprobs,
            scored: Vec::new(),
            num_calls: 0,
            ending: Arc::new(OnceLock::new()),
        }
    }

    /// The status of the call, set once the answer has ended.
    pub(crate) fn ending(&self) -> Ending {
        Arc::clone(&self.ending)
    }

    fn end(&self, status: Status) {
        // Only the first status counts.
        self.ending.set(status).ok();
    }

    fn logprobs(&self, scored: &[ScoredToken]) -> Vec<u8> {
        if !self.has_logprobs {
            return Vec::new();
        }
        let logprobs = ChatLogprobs::new(scored, &self.tokenizer);
        serde_json::to_vec(&logprobs).expect("our wire types have string keys")
    }
}

impl AnswerWriter for ReplyFormat {
    fn stream_type(&self) -> &'static str {
        CONTENT
    }

    /// Writes nothing: HTTP/2 keeps its connections alive itself.
    fn push_keep_alive(&mut self, _buffer: &mut Vec<u8>) {}

    fn push_events(&mut self, _choice_idx: usize, mut delta: Delta, buffer: &mut Vec<u8>) {
        if self.has_logprobs {
            self.scored.append(&mut delta.scored);
        }
        if delta.text.is_empty() && (delta.is_plain() || delta.only_ends_calls()) {
            return;
        }
        push(&reply(delta, &mut self.num_calls), buffer);
    }

    fn push_end(&mut self, summary: &AnswerSummary, buffer: &mut Vec<u8>) {
        let scored = std::mem::take(&mut self.scored);
        let reply = Reply { logprobs: self.logprobs(&scored), ..Reply::default() };
        push(&with_totals(reply, summary), buffer);
        self.end(Status::OK);
    }

    fn push_error(&mut self, err: &ApiError, _buffer: &mut Vec<u8>) {
        self.end(Status::of(err));
    }

    fn whole(&self, choices: Vec<Delta>, summary: &AnswerSummary) -> Response {
        let delta = choices.into_iter().next().unwrap_or_default();
        let logprobs = self.logprobs(&delta.scored);
        let reply = Reply { logprobs, ..reply(delta, &mut 0) };
        frames::answer(&with_totals(reply, summary))
    }
}

/// Converts a delta to a reply, with the text in both fields that clients read. `num_calls` counts
/// the tool calls that have begun so far.
fn reply(delta: Delta, num_calls: &mut usize) -> Reply {
    let call = |call: CallDelta| {
        *num_calls += usize::from(call.head.is_some());
        let id = call.head.map(|head| (head.id.unwrap_or_else(|| new_id("call_")), head.name));
        let (id, name) = id.unwrap_or_default();
        let index = count(num_calls.saturating_sub(1));
        ToolCallDelta { index, id, name, arguments: call.arguments }
    };
    let message = delta.text.clone().into_bytes();
    let chat_delta = ChatDelta {
        content: delta.text,
        reasoning_content: delta.reasoning,
        tool_calls: delta.calls.into_iter().map(call).collect(),
    };
    Reply { message, chat_deltas: vec![chat_delta], ..Reply::default() }
}

/// Returns the reply with the token counts and times of the answer.
fn with_totals(reply: Reply, summary: &AnswerSummary) -> Reply {
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    Reply {
        tokens: count(summary.completion_tokens),
        prompt_tokens: count(summary.prompt_tokens),
        timing_prompt_processing: millis(summary.prefill_time),
        timing_token_generation: millis(summary.decode_time),
        ..reply
    }
}

/// Converts a number to the protocol's integer type; larger numbers become its maximum.
pub(crate) fn count(number: impl TryInto<i32>) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}
