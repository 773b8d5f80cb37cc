//! `POST /tokenize` and `POST /detokenize`, as vLLM has them.

use axum::Json;
use axum::extract::State;
use jackalope_protocol::TokenId;
use jackalope_serving::body::JsonBody;
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::encode;
use jackalope_serving::state::Serving;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::chat;
use super::request::ChatRequest;
use crate::extract::JsonRequest;
use crate::state::ServerState;
use crate::wire::body_schema;

/// Fields of `POST /tokenize`; those of a conversation are a chat's.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct TokenizeRequest {
    /// Text to tokenize. Alternatively, a conversation with the fields of a chat completion.
    prompt: Option<String>,
    /// Add the token that begins every text; only with `prompt`. Default: `true`.
    add_special_tokens: Option<bool>,
    /// Also return each token as text. Default: `false`.
    return_token_strs: Option<bool>,
}

body_schema! {
    /// The body of a request for tokens: a text, or the fields of a conversation.
    pub(super) struct TokenizeBody {
        model, tokenize: TokenizeRequest, ignored: IgnoredByTokenize, chat: ChatRequest
    }
}

/// Fields of a chat that add no token to its prompt.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
struct IgnoredByTokenize {
    /// No effect on the tokens of the prompt.
    logprobs: Option<Value>,
    /// No effect on the tokens of the prompt.
    top_logprobs: Option<Value>,
    /// No effect on the tokens of the prompt.
    parallel_tool_calls: Option<Value>,
    /// No effect on the tokens of the prompt.
    thinking_token_budget: Option<Value>,
    /// No effect on the tokens of the prompt.
    conversation_id: Option<Value>,
}

body_schema! {
    /// The body of a request for text.
    pub(super) struct DetokenizeBody { model, detokenize: DetokenizeRequest }
}

/// The tokens of a text or a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tokenized {
    count: usize,
    max_model_len: u32,
    tokens: Vec<TokenId>,
    token_strs: Option<Vec<String>>,
}

/// Fields of `POST /detokenize`.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct DetokenizeRequest {
    /// Token ids.
    tokens: Option<Vec<TokenId>>,
}

/// The text of tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Detokenized {
    prompt: String,
}

pub(super) async fn tokenize(
    State(state): State<ServerState>,
    JsonRequest(body): JsonRequest,
) -> Result<Json<Tokenized>, ApiError> {
    let serving = state.open(body.model()?.as_deref()).await?;
    serving.prepare(move |serving| tokenized(body, serving)).await.map(Json)
}

fn tokenized(body: JsonBody, serving: &Serving) -> Result<Tokenized, ApiError> {
    let request: TokenizeRequest = body.read()?;
    let chat: ChatRequest = body.read()?;
    let tokenizer = &serving.text.tokenizer;
    let tokens = match (request.prompt, chat.messages.is_some()) {
        (Some(_), true) => {
            return Err(ApiError::Needs { param: "prompt", needs: "messages to be absent" });
        }
        (None, true) if request.add_special_tokens == Some(true) => {
            return Err(ApiError::not_supported(
                "add_special_tokens",
                "the template of a conversation writes them",
            ));
        }
        (None, _) => chat::conversation(body, chat, serving.state().limits())?.encode(serving)?,
        (Some(prompt), false) => {
            serving.check_countable(&prompt, "prompt")?;
            let tokens = encode(&prompt, request.add_special_tokens.unwrap_or(true), serving);
            tokens.map_err(|err| ApiError::from_text(err, "prompt"))?
        }
    };
    let token_strs = || tokens.iter().map(|&token| tokenizer.token_text(token)).collect();
    Ok(Tokenized {
        count: tokens.len(),
        max_model_len: serving.engine_limits()?.context_tokens,
        token_strs: request.return_token_strs.unwrap_or(false).then(token_strs),
        tokens,
    })
}

pub(super) async fn detokenize(
    State(state): State<ServerState>,
    JsonRequest(body): JsonRequest,
) -> Result<Json<Detokenized>, ApiError> {
    let serving = state.open(body.model()?.as_deref()).await?;
    serving.prepare(move |serving| detokenized(&body, serving)).await.map(Json)
}

fn detokenized(body: &JsonBody, serving: &Serving) -> Result<Detokenized, ApiError> {
    let request: DetokenizeRequest = body.read()?;
    let tokens = request.tokens.ok_or(ApiError::Missing { param: "tokens" })?;
    let tokenizer = &serving.text.tokenizer;
    // A model's vocabulary may be padded: the padding tokens are valid and decode to nothing.
    let vocab_size = serving.engine_limits()?.vocab_size;
    match tokens.iter().find(|token| vocab_size <= **token) {
        Some(&token) => Err(ApiError::UnknownToken { param: "tokens", token, vocab_size }),
        None => Ok(Detokenized { prompt: tokenizer.decode(&tokens, false) }),
    }
}
