//! The router of all paths, and what other protocols add to theirs.

use axum::Router;

use crate::requests::{self, RenderError};
use crate::route::Route;
use crate::routes;
use crate::state::ServerState;

/// Builds the router of all HTTP routes.
pub fn router(state: ServerState) -> Router {
    let add = |router: Router<ServerState>, route: Route| route.add_to(router);
    let routes = routes::all().into_iter().fold(Router::new(), add).with_state(state.clone());
    requests::admitted(routes, state, None)
}

/// Adds to the routes of another protocol what every request passes: its id and span, the key and
/// the limits. `render_error` renders refusals.
pub fn admitted(routes: Router, state: ServerState, render_error: RenderError) -> Router {
    requests::admitted(routes, state, Some(render_error))
}
