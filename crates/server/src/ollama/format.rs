//! Answers of `POST /api/chat` and `POST /api/generate`: a line of JSON for each delta, or one
//! object.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::response::{IntoResponse, Response};
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{
    AnswerSummary, AnswerWriter, CallDelta, Delta, Finish, ScoredToken,
};
use jackalope_serving::ids::{new_id, rfc3339};
use jackalope_serving::state::Serving;
use jackalope_text::{Tokenizer, arguments_object};
use serde::Serialize;
use serde_json::{Map, Value};

use super::error;
use super::request::Shared;
use crate::openai::logprobs::TokenLogprob;

/// Content type of a stream of lines.
pub(super) const LINES_TYPE: &str = "application/x-ndjson";

/// The endpoint whose fields an answer has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Shape {
    Chat,
    Generate,
}

/// Writes the answer to a conversation or a prompt.
#[derive(Debug)]
pub(super) struct LineFormat {
    shape: Shape,
    /// The model as the request named it.
    model: String,
    tokenizer: Arc<Tokenizer>,
    has_logprobs: bool,
    /// Number of calls of a stream that were sent.
    num_calls: usize,
    /// The incomplete call of a stream, held back because the protocol cannot send part of a call.
    open_call: Option<CallDelta>,
    finish: Option<Finish>,
}

impl LineFormat {
    pub(super) fn new(shape: Shape, shared: &Shared, serving: &Serving) -> LineFormat {
        LineFormat {
            shape,
            model: model_name(shared, serving),
            tokenizer: Arc::clone(&serving.text.tokenizer),
            has_logprobs: shared.logprobs == Some(true),
            num_calls: 0,
            open_call: None,
            finish: None,
        }
    }

    /// Replaces the tool calls of a delta by those that are complete now. In the last delta of an
    /// answer, also adds a call that the maximum length cut off; one that a stop string cut off is
    /// dropped.
    fn take_calls(&mut self, delta: &mut Delta) {
        let mut whole = Vec::new();
        for next in std::mem::take(&mut delta.calls) {
            match &mut self.open_call {
                Some(call) if next.head.is_none() => {
                    call.arguments.push_str(&next.arguments);
                    call.is_whole |= next.is_whole;
                }
                _ => whole.extend(self.open_call.replace(next)),
            }
            whole.extend(self.open_call.take_if(|call| call.is_whole));
        }
        let cut_call = self.open_call.take_if(|_| delta.finish.is_some());
        whole.extend(cut_call.filter(|_| keeps_cut_call(delta.finish)));
        delta.calls = whole;
    }

    /// Returns a line of a stream, or the whole answer. `end` is set for the last line and the
    /// whole answer, which have the reason for the end, the token counts and the times.
    fn line<'a>(
        &'a self,
        delta: &'a Delta,
        end: Option<(&'static str, &AnswerSummary)>,
    ) -> Line<'a> {
        let calls = delta.calls.iter().enumerate();
        let calls = calls.map(|(idx, call)| WireCall::new(self.num_calls + idx, call)).collect();
        let logprobs = (self.has_logprobs && !delta.scored.is_empty())
            .then(|| delta.scored.iter().map(|it| WireLogprob::of(it, &self.tokenizer)).collect());
        Line {
            model: &self.model,
            created_at: rfc3339(SystemTime::now()),
            piece: Piece::new(self.shape, &delta.text, &delta.reasoning, calls),
            done: end.is_some(),
            done_reason: end.map(|(reason, _)| reason),
            metrics: end.map(|(_, summary)| Metrics::of(summary)),
            logprobs,
        }
    }
}

fn model_name(shared: &Shared, serving: &Serving) -> String {
    shared.model.clone().unwrap_or_else(|| serving.id.clone())
}

/// Returns whether a call that was cut off is sent. A client could not distinguish one that a stop
/// string cut off from a complete call, because the reason for the end is the same.
fn keeps_cut_call(finish: Option<Finish>) -> bool {
    finish != Some(Finish::Stop)
}

fn reason(finish: Option<Finish>) -> &'static str {
    match finish {
        Some(Finish::Length) => "length",
        Some(Finish::Stop | Finish::ToolCalls | Finish::Cancelled) | None => "stop",
    }
}

/// The answer to a request that only loads or unloads a model.
pub(super) fn nothing(shape: Shape, shared: &Shared, id: &str, reason: &'static str) -> Response {
    Json(Line {
        model: shared.model.as_deref().unwrap_or(id),
        created_at: rfc3339(SystemTime::now()),
        piece: Piece::new(shape, "", "", Vec::new()),
        done: true,
        done_reason: Some(reason),
        metrics: None,
        logprobs: None,
    })
    .into_response()
}

