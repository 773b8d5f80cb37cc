//! The routes of all calls, and the server for them.

use std::sync::Arc;

use axum::Router;
use axum::routing::post;
use tokio::net::TcpListener;

use crate::frames::{self, SERVICE};
use crate::state::LocalAi;
use crate::{model, predict, tokens};

/// Builds the router of all calls, for HTTP/2 connections.
pub fn router(localai: LocalAi) -> Router {
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
    let add = |router: Router<LocalAi>, (call, handler)| {
        router.route(&format!("{SERVICE}{call}"), handler)
    };
    let server = localai.server().clone();
    let calls = calls.into_iter().fold(Router::new(), add).with_state(localai);
    jackalope_server::admitted(calls, server, Some(frames::refusal))
}

/// Serves gRPC on `listener`, without TLS because LocalAI does not use it for its backends, until
/// `shutdown` completes.
pub async fn serve(
    listener: TcpListener,
    localai: LocalAi,
    shutdown: impl Future<Output = ()> + Send,
) {
    let limits = Arc::clone(localai.limits());
    jackalope_server::serve_http2(listener, router(localai), limits, shutdown).await;
}
