//! What happens to every request before its handler: it gets a name and a span, and its key is
//! looked at.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::{Instrument, debug, info_span};

use crate::ServerState;
use crate::error::{Dialect, Refusal};
use crate::ids::new_id;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What clients of Anthropic's API look for.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Longest name that a client may give to a request.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Wraps every route, those that do not exist included.
pub(crate) async fn admit(
    State(state): State<ServerState>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let id = request_id(request.headers());
    let name = id.to_str().unwrap_or_default();
    let path = request.uri().path();
    let span = info_span!("request", request = name, method = %request.method(), path);
    let dialect = Dialect::of(path, request.headers());
    let admitted = state.api_keys().check(path, request.headers());
    let answering = async {
        let response = match admitted {
            Ok(()) => next.run(request).await,
            Err(err) => err.into_response(),
        };
        let refused = response.extensions().get::<Refusal>().cloned();
        let response =
            refused.map_or(response, |Refusal(err)| err.respond(dialect, id.to_str().ok()));
        debug!(status = response.status().as_u16(), "responded");
        response
    };
    let mut response = answering.instrument(span).await;
    if dialect == Dialect::Anthropic {
        response.headers_mut().insert(ANTHROPIC_REQUEST_ID, id.clone());
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The client's name for the request if it is fit to be written to a log, else one of ours.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_fit = |id: &&HeaderValue| {
        (1..=REQUEST_ID_BYTES_MAX).contains(&id.len())
            && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    headers.get(REQUEST_ID).filter(is_fit).cloned().unwrap_or_else(|| {
        HeaderValue::try_from(new_id("req_")).expect("letters and digits make a header value")
    })
}
