//! Schemas of the wire types that implement `Deserialize` by hand, and of bodies that are parsed in
//! parts.

use utoipa::openapi::schema::{OneOfBuilder, Type};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::keep_alive::KeepAlive;
use super::request::{ChatRequest, PromptRequest, Shared, Think};
use crate::wire::{body_schema, string};

body_schema! {
    /// The body of `/api/chat`.
    pub(super) struct OllamaChatBody { chat: ChatRequest, shared: Shared }
}

body_schema! {
    /// The body of `/api/generate`.
    pub(super) struct OllamaGenerateBody { generate: PromptRequest, shared: Shared }
}

impl PartialSchema for Think {
    fn schema() -> RefOr<Schema> {
        let level = string().enum_values(Some(["low", "medium", "high", "max"]));
        let switch = ObjectBuilder::new().schema_type(Type::Boolean);
        OneOfBuilder::new().item(switch).item(level).into()
    }
}

impl ToSchema for Think {}

impl PartialSchema for KeepAlive {
    fn schema() -> RefOr<Schema> {
        let seconds = ObjectBuilder::new().schema_type(Type::Number);
        OneOfBuilder::new().item(seconds).item(string()).into()
    }
}

impl ToSchema for KeepAlive {}
