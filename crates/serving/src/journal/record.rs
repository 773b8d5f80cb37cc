//! The record of an ended answer. It contains neither the prompt nor the answer.

use std::time::Duration;

use jackalope_engine::PrefixMiss;
use serde_json::{Value, json};

use crate::numbers::{gib, rounded};
use crate::trace_parent::TraceParent;

/// How an answer ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ending {
    /// The whole answer was sent.
    Ok,
    /// The answer failed, with this message.
    Error(String),
    /// The request timed out.
    Timeout,
    /// The client disconnected, or the request was cancelled.
    Cancelled,
}

impl Ending {
    /// The names used in records and metrics, in the order of [`Ending::idx`].
    pub const NAMES: [&str; 4] = ["ok", "error", "timeout", "cancelled"];

    pub fn idx(&self) -> usize {
        match self {
            Ending::Ok => 0,
            Ending::Error(_) => 1,
            Ending::Timeout => 2,
            Ending::Cancelled => 3,
        }
    }

    pub fn name(&self) -> &'static str {
        Ending::NAMES[self.idx()]
    }
}

/// The record of an answer that has ended.
#[derive(Clone, Debug)]
pub struct AnswerRecord {
    pub request_id: String,
    /// The id that the answer itself carries.
    pub answer_id: Option<String>,
    /// The engine's ids of the answer's choices.
    pub engine_ids: Vec<u64>,
    /// Time of the end, in seconds since 1970.
    pub ended_unix: f64,
    pub kind: &'static str,
    pub model: String,
    /// Name of the key of the request.
    pub key: Option<String>,
    /// The client's span that the request belongs to.
    pub trace_parent: Option<TraceParent>,
    pub is_stream: bool,
    pub num_choices: usize,
    pub max_tokens: u32,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    /// Reason why the other prompt tokens were not cached.
    pub prefix_miss: Option<PrefixMiss>,
    pub completion_tokens: u32,
    pub reasoning_tokens: u32,
    pub queue_time: Duration,
    pub prefill_time: Duration,
    pub decode_time: Duration,
    pub total_time: Duration,
    /// Whether any token was sampled; without one, the time to the first token is meaningless.
    pub has_tokens: bool,
    pub ending: Ending,
    /// Finish reason of the first choice that the engine ended.
    pub finish_reason: Option<&'static str>,
    /// Memory of the ranks' arrays in bytes, when the answer began and when it ended.
    pub memory_bytes: (u64, u64),
}

impl AnswerRecord {
    /// Time from the request to the first token.
    pub fn time_to_first_token(&self) -> Duration {
        self.queue_time + self.prefill_time
    }

    /// Tokens sampled per second of the total time.
    pub fn tokens_per_second(&self) -> f64 {
        let seconds = self.total_time.as_secs_f64();
        if seconds > 0.0 { f64::from(self.completion_tokens) / seconds } else { 0.0 }
    }

    /// Converts to JSON, with the fields of mlx-jaccl-cluster's records first.
    pub fn to_json(&self) -> Value {
        let (before, after) = self.memory_bytes;
        let message = match &self.ending {
            Ending::Error(message) => Some(message.as_str()),
            Ending::Timeout => Some("the request was not answered in time"),
            Ending::Ok | Ending::Cancelled => None,
        };
        let seconds = |time: Duration| rounded(time.as_secs_f64(), 3);
        json!({
            "request_id": self.request_id,
            "timestamp": rounded(self.ended_unix, 3),
            "kind": self.kind,
            "model_id": self.model,
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.completion_tokens,
            "max_tokens_requested": self.max_tokens,
            "wall_time_s": seconds(self.total_time),
            "tokens_per_second": rounded(self.tokens_per_second(), 1),
            "memory_before_gb": gib(before),
            "memory_after_gb": gib(after),
            "memory_delta_gb": rounded(gib(after) - gib(before), 3),
            "kv_cache_hit": self.cached_tokens > 0,
            "status": self.ending.name(),
            "error_message": message,
            "finish_reason": self.finish_reason,
            "is_stream": self.is_stream,
            "answer_id": self.answer_id,
            "engine_ids": self.engine_ids,
            "key": self.key,
            "num_choices": self.num_choices,
            "cached_tokens": self.cached_tokens,
            "miss_reason": self.prefix_miss.map(|miss| miss.reason.name()),
            "diverged_at": self.prefix_miss.map(|miss| miss.diverged_at),
            "reasoning_tokens": self.reasoning_tokens,
            "queue_s": seconds(self.queue_time),
            "time_to_first_token_s": self.has_tokens.then(|| seconds(self.time_to_first_token())),
            "decode_s": seconds(self.decode_time),
        })
    }
}
