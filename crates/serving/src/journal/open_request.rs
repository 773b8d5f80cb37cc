//! Answers in progress.

use std::sync::atomic::AtomicU32;
use std::time::Instant;

use jackalope_engine::{EngineHandle, RequestId};

use crate::caller::ApiCaller;
use crate::engine_answer::answered;
use crate::error::ApiError;

/// The properties of an answer that are known when it begins.
#[derive(Clone, Debug)]
pub struct AnswerStart {
    /// The id that the answer itself carries.
    pub answer_id: Option<String>,
    /// The engine's ids of the answer's choices.
    pub engine_ids: Vec<u64>,
    /// Whether the answer is streamed.
    pub is_stream: bool,
    /// Number of choices; 0 if no tokens are sampled, as for an embedding.
    pub num_choices: usize,
    /// Number of tokens of all prompts.
    pub prompt_tokens: u32,
    /// Maximum number of tokens per choice.
    pub max_tokens: u32,
}

/// An answer in progress.
#[derive(Debug)]
pub struct AnswerInProgress {
    /// The caller to be answered.
    pub caller: ApiCaller,
    /// Id of the model.
    pub model: String,
    /// Properties of the answer that were known when it began.
    pub opening: AnswerStart,
    /// Time when the answer began.
    pub began: Instant,
    /// Number of tokens sampled so far.
    pub completion_tokens: AtomicU32,
    pub(super) engine: EngineHandle,
}

impl AnswerInProgress {
    /// Returns whether this is the id of the request or of its answer.
    pub fn is_called(&self, name: &str) -> bool {
        *self.caller.request_id == *name || self.opening.answer_id.as_deref() == Some(name)
    }

    /// Cancels the answer on every rank; returns false if it has already ended.
    ///
    /// # Errors
    /// Returns [`ApiError::EngineSilent`] if the engine does not respond in time; the answer is
    /// then cancelled as soon as the engine's thread continues.
    pub async fn cancel(&self) -> Result<bool, ApiError> {
        let mut is_cancelled = false;
        for id in &self.opening.engine_ids {
            is_cancelled |= answered(self.engine.cancel(RequestId(*id))).await?;
        }
        Ok(is_cancelled)
    }
}

/// Number of choices, by the reason for which they ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finishes {
    /// Choices that the model, a stop string or a stop token ended.
    pub stop: u64,
    /// Choices that reached their maximum length.
    pub length: u64,
    /// Choices that ended with tool calls.
    pub tool_calls: u64,
    /// Choices that were cancelled, or never finished.
    pub abort: u64,
}

impl Finishes {
    pub(super) fn absorb(&mut self, other: &Finishes) {
        self.stop += other.stop;
        self.length += other.length;
        self.tool_calls += other.tool_calls;
        self.abort += other.abort;
    }
}
