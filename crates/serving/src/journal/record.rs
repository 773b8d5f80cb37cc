//! The record of an ended answer. It contains neither the prompt nor the answer.

use std::time::Duration;

use serde_json::{Value, json};

use super::open_request::AnswerStart;
use crate::numbers::{gib, rounded};
use crate::outcome::AnswerSummary;
use crate::trace_parent::TraceParent;

/// How an answer ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AnswerEnding {
    /// The whole answer was sent.
    Ok,
    /// The answer failed, with this message.
    Error(String),
    /// The request timed out.
    Timeout,
    /// The client disconnected, or the request was cancelled.
    Cancelled,
}

impl AnswerEnding {
    /// The names used in records and metrics, in the order of [`AnswerEnding::idx`].
    pub const NAMES: [&str; 4] = ["ok", "error", "timeout", "cancelled"];

    /// Index of the ending in [`AnswerEnding::NAMES`].
    pub fn idx(&self) -> usize {
        match self {
            AnswerEnding::Ok => 0,
            AnswerEnding::Error(_) => 1,
            AnswerEnding::Timeout => 2,
            AnswerEnding::Cancelled => 3,
        }
    }

    /// Name of the ending in records and metrics.
    pub fn name(&self) -> &'static str {
        AnswerEnding::NAMES[self.idx()]
    }
}

/// The record of an answer that has ended.
#[derive(Clone, Debug)]
pub struct AnswerRecord {
    /// Name of the HTTP request.
    pub request_id: String,
    /// Properties of the answer that were known when it began.
    pub start: AnswerStart,
    /// Token counts and times.
    pub summary: AnswerSummary,
    /// Time of the end, in seconds since 1970.
    pub ended_unix: f64,
    /// Kind of the request in one word: `chat`, `completions`, …
    pub kind: &'static str,
    /// Id of the model.
    pub model: String,
    /// Name of the key of the request.
    pub key: Option<String>,
    /// The client's span that the request belongs to.
    pub trace_parent: Option<TraceParent>,
    /// How the answer ended.
    pub ending: AnswerEnding,
    /// Finish reason of the first choice that the engine ended.
    pub finish_reason: Option<&'static str>,
    /// Memory of the ranks' arrays in bytes, when the answer began and when it ended.
    pub memory_bytes: (u64, u64),
}

impl AnswerRecord {
    /// Time from the request to the first token; none if no token was sampled.
    pub fn time_to_first_token(&self) -> Option<Duration> {
        let AnswerSummary { queue_time, prefill_time, completion_tokens, .. } = self.summary;
        (0 < completion_tokens).then_some(queue_time + prefill_time)
    }

    /// Converts to JSON, with the fields of mlx-jaccl-cluster's records first.
    pub fn to_json(&self) -> Value {
        let AnswerRecord { start, summary, .. } = self;
        let (before, after) = self.memory_bytes;
        let message = match &self.ending {
            AnswerEnding::Error(message) => Some(message.as_str()),
            AnswerEnding::Timeout => Some("the request was not answered in time"),
            AnswerEnding::Ok | AnswerEnding::Cancelled => None,
        };
        let seconds = |time: Duration| rounded(time.as_secs_f64(), 3);
        json!({
            "request_id": self.request_id,
            "timestamp": rounded(self.ended_unix, 3),
            "kind": self.kind,
            "model_id": self.model,
            "prompt_tokens": summary.prompt_tokens,
            "generated_tokens": summary.completion_tokens,
            "max_tokens_requested": start.max_tokens,
            "wall_time_s": seconds(summary.total_time),
            "tokens_per_second": rounded(summary.total_rate(), 1),
            "memory_before_gb": gib(before),
            "memory_after_gb": gib(after),
            "memory_delta_gb": rounded(gib(after) - gib(before), 3),
            "kv_cache_hit": summary.cached_tokens > 0,
            "status": self.ending.name(),
            "error_message": message,
            "finish_reason": self.finish_reason,
            "is_stream": start.is_stream,
            "answer_id": start.answer_id,
            "engine_ids": start.engine_ids,
            "key": self.key,
            "num_choices": start.num_choices,
            "cached_tokens": summary.cached_tokens,
            "miss_reason": summary.prefix_miss.map(|miss| miss.reason.name()),
            "diverged_at": summary.prefix_miss.map(|miss| miss.diverged_at),
            "reasoning_tokens": summary.reasoning_tokens,
            "queue_s": seconds(summary.queue_time),
            "time_to_first_token_s": self.time_to_first_token().map(seconds),
            "decode_s": seconds(summary.decode_time),
        })
    }
}
