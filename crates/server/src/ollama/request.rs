//! Request bodies as clients send them, not yet validated. Unknown fields are ignored.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::keep_alive::KeepAlive;
use crate::wire::{Seed, Strings};

/// The body of `POST /api/chat`.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaChatFields)]
pub(super) struct ChatRequest {
    /// Messages of the conversation, with `thinking`, `tool_calls` (whose arguments are objects),
    /// `tool_name` and `tool_call_id`. Images are refused. Without messages, the model is only
    /// loaded.
    pub(super) messages: Option<Vec<Message>>,
    /// Functions that the model may call.
    pub(super) tools: Option<Vec<Value>>,
}

/// The body of `POST /api/generate`.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaGenerateFields)]
pub(super) struct PromptRequest {
    /// Prompt to answer. Without a prompt, the model is only loaded.
    pub(super) prompt: Option<String>,
    /// System message before the prompt.
    pub(super) system: Option<String>,
    /// Use the prompt unchanged, without the chat template. Default: `false`.
    pub(super) raw: Option<bool>,
    /// This server generates only text after the prompt.
    pub(super) suffix: Option<String>,
    /// The model's own template is used; to send the complete prompt, set `raw`.
    pub(super) template: Option<String>,
    /// Send earlier messages to `/api/chat`.
    pub(super) context: Option<Vec<Value>>,
    /// Models accept only text.
    pub(super) images: Option<Vec<Value>>,
}

/// Fields of both bodies.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = OllamaFields)]
pub(super) struct Shared {
    /// Id or alias of the model; `NAME:latest` is `NAME`. Default: `default`, the default model.
    pub(super) model: Option<String>,
    /// Stream the answer as lines of JSON, with empty deltas while the prompt is computed. Default:
    /// `true`.
    pub(super) stream: Option<bool>,
    /// Structure of the answer: `json` or a JSON schema; enforced by constrained decoding.
    pub(super) format: Option<Value>,
    /// Sampling options. Options of Ollama's runner, such as `num_ctx`, are ignored.
    pub(super) options: Option<Options>,
    /// Time that the model stays loaded after the request, if models are loaded on demand. 0
    /// without messages or a prompt unloads it.
    pub(super) keep_alive: Option<KeepAlive>,
    /// Whether the model reasons, or its reasoning effort.
    pub(super) think: Option<Think>,
    /// Return the log-probability of each token. Default: `false`.
    pub(super) logprobs: Option<bool>,
    /// Number of most likely tokens whose log-probabilities are also returned; requires `logprobs`.
    #[schema(minimum = 0, maximum = 20)]
    pub(super) top_logprobs: Option<u32>,
}

/// `options`. Options of Ollama's runner, such as `num_ctx` and `num_gpu`, are ignored: here they
/// are fixed when a model is loaded.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
#[schema(as = OllamaOptions)]
pub(super) struct Options {
    /// Maximum number of tokens to generate; 0 or less: no limit.
    pub(super) num_predict: Option<i64>,
    /// Sampling temperature; 0 always picks the most likely token.
    #[schema(minimum = 0, maximum = 2)]
    pub(super) temperature: Option<f64>,
    /// Sample from the k most likely tokens.
    pub(super) top_k: Option<i64>,
    /// Sample from the most likely tokens whose probabilities add up to this value.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub(super) top_p: Option<f64>,
    /// Minimum probability of a token, relative to the most likely token.
    #[schema(minimum = 0, maximum = 1)]
    pub(super) min_p: Option<f64>,
    /// Penalty for repeated tokens; above 1 makes them less likely.
    #[schema(exclusive_minimum = 0, maximum = 10)]
    pub(super) repeat_penalty: Option<f64>,
    /// Number of recent tokens that count as repeated; -1: all, 0: none.
    #[schema(minimum = -1)]
    pub(super) repeat_last_n: Option<i64>,
    /// Penalty subtracted from the logits of tokens that the answer already contains. Default: 0.
    #[schema(minimum = -2, maximum = 2)]
    pub(super) presence_penalty: Option<f64>,
    /// Penalty subtracted for each time that the answer already contains the token. Default: 0.
    #[schema(minimum = -2, maximum = 2)]
    pub(super) frequency_penalty: Option<f64>,
    /// Seed of the sampling; -1: a random one.
    pub(super) seed: Option<Seed>,
    /// Strings that end the answer.
    pub(super) stop: Option<Strings>,
    /// Accepted only if it is off; use `top_p`, `top_k` or `min_p`.
    pub(super) typical_p: Option<f64>,
    /// Accepted only if it is off; use `top_p`, `top_k` or `min_p`.
    pub(super) tfs_z: Option<f64>,
    /// Accepted only if it is off; use `top_p`, `top_k` or `min_p`.
    pub(super) mirostat: Option<i64>,
}

/// Author of a message.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = OllamaRole)]
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
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
#[schema(as = OllamaMessage)]
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
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
#[schema(as = OllamaToolCall)]
pub(super) struct ToolCall {
    pub(super) id: Option<String>,
    pub(super) function: CalledFunction,
}

/// The function of a [`ToolCall`].
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
#[schema(as = OllamaCalledFunction)]
pub(super) struct CalledFunction {
    pub(super) name: String,
    pub(super) arguments: Option<Map<String, Value>>,
}

/// The fields of tools that are checked; the template gets the tools with all of their fields.
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
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaNamed)]
pub(super) struct Named {
    /// Id or alias of the model. Default: `default`, the default model.
    model: Option<String>,
    /// Older name of `model`.
    name: Option<String>,
    /// For `/api/pull`: stream the progress as lines of JSON. Default: `true`.
    pub(super) stream: Option<bool>,
}

impl Named {
    pub(super) fn name(&self) -> Option<&str> {
        self.model.as_deref().or(self.name.as_deref())
    }
}

/// `think`: whether to reason, or with which effort.
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
                    // Templates know no higher level.
                    "max" => Ok(Think::Level("high".to_owned())),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_any(ThinkVisitor)
    }
}
