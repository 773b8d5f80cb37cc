//! Answers of `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use jackalope_protocol::TokenId;
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{AnswerSummary, AnswerWriter, CallDelta, Delta, Finish, Job};
use jackalope_serving::ids::{new_id, new_uuid, unix_seconds};
use jackalope_serving::sse::{self, push_event};
use jackalope_serving::state::Serving;
use jackalope_text::Tokenizer;
use serde::Serialize;
use utoipa::ToSchema;

use super::error::push_error;
use super::logprobs::ChatLogprobs;
use super::usage::{Performance, SYSTEM_FINGERPRINT, Timing, Usage};

/// The only service tier of this server.
const SERVICE_TIER: &str = "default";

/// Options of a request for the form of its answer.
#[derive(Debug)]
pub(super) struct ChatOptions {
    /// Whether calls are written as `function_call`, the form that preceded tools.
    pub(super) is_legacy: bool,
    /// Whether a stream ends with an event that has the usage.
    pub(super) include_usage: bool,
    /// The client's id for the conversation, returned in the answer.
    pub(super) conversation_id: Option<String>,
}

/// Writes the answer to a chat completion.
#[derive(Debug)]
pub(super) struct ChatFormat {
    id: String,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    has_logprobs: bool,
    options: ChatOptions,
    /// The prompt's tokens, set if the request asks for token ids.
    prompt_token_ids: Option<Vec<TokenId>>,
    progress: Vec<Progress>,
}

/// Progress of streaming a choice.
#[derive(Clone, Debug, Default)]
struct Progress {
    has_begun: bool,
    num_calls: usize,
}

impl ChatFormat {
    pub(super) fn new(job: &Job, options: ChatOptions, serving: &Serving) -> ChatFormat {
        let prompt = &job.prompts[0];
        let returns_token_ids = job.rules.output.return_token_ids;
        ChatFormat {
            id: new_id("chatcmpl-"),
            created: unix_seconds(),
            model: serving.id.clone(),
            tokenizer: Arc::clone(&serving.text.tokenizer),
            has_logprobs: job.has_logprobs,
            options,
            prompt_token_ids: returns_token_ids.then(|| prompt.tokens().to_vec()),
            progress: vec![Progress::default(); job.num_choices()],
        }
    }

    fn finish_name(&self, finish: Finish) -> &'static str {
        match finish {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Cancelled => "abort",
            Finish::ToolCalls if self.options.is_legacy => "function_call",
            Finish::ToolCalls => "tool_calls",
        }
    }

    /// The calls of a delta. `num_before` is set if the answer is streamed: the number of calls
    /// that began before the delta.
    fn calls<'a>(&self, delta: &'a Delta, num_before: Option<usize>) -> WireCalls<'a> {
        if self.options.is_legacy {
            // There is never more than one call: `parallel_tool_calls` is false.
            return WireCalls {
                tool_calls: Vec::new(),
                function_call: delta
                    .calls
                    .first()
                    .filter(|it| says_something(it))
                    .map(WireFunction::of),
            };
        }
        let mut num_begun = num_before.unwrap_or_default();
        let call = |call: &'a CallDelta| {
            num_begun += usize::from(call.head.is_some());
            WireCall::new(num_before.is_some().then(|| num_begun.saturating_sub(1)), call)
        };
        WireCalls {
            tool_calls: delta.calls.iter().filter(|call| says_something(call)).map(call).collect(),
            function_call: None,
        }
    }

    fn whole_choice<'a>(&'a self, index: usize, delta: &'a Delta) -> Choice<'a> {
        Choice {
            index,
            message: Some(WholeMessage {
                role: "assistant",
                content: content(delta),
                refusal: None,
                reasoning: WireReasoning::of(delta),
                calls: self.calls(delta, None),
            }),
            logprobs: self.has_logprobs.then(|| ChatLogprobs::new(&delta.scored, &self.tokenizer)),
            finish_reason: delta.finish.map(|finish| self.finish_name(finish)),
            token_ids: self.prompt_token_ids.is_some().then_some(&delta.tokens),
            prompt_token_ids: self.prompt_token_ids.as_deref(),
            ..Choice::default()
        }
    }

    fn completion<'a>(
        &'a self,
        object: &'static str,
        choices: Vec<Choice<'a>>,
        summary: Option<&AnswerSummary>,
    ) -> ChatCompletion<'a> {
        ChatCompletion {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            system_fingerprint: SYSTEM_FINGERPRINT,
            service_tier: SERVICE_TIER,
            choices,
            usage: self.options.include_usage.then_some(summary.map(Usage::of)),
            timing: summary.map(Timing::of),
            performance: summary.map(Performance::of),
            conversation_id: self.options.conversation_id.as_deref(),
        }
    }

    fn push_chunk(
        &self,
        choices: Vec<Choice<'_>>,
        summary: Option<&AnswerSummary>,
        buffer: &mut Vec<u8>,
    ) {
        push_event(buffer, &self.completion("chat.completion.chunk", choices, summary));
    }
}

#[derive(Default, Serialize)]
struct ChunkDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(flatten)]
    reasoning: WireReasoning<'a>,
    #[serde(flatten)]
    calls: WireCalls<'a>,
}

/// Calls in the one form or the other.
#[derive(Default, Serialize, ToSchema)]
struct WireCalls<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<WireFunction<'a>>,
}

/// Some clients read the one name, some the other.
#[derive(Clone, Copy, Default, Serialize, ToSchema)]
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

#[derive(Serialize, ToSchema)]
struct WireCall<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    /// In a stream, sent only at the beginning of the call, like type and name.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: WireFunction<'a>,
}

