//! The routers of all paths and calls.

use axum::Router;
use axum::middleware::from_fn_with_state;

use crate::requests::{self, unknown_path};
use crate::route::Route;
use crate::state::ServerState;
use crate::{localai, routes};

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
