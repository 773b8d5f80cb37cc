//! LocalAI's gRPC service `backend.Backend`, as far as it applies to text models.
//!
//! A call is an HTTP/2 request to `/backend.Backend/NAME`, so it takes the same path as all
//! requests: id, span, key, limits, model, `generate`. Only [`frames`] knows the framing of a
//! message, and only [`wire`] its fields. All other calls are answered as unimplemented, as gRPC
//! specifies.
//!
//! ```text
//!  LoadModel ─▶ options ─▶ a model of the server's, or one that a ModelOpener brings ─▶ loads
//!  Predict, PredictStream ─▶ loads (which model) ─▶ Conversation, or a prompt as it is ─▶ ReplyFormat
//! ```

mod format;
mod frames;
mod loads;
mod model;
mod opener;
mod options;
mod predict;
mod tokens;
mod wire;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::post;

use options::Drawing;

use crate::error::ApiError;
use crate::registry::Serving;
use crate::{ServerState, requests, unknown_path};

pub(crate) use frames::refusal;
pub(crate) use loads::Loads;
pub use opener::{ModelOpener, ModelOrder};

/// Path prefix of every call.
pub(crate) const SERVICE: &str = "/backend.Backend/";

/// Internal names of fields, and the protocol's own.
const NAMES: [(&str, &str); 18] = [
    ("prompt", "Prompt"),
    ("messages", "Messages"),
    ("tools", "Tools"),
    ("tool_choice", "ToolChoice"),
    ("max_tokens", "Tokens"),
    ("temperature", "Temperature"),
    ("top_p", "TopP"),
    ("top_k", "TopK"),
    ("min_p", "MinP"),
    ("repetition_penalty", "Penalty"),
    ("presence_penalty", "PresencePenalty"),
    ("frequency_penalty", "FrequencyPenalty"),
    ("logit_bias", "LogitBias"),
    ("stop", "StopPrompts"),
    ("top_logprobs", "TopLogprobs"),
    ("embeddings", "Embeddings"),
    ("embedding_tokens", "EmbeddingTokens"),
    ("chat_template_kwargs", "Metadata.chat_template_kwargs"),
];

/// The router of all calls.
pub(crate) fn router(state: ServerState) -> Router {
    let calls = [
        ("Health", post(model::health)),
        ("LoadModel", post(model::load_model)),
        ("Free", post(model::free)),
        ("Status", post(model::status)),
        ("GetMetrics", post(model::metrics)),
        ("Predict", post(predict::predict)),
        ("PredictStream", post(predict::predict_stream)),
        ("Embedding", post(tokens::embedding)),
        ("TokenizeString", post(tokens::tokenize)),
        ("Detokenize", post(tokens::detokenize)),
        ("ModelMetadata", post(tokens::metadata)),
    ];
    let add = |router: Router<ServerState>, (call, handler)| {
        router.route(&format!("{SERVICE}{call}"), handler)
    };
    calls
        .into_iter()
        .fold(Router::new(), add)
        .fallback(unknown_path)
        .layer(from_fn_with_state(state.clone(), requests::admit))
        .with_state(state)
}

/// Opens the model that a call refers to, and returns its sampling options.
async fn open_meant(state: &ServerState, identity: &str) -> Result<(Serving, Drawing), ApiError> {
    let (name, drawing) = state.loads().meant(identity, state)?;
    Ok((state.open(name.as_deref()).await?, drawing))
}
