//! Schemas of the wire types that implement `Deserialize` by hand, and of whole bodies.

use std::borrow::Cow;

use serde_json::Value;
use utoipa::openapi::schema::{OneOfBuilder, Type};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::request::{ChatRequest, Common, CompletionRequest, Content, Part, Prompts, Unsupported};
use super::structure::Structure;
use crate::wire::{body_schema, list, string};

body_schema! {
    /// The body of a chat completion.
    pub(super) struct ChatBody {
        model, chat: ChatRequest, common: Common, structure: Structure, legacy: Legacy,
        ignored: Ignored, unsupported: Unsupported
    }
}

/// Fields that `tools` have replaced.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
struct Legacy {
    /// Older form of `tools`; the call is returned as `message.function_call`. Not together with
    /// `tools`.
    functions: Option<Vec<Value>>,
    /// Older form of `tool_choice`: `auto`, `none` or a named function.
    function_call: Option<Value>,
}

/// Ignored fields.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
struct Ignored {
    /// Identifies the end user; ignored.
    user: Option<Value>,
    /// Data of the client; ignored.
    metadata: Option<Value>,
    /// Answers are not stored.
    store: Option<Value>,
    /// There is only one service tier.
    service_tier: Option<Value>,
    /// Identifies the end user; ignored.
    safety_identifier: Option<Value>,
    /// Prefixes of prompts are cached automatically.
    prompt_cache_key: Option<Value>,
}

body_schema! {
    /// The body of a completion.
    pub(super) struct CompletionBody {
        model, completion: CompletionRequest, common: Common, structure: Structure,
        ignored: Ignored, unsupported: Unsupported
    }
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
