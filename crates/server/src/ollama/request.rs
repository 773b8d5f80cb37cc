//! What clients send, as they send it: nothing here is trusted yet. Fields that no type has are
//! passed over.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_json::{Map, Value};

use super::lifetime::KeepAlive;
use super::options::Options;

/// The body of `POST /api/chat`.
#[derive(Debug, Deserialize)]
pub(super) struct ChatRequest {
    pub(super) messages: Option<Vec<Message>>,
    pub(super) tools: Option<Vec<Value>>,
}

/// The body of `POST /api/generate`.
#[derive(Debug, Deserialize)]
pub(super) struct GenerateRequest {
    pub(super) prompt: Option<String>,
    pub(super) system: Option<String>,
    pub(super) raw: Option<bool>,
    pub(super) suffix: Option<String>,
    pub(super) template: Option<String>,
    pub(super) context: Option<Vec<Value>>,
    pub(super) images: Option<Vec<Value>>,
}

/// Fields that both have.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Shared {
    pub(super) model: Option<String>,
    pub(super) stream: Option<bool>,
    pub(super) format: Option<Value>,
    pub(super) options: Option<Options>,
    pub(super) keep_alive: Option<KeepAlive>,
    pub(super) think: Option<Think>,
    pub(super) logprobs: Option<bool>,
    pub(super) top_logprobs: Option<u32>,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    pub(super) fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// One message of a conversation.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Message {
    pub(super) role: Role,
    pub(super) content: Option<String>,
    pub(super) thinking: Option<String>,
    pub(super) images: Option<Vec<Value>>,
    pub(super) tool_calls: Option<Vec<ToolCall>>,
    pub(super) tool_name: Option<String>,
    pub(super) tool_call_id: Option<String>,
}

/// A tool call that an earlier answer contained.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct ToolCall {
    pub(super) id: Option<String>,
    pub(super) function: CalledFunction,
}

/// The function of a [`ToolCall`].
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct CalledFunction {
    pub(super) name: String,
    pub(super) arguments: Option<Map<String, Value>>,
}

/// The tools, as far as they are checked; the template gets them as they are.
#[derive(Debug, Deserialize)]
pub(super) struct Tools {
    pub(super) tools: Option<Vec<Tool>>,
}

/// A tool that the model may call.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Tool {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) function: ToolFunction,
}

/// The function of a [`Tool`].
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct ToolFunction {
    pub(super) name: String,
}

/// The model of a request that names nothing else; older clients say `name`.
#[derive(Debug, Deserialize)]
pub(super) struct Named {
    model: Option<String>,
    name: Option<String>,
    pub(super) stream: Option<bool>,
}

impl Named {
    pub(super) fn name(&self) -> Option<&str> {
        self.model.as_deref().or(self.name.as_deref())
    }
}

/// `think`: whether, or how much.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Think {
    Switch(bool),
    Level(String),
}

impl<'de> Deserialize<'de> for Think {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Think, D::Error> {
        struct ThinkVisitor;
        impl Visitor<'_> for ThinkVisitor {
            type Value = Think;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a boolean, or one of low, medium, high and max")
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Think, E> {
                Ok(Think::Switch(value))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Think, E> {
                match value {
                    "low" | "medium" | "high" => Ok(Think::Level(value.to_owned())),
                    // Templates know no more than that.
                    "max" => Ok(Think::Level("high".to_owned())),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_any(ThinkVisitor)
    }
}
