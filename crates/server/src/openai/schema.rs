//! Schemas of the wire types that implement `Deserialize` by hand, and of whole bodies.

use std::borrow::Cow;

use serde_json::Value;
use utoipa::openapi::schema::{OneOfBuilder, Type};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::embeddings::EmbeddingRequest;
use super::request::{ChatRequest, Common, CompletionRequest, Content, Part, Prompts, Unsupported};
use super::responses::ResponseRequest;
use super::structure::Structure;
use super::tokenize::{DetokenizeRequest, TokenizeRequest};
use crate::wire::{list, string};

/// The body of a chat: it is read for one part of its fields after the other.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
pub(super) struct ChatBody {
    /// A name of the model: its id, an alias, or `default`, which it is without one.
    model: Option<String>,
    #[serde(flatten)]
    chat: ChatRequest,
    #[serde(flatten)]
    common: Common,
    #[serde(flatten)]
    structure: Structure,
    #[serde(flatten)]
    legacy: Legacy,
    #[serde(flatten)]
    ignored: Ignored,
    #[serde(flatten)]
    unsupported: Unsupported,
}

/// The old form of tools.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
struct Legacy {
    /// The old form of `tools`; the call comes back as `message.function_call`. Not together with
    /// `tools`.
    functions: Option<Vec<Value>>,
    /// `auto`, `none` or a named function: the old form of `tool_choice`.
    function_call: Option<Value>,
}

/// Fields that change nothing.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
struct Ignored {
    /// Who asks.
    user: Option<Value>,
    /// What the client notes.
    metadata: Option<Value>,
    /// Nothing is kept.
    store: Option<Value>,
    /// There is only one.
    service_tier: Option<Value>,
    /// Who asks.
    safety_identifier: Option<Value>,
    /// Prompts are found again by themselves.
    prompt_cache_key: Option<Value>,
}

/// The body of a completion.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
pub(super) struct CompletionBody {
    /// A name of the model: its id, an alias, or `default`, which it is without one.
    model: Option<String>,
    #[serde(flatten)]
    completion: CompletionRequest,
    #[serde(flatten)]
    common: Common,
    #[serde(flatten)]
    structure: Structure,
    #[serde(flatten)]
    ignored: Ignored,
    #[serde(flatten)]
    unsupported: Unsupported,
}

/// The body of a request for a response.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
pub(super) struct ResponseBody {
    /// A name of the model: its id, an alias, or `default`, which it is without one.
    model: Option<String>,
    #[serde(flatten)]
    response: ResponseRequest,
    #[serde(flatten)]
    ignored: IgnoredByResponses,
    #[serde(flatten)]
    common: Common,
    #[serde(flatten)]
    structure: Structure,
    #[serde(flatten)]
    unsupported: Unsupported,
}

/// Fields of other endpoints that change nothing here.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
struct IgnoredByResponses {
    /// Use `max_output_tokens`.
    max_tokens: Option<Value>,
    /// Use `max_output_tokens`.
    max_completion_tokens: Option<Value>,
    /// There is one answer.
    n: Option<Value>,
    /// The last event tells what the answer took.
    stream_options: Option<Value>,
    /// There is only one.
    service_tier: Option<Value>,
    /// Who asks.
    safety_identifier: Option<Value>,
    /// Prompts are found again by themselves.
    prompt_cache_key: Option<Value>,
}

/// The body of a request for embeddings.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
pub(super) struct EmbeddingBody {
    /// A name of the model: its id, an alias, or `default`, which it is without one.
    model: Option<String>,
    #[serde(flatten)]
    embedding: EmbeddingRequest,
    #[serde(flatten)]
    ignored: IgnoredByEmbeddings,
}

/// Fields that change nothing.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
struct IgnoredByEmbeddings {
    /// Who asks.
    user: Option<Value>,
}

/// The body of a request for tokens: a text, or the fields of a conversation.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
pub(super) struct TokenizeBody {
    /// A name of the model: its id, an alias, or `default`, which it is without one.
    model: Option<String>,
    #[serde(flatten)]
    tokenize: TokenizeRequest,
    #[serde(flatten)]
    ignored: IgnoredByTokenize,
    #[serde(flatten)]
    chat: ChatRequest,
}

/// Fields of a chat that add no token to its prompt.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
struct IgnoredByTokenize {
    /// Nothing is answered.
    logprobs: Option<Value>,
    /// Nothing is answered.
    top_logprobs: Option<Value>,
    /// Nothing is answered.
    parallel_tool_calls: Option<Value>,
    /// Nothing is answered.
    thinking_token_budget: Option<Value>,
    /// Nothing is answered.
    conversation_id: Option<Value>,
}

/// The body of a request for text.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
pub(super) struct DetokenizeBody {
    /// A name of the model: its id, an alias, or `default`, which it is without one.
    model: Option<String>,
    #[serde(flatten)]
    detokenize: DetokenizeRequest,
}

fn token() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0))
}

impl PartialSchema for Content {
    fn schema() -> RefOr<Schema> {
        OneOfBuilder::new().item(string()).item(list(Part::schema())).into()
    }
}

impl ToSchema for Content {
    fn name() -> Cow<'static, str> {
        "Content".into()
    }
}

impl PartialSchema for Prompts {
    fn schema() -> RefOr<Schema> {
        OneOfBuilder::new()
            .item(string())
            .item(list(string()))
            .item(list(token()))
            .item(list(list(token())))
            .into()
    }
}

impl ToSchema for Prompts {}
