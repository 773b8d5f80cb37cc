//! Converts messages to the form that a template expects.
//!
//! Clients send content as a string or as a list of parts, and tool arguments as a string that
//! holds JSON. Templates differ in what they accept. When a template is loaded, rendering small
//! conversations in each form detects what it accepts.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::ChatPrompt;
use crate::error::TextError;

/// Names of a message's reasoning in requests; most templates read the first one.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A word that no template contains: a rendered prompt that contains it has used the message.
const MARK: &str = "jackalope-probe-7c1e";

/// The forms of messages that a template accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Forms {
    content: Content,
    arguments: Arguments,
    /// Whether the template handles the role `developer`, which newer clients send instead of
    /// `system`.
    knows_developer: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// The template accepts only strings.
    Text,
    /// The template accepts only lists of parts.
    Parts,
    /// The template accepts strings and lists of parts.
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arguments {
    Objects,
    Strings,
}

impl Forms {
    /// Returns the forms before the template is run: the source shows whether it handles the role
    /// `developer`; content and arguments have their most common forms.
    pub(super) fn of_source(source: &str) -> Forms {
        Forms {
            content: Content::Text,
            arguments: Arguments::Objects,
            knows_developer: source.contains("developer"),
        }
    }

    /// Detects the forms of content and arguments that a template accepts, by rendering small
    /// conversations with `render`.
    pub(super) fn probed(
        self,
        render: impl Fn(&ChatPrompt<'_>) -> Result<String, TextError>,
    ) -> Forms {
        let render = |messages: Value, tools: Option<&[Value]>| {
            let messages = messages.as_array().cloned().unwrap_or_default();
            let kwargs = Map::new();
            render(&ChatPrompt {
                messages: &messages,
                tools,
                kwargs: &kwargs,
                add_generation_prompt: false,
            })
            .ok()
            .filter(|text| text.contains(MARK))
        };
        let text = render(json!([{"role": "user", "content": MARK}]), None);
        let parts = json!([{"role": "user", "content": [{"type": "text", "text": MARK}]}]);
        let content = match (text, render(parts, None)) {
            // A template that accepts lists writes the same prompt for both.
            (Some(text), Some(parts)) if text == parts => Content::Both,
            (None, Some(_)) => Content::Parts,
            _ => Content::Text,
        };
        let call = |arguments: Value| {
            // Mistral's templates require an id of nine characters.
            let function = json!({"name": "probe", "arguments": arguments});
            let call = json!({"id": "probe0001", "type": "function", "function": function});
            let answer = json!({"role": "tool", "tool_call_id": "probe0001", "content": "1"});
            let tools = [json!({"type": "function", "function": {
                "name": "probe", "description": "", "parameters": {"type": "object", "properties": {}},
            }})];
            let messages = json!([
                {"role": "user", "content": "1"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                answer,
            ]);
            render(messages, Some(&tools))
        };
        let objects = call(json!({"probe": MARK}));
        let strings = || call(Value::from(json!({"probe": MARK}).to_string()));
        // A template that expects a string fails on an object, or prints it as Python would.
        let wrong = |text: &String| text.contains("{'probe':");
        let arguments = if objects.as_ref().is_none_or(wrong) && strings().is_some() {
            Arguments::Strings
        } else {
            Arguments::Objects
        };
        Forms { content, arguments, ..self }
    }

    /// Converts the messages to the form that the template accepts.
    pub(super) fn prepare(self, messages: &[Value]) -> Result<Vec<Value>, TextError> {
        let mut prepared = Vec::with_capacity(messages.len());
        // Tool name of each call id, for results that give only the id.
        let mut called: HashMap<&str, &Value> = HashMap::new();
        for (idx, message) in messages.iter().enumerate() {
            let mut one = self.prepare_one(idx, message)?;
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                if let (Some(id), name @ Value::String(_)) =
                    (call["id"].as_str(), &call["function"]["name"])
                {
                    called.insert(id, name);
                }
            }
            let answered = message["tool_call_id"].as_str().and_then(|id| called.get(id));
            if let (Some(name), Value::Object(one)) = (answered, &mut one) {
                one.entry("name").or_insert_with(|| (*name).clone());
            }
            prepared.push(one);
        }
        Ok(prepared)
    }

    fn prepare_one(self, message_idx: usize, message: &Value) -> Result<Value, TextError> {
        let message = message.as_object().ok_or(TextError::NotAnObject { message_idx })?;
        let mut prepared = Map::new();
        let reasoning = REASONING.iter().filter_map(|name| message.get(*name));
        let reasoning = reasoning.into_iter().find(|value| !value.is_null()).cloned();
        if let (Some(reasoning), None) = (&reasoning, message.get("thinking")) {
            prepared.insert("thinking".to_owned(), reasoning.clone());
        }
        for (key, value) in message.iter().filter(|(_, value)| !value.is_null()) {
            let value = match (key.as_str(), value) {
                ("content", content) => self.content(message_idx, content)?,
                ("tool_calls", Value::Array(calls)) => {
                    calls.iter().map(|call| self.tool_call(call)).collect()
                }
                ("role", Value::String(role)) if role == "developer" && !self.knows_developer => {
                    "system".into()
                }
                _ => value.clone(),
            };
            prepared.insert(key.clone(), value);
        }
        if !prepared.contains_key("content") {
            prepared.insert("content".to_owned(), "".into());
        }
        if let Some(reasoning) = reasoning {
            prepared.insert(REASONING[0].to_owned(), reasoning);
        }
        Ok(Value::Object(prepared))
    }

    fn content(self, message_idx: usize, content: &Value) -> Result<Value, TextError> {
        let parts = match content {
            Value::String(text) if self.content == Content::Parts => {
                return Ok(json!([{"type": "text", "text": text}]));
            }
            Value::String(_) => return Ok(content.clone()),
            Value::Array(parts) => parts,
            _ => return Err(TextError::Content { message_idx }),
        };
        let mut joined = String::new();
        for (part_idx, part) in parts.iter().enumerate() {
            match (part["type"].as_str(), part["text"].as_str()) {
                (Some("text"), Some(text)) => joined.push_str(text),
                (found, _) => {
                    let found = found.unwrap_or("none").to_owned();
                    return Err(TextError::UnsupportedPart { message_idx, part_idx, found });
                }
            }
        }
        Ok(if self.content == Content::Text { joined.into() } else { content.clone() })
    }

    fn tool_call(self, call: &Value) -> Value {
        let mut call = call.clone();
        if let Some(arguments) = call.pointer_mut("/function/arguments") {
            let other = match (self.arguments, &*arguments) {
                (Arguments::Objects, Value::String(text)) if text.trim().is_empty() => {
                    Some(Value::Object(Map::new()))
                }
                // Text that is not a JSON object stays a string.
                (Arguments::Objects, Value::String(text)) => {
                    serde_json::from_str(text).ok().map(Value::Object)
                }
                (Arguments::Strings, Value::Object(_)) => Some(arguments.to_string().into()),
                _ => None,
            };
            if let Some(other) = other {
                *arguments = other;
            }
        }
        call
    }
}
