//! Speaks HTTP: the OpenAI API and the server's own health.
//!
//! It turns requests into [`jackalope_engine::Request`]s and events into answers. What is computed
//! when, and on which machine, it does not know; it holds no state but the number of open requests and
//! which models are loaded (`models.rs`).
//!
//! ```text
//!  socket ─▶ serve ─▶ requests (id, span, key) ─▶ openai ─▶ generate ─▶ engine
//!                                             └─▶ health
//! ```
//!
//! - A client that leaves drops its handler or its stream, and with it the
//!   [`Generation`](jackalope_engine::Generation), which cancels the request on every rank.
//! - Everything a client can drag out or pile up has a bound in [`ServerLimits`].
//! - Every error is an OpenAI error object, mapped in one place (`error.rs`).
//! - Prompts and answers are never logged.
//! - No header allows other origins: pages of other sites cannot read answers.

mod auth;
mod body;
mod error;
mod generate;
mod health;
mod ids;
mod limits;
mod model_control;
mod models;
mod openai;
mod registry;
mod requests;
mod serve;
mod sse;
mod state;

use axum::Router;
use axum::extract::Request;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};

use error::ApiError;

pub use auth::ApiKeys;
pub use limits::ServerLimits;
pub use models::{
    Ending, KnownModel, LoadError, LoadFuture, MachineBytes, ModelLoader, Models, ModelsConfig,
    StartedModel,
};
pub use registry::Model;
pub use serve::serve;
pub use state::{ModelControl, ServerConfig, ServerState};

/// All routes.
pub fn router(state: ServerState) -> Router {
    let get_only =
        |handler: MethodRouter<ServerState>| handler.fallback(|it| wrong_method(it, "GET, HEAD"));
    let post_only =
        |handler: MethodRouter<ServerState>| handler.fallback(|it| wrong_method(it, "POST"));
    Router::new()
        .route("/v1/chat/completions", post_only(post(openai::chat)))
        .route("/v1/completions", post_only(post(openai::completions)))
        .route("/v1/models", get_only(get(openai::list_models)))
        .route("/v1/models/{*id}", get_only(get(openai::show_model)))
        .route("/model/load", post_only(post(model_control::load)))
        .route("/model/unload", post_only(post(model_control::unload)))
        .route("/model/gc", post_only(post(model_control::unload_unused)))
        .route("/health", get_only(get(health::health)))
        .route("/health/live", get_only(get(health::live)))
        .route("/health/ready", get_only(get(health::ready)))
        .route("/version", get_only(get(health::version)))
        .fallback(unknown_path)
        .layer(from_fn_with_state(state.clone(), requests::admit))
        .with_state(state)
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
