//! Answers of `POST /v1/messages`.
//!
//! ```text
//!  message_start, ping
//!    [content_block_start, content_block_delta*, content_block_stop]*    one block at a time
//!  message_delta, message_stop
//! ```

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::error;
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{AnswerSummary, AnswerWriter, CallDelta, Delta, Finish};
use jackalope_serving::ids::{hex, new_id};
use jackalope_serving::sse::push_named;
use jackalope_serving::state::Serving;
use jackalope_text::arguments_object;

/// Writes the answer to a conversation.
#[derive(Debug)]
pub(super) struct MessageFormat {
    id: String,
    model: String,
    max_tokens: u32,
    cached_tokens: u32,
    shows_thinking: bool,
    /// The open block of a stream.
    open: Option<OpenBlock>,
    /// Number of blocks of a stream that have begun.
    num_blocks: usize,
    ending: Ending,
}

/// A block that has begun and not ended.
#[derive(Debug)]
enum OpenBlock {
    Text,
    /// Digest of the reasoning so far, for the signature.
    Thinking(Sha256),
    /// Handled only by [`MessageFormat::push_call`].
    ToolUse,
}

/// How an answer ended.
#[derive(Clone, Debug, Default)]
struct Ending {
    finish: Option<Finish>,
    stop: Option<String>,
}

impl MessageFormat {
    pub(super) fn new(max_tokens: u32, serving: &Serving) -> MessageFormat {
        MessageFormat {
            id: new_id("msg_"),
            model: serving.id.clone(),
            max_tokens,
            cached_tokens: 0,
            shows_thinking: true,
            open: None,
            num_blocks: 0,
            ending: Ending::default(),
        }
    }

    /// Sets whether the text of the reasoning is sent; if not, thinking blocks are empty and only
    /// show that the model has reasoned.
    pub(super) fn showing_thinking(self, shows_thinking: bool) -> MessageFormat {
        MessageFormat { shows_thinking, ..self }
    }

    fn message<'a>(&'a self, content: Vec<Block<'a>>, end: End<'a>, usage: Usage) -> Message<'a> {
        Message {
            id: &self.id,
            kind: "message",
            role: "assistant",
            model: &self.model,
            content,
            end,
            usage,
        }
    }

    fn end<'a>(&self, ending: &'a Ending, summary: &AnswerSummary) -> End<'a> {
        let stop_reason = match (ending.finish, &ending.stop) {
            (Some(Finish::ToolCalls), _) => "tool_use",
            (Some(Finish::Length), _) if summary.completion_tokens < self.max_tokens => {
                "model_context_window_exceeded"
            }
            (Some(Finish::Length), _) => "max_tokens",
            (Some(Finish::Stop), Some(_)) => "stop_sequence",
            (Some(Finish::Stop | Finish::Cancelled) | None, _) => "end_turn",
        };
        let stop_sequence = ending.stop.as_deref().filter(|_| stop_reason == "stop_sequence");
        End { stop_reason: Some(stop_reason), stop_sequence }
    }

    /// Opens a block of this kind unless one is already open.
    fn open_block(&mut self, wanted: OpenBlock, buffer: &mut Vec<u8>) {
        let is_open = self
            .open
            .as_ref()
            .is_some_and(|it| std::mem::discriminant(it) == std::mem::discriminant(&wanted));
        if is_open {
            return;
        }
        self.close_block(buffer);
        let block = match &wanted {
            OpenBlock::Text => Block::Text { text: "" },
            OpenBlock::Thinking(_) => Block::Thinking { thinking: "", signature: String::new() },
            OpenBlock::ToolUse => return,
        };
        self.push_block_start(block, buffer);
        self.open = Some(wanted);
    }

    fn push_block_start(&mut self, content_block: Block<'_>, buffer: &mut Vec<u8>) {
        let index = self.num_blocks;
        self.num_blocks += 1;
        push(buffer, &StreamEvent::ContentBlockStart { index, content_block });
    }

    fn push_block_delta(&self, delta: BlockDelta<'_>, buffer: &mut Vec<u8>) {
        let index = self.num_blocks - 1;
        push(buffer, &StreamEvent::ContentBlockDelta { index, delta });
    }

    /// Closes the open block, if there is one.
    fn close_block(&mut self, buffer: &mut Vec<u8>) {
        let Some(open) = self.open.take() else { return };
        if let OpenBlock::Thinking(thought) = open {
            self.push_block_delta(BlockDelta::Signature { signature: signature(thought) }, buffer);
        }
        push(buffer, &StreamEvent::ContentBlockStop { index: self.num_blocks - 1 });
    }

    fn push_thought(&mut self, reasoning: &str, buffer: &mut Vec<u8>) {
        self.open_block(OpenBlock::Thinking(Sha256::new()), buffer);
        if let Some(OpenBlock::Thinking(thought)) = &mut self.open {
            thought.update(reasoning);
        }
        if self.shows_thinking {
            self.push_block_delta(BlockDelta::Thinking { thinking: reasoning }, buffer);
        }
    }

    fn push_call(&mut self, call: &CallDelta, buffer: &mut Vec<u8>) {
        if call.head.is_some() {
            self.close_block(buffer);
            self.push_block_start(tool_use(call, Map::new()), buffer);
            self.open = Some(OpenBlock::ToolUse);
        }
        if !call.arguments.is_empty() {
            let partial_json = &call.arguments;
            self.push_block_delta(BlockDelta::InputJson { partial_json }, buffer);
        }
        if call.is_whole {
            self.close_block(buffer);
        }
    }

    /// All blocks of an answer, with the reasoning first.
    fn blocks<'a>(&self, delta: &'a Delta) -> Vec<Block<'a>> {
        let mut blocks = Vec::new();
        if !delta.reasoning.is_empty() {
            let thinking = if self.shows_thinking { delta.reasoning.as_str() } else { "" };
            let signature = signature(Sha256::new_with_prefix(&delta.reasoning));
            blocks.push(Block::Thinking { thinking, signature });
        }
        if !delta.text.is_empty() {
            blocks.push(Block::Text { text: &delta.text });
        }
        let calls = delta.calls.iter();
        blocks.extend(calls.map(|call| tool_use(call, arguments_object(&call.arguments))));
        blocks
    }
}

