//! The HTTP server: the APIs of OpenAI, Anthropic, Ollama and LocalAI, and the server's own health
//! and metrics.
//!
//! The server converts requests to [`jackalope_engine::Request`]s and events to answers. It does
//! not know what is computed when, and on which machine. Its only state is the open requests, the
//! loaded models (`models.rs`), caches, and records of requests that have ended.
//!
//! ```text
//!  socket ─▶ serve ─▶ requests (id, span, key) ─▶ openai, anthropic, ollama ─▶ generate ─▶ engine
//!             (tls)       │                    ├─▶ health                          │
//!                         ├─▶ localai (gRPC)   └─▶ monitor, metrics                │
//!                         └──counts──▶ journal ◀──────one record per answer────────┘
//! ```
//!
//! - When a client disconnects, its handler or its stream is dropped, and with it the
//!   [`Generation`](jackalope_engine::Generation), which cancels the request on every rank.
//! - Everything that a client can delay or accumulate has a limit in [`ServerLimits`].
//! - Every error has the form of the API in use, which is applied in one place (`error.rs`).
//! - Prompts and answers are never logged.
//! - Pages of other sites cannot read answers, unless their origins are explicitly allowed.

mod anthropic;
mod arguments;
mod auth;
mod body;
mod caller;
mod connections;
mod embed;
mod engine_answer;
mod error;
mod generate;
mod grammars;
mod health;
mod ids;
mod journal;
mod limits;
mod localai;
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
mod prompt_workers;
mod registry;
mod requests;
mod routes;
mod serve;
mod sse;
mod state;
mod tail;
mod tls;
mod wire;

use axum::Router;
use axum::extract::Request;
use axum::middleware::from_fn_with_state;

use error::ApiError;
use routes::Route;

pub use auth::{ApiKeys, KeyFileError};
pub use journal::{RequestLog, RequestLogError};
pub use limits::ServerLimits;
pub use localai::{ModelOpener, ModelOrder};
pub use models::{
    Ending, KeptBecause, KnownModel, LoadError, LoadFuture, MachineBytes, ModelLoader, Models,
    ModelsConfig, StartedModel,
};
pub use ollama::{PullProgress, Puller, RemoveError, RemoveFuture};
pub use origin::{AllowedHosts, AllowedOrigins};
pub use otlp::{SpanExporter, SpanExporterError};
pub use registry::{Model, ModelDetails};
pub use serve::{serve, serve_grpc};
pub use state::{Reporting, ServerConfig, ServerState};
pub use tls::{Tls, TlsError};

/// Builds the router of all HTTP routes.
pub fn router(state: ServerState) -> Router {
    let add = |router: Router<ServerState>, route: Route| route.add_to(router);
    routes::all()
        .into_iter()
        .fold(Router::new(), add)
        .fallback(unknown_path)
        .layer(from_fn_with_state(state.clone(), requests::admit))
        .with_state(state)
}

/// Builds the router of LocalAI's gRPC calls, for HTTP/2 connections.
pub fn grpc_router(state: ServerState) -> Router {
    localai::router(state)
}

async fn unknown_path(request: Request) -> ApiError {
    ApiError::UnknownPath { path: request.uri().path().to_owned() }
}
