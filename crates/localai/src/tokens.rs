//! `Embedding`, `TokenizeString`, `Detokenize` and `ModelMetadata`.

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use jackalope_protocol::{Pooling, TokenId};
use jackalope_serving::embed::{self, Embedding};
use jackalope_serving::error::ApiError;
use jackalope_serving::state::Serving;

use crate::format::count;
use crate::frames::{answer, read};
use crate::messages::{
    DetokenizeRequest, DetokenizeResponse, EmbeddingLayout, EmbeddingResult, Message,
    ModelMetadataResponse, ModelOptions, NAMES, PredictOptions, TokenizationResponse,
};
use crate::predict::conversation;
use crate::state::LocalAi;

/// `Embedding`: the embedding of a text, normalised to length 1.
pub(crate) async fn embedding(
    State(state): State<LocalAi>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let answered = async {
        let options: PredictOptions = read(request, &state).await?;
        let _place = state.open_stream()?;
        let (serving, params) = state.open_named(&options.model_identity).await?;
        let text = move |serving: &Serving| embedded(&options, serving);
        let tokens = serving.prepare(text).await?;
        let prompt_tokens = tokens.len();
        let requested = Embedding {
            pooling: params.pooling.unwrap_or(Pooling::Mean),
            normalized: true,
            dimensions: None,
            param: "embeddings",
        };
        let embeddings = embed::vectors(&serving, vec![tokens], requested).await?.remove(0);
        Ok(answer(&EmbeddingResult {
            tokens: 1,
            dim: count(embeddings.len()),
            prompt_tokens: count(prompt_tokens),
            layout: EmbeddingLayout::Final.into(),
            embeddings,
        }))
    };
    answered.await.map_err(|err: ApiError| err.renamed(&NAMES))
}

/// The tokens to embed: given as ids or as text, which some clients send as the prompt.
fn embedded(options: &PredictOptions, serving: &Serving) -> Result<Vec<TokenId>, ApiError> {
    if !options.embedding_tokens.is_empty() {
        return token_ids("embedding_tokens", &options.embedding_tokens, serving);
    }
    let is_empty = options.embeddings.is_empty();
    let text = if is_empty { &options.prompt } else { &options.embeddings };
    serving.check_length(text, "embeddings")?;
    let tokens = serving.text.tokenizer.encode_prompt(text);
    tokens.map_err(|err| ApiError::from_text(err, "embeddings"))
}

/// Checks the signed numbers of the protocol and converts them to token ids.
fn token_ids(
    param: &'static str,
    tokens: &[i32],
    serving: &Serving,
) -> Result<Vec<TokenId>, ApiError> {
    let vocab_size = serving.engine_limits()?.vocab_size;
    let token = |&token: &i32| {
        let known = TokenId::try_from(token).ok().filter(|token| *token < vocab_size);
        known.ok_or_else(|| {
            let expected = format!("from 0 to {}", vocab_size.saturating_sub(1));
            ApiError::out_of_range(param, &token, expected)
        })
    };
    tokens.iter().map(token).collect()
}

/// `TokenizeString`: the tokens of a prompt, or of a conversation rendered by the template.
pub(crate) async fn tokenize(
    State(state): State<LocalAi>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let answered = async {
        let options: PredictOptions = read(request, &state).await?;
        let (serving, _) = state.open_named(&options.model_identity).await?;
        let tokens = serving.prepare(move |serving| tokenized(&options, serving)).await?;
        let tokens: Vec<i32> = tokens.into_iter().map(count).collect();
        Ok(answer(&TokenizationResponse { length: count(tokens.len()), tokens }))
    };
    answered.await.map_err(|err: ApiError| err.renamed(&NAMES))
}

fn tokenized(options: &PredictOptions, serving: &Serving) -> Result<Vec<TokenId>, ApiError> {
    if options.prompt.is_empty() && options.use_tokenizer_template {
        return conversation(options, serving.state().limits())?.encode(serving);
    }
    let tokens = serving.text.tokenizer.encode_prompt(&options.prompt);
    tokens.map_err(|err| ApiError::from_text(err, "prompt"))
}

/// `Detokenize`: the text of tokens, special ones included.
pub(crate) async fn detokenize(
    State(state): State<LocalAi>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let asked: DetokenizeRequest = read(request, &state).await?;
    let (serving, _) = state.open_named("").await?;
    let text = move |serving: &Serving| {
        let tokens = token_ids("tokens", &asked.tokens, serving)?;
        Ok(serving.text.tokenizer.decode(&tokens, false))
    };
    Ok(answer(&DetokenizeResponse { content: serving.prepare(text).await? }))
}

/// `ModelMetadata`: whether the model marks its reasoning, and a short conversation as the model's
/// template renders it, from which LocalAI sees how an answer begins.
pub(crate) async fn metadata(
    State(state): State<LocalAi>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let answered = async {
        let options: ModelOptions = read(request, &state).await?;
        let (serving, _) = state.open_named(&options.model).await?;
        let supports_thinking = serving.text.tokenizer.has_thinking();
        let has_template = serving.text.chat_template().is_ok();
        let rendered = move |serving: &Serving| {
            if has_template { rendered_greeting(serving) } else { Ok(String::new()) }
        };
        let rendered_template = serving.prepare(rendered).await?;
        Ok(answer(&ModelMetadataResponse { supports_thinking, rendered_template }))
    };
    answered.await.map_err(|err: ApiError| err.renamed(&NAMES))
}

/// A user's greeting as the template renders it, with the beginning of the answer.
fn rendered_greeting(serving: &Serving) -> Result<String, ApiError> {
    let greeting =
        Message { role: "user".to_owned(), content: "Hello".to_owned(), ..Message::default() };
    let options = PredictOptions { messages: vec![greeting], ..PredictOptions::default() };
    let tokens = conversation(&options, serving.state().limits())?.encode(serving)?;
    Ok(serving.text.tokenizer.decode(&tokens, false))
}
