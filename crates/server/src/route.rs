//! A path, its handler and the methods that it allows.

use axum::Router;
use axum::extract::Request;
use axum::routing::MethodRouter;
use jackalope_serving::error::ApiError;

use crate::state::ServerState;

/// A path with its handler.
pub(crate) struct Route {
    pub(crate) path: &'static str,
    /// The allowed methods, as in the `Allow` header.
    pub(crate) allowed: &'static str,
    handler: MethodRouter<ServerState>,
}

type Handler = MethodRouter<ServerState>;

pub(crate) fn at(path: &'static str, allowed: &'static str, handler: Handler) -> Route {
    Route { path, allowed, handler }
}

pub(crate) fn get_only(path: &'static str, handler: Handler) -> Route {
    at(path, "GET, HEAD", handler)
}

pub(crate) fn post_only(path: &'static str, handler: Handler) -> Route {
    at(path, "POST", handler)
}

pub(crate) fn delete_only(path: &'static str, handler: Handler) -> Route {
    at(path, "DELETE", handler)
}

impl Route {
    /// Adds this route to a router. Other methods are answered with an error that names the allowed
    /// ones.
    pub(crate) fn add_to(self, router: Router<ServerState>) -> Router<ServerState> {
        let Route { path, allowed, handler } = self;
        router.route(path, handler.fallback(move |request| wrong_method(request, allowed)))
    }
}

async fn wrong_method(request: Request, allowed: &'static str) -> ApiError {
    ApiError::WrongMethod {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        allowed,
    }
}
