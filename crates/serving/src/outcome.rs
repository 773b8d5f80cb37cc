//! How an answer ended, with its token counts and times.

use std::time::Duration;

use jackalope_engine::PrefixMiss;

/// Reason why a choice ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Finish {
    /// The model ended the choice, or a stop string or stop token did.
    Stop,
    /// The choice reached the requested length or the end of the context.
    Length,
    /// The model calls tools.
    ToolCalls,
    /// The choice was cancelled by its id.
    Cancelled,
}

/// Token counts and times of an answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerSummary {
    /// Number of tokens of all prompts.
    pub prompt_tokens: u32,
    /// Number of prompt tokens found in the cache.
    pub cached_tokens: u32,
    /// Reason why the other prompt tokens were not found in the cache; with several prompts, that
    /// of the first one that has a reason.
    pub prefix_miss: Option<PrefixMiss>,
    /// Number of tokens sampled, over all choices.
    pub completion_tokens: u32,
    /// Number of `completion_tokens` that belong to reasoning.
    pub reasoning_tokens: u32,
    /// Time from the request to its first step.
    pub queue_time: Duration,
    /// Time from the first step to the first token.
    pub prefill_time: Duration,
    /// Time from the first token to the last.
    pub decode_time: Duration,
    /// Time from the request to the end.
    pub total_time: Duration,
}

impl AnswerSummary {
    /// Prompt tokens computed per second, without cached ones; 0 if the prefill took no time.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens.min(self.prompt_tokens), self.prefill_time)
    }

    /// Tokens sampled per second after the first one; 0 if the decoding took no time.
    pub fn decode_rate(&self) -> f64 {
        rate(self.completion_tokens.saturating_sub(1), self.decode_time)
    }

    /// Tokens sampled per second of the total time.
    pub fn total_rate(&self) -> f64 {
        rate(self.completion_tokens, self.total_time)
    }
}

fn rate(num_tokens: u32, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { f64::from(num_tokens) / time.as_secs_f64() }
}
