//! Follows one answer and writes its record when it ends, in whatever way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use jackalope_engine::EngineHandle;

use super::open_request::{AnswerInProgress, AnswerStart, Finishes};
use super::record::{AnswerEnding, AnswerRecord};
use super::store::Journal;
use crate::caller::ApiCaller;
use crate::error::ApiError;

use crate::ids::unix_time;
use crate::model::RunningModel;
use crate::outcome::{AnswerSummary, Finish};

/// Writes an answer's record when it is dropped.
#[derive(Debug)]
pub struct Recorder {
    journal: Arc<Journal>,
    open: Arc<AnswerInProgress>,
    open_id: u64,
    memory_before: u64,
    ending: AnswerEnding,
    finish_reason: Option<&'static str>,
    finishes: Finishes,
    /// Whether one of the answer's choices was cancelled by its id.
    is_cancelled: bool,
    summary: AnswerSummary,
}

impl Recorder {
    /// Starts to follow an answer of this model for the current caller.
    pub fn begin(journal: &Arc<Journal>, model: &RunningModel, opening: AnswerStart) -> Recorder {
        let open = Arc::new(AnswerInProgress {
            caller: ApiCaller::current(),
            model: model.id.clone(),
            opening,
            began: Instant::now(),
            completion_tokens: AtomicU32::new(0),
            engine: model.engine.clone(),
        });
        let open_id = journal.open(Arc::clone(&open));
        Recorder {
            memory_before: active_bytes(&model.engine),
            journal: Arc::clone(journal),
            open,
            open_id,
            // Unless another ending is set, the recorder was dropped because the client
            // disconnected.
            ending: AnswerEnding::Cancelled,
            finish_reason: None,
            finishes: Finishes::default(),
            is_cancelled: false,
            summary: AnswerSummary::default(),
        }
    }

    /// Sets the number of tokens sampled so far.
    pub fn sampled(&self, completion_tokens: u32) {
        self.open.completion_tokens.store(completion_tokens, Ordering::Relaxed);
    }

    /// Records the end of a choice.
    pub fn choice_finished(&mut self, finish: Finish) {
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
    pub fn succeeded(&mut self) {
        self.ending = if self.is_cancelled { AnswerEnding::Cancelled } else { AnswerEnding::Ok };
    }

    /// Records a failure. `is_sent` says that the response head was already sent, so that the error
    /// is recorded only here.
    pub fn failed(&mut self, err: &ApiError, is_sent: bool) {
        self.ending = match err {
            ApiError::TimedOut { .. } => AnswerEnding::Timeout,
            _ => AnswerEnding::Error(err.to_string()),
        };
        if is_sent {
            self.journal.note_error(&self.open.caller, err);
        }
    }

    /// Sets the token counts and times of the answer.
    pub fn sum_up(&mut self, summary: AnswerSummary) {
        self.summary = summary;
    }

    fn record(&self) -> AnswerRecord {
        let AnswerInProgress { caller, model, opening, .. } = &*self.open;
        AnswerRecord {
            request_id: caller.request_id.to_string(),
            start: opening.clone(),
            summary: AnswerSummary {
                prompt_tokens: opening.prompt_tokens,
                total_time: self.open.began.elapsed(),
                ..self.summary
            },
            ended_unix: unix_time(),
            kind: caller.kind,
            model: model.clone(),
            key: caller.key_name().map(str::to_owned),
            trace_parent: caller.trace_parent.clone(),
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
            let AnswerSummary { prompt_tokens, completion_tokens, .. } = record.summary;
            holder.used_tokens(prompt_tokens.saturating_add(completion_tokens));
        }
        self.journal.close(self.open_id, record, &self.finishes);
    }
}

/// Memory of live arrays in bytes, over all ranks.
fn active_bytes(engine: &EngineHandle) -> u64 {
    engine.status().ranks.iter().map(|rank| rank.memory.active_bytes).sum()
}