/// Appends a line of JSON.
pub(super) fn push_line(buffer: &mut Vec<u8>, line: &impl Serialize) {
    serde_json::to_writer(&mut *buffer, line).expect("our wire types have string keys");
    buffer.push(b'\n');
}

#[derive(Serialize)]
struct Line<'a> {
    model: &'a str,
    created_at: String,
    #[serde(flatten)]
    piece: Piece<'a>,
    done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<&'static str>,
    #[serde(flatten)]
    metrics: Option<Metrics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<WireLogprob>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Piece<'a> {
    Chat {
        message: WireMessage<'a>,
    },
    Generate {
        response: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        thinking: &'a str,
    },
}

#[derive(Serialize)]
struct WireMessage<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    thinking: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
}

impl<'a> Piece<'a> {
    fn new(
        shape: Shape,
        content: &'a str,
        thinking: &'a str,
        tool_calls: Vec<WireCall<'a>>,
    ) -> Piece<'a> {
        match shape {
            Shape::Generate => Piece::Generate { response: content, thinking },
            Shape::Chat => {
                let role = "assistant";
                Piece::Chat { message: WireMessage { role, content, thinking, tool_calls } }
            }
        }
    }
}

#[derive(Serialize)]
struct WireCall<'a> {
    id: String,
    function: WireFunction<'a>,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    index: usize,
    name: &'a str,
    arguments: Map<String, Value>,
}

impl<'a> WireCall<'a> {
    fn new(index: usize, call: &'a CallDelta) -> WireCall<'a> {
        let arguments = arguments_object(&call.arguments);
        WireCall {
            id: new_id("call_"),
            function: WireFunction { index, name: call.name(), arguments },
        }
    }
}

/// Token counts and times of an answer; times in nanoseconds.
#[derive(Serialize)]
struct Metrics {
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u32,
    prompt_eval_duration: u64,
    eval_count: u32,
    eval_duration: u64,
}

impl Metrics {
    fn of(summary: &AnswerSummary) -> Metrics {
        Metrics {
            total_duration: nanoseconds(summary.total_time),
            load_duration: nanoseconds(summary.queue_time),
            prompt_eval_count: summary.prompt_tokens,
            prompt_eval_duration: nanoseconds(summary.prefill_time),
            eval_count: summary.completion_tokens,
            eval_duration: nanoseconds(summary.decode_time),
        }
    }
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[derive(Serialize)]
struct WireLogprob {
    #[serde(flatten)]
    token: TokenLogprob,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_logprobs: Vec<TokenLogprob>,
}

impl WireLogprob {
    fn of(scored: &ScoredToken, tokenizer: &Tokenizer) -> WireLogprob {
        let ScoredToken { token, logprob, .. } = scored;
        let top = logprob.top.iter();
        WireLogprob {
            token: TokenLogprob::new(*token, logprob.logprob, tokenizer),
            top_logprobs: top.map(|it| TokenLogprob::new(it.0, it.1, tokenizer)).collect(),
        }
    }
}

impl AnswerWriter for LineFormat {
    fn stream_type(&self) -> &'static str {
        LINES_TYPE
    }

    /// Writes an empty line in the usual form, because clients parse every line.
    fn push_keep_alive(&mut self, buffer: &mut Vec<u8>) {
        push_line(buffer, &self.line(&Delta::default(), None));
    }

    fn push_events(&mut self, _choice_idx: usize, mut delta: Delta, buffer: &mut Vec<u8>) {
        self.take_calls(&mut delta);
        if delta.has_content() {
            push_line(buffer, &self.line(&delta, None));
        }
        self.num_calls += delta.calls.len();
        self.finish = self.finish.or(delta.finish);
    }

    fn push_end(&mut self, summary: &AnswerSummary, buffer: &mut Vec<u8>) {
        let end = (reason(self.finish), summary);
        push_line(buffer, &self.line(&Delta::default(), Some(end)));
    }

    fn push_error(&mut self, err: &ApiError, buffer: &mut Vec<u8>) {
        push_line(buffer, &error::to_json(err));
    }

    fn whole(&self, mut choices: Vec<Delta>, summary: &AnswerSummary) -> Response {
        let mut choice = choices.pop().unwrap_or_default();
        choice.calls.retain(|call| call.is_whole || keeps_cut_call(choice.finish));
        let end = (reason(choice.finish), summary);
        Json(self.line(&choice, Some(end))).into_response()
    }
}
