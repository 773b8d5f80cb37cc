//! Request bodies as clients send them, not yet validated. Unknown fields are ignored.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::openapi::schema::OneOfBuilder;
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::wire::{Listed, TextOr, body_schema, list, string};

/// The body of `POST /v1/messages`, and of `POST /v1/messages/count_tokens`.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct MessagesRequest {
    /// Maximum number of tokens to generate. Required, except for counting tokens.
    #[schema(minimum = 1)]
    pub(super) max_tokens: Option<u32>,
    /// Messages of the conversation, each a string or content blocks. If the last message is the
    /// assistant's, the answer continues it. Images, documents and blocks of server tools are
    /// refused.
    pub(super) messages: Option<Vec<Message>>,
    /// System prompt: a string or text blocks. A block that begins with
    /// `x-anthropic-billing-header:` is dropped, because it would prevent prefix cache hits for
    /// everything after it.
    pub(super) system: Option<Content>,
    /// Sampling temperature; 0 always picks the most likely token.
    #[schema(minimum = 0, maximum = 1)]
    pub(super) temperature: Option<f64>,
    /// Sample from the most likely tokens whose probabilities add up to this value.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub(super) top_p: Option<f64>,
    /// Sample from the k most likely tokens.
    pub(super) top_k: Option<i64>,
    /// Strings that end the answer.
    pub(super) stop_sequences: Option<Vec<String>>,
    /// Stream the answer as server-sent events, with `ping` events while the prompt is computed.
    /// Default: `false`.
    pub(super) stream: Option<bool>,
    /// Tools that the model may call, each with an `input_schema`. Server tools are refused.
    pub(super) tools: Option<Vec<Tool>>,
    /// Whether tools may or must be called; enforced by constrained decoding.
    pub(super) tool_choice: Option<ToolChoiceConfig>,
    /// Reasoning. Default: the server's setting.
    pub(super) thinking: Option<ThinkingConfig>,
    /// Reasoning effort and structure of the answer.
    pub(super) output_config: Option<OutputConfig>,
    /// Older name of `output_config.format`.
    pub(super) output_format: Option<Value>,
    /// This server runs no tools itself.
    pub(super) mcp_servers: Option<Vec<Value>>,
    /// This server runs no tools itself.
    pub(super) container: Option<Value>,
    /// Information about the end user; ignored.
    #[expect(dead_code, reason = "that it has the right form is all there is to know")]
    pub(super) metadata: Option<Metadata>,
}

/// Author of a message.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = AnthropicRole)]
pub(super) enum Role {
    User,
    Assistant,
    System,
}

/// One message of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
#[schema(as = AnthropicMessage)]
pub(super) struct Message {
    pub(super) role: Role,
    pub(super) content: Content,
}

/// Text, or a list of content blocks.
pub(super) type Content = TextOr<Block>;

impl Listed for Block {
    const EXPECTED: &'static str = "a string or a list of content blocks";
}

/// A content block. Which fields it needs depends on its type.
#[derive(Debug, Deserialize, PartialEq, ToSchema)]
#[serde(expecting = "an object")]
#[schema(as = AnthropicBlock)]
pub(crate) struct Block {
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
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
#[schema(as = AnthropicTool)]
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
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
#[schema(as = AnthropicToolChoice)]
pub(super) struct ToolChoiceConfig {
    /// `auto`, `none`, `any`, or `tool` with its `name`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// Name of the tool, for the type `tool`.
    pub(super) name: Option<String>,
    /// End the answer after the first tool call. Default: `false`.
    pub(super) disable_parallel_tool_use: Option<bool>,
}

/// `thinking`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
#[schema(as = AnthropicThinking)]
pub(super) struct ThinkingConfig {
    /// `disabled`, `adaptive`, or `enabled` with a budget.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// Maximum number of reasoning tokens; the reasoning is then closed.
    #[schema(minimum = 1024)]
    pub(super) budget_tokens: Option<u32>,
    /// `omitted` leaves the reasoning out of the answer.
    pub(super) display: Option<String>,
}

/// `output_config`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
#[schema(as = AnthropicOutputConfig)]
pub(super) struct OutputConfig {
    /// Reasoning effort, passed to the chat template; `xhigh` and `max` as `high`.
    pub(super) effort: Option<String>,
    /// Structure of the answer: `json_schema` with a `schema`; enforced by constrained decoding.
    pub(super) format: Option<Value>,
}

/// `metadata`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
#[schema(as = AnthropicMetadata)]
pub(super) struct Metadata {
    /// Information about the end user; ignored.
    #[expect(dead_code, reason = "that it has the right type is all there is to know")]
    pub(super) user_id: Option<String>,
}

impl PartialSchema for Content {
    fn schema() -> RefOr<Schema> {
        // Referenced by name, because a block may contain blocks.
        let block = Ref::from_schema_name("AnthropicBlock");
        OneOfBuilder::new().item(string()).item(list(block)).into()
    }
}

impl ToSchema for Content {
    fn name() -> Cow<'static, str> {
        "AnthropicContent".into()
    }
}

body_schema! {
    /// The body of a request, including ignored fields.
    pub(super) struct MessagesBody { model, messages: MessagesRequest, ignored: Ignored }
}

/// Ignored fields.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
#[schema(as = AnthropicIgnored)]
struct Ignored {
    /// Prefixes of prompts are cached automatically.
    cache_control: Option<Value>,
    /// There is only one service tier.
    service_tier: Option<Value>,
    /// The conversation is used unchanged.
    context_management: Option<Value>,
}
