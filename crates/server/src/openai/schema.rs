//! How the wire types that read themselves are described.

use utoipa::openapi::schema::{ArrayBuilder, OneOfBuilder, Type};
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

use super::request::{
    ChatRequest, Common, CompletionRequest, Content, Part, Prompts, Seed, Strings, Unsupported,
};

/// The body of a chat: it is read for one part of its fields after the other.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
pub(super) struct ChatBody {
    /// A name of the model; `default` is the first one.
    model: Option<String>,
    #[serde(flatten)]
    chat: ChatRequest,
    #[serde(flatten)]
    common: Common,
    #[serde(flatten)]
    unsupported: Unsupported,
}

/// The body of a completion.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
pub(super) struct CompletionBody {
    /// A name of the model; `default` is the first one.
    model: Option<String>,
    #[serde(flatten)]
    completion: CompletionRequest,
    #[serde(flatten)]
    common: Common,
    #[serde(flatten)]
    unsupported: Unsupported,
}

pub(crate) fn string() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// `[items]`
pub(crate) fn list(items: impl Into<RefOr<Schema>>) -> ArrayBuilder {
    ArrayBuilder::new().items(items.into())
}

fn token() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0))
}

impl PartialSchema for Seed {
    fn schema() -> RefOr<Schema> {
        let format = SchemaFormat::KnownFormat(KnownFormat::Int64);
        ObjectBuilder::new().schema_type(Type::Integer).format(Some(format)).into()
    }
}

impl ToSchema for Seed {}

impl PartialSchema for Strings {
    fn schema() -> RefOr<Schema> {
        OneOfBuilder::new().item(string()).item(list(string())).into()
    }
}

impl ToSchema for Strings {}

impl PartialSchema for Content {
    fn schema() -> RefOr<Schema> {
        OneOfBuilder::new().item(string()).item(list(Part::schema())).into()
    }
}

impl ToSchema for Content {}

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
