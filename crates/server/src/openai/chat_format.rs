//! Answers of `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use jackalope_protocol::{Logprob, TokenId};
use jackalope_text::{Tokenizer, ToolCall};
use serde::Serialize;

use super::answer::{Format, Usage};
use super::logprobs::ChatLogprobs;
use super::wishes::Wishes;
use crate::ServerState;
use crate::generate::{Delta, Finish, Job};
use crate::ids::{new_id, unix_seconds};
use crate::sse::push_event;

/// Writes the answer to a conversation.
#[derive(Debug)]
pub(super) struct ChatFormat {
    id: String,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    has_logprobs: bool,
    include_usage: bool,
    /// Set if token ids are to be told.
    prompt_token_ids: Option<Vec<TokenId>>,
    progress: Vec<Progress>,
}

/// What of a choice has been streamed.
#[derive(Clone, Debug, Default)]
struct Progress {
    has_begun: bool,
    num_calls: usize,
}

impl ChatFormat {
    pub(super) fn new(job: &Job, wishes: &Wishes, state: &ServerState) -> ChatFormat {
        let prompt = &job.prompts[0];
        ChatFormat {
            id: new_id("chatcmpl-"),
            created: unix_seconds(),
            model: state.model().id.clone(),
            tokenizer: Arc::clone(&state.text().tokenizer),
            has_logprobs: wishes.options.logprobs.is_some(),
            include_usage: wishes.include_usage,
            prompt_token_ids: wishes.return_token_ids.then(|| prompt.tokens().to_vec()),
            progress: vec![Progress::default(); job.num_choices()],
        }
    }

    fn whole_choice<'a>(&'a self, index: usize, delta: &'a Delta) -> WholeChoice<'a> {
        WholeChoice {
            index,
            message: WholeMessage {
                role: "assistant",
                content: content(delta),
                refusal: None,
                tool_calls: delta.calls.iter().map(|call| WireCall::new(None, call)).collect(),
            },
            logprobs: self.has_logprobs.then(|| ChatLogprobs::new(&delta.scored, &self.tokenizer)),
            finish_reason: delta.finish.map(finish_name),
            token_ids: self.prompt_token_ids.is_some().then_some(&delta.tokens),
            prompt_token_ids: self.prompt_token_ids.as_deref(),
        }
    }

    fn push_chunk(&self, choices: &[ChunkChoice<'_>], usage: Option<Usage>, buffer: &mut Vec<u8>) {
        let chunk = Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            choices,
            usage: self.include_usage.then_some(usage),
        };
        push_event(buffer, &chunk);
    }
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [ChunkChoice<'a>],
    /// `null` in all chunks but the last, and absent if it was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    delta: ChunkDelta<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [TokenId]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
}

#[derive(Default, Serialize)]
struct ChunkDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
}

#[derive(Serialize)]
struct WireCall<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: WireFunction<'a>,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

impl<'a> WireCall<'a> {
    fn new(index: Option<usize>, call: &'a ToolCall) -> WireCall<'a> {
        let function = WireFunction { name: &call.name, arguments: &call.arguments };
        WireCall { index, id: new_id("call_"), kind: "function", function }
    }
}

/// The text, unless there is nothing but calls.
fn content(delta: &Delta) -> Option<&str> {
    (delta.calls.is_empty() || !delta.text.is_empty()).then_some(delta.text.as_str())
}

fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Cancelled => "abort",
        Finish::ToolCalls => "tool_calls",
    }
}

impl<'a> ChunkChoice<'a> {
    fn new(index: usize, delta: ChunkDelta<'a>) -> ChunkChoice<'a> {
        ChunkChoice {
            index,
            delta,
            logprobs: None,
            finish_reason: None,
            token_ids: None,
            prompt_token_ids: None,
        }
    }
}

#[derive(Serialize)]
struct Whole<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<WholeChoice<'a>>,
    usage: Usage,
}

#[derive(Serialize)]
struct WholeChoice<'a> {
    index: usize,
    message: WholeMessage<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [TokenId]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
}

#[derive(Serialize)]
struct WholeMessage<'a> {
    role: &'static str,
    /// `null` if there is nothing but calls.
    content: Option<&'a str>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
}

impl Format for ChatFormat {
    fn prompt_scored(&mut self, _choice_idx: usize, _logprobs: Vec<Logprob>) {
        // A chat has no way to ask for them.
    }

    /// The role comes first and alone, the finish reason last and alone.
    fn push_events(&mut self, choice_idx: usize, delta: Delta, buffer: &mut Vec<u8>) {
        let progress = &mut self.progress[choice_idx];
        let is_first = !std::mem::replace(&mut progress.has_begun, true);
        let num_calls_before = progress.num_calls;
        progress.num_calls += delta.calls.len();
        if is_first {
            let (role, content) = (Some("assistant"), Some(""));
            let opening = ChunkDelta { role, content, ..ChunkDelta::default() };
            let mut choice = ChunkChoice::new(choice_idx, opening);
            choice.prompt_token_ids = self.prompt_token_ids.as_deref();
            self.push_chunk(&[choice], None, buffer);
        }
        if delta.has_content() {
            let calls = delta.calls.iter().enumerate();
            let content = ChunkDelta {
                role: None,
                content: content(&delta),
                tool_calls: calls
                    .map(|(idx, call)| WireCall::new(Some(num_calls_before + idx), call))
                    .collect(),
            };
            let mut choice = ChunkChoice::new(choice_idx, content);
            choice.logprobs = (!delta.scored.is_empty())
                .then(|| ChatLogprobs::new(&delta.scored, &self.tokenizer));
            choice.token_ids = self.prompt_token_ids.is_some().then_some(&delta.tokens);
            self.push_chunk(&[choice], None, buffer);
        }
        if let Some(finish) = delta.finish {
            let mut choice = ChunkChoice::new(choice_idx, ChunkDelta::default());
            choice.finish_reason = Some(finish_name(finish));
            self.push_chunk(&[choice], None, buffer);
        }
    }

    fn push_usage(&mut self, usage: Usage, buffer: &mut Vec<u8>) {
        self.push_chunk(&[], Some(usage), buffer);
    }

    fn whole(&self, choices: &[Delta], usage: Usage) -> Response {
        let choice = |(index, delta)| self.whole_choice(index, delta);
        let whole = Whole {
            id: &self.id,
            object: "chat.completion",
            created: self.created,
            model: &self.model,
            choices: choices.iter().enumerate().map(choice).collect(),
            usage,
        };
        Json(whole).into_response()
    }
}
