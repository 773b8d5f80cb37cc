//! Converts a conversation of content blocks to the form of OpenAI's messages.
//!
//! ```text
//!  user       [tool_result, tool_result, text]   ──▶  tool, tool, user
//!  assistant  [thinking, text, tool_use]         ──▶  assistant with reasoning and tool_calls
//! ```

use std::collections::HashMap;

use jackalope_serving::error::ApiError;
use serde_json::{Map, Value, json};

use super::request::{Block, Content, Message, Role};

/// Separator between the texts of a message's blocks.
const BETWEEN_BLOCKS: &str = "\n";

/// Prefix of a block with the client's version and a request number. It is not an instruction, and
/// since it differs between requests, it would prevent any prefix hit for the tokens behind it.
const ATTRIBUTION: &str = "x-anthropic-billing-header:";

/// Prefix of the result of a failed tool call.
const FAILED_RESULT: &str = "Error: ";

/// The messages converted so far, in the form of OpenAI's.
#[derive(Debug, Default)]
pub(super) struct History {
    messages: Vec<Value>,
    /// Tool name of each call id; some templates need the name with the result.
    tool_names: HashMap<String, String>,
}

impl History {
    /// Creates the history of a conversation, which starts with the system prompt `system`.
    pub(super) fn begin(system: Option<Content>) -> Result<History, ApiError> {
        let mut history = History::default();
        let mut texts = Texts::default();
        match system {
            None => {}
            Some(Content::Text(text)) => texts.push(&text),
            Some(Content::List(blocks)) => {
                for (block_idx, block) in blocks.iter().enumerate() {
                    let text = text_of(block, || format!("system[{block_idx}]"))?;
                    if !text.starts_with(ATTRIBUTION) {
                        texts.push(text);
                    }
                }
            }
        }
        history.push_text("system", texts);
        Ok(history)
    }

    /// Appends a message, which may become several.
    pub(super) fn push(&mut self, message_idx: usize, message: Message) -> Result<(), ApiError> {
        let blocks = match (message.role, message.content) {
            (role, Content::Text(text)) => {
                self.messages.push(json!({"role": role_name(role), "content": text}));
                return Ok(());
            }
            (_, Content::List(blocks)) => blocks,
        };
        let at = |block_idx: usize| format!("messages[{message_idx}].content[{block_idx}]");
        match message.role {
            Role::User => self.push_user(&blocks, at),
            Role::Assistant => self.push_assistant(blocks, at),
            Role::System => {
                let mut texts = Texts::default();
                for (block_idx, block) in blocks.iter().enumerate() {
                    texts.push(text_of(block, || at(block_idx))?);
                }
                self.push_text("system", texts);
                Ok(())
            }
        }
    }

    pub(super) fn into_messages(self) -> Vec<Value> {
        self.messages
    }

    fn push_text(&mut self, role: &str, texts: Texts) {
        if let Some(text) = texts.joined {
            self.messages.push(json!({"role": role, "content": text}));
        }
    }

    fn push_user(
        &mut self,
        blocks: &[Block],
        at: impl Fn(usize) -> String,
    ) -> Result<(), ApiError> {
        let num_before = self.messages.len();
        let mut texts = Texts::default();
        for (block_idx, block) in blocks.iter().enumerate() {
            let param = || at(block_idx);
            match block.kind.as_str() {
                "tool_result" => {
                    self.push_text("user", std::mem::take(&mut texts));
                    let result = self.tool_result(block, param)?;
                    self.messages.push(result);
                }
                "tool_use" | "thinking" | "redacted_thinking" => {
                    return Err(misplaced(block, param(), "assistant"));
                }
                _ => texts.push(text_of(block, param)?),
            }
        }
        if self.messages.len() == num_before {
            texts.joined.get_or_insert_default();
        }
        self.push_text("user", texts);
        Ok(())
    }

    fn tool_result(&self, block: &Block, param: impl Fn() -> String) -> Result<Value, ApiError> {
        let id = needed(block.tool_use_id.as_ref(), "tool_use_id", &param)?;
        let mut texts = Texts::default();
        match &block.content {
            None => {}
            Some(Content::Text(text)) => texts.push(text),
            Some(Content::List(blocks)) => {
                for (part_idx, part) in blocks.iter().enumerate() {
                    texts.push(text_of(part, || format!("{}.content[{part_idx}]", param()))?);
                }
            }
        }
        let mut content = texts.joined.unwrap_or_default();
        if block.is_error == Some(true) {
            content.insert_str(0, FAILED_RESULT);
        }
        let mut message = json!({"role": "tool", "tool_call_id": id, "content": content});
        if let Some(name) = self.tool_names.get(id) {
            message["name"] = name.as_str().into();
        }
        Ok(message)
    }

    fn push_assistant(
        &mut self,
        blocks: Vec<Block>,
        at: impl Fn(usize) -> String,
    ) -> Result<(), ApiError> {
        let (mut texts, mut thoughts) = (Texts::default(), Texts::default());
        let mut calls = Vec::new();
        for (block_idx, block) in blocks.into_iter().enumerate() {
            let param = || at(block_idx);
            match block.kind.as_str() {
                "thinking" => {
                    thoughts.push(needed(block.thinking.as_ref(), "thinking", &param)?);
                }
                // Encrypted reasoning of another server, which cannot be read.
                "redacted_thinking" => {}
                "tool_use" => calls.push(self.tool_use(block, param)?),
                "tool_result" => return Err(misplaced(&block, param(), "user")),
                _ => texts.push(text_of(&block, param)?),
            }
        }
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        message.insert("content".to_owned(), texts.joined.unwrap_or_default().into());
        if let Some(thought) = thoughts.joined.filter(|thought| !thought.is_empty()) {
            message.insert("reasoning_content".to_owned(), thought.into());
        }
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), calls.into());
        }
        self.messages.push(message.into());
        Ok(())
    }

    /// Converts a call and remembers its tool's name.
    fn tool_use(&mut self, block: Block, param: impl Fn() -> String) -> Result<Value, ApiError> {
        let id = needed(block.id, "id", &param)?;
        let name = needed(block.name, "name", &param)?;
        let input = needed(block.input, "input", &param)?;
        let arguments = Value::Object(input).to_string();
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        self.tool_names.insert(id, name);
        Ok(call)
    }
}

/// Joined texts of blocks.
#[derive(Debug, Default)]
struct Texts {
    joined: Option<String>,
}

impl Texts {
    fn push(&mut self, text: &str) {
        match &mut self.joined {
            None => self.joined = Some(text.to_owned()),
            Some(joined) => {
                joined.push_str(BETWEEN_BLOCKS);
                joined.push_str(text);
            }
        }
    }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::System => "system",
    }
}

/// The text of a block; other types of blocks are refused by name.
fn text_of(block: &Block, param: impl Fn() -> String) -> Result<&str, ApiError> {
    if block.kind == "text" {
        return needed(block.text.as_deref(), "text", &param);
    }
    let hint = format!("it has the type {}; this model takes only text", block.kind);
    Err(ApiError::not_supported(param(), hint))
}

fn needed<T>(value: Option<T>, field: &str, param: &impl Fn() -> String) -> Result<T, ApiError> {
    let missing = || ApiError::missing_field(param(), field);
    value.ok_or_else(missing)
}

fn misplaced(block: &Block, param: String, role: &str) -> ApiError {
    let reason = format!("a block of type {} belongs to a message of the {role}", block.kind);
    ApiError::WrongType { param, reason }
}
