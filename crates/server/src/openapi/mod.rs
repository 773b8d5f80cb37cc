//! The API description: `/openapi.json`, generated from the wire types, and `/docs`, which shows it
//! without access to other servers.

pub(crate) mod answers;
mod page;
mod twins;

use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use axum::http::header::{
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Redirect, Response};
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::path::{HttpMethod, Operation};
use utoipa::openapi::schema::OneOfBuilder;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder, Schema};
use utoipa::{Modify, OpenApi as _, ToSchema};
use utoipa_swagger_ui::Config;

use crate::anthropic::error::ANTHROPIC_VERSION;
use crate::dialect::Dialect;
use jackalope_serving::error::ApiError;

/// The errors that every operation may return.
const REFUSALS: [(&str, &str); 15] = [
    ("400", "The request is impossible; the message names the field."),
    ("401", "A key is missing or wrong."),
    ("403", "The key may not do this."),
    ("404", "There is no such path, model or object."),
    ("405", "The path does not take this method."),
    ("408", "The body did not arrive in time."),
    ("409", "The state of the server does not allow it."),
    ("413", "The body is too large."),
    ("415", "The content type is not JSON."),
    ("421", "The server does not answer to this name."),
    ("429", "There is too much to do; `Retry-After` says when to come back."),
    ("500", "The model's output is not a number, or the server has a fault."),
    ("503", "The model is loading, or its ranks are lost; `Retry-After` says when to come back."),
    ("504", "The answer took longer than is allowed."),
    ("507", "There is not enough memory."),
];

const REFUSED: &str = "refused";
const IGNORED: &str = "ignored";

/// Schemas whose fields are either refused, unless their value asks for nothing, or without effect.
const STATUS_OF_SCHEMAS: [(&str, &str); 6] = [
    ("Unsupported", REFUSED),
    ("Ignored", IGNORED),
    ("IgnoredByResponses", IGNORED),
    ("IgnoredByEmbeddings", IGNORED),
    ("IgnoredByTokenize", IGNORED),
    ("AnthropicIgnored", IGNORED),
];

/// The same for single fields.
const STATUS_OF_FIELDS: [(&str, &[&str], &str); 9] = [
    ("ChatRequest", &["verbosity"], IGNORED),
    ("ResponseRequest", &["background", "conversation", "prompt"], REFUSED),
    ("ResponseRequest", &["max_tool_calls"], IGNORED),
    ("TextOptions", &["verbosity"], IGNORED),
    ("ControlRequest", &["model_dir", "model_path"], REFUSED),
    ("MessagesRequest", &["mcp_servers", "container"], REFUSED),
    ("MessagesRequest", &["metadata"], IGNORED),
    ("OllamaGenerateFields", &["suffix", "template", "context", "images"], REFUSED),
    ("OllamaOptions", &["typical_p", "tfs_z", "mirostat"], REFUSED),
];

