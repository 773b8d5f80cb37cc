//! What clients send, as they send it: nothing here is trusted yet. Fields that no type has are
//! passed over.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The body of `POST /v1/messages`, and of `POST /v1/messages/count_tokens`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct MessagesRequest {
    pub(super) max_tokens: Option<u32>,
    pub(super) messages: Option<Vec<Message>>,
    pub(super) system: Option<Content>,
    pub(super) temperature: Option<f64>,
    pub(super) top_p: Option<f64>,
    pub(super) top_k: Option<i64>,
    pub(super) stop_sequences: Option<Vec<String>>,
    pub(super) stream: Option<bool>,
    pub(super) tools: Option<Vec<Tool>>,
    pub(super) tool_choice: Option<ToolChoiceConfig>,
    pub(super) thinking: Option<ThinkingConfig>,
    pub(super) output_config: Option<OutputConfig>,
    /// The older name of `output_config.format`.
    pub(super) output_format: Option<Value>,
    pub(super) mcp_servers: Option<Vec<Value>>,
    pub(super) container: Option<Value>,
    #[expect(dead_code, reason = "that it has the right form is all there is to know")]
    pub(super) metadata: Option<Metadata>,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    User,
    Assistant,
    System,
}

/// One message of a conversation.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Message {
    pub(super) role: Role,
    pub(super) content: Content,
}

/// Text, or blocks of it and of other things.
#[derive(Debug, PartialEq)]
pub(super) enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

/// A block of any type: which of the fields it needs, its type says.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(expecting = "an object")]
pub(super) struct Block {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) text: Option<String>,
    pub(super) thinking: Option<String>,
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) input: Option<Map<String, Value>>,
    pub(super) tool_use_id: Option<String>,
    pub(super) content: Option<Content>,
    pub(super) is_error: Option<bool>,
}

/// A tool that the model may call.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Tool {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    #[serde(default)]
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) input_schema: Option<Map<String, Value>>,
    pub(super) strict: Option<bool>,
}

/// `tool_choice`.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct ToolChoiceConfig {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) name: Option<String>,
    pub(super) disable_parallel_tool_use: Option<bool>,
}

/// `thinking`.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct ThinkingConfig {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) budget_tokens: Option<u32>,
    pub(super) display: Option<String>,
}

/// `output_config`.
#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct OutputConfig {
    pub(super) effort: Option<String>,
    pub(super) format: Option<Value>,
}

/// `metadata`.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Metadata {
    #[expect(dead_code, reason = "that it has the right type is all there is to know")]
    pub(super) user_id: Option<String>,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of content blocks")
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Content, E> {
                Ok(Content::Text(value.to_owned()))
            }

            fn visit_string<E: de::Error>(self, value: String) -> Result<Content, E> {
                Ok(Content::Text(value))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Content, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(Content::Blocks)
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}
