//! The output items of a response, as they are sent.

use std::sync::Arc;

use jackalope_serving::generate::ScoredToken;
use jackalope_text::Tokenizer;
use serde_json::{Value, json};

use super::items::Item;
use crate::openai::logprobs::ChatLogprobs;
use crate::openai::request::Role;

/// Properties of a response that stay the same from its beginning to its end.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) model: String,
    /// Fields of the request that the response repeats.
    pub(super) echo: Value,
    pub(super) is_stream: bool,
    /// The tokenizer, set if log-probabilities are sent.
    pub(super) logprobs: Option<Arc<Tokenizer>>,
    /// Whether the reasoning is sent as a summary of itself.
    pub(super) summarises: bool,
}

impl Terms {
    pub(super) fn logprobs(&self, scored: &[ScoredToken]) -> Value {
        match &self.logprobs {
            Some(tokenizer) => ChatLogprobs::new(scored, tokenizer).into_entries(),
            None => json!([]),
        }
    }
}

/// An output item, growing or finished.
#[derive(Debug)]
pub(super) struct OutputItem {
    pub(super) id: String,
    pub(super) text: String,
    pub(super) kind: Kind,
}

/// The type of an item, with the data it has besides its text.
#[derive(Debug)]
pub(super) enum Kind {
    Reasoning,
    Message { scored: Vec<ScoredToken> },
    Call { call_id: String, name: String, is_whole: bool },
}

impl OutputItem {
    /// The only part of a reasoning or message item, with the given text.
    pub(super) fn part(&self, text: &str, terms: &Terms) -> Value {
        match &self.kind {
            Kind::Reasoning if terms.summarises => json!({"type": "summary_text", "text": text}),
            Kind::Reasoning => json!({"type": "reasoning_text", "text": text}),
            Kind::Message { scored } => json!({
                "type": "output_text", "text": text, "annotations": [],
                "logprobs": terms.logprobs(scored),
            }),
            Kind::Call { .. } => unreachable!("a call has no parts"),
        }
    }

    /// The item in JSON. An item in progress is sent without content.
    pub(super) fn to_json(&self, status: &'static str, terms: &Terms) -> Value {
        let OutputItem { id, text, kind } = self;
        let parts = || match status {
            "in_progress" => json!([]),
            _ => json!([self.part(text, terms)]),
        };
        match kind {
            Kind::Reasoning if terms.summarises => {
                json!({"id": id, "type": "reasoning", "summary": parts(), "status": status})
            }
            Kind::Reasoning => json!({
                "id": id, "type": "reasoning", "summary": [], "content": parts(), "status": status,
            }),
            Kind::Message { .. } => json!({
                "id": id, "type": "message", "role": "assistant", "status": status,
                "content": parts(),
            }),
            Kind::Call { call_id, name, .. } => json!({
                "id": id, "type": "function_call", "status": status, "call_id": call_id,
                "name": name, "arguments": text,
            }),
        }
    }

    /// Converts the output to an item of the conversation.
    pub(super) fn said(&self) -> Item {
        let (id, text) = (self.id.clone(), self.text.clone());
        match &self.kind {
            Kind::Reasoning => Item::Reasoning { id, text },
            Kind::Message { .. } => Item::Message { id, role: Role::Assistant, text },
            Kind::Call { call_id, name, .. } => {
                Item::Call { id, call_id: call_id.clone(), name: name.clone(), arguments: text }
            }
        }
    }
}
