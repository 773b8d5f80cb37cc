//! Speaks HTTP: the APIs of OpenAI, Anthropic and Ollama, and the server's own health.
//!
//! It turns requests into [`jackalope_engine::Request`]s and events into answers. What is computed
//! when, and on which machine, it does not know; it holds no state but the open requests, which models
//! are loaded (`models.rs`), and what is remembered of requests that ended.
//!
//! ```text
//!  socket ─▶ serve ─▶ requests (id, span, key) ─▶ openai, anthropic, ollama ─▶ generate ─▶ engine
//!             (tls)       │                    ├─▶ health                          │
//!                         ├─▶ localai (gRPC)   └─▶ monitor, metrics                │
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
mod text_or;
mod tls;

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

/// All routes.
pub fn router(state: ServerState) -> Router {
    let add = |router: Router<ServerState>, route: Route| route.add_to(router);
    routes::all()
        .into_iter()
        .fold(Router::new(), add)
        .fallback(unknown_path)
        .layer(from_fn_with_state(state.clone(), requests::admit))
        .with_state(state)
}

/// The calls of LocalAI's backends, for connections of HTTP/2.
pub fn grpc_router(state: ServerState) -> Router {
    localai::router(state)
}

async fn unknown_path(request: Request) -> ApiError {
    ApiError::UnknownPath { path: request.uri().path().to_owned() }
}
