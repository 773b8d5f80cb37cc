//! `POST /api/embed`, and `POST /api/embeddings` of older clients: read and checked, and refused by
//! name, for vectors of texts are not computed here.

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use serde::Deserialize;

use super::lifetime::KeepAlive;
use super::open;
use crate::ServerState;
use crate::body::{model_of, parse, read_json_body};
use crate::error::ApiError;
use crate::generate::check_count;
use crate::openai::request::Strings;

/// The body of `POST /api/embed`.
#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "that it has the right form is all there is to know of most fields")]
struct EmbedRequest {
    input: Option<Strings>,
    truncate: Option<bool>,
    dimensions: Option<u32>,
    keep_alive: Option<KeepAlive>,
}

/// The body of `POST /api/embeddings`.
#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "that it has the right form is all there is to know of most fields")]
struct EmbeddingsRequest {
    prompt: Option<String>,
    keep_alive: Option<KeepAlive>,
}

/// Turns texts into vectors.
pub(crate) async fn embed(State(state): State<ServerState>, request: Request<Body>) -> ApiError {
    let embedded = async {
        let body = read_json_body(request, state.limits()).await?;
        open(&state, model_of(&body)?.as_deref()).await?;
        let request: EmbedRequest = parse(&body)?;
        let Strings(texts) = request.input.ok_or(ApiError::Missing { param: "input" })?;
        check_count("input", texts.len(), state.limits().prompts)?;
        vectors("input")
    };
    embedded.await.map_or_else(|err| err, |never| match never {})
}

/// Turns a text into a vector.
pub(crate) async fn embeddings(
    State(state): State<ServerState>,
    request: Request<Body>,
) -> ApiError {
    let embedded = async {
        let body = read_json_body(request, state.limits()).await?;
        open(&state, model_of(&body)?.as_deref()).await?;
        let request: EmbeddingsRequest = parse(&body)?;
        request.prompt.ok_or(ApiError::Missing { param: "prompt" })?;
        vectors("prompt")
    };
    embedded.await.map_or_else(|err| err, |never| match never {})
}

/// Where texts would be handed on.
fn vectors(param: &'static str) -> Result<std::convert::Infallible, ApiError> {
    let hint = Some("this server answers prompts; it computes no embeddings".to_owned());
    Err(ApiError::NotSupported { param: param.to_owned(), hint })
}
