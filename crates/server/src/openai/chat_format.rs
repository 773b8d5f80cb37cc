//! Answers of `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use jackalope_protocol::TokenId;
use jackalope_text::{Tokenizer, ToolCall};
use serde::Serialize;

use super::logprobs::ChatLogprobs;
use super::usage::{Performance, Timing, Usage};
use crate::generate::{Delta, Finish, Format, Job, Summary, Wishes};
use crate::ids::{new_id, unix_seconds};
use crate::registry::Serving;
use crate::sse::{self, push_event};

/// Writes the answer to a conversation.
#[derive(Debug)]
pub(super) struct ChatFormat {
    id: String,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    has_logprobs: bool,
    include_usage: bool,
    /// The client's name for the conversation, told back.
    conversation_id: Option<String>,
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
    pub(super) fn new(job: &Job, wishes: &Wishes, serving: &Serving) -> ChatFormat {
        let prompt = &job.prompts[0];
        ChatFormat {
            id: new_id("chatcmpl-"),
            created: unix_seconds(),
            model: serving.id().to_owned(),
            tokenizer: Arc::clone(&serving.text().tokenizer),
            has_logprobs: wishes.options.logprobs.is_some(),
            include_usage: wishes.include_usage,
            conversation_id: None,
            prompt_token_ids: wishes.return_token_ids.then(|| prompt.tokens().to_vec()),
            progress: vec![Progress::default(); job.num_choices()],
        }
    }

    /// Tells the client's name for the conversation back.
    pub(super) fn within(mut self, conversation_id: Option<String>) -> ChatFormat {
        self.conversation_id = conversation_id;
        self
    }

    fn whole_choice<'a>(&'a self, index: usize, delta: &'a Delta) -> WholeChoice<'a> {
        WholeChoice {
            index,
            message: WholeMessage {
                role: "assistant",
                content: content(delta),
                refusal: None,
                reasoning: WireReasoning::of(delta),
                tool_calls: delta.calls.iter().map(|call| WireCall::new(None, call)).collect(),
            },
            logprobs: self.has_logprobs.then(|| ChatLogprobs::new(&delta.scored, &self.tokenizer)),
            finish_reason: delta.finish.map(finish_name),
            token_ids: self.prompt_token_ids.is_some().then_some(&delta.tokens),
            prompt_token_ids: self.prompt_token_ids.as_deref(),
        }
    }

    fn push_chunk(
        &self,
        choices: &[ChunkChoice<'_>],
        summary: Option<&Summary>,
        buffer: &mut Vec<u8>,
    ) {
        let chunk = Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            choices,
            usage: self.include_usage.then_some(summary.map(Usage::of)),
            timing: summary.map(Timing::of),
            performance: summary.map(Performance::of),
            conversation_id: self.conversation_id.as_deref(),
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
    #[serde(skip_serializing_if = "Option::is_none")]
    timing: Option<Timing>,
    #[serde(skip_serializing_if = "Option::is_none")]
    performance: Option<Performance>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation_id: Option<&'a str>,
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
    #[serde(flatten)]
    reasoning: WireReasoning<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
}

/// Some clients read the one name, some the other.
#[derive(Clone, Copy, Default, Serialize)]
struct WireReasoning<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
}

impl<'a> WireReasoning<'a> {
    fn of(delta: &'a Delta) -> WireReasoning<'a> {
        let reasoning = Some(delta.reasoning.as_str()).filter(|text| !text.is_empty());
        WireReasoning { reasoning_content: reasoning, reasoning }
    }
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
    timing: Timing,
    performance: Performance,
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation_id: Option<&'a str>,
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
    #[serde(flatten)]
    reasoning: WireReasoning<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
}

impl Format for ChatFormat {
    fn answer_id(&self) -> Option<&str> {
        Some(&self.id)
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
                content: Some(content(&delta).unwrap_or_default())
                    .filter(|text| !text.is_empty() || delta.is_plain()),
                reasoning: WireReasoning::of(&delta),
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

    fn push_end(&mut self, summary: &Summary, buffer: &mut Vec<u8>) {
        if self.include_usage {
            self.push_chunk(&[], Some(summary), buffer);
        }
        buffer.extend_from_slice(sse::DONE.as_bytes());
    }

    fn whole(&self, choices: Vec<Delta>, summary: &Summary) -> Response {
        let choice = |(index, delta)| self.whole_choice(index, delta);
        let whole = Whole {
            id: &self.id,
            object: "chat.completion",
            created: self.created,
            model: &self.model,
            choices: choices.iter().enumerate().map(choice).collect(),
            usage: Usage::of(summary),
            timing: Timing::of(summary),
            performance: Performance::of(summary),
            conversation_id: self.conversation_id.as_deref(),
        };
        Json(whole).into_response()
    }
}