#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "Jackalope", description = "Several machines, one endpoint for language models."),
    paths(
        crate::openai::chat::chat,
        crate::openai::completions::completions,
        crate::openai::embeddings::embeddings,
        crate::openai::responses::create_response,
        crate::openai::responses::show_response,
        crate::openai::responses::delete_response,
        crate::openai::responses::list_input_items,
        crate::openai::tokenize::tokenize,
        crate::openai::tokenize::detokenize,
        crate::anthropic::models::list_models,
        crate::anthropic::models::show_model,
        crate::anthropic::messages::messages,
        crate::anthropic::messages::count_tokens,
        crate::ollama::chat::chat,
        crate::ollama::generate::generate,
        crate::ollama::embed::embed,
        crate::ollama::embed::embeddings,
        crate::ollama::models::tags,
        crate::ollama::models::ps,
        crate::ollama::models::version,
        crate::ollama::models::show,
        crate::ollama::pull::pull,
        crate::ollama::models::delete,
        crate::ollama::models::copy,
        crate::ollama::models::unsupported,
        crate::openapi::twins::push,
        crate::openapi::twins::blobs,
        crate::model_control::load,
        crate::model_control::unload,
        crate::model_control::unload_unused,
        crate::health::health,
        crate::health::live,
        crate::health::ready,
        crate::health::version,
        crate::monitor::overview::root,
        crate::monitor::overview::dashboard,
        crate::monitor::overview::queue,
        crate::monitor::overview::model,
        crate::metrics::metrics,
        crate::monitor::snapshot::snapshot,
        crate::monitor::snapshot::stream,
        crate::monitor::memory::memory,
        crate::monitor::memory::live,
        crate::monitor::history::recent,
        crate::openapi::twins::recent,
        crate::monitor::history::stats,
        crate::monitor::history::errors,
        crate::monitor::admin::status,
        crate::monitor::admin::cache_stats,
        crate::monitor::admin::clear_cache,
        crate::openapi::twins::clear_prefixes,
        crate::monitor::admin::cancel,
        crate::openapi::twins::cancel,
        crate::openapi::openapi,
        crate::openapi::docs_root,
        crate::openapi::docs,
        crate::openapi::twins::docs_index,
    ),
    components(schemas(
        OpenAiError,
        AnthropicError,
        answers::OllamaError,
        crate::anthropic::request::Block,
        crate::openai::request::Part
    )),
    modifiers(&Common)
)]
struct Document;

/// Writes one table of all endpoints and one of each endpoint's parameters, as Markdown.
pub fn tables() -> String {
    page::tables(&document())
}

/// Builds the OpenAPI document of all endpoints.
pub fn document() -> OpenApi {
    Document::openapi()
}

/// Applies what all operations have in common.
struct Common;

impl Modify for Common {
    fn modify(&self, document: &mut OpenApi) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        if let Some(components) = &mut document.components {
            components.add_security_scheme("key", SecurityScheme::Http(bearer));
            for (name, status) in STATUS_OF_SCHEMAS {
                if let Some(schema) = components.schemas.get_mut(name) {
                    set_status(schema, status);
                }
            }
            for (name, fields, status) in STATUS_OF_FIELDS {
                let Some(RefOr::T(Schema::Object(schema))) = components.schemas.get_mut(name)
                else {
                    continue;
                };
                for field in fields {
                    if let Some(property) = schema.properties.get_mut(*field) {
                        set_status(property, status);
                    }
                }
            }
        }
        for (path, item) in &mut document.paths.paths {
            for (method, operation) in operations(item) {
                // Handlers that serve several paths would otherwise share an operation id.
                operation.operation_id = Some(operation_id(&method, path));
                add_refusals(path, operation);
            }
        }
    }
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

