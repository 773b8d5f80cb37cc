//! Follows one answer and writes its record when it ends, in whatever way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use jackalope_engine::{EngineHandle, RequestId};

use super::Journal;
use super::record::{Ending, RequestRecord};
use crate::caller::Caller;
use crate::engine_answer::answered;
use crate::error::ApiError;
use crate::generate::{Finish, Summary};
use crate::ids::unix_time;
use crate::registry::Serving;

/// The properties of an answer that are known when it begins.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    /// The id that the answer itself carries.
    pub(crate) answer_id: Option<String>,
    /// The engine's ids of the answer's choices.
    pub(crate) engine_ids: Vec<u64>,
    pub(crate) is_stream: bool,
    /// Number of choices; 0 if no tokens are sampled, as for an embedding.
    pub(crate) num_choices: usize,
    pub(crate) prompt_tokens: u32,
    /// Maximum number of tokens per choice.
    pub(crate) max_tokens: u32,
}

/// An answer in progress.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    pub(crate) caller: Caller,
    pub(crate) model: String,
    pub(crate) opening: Opening,
    pub(crate) began: Instant,
    /// Number of tokens sampled so far.
    pub(crate) completion_tokens: AtomicU32,
    engine: EngineHandle,
}

impl OpenRequest {
    /// Returns whether this is the id of the request or of its answer.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        *self.caller.request_id == *name || self.opening.answer_id.as_deref() == Some(name)
    }

    /// Cancels the answer on every rank; returns false if it has already ended.
    ///
    /// # Errors
    /// Returns [`ApiError::EngineSilent`] if the engine does not respond in time; the answer is
    /// then cancelled as soon as the engine's thread continues.
    pub(crate) async fn cancel(&self) -> Result<bool, ApiError> {
        let mut is_cancelled = false;
        for id in &self.opening.engine_ids {
            is_cancelled |= answered(self.engine.cancel(RequestId(*id))).await?;
        }
        Ok(is_cancelled)
    }
}

/// Number of choices by finish reason.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Finishes {
    pub(crate) stop: u64,
    pub(crate) length: u64,
    pub(crate) tool_calls: u64,
    pub(crate) abort: u64,
}

impl Finishes {
    pub(super) fn absorb(&mut self, other: &Finishes) {
        self.stop += other.stop;
        self.length += other.length;
        self.tool_calls += other.tool_calls;
        self.abort += other.abort;
    }
}

/// Writes an answer's record when it is dropped.
#[derive(Debug)]
pub(crate) struct Recorder {
    journal: Arc<Journal>,
    open: Arc<OpenRequest>,
    open_id: u64,
    memory_before: u64,
    ending: Ending,
    finish_reason: Option<&'static str>,
    finishes: Finishes,
    /// Whether a choice was cancelled by its id.
    is_cancelled: bool,
    summary: Summary,
}

impl Recorder {
    /// Starts to follow an answer for the current caller.
    pub(crate) fn begin(serving: &Serving, opening: Opening) -> Recorder {
        let journal = Arc::clone(serving.state().journal());
        let open = Arc::new(OpenRequest {
            caller: Caller::current(),
            model: serving.id().to_owned(),
            opening,
            began: Instant::now(),
            completion_tokens: AtomicU32::new(0),
            engine: serving.engine().clone(),
        });
        let open_id = journal.open(Arc::clone(&open));
        Recorder {
            memory_before: active_bytes(serving.engine()),
            journal,
            open,
            open_id,
            // Unless another ending is set, the recorder was dropped because the client
            // disconnected.
            ending: Ending::Cancelled,
            finish_reason: None,
            finishes: Finishes::default(),
            is_cancelled: false,
            summary: Summary::default(),
        }
    }

    /// Sets the number of tokens sampled so far.
    pub(crate) fn drew(&self, completion_tokens: u32) {
        self.open.completion_tokens.store(completion_tokens, Ordering::Relaxed);
    }

    /// Records the end of a choice.
    pub(crate) fn choice_finished(&mut self, finish: Finish) {
        let (count, name) = match finish {
            Finish::Stop => (&mut self.finishes.stop, "stop"),
            Finish::Length => (&mut self.finishes.length, "length"),
            Finish::ToolCalls => (&mut self.finishes.tool_calls, "tool_calls"),
            Finish::Cancelled => (&mut self.finishes.abort, "abort"),
        };
        *count += 1;
        self.is_cancelled |= finish == Finish::Cancelled;
        self.finish_reason.get_or_insert(name);
    }

    /// Records that the whole answer was sent.
    pub(crate) fn succeeded(&mut self) {
        self.ending = if self.is_cancelled { Ending::Cancelled } else { Ending::Ok };
    }

    /// Records a failure. `is_told` says that the response head was already sent, so that nobody
    /// else records the error.
    pub(crate) fn failed(&mut self, err: &ApiError, is_told: bool) {
        self.ending = match err {
            ApiError::TimedOut { .. } => Ending::Timeout,
            _ => Ending::Error(err.to_string()),
        };
        if is_told {
            self.journal.note_error(&self.open.caller, err);
        }
    }

    /// Sets the token counts and times of the answer.
    pub(crate) fn sum_up(&mut self, summary: Summary) {
        self.summary = summary;
    }

    fn record(&self) -> RequestRecord {
        let OpenRequest { caller, model, opening, .. } = &*self.open;
        let summary = &self.summary;
        RequestRecord {
            request_id: caller.request_id.to_string(),
            answer_id: opening.answer_id.clone(),
            engine_ids: opening.engine_ids.clone(),
            ended_unix: unix_time(),
            kind: caller.kind,
            model: model.clone(),
            key: caller.key_name().map(str::to_owned),
            trace_parent: caller.trace_parent.clone(),
            is_stream: opening.is_stream,
            num_choices: opening.num_choices,
            max_tokens: opening.max_tokens,
            prompt_tokens: opening.prompt_tokens,
            cached_tokens: summary.cached_tokens,
            completion_tokens: summary.completion_tokens,
            reasoning_tokens: summary.reasoning_tokens,
            queue_time: summary.queue_time,
            prefill_time: summary.prefill_time,
            decode_time: summary.decode_time,
            total_time: self.open.began.elapsed(),
            has_tokens: 0 < summary.completion_tokens,
            ending: self.ending.clone(),
            finish_reason: self.finish_reason,
            memory_bytes: (self.memory_before, active_bytes(&self.open.engine)),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let Finishes { stop, length, tool_calls, abort } = self.finishes;
        let num_ended = stop + length + tool_calls + abort;
        self.finishes.abort += (self.open.opening.num_choices as u64).saturating_sub(num_ended);
        let record = self.record();
        if let Some(holder) = &self.open.caller.holder {
            holder.used_tokens(record.prompt_tokens.saturating_add(record.completion_tokens));
        }
        self.journal.close(self.open_id, record, &self.finishes);
    }
}

/// Memory of live arrays in bytes, over all ranks.
fn active_bytes(engine: &EngineHandle) -> u64 {
    engine.status().ranks.iter().map(|rank| rank.memory.active_bytes).sum()
}
