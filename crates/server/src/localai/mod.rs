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
pub(crate) mod frames;
pub(crate) mod loads;
mod model;
pub(crate) mod opener;
mod options;
mod predict;
mod tokens;
mod wire;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::post;
use jackalope_serving::error::ApiError;
use jackalope_serving::state::Serving;

use frames::SERVICE;
use options::Drawing;

use crate::requests::{self, unknown_path};
use crate::state::ServerState;

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
    let (name, drawing) =
        state.loads().meant(identity, state.models(), state.config().opener.is_none())?;
    Ok((state.open(name.as_deref()).await?, drawing))
}
