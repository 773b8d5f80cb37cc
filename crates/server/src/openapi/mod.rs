//! The API description: `/openapi.json`, generated from the wire types, and `/docs`, which shows it
//! without access to other servers.

pub(crate) mod answers;
mod docs;

use axum::http::{HeaderMap, HeaderValue};
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::path::{HttpMethod, Operation};
use utoipa::openapi::schema::OneOfBuilder;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder, Schema};
use utoipa::{OpenApi as _, ToSchema};

use crate::anthropic::error::ANTHROPIC_VERSION;
use crate::dialect::Dialect;
use crate::route::{Entry, Route};

pub(crate) use docs::routes as docs_routes;

/// The errors that every operation may return.
const REFUSALS: [(&str, &str); 15] = [
    ("400", "The request is invalid; the message names the field."),
    ("401", "A key is missing or wrong."),
    ("403", "The key may not do this."),
    ("404", "The path, model or object does not exist."),
    ("405", "The path does not support this method."),
    ("408", "The body did not arrive in time."),
    ("409", "The request conflicts with the state of the server."),
    ("413", "The body is too large."),
    ("415", "The content type is not JSON."),
    ("421", "The server does not answer to this host name."),
    ("429", "The server is overloaded; `Retry-After` says when to retry."),
    ("500", "The model's output is not a number, or the server has a bug."),
    ("503", "The model is loading, or ranks are lost; `Retry-After` says when to retry."),
    ("504", "The answer was not complete within the time limit."),
    ("507", "There is not enough memory."),
];

const REFUSED: &str = "refused";
const IGNORED: &str = "ignored";

/// Schemas of unsupported fields, each with whether its fields are ignored, or refused unless their
/// value asks for nothing.
pub(crate) const STATUS_OF_SCHEMAS: [(&str, &str); 6] = [
    ("Unsupported", REFUSED),
    ("Ignored", IGNORED),
    ("IgnoredByResponses", IGNORED),
    ("IgnoredByEmbeddings", IGNORED),
    ("IgnoredByTokenize", IGNORED),
    ("AnthropicIgnored", IGNORED),
];

/// Fields of other schemas that are ignored, or refused unless their value asks for nothing.
pub(crate) const STATUS_OF_FIELDS: [(&str, &[&str], &str); 11] = [
    ("ChatRequest", &["verbosity"], IGNORED),
    ("ResponseRequest", &["background", "conversation", "prompt"], REFUSED),
    ("ResponseRequest", &["max_tool_calls"], IGNORED),
    ("TextOptions", &["verbosity"], IGNORED),
    ("LoadRequest", &["model_dir", "model_path"], REFUSED),
    ("UnloadRequest", &["model_dir", "model_path"], REFUSED),
    ("UnloadUnusedRequest", &["model", "model_id"], REFUSED),
    ("MessagesRequest", &["mcp_servers", "container"], REFUSED),
    ("MessagesRequest", &["metadata"], IGNORED),
    ("OllamaGenerateFields", &["suffix", "template", "context", "images"], REFUSED),
    ("OllamaOptions", &["typical_p", "tfs_z", "mirostat"], REFUSED),
];

#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "Jackalope", description = "Several machines, one endpoint for language models."),
    components(schemas(
        OpenAiError,
        AnthropicError,
        answers::OllamaError,
        crate::anthropic::request::Block,
        crate::openai::request::Part
    ))
)]
struct Base;

/// Builds the OpenAPI document of these routes, which come in groups with a tag for each.
pub(crate) fn document(groups: Vec<(&'static str, Vec<Route>)>) -> OpenApi {
    let mut document = Base::openapi();
    let components = document.components.get_or_insert_default();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    components.add_security_scheme("key", SecurityScheme::Http(bearer));
    for (tag, routes) in groups {
        for route in routes {
            let Some(Entry { mut operation, schemas }) = route.entry() else { continue };
            let path = route.documented_path();
            operation.tags = Some(vec![tag.to_owned()]);
            operation.operation_id = Some(operation_id(&route.method, &path));
            add_refusals(&path, &mut operation);
            document.paths.add_path_operation(path, vec![route.method], operation);
            components.schemas.extend(schemas);
        }
    }
    for (name, status) in STATUS_OF_SCHEMAS {
        if let Some(schema) = components.schemas.get_mut(name) {
            set_status(schema, status);
        }
    }
    for (name, fields, status) in STATUS_OF_FIELDS {
        let Some(RefOr::T(Schema::Object(schema))) = components.schemas.get_mut(name) else {
            continue;
        };
        for field in fields {
            if let Some(property) = schema.properties.get_mut(*field) {
                set_status(property, status);
            }
        }
    }
    document
}

fn set_status(schema: &mut RefOr<Schema>, status: &str) {
    let extensions = match schema {
        RefOr::T(Schema::Object(it)) => &mut it.extensions,
        RefOr::T(Schema::Array(it)) => &mut it.extensions,
        RefOr::T(Schema::OneOf(it)) => &mut it.extensions,
        _ => return,
    };
    let status = Extensions::builder().add("x-status", status).build();
    extensions.get_or_insert_default().merge(status);
}

/// Builds the id of an operation, such as `post_v1_chat_completions`.
fn operation_id(method: &HttpMethod, path: &str) -> String {
    let method = match method {
        HttpMethod::Post => "post",
        HttpMethod::Delete => "delete",
        _ => "get",
    };
    let words = path.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let end = if 1 < path.len() && path.ends_with('/') { "_index" } else { "" };
    format!("{method}_{}{end}", words.join("_"))
}

fn add_refusals(path: &str, operation: &mut Operation) {
    let mut with_version = HeaderMap::new();
    with_version.insert(ANTHROPIC_VERSION, HeaderValue::from_static(""));
    let forms = [HeaderMap::new(), with_version].map(|headers| Dialect::of(path, &headers));
    let one_form = forms[0] == forms[1];
    let overloaded = ("529", "The server is overloaded, the model is loading, or ranks are lost.");
    let overloaded = forms.contains(&Dialect::Anthropic).then_some(overloaded);
    for (status, meaning) in REFUSALS.into_iter().chain(overloaded) {
        let schema: RefOr<Schema> = match one_form {
            true => error_schema(forms[0]).into(),
            false => {
                let either = OneOfBuilder::new().item(error_schema(forms[0]));
                either.item(error_schema(forms[1])).into()
            }
        };
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let response =
            ResponseBuilder::new().description(meaning).content("application/json", content);
        let responses = &mut operation.responses.responses;
        responses.entry(status.to_owned()).or_insert_with(|| response.build().into());
    }
}

fn error_schema(dialect: Dialect) -> Ref {
    Ref::from_schema_name(match dialect {
        Dialect::OpenAi => "OpenAiError",
        Dialect::Anthropic => "AnthropicError",
        Dialect::Ollama => "OllamaError",
    })
}

/// An error in OpenAI's form, with `detail` for clients of older servers.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described; `ApiError` writes it")]
struct OpenAiError {
    error: OpenAiErrorBody,
    detail: String,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described; `ApiError` writes it")]
struct OpenAiErrorBody {
    /// What was found and what is expected, with a hint on a line of its own.
    message: String,
    r#type: String,
    /// Name of the field that the error is about.
    param: Option<String>,
    code: Option<String>,
}

/// An error in Anthropic's form.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described; `ApiError` writes it")]
struct AnthropicError {
    r#type: String,
    error: AnthropicErrorBody,
    request_id: Option<String>,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described; `ApiError` writes it")]
struct AnthropicErrorBody {
    r#type: String,
    message: String,
}
