//! Speaks HTTP: the APIs of OpenAI, Anthropic and Ollama, and the server's own health.
//!
//! It turns requests into [`jackalope_engine::Request`]s and events into answers. What is computed
//! when, and on which machine, it does not know; it holds no state but the open requests, which models
//! are loaded (`models.rs`), and what is remembered of requests that ended.
//!
//! ```text
//!  socket ─▶ serve ─▶ requests (id, span, key) ─▶ openai, anthropic, ollama ─▶ generate ─▶ engine
//!             (tls)       │                    ├─▶ health                          │
//!                         │                    └─▶ monitor, metrics                │
//!                         └──counts──▶ journal ◀──────one record per answer────────┘
//! ```
//!
//! - A client that leaves drops its handler or its stream, and with it the
//!   [`Generation`](jackalope_engine::Generation), which cancels the request on every rank.
//! - Everything a client can drag out or pile up has a bound in [`ServerLimits`].
//! - Every error has the form of the API that was asked, given in one place (`error.rs`).
//! - Prompts and answers are never logged.
//! - Pages of other sites cannot read answers, unless their origins are allowed by name.

mod anthropic;
mod arguments;
mod auth;
mod body;
mod caller;
mod embed;
mod error;
mod generate;
mod grammars;
mod health;
mod ids;
mod journal;
mod limits;
mod metrics;
mod model_control;
mod models;
mod monitor;
mod notes;
mod numbers;
mod ollama;
mod openai;
pub mod openapi;
mod origin;
mod otlp;
mod pace;
mod registry;
mod requests;
mod serve;
mod sse;
mod state;
mod tail;
mod tls;

use axum::Router;
use axum::extract::Request;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, any, delete, get, post};

use error::ApiError;

pub use auth::{ApiKeys, KeyFileError};
pub use journal::{RequestLog, RequestLogError};
pub use limits::ServerLimits;
pub use models::{
    Ending, KeptBecause, KnownModel, LoadError, LoadFuture, MachineBytes, ModelLoader, Models,
    ModelsConfig, StartedModel,
};
pub use ollama::{PullProgress, Puller, RemoveError, RemoveFuture};
pub use origin::{AllowedHosts, AllowedOrigins};
pub use otlp::{SpanExporter, SpanExporterError};
pub use registry::{Model, ModelDetails};
pub use serve::serve;
pub use state::{Reporting, ServerConfig, ServerState};
pub use tls::{Tls, TlsError};

/// All routes.
pub fn router(state: ServerState) -> Router {
    let delete_only =
        |handler: MethodRouter<ServerState>| handler.fallback(|it| wrong_method(it, "DELETE"));
    Router::new()
        .route("/v1/chat/completions", post_only(post(openai::chat::chat)))
        .route("/v1/completions", post_only(post(openai::completions::completions)))
        .route("/v1/embeddings", post_only(post(openai::embeddings::embeddings)))
        .route("/tokenize", post_only(post(openai::tokenize::tokenize)))
        .route("/detokenize", post_only(post(openai::tokenize::detokenize)))
        .route("/v1/responses", post_only(post(openai::responses::create_response)))
        .route(
            "/v1/responses/{id}",
            get(openai::responses::show_response)
                .delete(openai::responses::delete_response)
                .fallback(|it| wrong_method(it, "GET, HEAD, DELETE")),
        )
        .route("/v1/responses/{id}/input_items", get_only(get(openai::responses::list_input_items)))
        .route("/v1/messages", post_only(post(anthropic::messages)))
        .route("/v1/messages/count_tokens", post_only(post(anthropic::count_tokens)))
        .route("/v1/models", get_only(get(anthropic::list_models)))
        .route("/v1/models/{*id}", get_only(get(anthropic::show_model)))
        .route("/api/chat", post_only(post(ollama::chat)))
        .route("/api/generate", post_only(post(ollama::generate)))
        .route("/api/embed", post_only(post(ollama::embed)))
        .route("/api/embeddings", post_only(post(ollama::embeddings)))
        .route("/api/tags", get_only(get(ollama::tags)))
        .route("/api/ps", get_only(get(ollama::ps)))
        .route("/api/version", get_only(get(ollama::version)))
        .route("/api/show", post_only(post(ollama::show)))
        .route("/api/pull", post_only(post(ollama::pull)))
        .route("/api/delete", delete_only(delete(ollama::delete)))
        .route("/api/copy", post_only(post(ollama::copy)))
        .route("/api/create", any(ollama::unsupported))
        .route("/api/push", any(ollama::unsupported))
        .route("/api/blobs/{digest}", any(ollama::unsupported))
        .route("/model/load", post_only(post(model_control::load)))
        .route("/model/unload", post_only(post(model_control::unload)))
        .route("/model/gc", post_only(post(model_control::unload_unused)))
        .route("/health", get_only(get(health::health)))
        .route("/health/live", get_only(get(health::live)))
        .route("/health/ready", get_only(get(health::ready)))
        .route("/version", get_only(get(health::version)))
        .route("/openapi.json", get_only(get(openapi::openapi)))
        .route("/docs", get_only(get(openapi::docs_root)))
        .route("/docs/", get_only(get(openapi::docs)))
        .route("/docs/{*path}", get_only(get(openapi::docs)))
        .merge(monitor::routes())
        .fallback(unknown_path)
        .layer(from_fn_with_state(state.clone(), requests::admit))
        .with_state(state)
}

fn get_only(handler: MethodRouter<ServerState>) -> MethodRouter<ServerState> {
    handler.fallback(|it| wrong_method(it, "GET, HEAD"))
}

fn post_only(handler: MethodRouter<ServerState>) -> MethodRouter<ServerState> {
    handler.fallback(|it| wrong_method(it, "POST"))
}

async fn unknown_path(request: Request) -> ApiError {
    ApiError::UnknownPath { path: request.uri().path().to_owned() }
}

async fn wrong_method(request: Request, allowed: &'static str) -> ApiError {
    ApiError::WrongMethod {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        allowed,
    }
}
