//! `POST /v1/embeddings`.

use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jackalope_protocol::{Pooling, TokenId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::request::Prompts;
use crate::extract::SlottedRequest;
use crate::state::ServerState;
use crate::wire::body_schema;
use jackalope_serving::body::JsonBody;
use jackalope_serving::embed::{self, Embedding};
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::check_count;
use jackalope_serving::state::Serving;

/// Fields of `POST /v1/embeddings`.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct EmbeddingRequest {
    /// Texts to embed, at most 2048: a string, strings, token ids, or lists of token ids.
    input: Option<Prompts>,
    /// `float` (default), or `base64` of little-endian 32-bit floats.
    encoding_format: Option<EncodingFormat>,
    /// Number of leading elements of each vector to return, scaled to length 1 again. Default: the
    /// width of the model, which is also the maximum.
    #[schema(minimum = 1)]
    dimensions: Option<u32>,
    /// `mean` of the final states of all tokens (default), or `last`, the final state of the last
    /// token. `mean` suits models that were not trained for embeddings; models such as
    /// Qwen3-Embedding need `last`.
    pooling: Option<PoolingName>,
    /// Scale vectors to length 1. Default: `true`.
    normalize: Option<bool>,
}

body_schema! {
    /// The body of a request for embeddings.
    pub(super) struct EmbeddingBody {
        model, embedding: EmbeddingRequest, ignored: IgnoredByEmbeddings
    }
}

/// Ignored fields.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
struct IgnoredByEmbeddings {
    /// Identifies the end user; ignored.
    user: Option<Value>,
}

/// Encoding of vectors.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, ToSchema)]
#[serde(rename_all = "lowercase")]
enum EncodingFormat {
    #[default]
    Float,
    Base64,
}

/// How the states of a text's tokens become one vector.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, ToSchema)]
#[serde(rename_all = "lowercase")]
enum PoolingName {
    /// Suits models that were not trained for embeddings: their last state is mostly about the next
    /// token.
    #[default]
    Mean,
    Last,
}

/// The answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingList {
    object: &'static str,
    data: Vec<EmbeddingEntry>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Debug, Serialize, ToSchema)]
struct EmbeddingEntry {
    object: &'static str,
    index: usize,
    embedding: Written,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum Written {
    Numbers(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize, ToSchema)]
struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

pub(super) async fn embeddings(
    State(state): State<ServerState>,
    SlottedRequest { body, slot: _slot }: SlottedRequest,
) -> Result<Json<EmbeddingList>, ApiError> {
    let serving = state.open(body.model()?.as_deref()).await?;
    let (texts, requested, format) =
        serving.prepare(move |serving| prepare(&body, serving)).await?;
    let prompt_tokens = texts.iter().map(Vec::len).sum();
    let vectors = embed::vectors(&serving, texts, requested).await?;
    let entry = |(index, vector)| EmbeddingEntry {
        object: "embedding",
        index,
        embedding: match format {
            EncodingFormat::Float => Written::Numbers(vector),
            EncodingFormat::Base64 => Written::Base64(STANDARD.encode(little_endian(&vector))),
        },
    };
    Ok(Json(EmbeddingList {
        object: "list",
        data: vectors.into_iter().enumerate().map(entry).collect(),
        model: serving.id.clone(),
        usage: EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens },
    }))
}

fn prepare(
    body: &JsonBody,
    serving: &Serving,
) -> Result<(Vec<Vec<TokenId>>, Embedding, EncodingFormat), ApiError> {
    let request: EmbeddingRequest = body.read()?;
    let input = request.input.ok_or(ApiError::Missing { param: "input" })?;
    let num_texts = match &input {
        Prompts::Texts(texts) => texts.len(),
        Prompts::Tokens(lists) => lists.len(),
    };
    if num_texts == 0 {
        return Err(ApiError::Empty { param: "input".to_owned() });
    }
    check_count("input", num_texts, serving.state().limits().embedding_inputs)?;
    let tokenizer = &serving.text.tokenizer;
    let encode = |text: &String| {
        serving.check_length(text, "input")?;
        tokenizer.encode_prompt(text).map_err(|err| ApiError::from_text(err, "input"))
    };
    let texts: Vec<Vec<TokenId>> = match input {
        Prompts::Texts(texts) => texts.iter().map(encode).collect::<Result<_, _>>()?,
        Prompts::Tokens(lists) => lists,
    };
    if let Some(idx) = texts.iter().position(Vec::is_empty).filter(|_| 1 < num_texts) {
        return Err(ApiError::Empty { param: format!("input[{idx}]") });
    }
    let requested = Embedding {
        pooling: match request.pooling.unwrap_or_default() {
            PoolingName::Mean => Pooling::Mean,
            PoolingName::Last => Pooling::Last,
        },
        normalized: request.normalize.unwrap_or(true),
        dimensions: request.dimensions,
        param: "input",
    };
    Ok((texts, requested, request.encoding_format.unwrap_or_default()))
}

fn little_endian(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|value| value.to_le_bytes()).collect()
}
