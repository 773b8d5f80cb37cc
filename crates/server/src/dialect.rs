//! The API that a client uses, which determines the form of errors.

use axum::Json;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use jackalope_serving::error::ApiError;

use crate::anthropic::error::{self as anthropic, ANTHROPIC_VERSION};
use crate::ollama::error as ollama;
use crate::openai::error as openai;

/// The API that a client uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    /// The dialect of a request. Clients of Anthropic's API send a version header, also to paths that OpenAI has
    /// too or that there are not.
    pub(crate) fn of(path: &str, headers: &HeaderMap) -> Dialect {
        let is_at = |root: &str| {
            path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if is_at("/api") {
            Dialect::Ollama
        } else if is_at("/v1/messages") || headers.contains_key(ANTHROPIC_VERSION) {
            Dialect::Anthropic
        } else {
            Dialect::OpenAi
        }
    }

    /// Builds the response for an error of the request with this id.
    pub(crate) fn refuse(self, err: &ApiError, request_id: &str) -> Response {
        let facts = err.facts();
        let (status, body) = match self {
            Dialect::OpenAi => (facts.status, openai::to_json(err)),
            Dialect::Anthropic => {
                (anthropic::status(err), anthropic::to_json(err, Some(request_id)))
            }
            Dialect::Ollama => (facts.status, ollama::to_json(err)),
        };
        let mut response = (status, Json(body)).into_response();
        if let Some((name, value)) = facts.advice {
            response.headers_mut().insert(name, value);
        }
        response
    }
}
