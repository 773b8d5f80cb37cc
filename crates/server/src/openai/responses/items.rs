//! The items of a conversation in this API, and their conversion to chat messages.
//!
//! ```text
//!  reasoning, message (assistant), function_call, function_call   ─▶ one assistant message
//!  function_call_output                                           ─▶ one tool message
//!  message (user, system, developer)                              ─▶ one message
//! ```

use std::sync::Arc;

use serde_json::{Value, json};

use crate::openai::request::Role;

/// One item of a conversation, sent by a client or written by the model.
#[derive(Debug)]
pub(super) enum Item {
    /// Text of a user, the system, a developer or the assistant.
    Message { id: String, role: Role, text: String },
    /// Reasoning of the model.
    Reasoning { id: String, text: String },
    /// A tool call by the model.
    Call { id: String, call_id: String, name: String, arguments: String },
    /// The result of a tool call.
    CallOutput { id: String, call_id: String, output: String },
}

impl Item {
    pub(super) fn id(&self) -> &str {
        match self {
            Item::Message { id, .. }
            | Item::Reasoning { id, .. }
            | Item::Call { id, .. }
            | Item::CallOutput { id, .. } => id,
        }
    }

    /// Memory taken by the item, in bytes.
    pub(super) fn num_bytes(&self) -> usize {
        size_of::<Item>()
            + match self {
                Item::Message { id, text, .. } | Item::Reasoning { id, text } => {
                    id.len() + text.len()
                }
                Item::Call { id, call_id, name, arguments } => {
                    id.len() + call_id.len() + name.len() + arguments.len()
                }
                Item::CallOutput { id, call_id, output } => id.len() + call_id.len() + output.len(),
            }
    }

    /// The item in the form of `GET /v1/responses/{id}/input_items`.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Item::Message { id, role: Role::Assistant, text } => json!({
                "type": "message", "id": id, "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
            }),
            Item::Message { id, role, text } => json!({
                "type": "message", "id": id, "role": role.name(), "status": "completed",
                "content": [{"type": "input_text", "text": text}],
            }),
            Item::Reasoning { id, text } => json!({
                "type": "reasoning", "id": id, "summary": [],
                "content": [{"type": "reasoning_text", "text": text}],
            }),
            Item::Call { id, call_id, name, arguments } => json!({
                "type": "function_call", "id": id, "call_id": call_id, "name": name,
                "arguments": arguments, "status": "completed",
            }),
            Item::CallOutput { id, call_id, output } => json!({
                "type": "function_call_output", "id": id, "call_id": call_id, "output": output,
                "status": "completed",
            }),
        }
    }
}

/// Converts instructions and items to the messages of a chat.
pub(super) fn messages(instructions: Option<&str>, items: &[Arc<Item>]) -> Vec<Value> {
    let mut messages = Vec::new();
    if let Some(instructions) = instructions {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    let mut turn = Turn::default();
    for item in items {
        match item.as_ref() {
            Item::Message { role: Role::Assistant, text, .. } => turn.say(text, &mut messages),
            // Other providers encrypt their reasoning, which leaves no text.
            Item::Reasoning { text, .. } if text.is_empty() => {}
            Item::Reasoning { text, .. } => turn.think(text, &mut messages),
            Item::Call { call_id, name, arguments, .. } => turn.calls.push(json!({
                "id": call_id, "type": "function",
                "function": {"name": name, "arguments": arguments},
            })),
            Item::Message { role, text, .. } => {
                turn.end(&mut messages);
                messages.push(json!({"role": role.name(), "content": text}));
            }
            Item::CallOutput { call_id, output, .. } => {
                turn.end(&mut messages);
                messages.push(json!({"role": "tool", "tool_call_id": call_id, "content": output}));
            }
        }
    }
    turn.end(&mut messages);
    messages
}

/// The model's items between two messages of others, which become one assistant message.
#[derive(Debug, Default)]
struct Turn<'a> {
    thought: Option<&'a str>,
    text: Option<&'a str>,
    calls: Vec<Value>,
}

impl<'a> Turn<'a> {
    fn think(&mut self, text: &'a str, messages: &mut Vec<Value>) {
        if self.thought.is_some() || self.text.is_some() || !self.calls.is_empty() {
            self.end(messages);
        }
        self.thought = Some(text);
    }

    fn say(&mut self, text: &'a str, messages: &mut Vec<Value>) {
        if self.text.is_some() || !self.calls.is_empty() {
            self.end(messages);
        }
        self.text = Some(text);
    }

    fn end(&mut self, messages: &mut Vec<Value>) {
        let Turn { thought, text, calls } = std::mem::take(self);
        if thought.is_none() && text.is_none() && calls.is_empty() {
            return;
        }
        let mut message = json!({"role": "assistant", "content": text});
        if let Some(thought) = thought {
            message["reasoning_content"] = thought.into();
        }
        if calls.is_empty() {
            message["content"] = text.unwrap_or_default().into();
        } else {
            message["tool_calls"] = calls.into();
        }
        messages.push(message);
    }
}
