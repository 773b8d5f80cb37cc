//! `POST /api/embed`, and `POST /api/embeddings` for older clients.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use jackalope_protocol::{Pooling, TokenId};
use jackalope_serving::embed::{self, Embedding};
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::check_count;
use jackalope_serving::state::Serving;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::keep_alive::KeepAlive;
use super::lifetime;
use crate::extract::SlottedUnlabelledRequest;
use crate::state::ServerState;
use crate::wire::{Strings, TextOr, body_schema};

/// The body of `POST /api/embed`.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaEmbedFields)]
pub(super) struct EmbedRequest {
    /// Text or texts to embed; without any, the model is only loaded.
    #[schema(value_type = Option<Strings>)]
    input: Option<TextOr<String>>,
    /// Truncate texts that are longer than the context, instead of refusing them. Default: `true`.
    truncate: Option<bool>,
    /// Number of leading elements of each vector to return, scaled to length 1 again.
    #[schema(minimum = 1)]
    dimensions: Option<u32>,
    /// Time that the model stays loaded after the request.
    keep_alive: Option<KeepAlive>,
}

/// The body of `POST /api/embeddings`.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaEmbeddingsFields)]
pub(super) struct EmbeddingsRequest {
    /// Text to embed; without any, the model is only loaded.
    prompt: Option<String>,
    /// Time that the model stays loaded after the request.
    keep_alive: Option<KeepAlive>,
}

body_schema! {
    /// The body of `/api/embed`.
    pub(super) struct OllamaEmbedBody { model, embed: EmbedRequest }
}

body_schema! {
    /// The body of `/api/embeddings`.
    pub(super) struct OllamaEmbeddingsBody { model, embeddings: EmbeddingsRequest }
}

/// The answer of `POST /api/embed`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaEmbedded)]
pub(crate) struct Embedded {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// The answer of `POST /api/embeddings`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaEmbeddedOne)]
pub(crate) struct EmbeddedOne {
    embedding: Vec<f32>,
}

pub(super) async fn embed(
    State(state): State<ServerState>,
    SlottedUnlabelledRequest { body, slot: _slot }: SlottedUnlabelledRequest,
) -> Result<Json<Embedded>, ApiError> {
    let began = Instant::now();
    let serving = state.open(body.model()?.as_deref()).await?;
    let request: EmbedRequest = body.read()?;
    lifetime::keep(&serving, request.keep_alive);
    let texts = match request.input {
        Some(TextOr::List(texts)) => texts,
        Some(TextOr::Text(text)) if !text.is_empty() => vec![text],
        Some(TextOr::Text(_)) | None => Vec::new(),
    };
    check_count("input", texts.len(), state.limits().embedding_inputs)?;
    let truncate = request.truncate.unwrap_or(true);
    let prepare = move |serving: &Serving| tokens(&texts, truncate, serving);
    let texts = serving.prepare(prepare).await?;
    let prompt_eval_count = texts.iter().map(Vec::len).sum();
    let requested = Embedding {
        pooling: Pooling::Mean,
        normalized: true,
        dimensions: request.dimensions,
        param: "input",
    };
    let embeddings = embed::vectors(&serving, texts, requested).await?;
    Ok(Json(Embedded {
        model: serving.id.clone(),
        embeddings,
        total_duration: u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
        load_duration: 0,
        prompt_eval_count,
    }))
}

pub(super) async fn embeddings(
    State(state): State<ServerState>,
    SlottedUnlabelledRequest { body, slot: _slot }: SlottedUnlabelledRequest,
) -> Result<Json<EmbeddedOne>, ApiError> {
    let serving = state.open(body.model()?.as_deref()).await?;
    let request: EmbeddingsRequest = body.read()?;
    lifetime::keep(&serving, request.keep_alive);
    let texts: Vec<String> = request.prompt.into_iter().filter(|it| !it.is_empty()).collect();
    let prepare = move |serving: &Serving| tokens(&texts, true, serving);
    let texts = serving.prepare(prepare).await?;
    let requested =
        Embedding { pooling: Pooling::Mean, normalized: false, dimensions: None, param: "prompt" };
    let mut vectors = embed::vectors(&serving, texts, requested).await?;
    Ok(Json(EmbeddedOne { embedding: vectors.pop().unwrap_or_default() }))
}

/// The tokens of each text, truncated to the maximum prompt length if `truncate` is set.
fn tokens(
    texts: &[String],
    truncate: bool,
    serving: &Serving,
) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let most = serving.engine_limits()?.max_prompt_tokens as usize;
    let encode = |text: &String| {
        if !truncate {
            serving.check_length(text, "input")?;
        }
        let encoded = serving.text.tokenizer.encode_prompt(text);
        let mut tokens = encoded.map_err(|err| ApiError::from_text(err, "input"))?;
        if truncate {
            tokens.truncate(most);
        }
        Ok(tokens)
    };
    texts.iter().map(encode).collect()
}