fn tool_use(call: &CallDelta, input: Map<String, Value>) -> Block<'_> {
    Block::ToolUse { id: new_id("toolu_"), name: call.name(), input }
}

/// The signature of a thinking block, where Anthropic has a real one: a digest, so that it is not
/// empty and differs between blocks. It is not verified when it comes back.
fn signature(thought: Sha256) -> String {
    hex(&thought.finalize())
}

fn push(buffer: &mut Vec<u8>, event: &StreamEvent<'_>) {
    push_named(buffer, event.name(), event);
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum StreamEvent<'a> {
    MessageStart { message: Message<'a> },
    Ping,
    ContentBlockStart { index: usize, content_block: Block<'a> },
    ContentBlockDelta { index: usize, delta: BlockDelta<'a> },
    ContentBlockStop { index: usize },
    MessageDelta { delta: End<'a>, usage: Usage },
    MessageStop,
}

impl StreamEvent<'_> {
    /// The event's name, which equals its `type`.
    fn name(&self) -> &'static str {
        match self {
            StreamEvent::MessageStart { .. } => "message_start",
            StreamEvent::Ping => "ping",
            StreamEvent::ContentBlockStart { .. } => "content_block_start",
            StreamEvent::ContentBlockDelta { .. } => "content_block_delta",
            StreamEvent::ContentBlockStop { .. } => "content_block_stop",
            StreamEvent::MessageDelta { .. } => "message_delta",
            StreamEvent::MessageStop => "message_stop",
        }
    }
}

#[derive(Serialize)]
struct Message<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block<'a>>,
    #[serde(flatten)]
    end: End<'a>,
    usage: Usage,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Text { text: &'a str },
    Thinking { thinking: &'a str, signature: String },
    ToolUse { id: String, name: &'a str, input: Map<String, Value> },
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum BlockDelta<'a> {
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

#[derive(Default, Serialize)]
struct End<'a> {
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'a str>,
}

#[derive(Serialize)]
struct Usage {
    /// Number of prompt tokens without those found in the cache.
    input_tokens: u32,
    cache_creation_input_tokens: u32,
    cache_read_input_tokens: u32,
    output_tokens: u32,
    output_tokens_details: OutputTokensDetails,
    service_tier: &'static str,
}

#[derive(Serialize)]
struct OutputTokensDetails {
    thinking_tokens: u32,
}

impl Usage {
    fn of(summary: &AnswerSummary) -> Usage {
        let AnswerSummary { prompt_tokens, cached_tokens, .. } = *summary;
        Usage {
            input_tokens: prompt_tokens.saturating_sub(cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached_tokens,
            output_tokens: summary.completion_tokens,
            output_tokens_details: OutputTokensDetails {
                thinking_tokens: summary.reasoning_tokens,
            },
            service_tier: "standard",
        }
    }
}

impl AnswerWriter for MessageFormat {
    fn started(&mut self, cached_tokens: u32) {
        self.cached_tokens = cached_tokens;
    }

    fn push_start(&mut self, prompt_tokens: u32, buffer: &mut Vec<u8>) {
        let cached_tokens = self.cached_tokens;
        let so_far = AnswerSummary { prompt_tokens, cached_tokens, ..AnswerSummary::default() };
        let message = self.message(Vec::new(), End::default(), Usage::of(&so_far));
        push(buffer, &StreamEvent::MessageStart { message });
        push_ping(buffer);
    }

    fn push_keep_alive(&mut self, buffer: &mut Vec<u8>) {
        push(buffer, &StreamEvent::Ping);
    }

    fn push_events(&mut self, _choice_idx: usize, delta: Delta, buffer: &mut Vec<u8>) {
        if !delta.reasoning.is_empty() {
            self.push_thought(&delta.reasoning, buffer);
        }
        if !delta.text.is_empty() {
            self.open_block(OpenBlock::Text, buffer);
            self.push_block_delta(BlockDelta::Text { text: &delta.text }, buffer);
        }
        for call in &delta.calls {
            self.push_call(call, buffer);
        }
        if delta.finish.is_some() {
            self.ending = Ending { finish: delta.finish, stop: delta.stop };
        }
    }

    fn push_end(&mut self, summary: &AnswerSummary, buffer: &mut Vec<u8>) {
        self.close_block(buffer);
        let delta = self.end(&self.ending, summary);
        push(buffer, &StreamEvent::MessageDelta { delta, usage: Usage::of(summary) });
        push(buffer, &StreamEvent::MessageStop);
    }

    fn push_error(&mut self, err: &ApiError, buffer: &mut Vec<u8>) {
        push_error(err, buffer);
    }

    fn whole(&self, mut choices: Vec<Delta>, summary: &AnswerSummary) -> Response {
        let choice = choices.pop().unwrap_or_default();
        let ending = Ending { finish: choice.finish, stop: choice.stop.clone() };
        let end = self.end(&ending, summary);
        Json(self.message(self.blocks(&choice), end, Usage::of(summary))).into_response()
    }
}

/// Appends an event that keeps the connection alive.
pub(super) fn push_ping(buffer: &mut Vec<u8>) {
    push(buffer, &StreamEvent::Ping);
}

/// Appends the error that ends a stream.
pub(super) fn push_error(err: &ApiError, buffer: &mut Vec<u8>) {
    push_named(buffer, "error", &error::to_json(err, None));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use jackalope_serving::generate::CallHead;

    fn format(shows_thinking: bool) -> MessageFormat {
        MessageFormat {
            id: "msg_1".to_owned(),
            model: "fake".to_owned(),
            max_tokens: 10,
            cached_tokens: 0,
            shows_thinking,
            open: None,
            num_blocks: 0,
            ending: Ending::default(),
        }
    }

    fn thought(reasoning: &str, text: &str) -> Delta {
        Delta { reasoning: reasoning.to_owned(), text: text.to_owned(), ..Delta::default() }
    }

    /// The data of the events for these deltas and the end.
    fn events(mut format: MessageFormat, deltas: Vec<Delta>) -> Vec<Value> {
        let mut buffer = Vec::new();
        for delta in deltas {
            format.push_events(0, delta, &mut buffer);
        }
        format.push_end(&AnswerSummary::default(), &mut buffer);
        let text = String::from_utf8(buffer).unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    #[test]
    fn a_thought_is_a_block_of_its_own_and_is_signed() {
        let head = CallHead { id: None, name: "sum".to_owned() };
        let arguments = "{\"a\": 1}".to_owned();
        let call = CallDelta { head: Some(head), arguments, is_whole: true };
        let calling = Delta { calls: vec![call], ..thought("", " Yes.") };
        let deltas = || vec![thought("Hm", ""), thought("m.", "Well."), calling_clone(&calling)];
        let sent = events(format(true), deltas());
        let kinds: Vec<&str> = sent.iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(
            kinds.join(" ").replace("content_block_", ""),
            "start delta delta delta stop start delta delta stop start delta stop \
             message_delta message_stop"
        );
        let sent_deltas = sent.iter().filter(|event| event["type"] == "content_block_delta");
        let names: Vec<&Value> = sent_deltas.map(|event| &event["delta"]["type"]).collect();
        assert_eq!(
            names,
            [
                "thinking_delta",
                "thinking_delta",
                "signature_delta",
                "text_delta",
                "text_delta",
                "input_json_delta"
            ]
        );
        let mut whole = Delta::default();
        deltas().into_iter().for_each(|delta| whole.absorb(delta));
        let format = format(true);
        let blocks = json!(format.blocks(&whole));
        assert_eq!(blocks[0]["thinking"], "Hmm.");
        assert_eq!(blocks[0]["signature"], sent[3]["delta"]["signature"]);
        assert_eq!(blocks[0]["signature"].as_str().unwrap().len(), 64);
        assert_eq!(blocks[1], json!({"type": "text", "text": "Well. Yes."}));
        assert_eq!(blocks[2]["input"], json!({"a": 1}));
    }

    fn calling_clone(delta: &Delta) -> Delta {
        Delta { calls: delta.calls.clone(), ..thought(&delta.reasoning, &delta.text) }
    }

    #[test]
    fn a_thought_that_is_not_to_be_shown_is_only_signed() {
        let sent = events(format(false), vec![thought("Hm.", ""), thought("", "Well.")]);
        assert!(sent.iter().all(|event| event["delta"]["type"] != "thinking_delta"));
        assert_eq!(sent[0]["content_block"]["type"], "thinking");
        assert_eq!(sent[1]["delta"]["type"], "signature_delta");
        let format = format(false);
        let whole = thought("Hm.", "Well.");
        let blocks = json!(format.blocks(&whole));
        assert_eq!(blocks[0]["thinking"], "");
        assert_eq!(blocks[0]["signature"], sent[1]["delta"]["signature"]);
    }
}