fn operations(
    item: &mut utoipa::openapi::PathItem,
) -> impl Iterator<Item = (HttpMethod, &mut Operation)> {
    let utoipa::openapi::PathItem { get, post, delete, head, put, patch, .. } = item;
    let all = [
        (HttpMethod::Get, get),
        (HttpMethod::Post, post),
        (HttpMethod::Delete, delete),
        (HttpMethod::Head, head),
        (HttpMethod::Put, put),
        (HttpMethod::Patch, patch),
    ];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

fn add_refusals(path: &str, operation: &mut Operation) {
    let mut with_version = HeaderMap::new();
    with_version.insert(ANTHROPIC_VERSION, HeaderValue::from_static(""));
    let forms = [HeaderMap::new(), with_version].map(|headers| Dialect::of(path, &headers));
    let one_form = forms[0] == forms[1];
    let overloaded = ("529", "There is too much to do, or the model is loading or its ranks lost.");
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

/// An error as clients of OpenAI read it, beside `detail` for clients of older servers.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described; `ApiError` writes it")]
struct OpenAiError {
    error: OpenAiErrorBody,
    detail: String,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described; `ApiError` writes it")]
struct OpenAiErrorBody {
    /// What was found, what is expected, and on a line of its own what to do.
    message: String,
    r#type: String,
    /// The field at fault.
    param: Option<String>,
    code: Option<String>,
}

/// An error as clients of Anthropic read it.
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

/// Describes this API.
#[utoipa::path(get, path = "/openapi.json", tag = "description", responses((status = 200, description = "An OpenAPI document.", body = answers::Fields)))]
pub(crate) async fn openapi() -> Json<OpenApi> {
    Json(document())
}

/// Content security policy of the documentation page. Swagger UI uses inline styles, and has its
/// icons in the style sheet.
const DOCS_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
    connect-src 'self'; img-src 'self' data:; font-src 'self' data:; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

/// Scales the documentation page to narrow screens, and makes its tables scroll within it.
const NARROW: &str = "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
    <style>@media (max-width: 640px) {\
    .swagger-ui .wrapper { padding: 0 8px; }\
    .swagger-ui .opblock .opblock-summary-path { max-width: 100%; word-break: break-all; }\
    .swagger-ui .opblock .opblock-summary-description { display: none; }\
    .swagger-ui table { display: block; overflow-x: auto; }\
    }</style>";

/// Leads to the page that shows this description.
#[utoipa::path(
    get,
    path = "/docs",
    tag = "description",
    responses(
        (status = 200, description = "The page, once the client has gone there.", body = String, content_type = "text/html"),
        (status = 307, description = "`/docs/`")
    )
)]
pub(crate) async fn docs_root() -> Redirect {
    Redirect::temporary("/docs/")
}

/// Serves a part of the page that shows this description.
#[utoipa::path(
    get,
    path = "/docs/{path}",
    tag = "description",
    params(("path" = String, Path, description = "The name of the part.")),
    responses((status = 200, description = "The part.", content(
        (String = "text/html"),
        (String = "text/css"),
        (String = "text/javascript"),
        (String = "application/javascript"),
        (Vec<u8> = "image/png"),
    )))
)]
pub(crate) async fn docs(path: Option<Path<String>>) -> Result<Response, ApiError> {
    let path = path.map_or(String::new(), |Path(path)| path);
    let config = Config::from("/openapi.json").doc_expansion("none").validator_url("none");
    let unknown = || ApiError::UnknownPath { path: format!("/docs/{path}") };
    let file = utoipa_swagger_ui::serve(&path, Arc::new(config)).ok().flatten();
    let file = file.ok_or_else(unknown)?;
    let is_page = file.content_type.starts_with("text/html");
    let bytes = if is_page { for_phones(&file.bytes) } else { file.bytes.into_owned() };
    let headers = [
        (CONTENT_TYPE, file.content_type.as_str()),
        (CONTENT_SECURITY_POLICY, DOCS_POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, bytes).into_response())
}

/// Adds what Swagger UI's page lacks for narrow screens.
fn for_phones(page: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(page).replacen("</head>", &format!("{NARROW}</head>"), 1).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_that_of_a_field_there_is() {
        let document = serde_json::to_value(document()).unwrap();
        let schemas = &document["components"]["schemas"];
        for (name, status) in STATUS_OF_SCHEMAS {
            assert_eq!(schemas[name]["x-status"], status, "{name}");
        }
        for (name, fields, status) in STATUS_OF_FIELDS {
            for field in fields {
                let found = &schemas[name]["properties"][field]["x-status"];
                assert_eq!(found, status, "{name}.{field}");
            }
        }
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let document = serde_json::to_value(document()).unwrap();
        let mut names = std::collections::HashSet::new();
        for item in document["paths"].as_object().unwrap().values() {
            for operation in item.as_object().unwrap().values() {
                let name = operation["operationId"].as_str().unwrap();
                assert!(names.insert(name.to_owned()), "{name}");
            }
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn check(value: &serde_json::Value, document: &serde_json::Value) {
            match value {
                serde_json::Value::Object(fields) => {
                    if let Some(reference) = fields.get("$ref").and_then(|it| it.as_str()) {
                        let pointer = reference.strip_prefix('#').unwrap();
                        assert!(document.pointer(pointer).is_some(), "{reference}");
                    }
                    fields.values().for_each(|it| check(it, document));
                }
                serde_json::Value::Array(items) => items.iter().for_each(|it| check(it, document)),
                _ => {}
            }
        }
        let document = serde_json::to_value(document()).unwrap();
        check(&document, &document);
    }
}