#[derive(Serialize, ToSchema)]
struct WireFunction<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    arguments: &'a str,
}

impl<'a> WireFunction<'a> {
    fn of(call: &'a CallDelta) -> WireFunction<'a> {
        WireFunction { name: call.name(), arguments: &call.arguments }
    }
}

impl<'a> WireCall<'a> {
    fn new(index: Option<usize>, call: &'a CallDelta) -> WireCall<'a> {
        let head = call.head.as_ref();
        let id = head.map(|head| head.id.clone().unwrap_or_else(|| new_id("call_")));
        let kind = head.map(|_| "function");
        WireCall { index, id, kind, function: WireFunction::of(call) }
    }
}

/// Returns whether a chunk has to be sent for the delta of a call; the end of a call is not
/// reported.
fn says_something(call: &CallDelta) -> bool {
    call.head.is_some() || !call.arguments.is_empty()
}

/// The text, or none if the delta consists of calls only.
fn content(delta: &Delta) -> Option<&str> {
    (delta.calls.is_empty() || !delta.text.is_empty()).then_some(delta.text.as_str())
}

// A whole answer and a chunk of a stream have the same form. A whole answer has all fields.
#[derive(Serialize, ToSchema)]
pub(super) struct ChatCompletion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    service_tier: &'static str,
    choices: Vec<Choice<'a>>,
    // `null` in all chunks but the last; absent from a stream unless requested.
    #[schema(value_type = Usage, required = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[schema(value_type = Timing, required = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    timing: Option<Timing>,
    #[schema(value_type = Performance, required = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    performance: Option<Performance>,
    /// The client's id for the conversation, or a new one.
    #[schema(value_type = String, required = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation_id: Option<&'a str>,
}

#[derive(Default, Serialize, ToSchema)]
#[schema(as = WholeChoice)]
struct Choice<'a> {
    index: usize,
    #[schema(value_type = WholeMessage, required = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<WholeMessage<'a>>,
    /// Takes the place of the message in a stream.
    #[schema(ignore)]
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<ChunkDelta<'a>>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [TokenId]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
}

#[derive(Serialize, ToSchema)]
struct WholeMessage<'a> {
    role: &'static str,
    /// `null` if there are only tool calls.
    content: Option<&'a str>,
    #[schema(value_type = Option<String>)]
    refusal: Option<()>,
    #[serde(flatten)]
    reasoning: WireReasoning<'a>,
    #[serde(flatten)]
    calls: WireCalls<'a>,
}

impl AnswerWriter for ChatFormat {
    fn answer_id(&self) -> Option<&str> {
        Some(&self.id)
    }

    /// Sends the role in a chunk of its own before the content, and the finish reason in one of its
    /// own after it.
    fn push_events(&mut self, choice_idx: usize, delta: Delta, buffer: &mut Vec<u8>) {
        let progress = &mut self.progress[choice_idx];
        let is_first = !std::mem::replace(&mut progress.has_begun, true);
        let num_calls_before = progress.num_calls;
        progress.num_calls += delta.calls.iter().filter(|call| call.head.is_some()).count();
        if is_first {
            let (role, content) = (Some("assistant"), Some(""));
            let opening = ChunkDelta { role, content, ..ChunkDelta::default() };
            let choice = Choice {
                index: choice_idx,
                delta: Some(opening),
                prompt_token_ids: self.prompt_token_ids.as_deref(),
                ..Choice::default()
            };
            self.push_chunk(vec![choice], None, buffer);
        }
        if delta.has_content() && !delta.only_ends_calls() {
            let content = ChunkDelta {
                role: None,
                content: Some(content(&delta).unwrap_or_default())
                    .filter(|text| !text.is_empty() || delta.is_plain()),
                reasoning: WireReasoning::of(&delta),
                calls: self.calls(&delta, Some(num_calls_before)),
            };
            let choice = Choice {
                index: choice_idx,
                delta: Some(content),
                logprobs: (!delta.scored.is_empty())
                    .then(|| ChatLogprobs::new(&delta.scored, &self.tokenizer)),
                token_ids: self.prompt_token_ids.is_some().then_some(&delta.tokens),
                ..Choice::default()
            };
            self.push_chunk(vec![choice], None, buffer);
        }
        if let Some(finish) = delta.finish {
            let choice = Choice {
                index: choice_idx,
                delta: Some(ChunkDelta::default()),
                finish_reason: Some(self.finish_name(finish)),
                ..Choice::default()
            };
            self.push_chunk(vec![choice], None, buffer);
        }
    }

    fn push_end(&mut self, summary: &AnswerSummary, buffer: &mut Vec<u8>) {
        if self.options.include_usage {
            self.push_chunk(Vec::new(), Some(summary), buffer);
        }
        buffer.extend_from_slice(sse::DONE.as_bytes());
    }

    fn push_error(&mut self, err: &ApiError, buffer: &mut Vec<u8>) {
        push_error(err, buffer);
    }

    fn whole(&self, choices: Vec<Delta>, summary: &AnswerSummary) -> Response {
        let choice = |(index, delta)| self.whole_choice(index, delta);
        let choices = choices.iter().enumerate().map(choice).collect();
        let new_conversation = new_uuid();
        let whole = self.completion("chat.completion", choices, Some(summary));
        let whole = ChatCompletion {
            usage: Some(Some(Usage::of(summary))),
            conversation_id: whole.conversation_id.or(Some(&new_conversation)),
            ..whole
        };
        Json(whole).into_response()
    }
}
