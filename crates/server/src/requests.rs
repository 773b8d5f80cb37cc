//! Middleware for every request: it assigns an id and a span, checks the host, the origin and the
//! key, and counts the answer when it has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, State};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use jackalope_serving::auth::{Holder, is_limited};
use jackalope_serving::caller::{ApiCaller, kind_of};
use jackalope_serving::error::{ApiError, ResponseError, seconds};
use jackalope_serving::ids::new_id;
use jackalope_serving::journal::{HttpClass, Journal};
use jackalope_serving::trace_parent::TraceParent;
use tracing::{Instrument, debug, info_span};

use crate::connections::{Connection, TooBusy, WrongHosts};
use crate::dialect::Dialect;
use crate::pace;
use crate::state::ServerState;

use crate::tail::until_end;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Header with the request's id for clients of Anthropic's API.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Maximum length in bytes of an id that a client may give to a request.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Renders an error in the form of a protocol.
pub type RenderError = fn(&ApiError) -> Response;

/// The state of the middleware.
#[derive(Clone, Debug)]
struct Admission {
    state: ServerState,
    render_error: Option<RenderError>,
}

/// Wraps `routes` in the middleware that every request passes: it assigns an id and a span, checks
/// the host, the origin and the key, counts the answer, and refuses unknown paths. `render_error`
/// is set for protocols other than those over HTTP/1.1, whose form of errors depends on the
/// request.
pub fn admitted(routes: Router, state: ServerState, render_error: Option<RenderError>) -> Router {
    let admission = Admission { state, render_error };
    routes.fallback(unknown_path).layer(from_fn_with_state(admission, admit))
}

async fn admit(State(admission): State<Admission>, request: Request<Body>, next: Next) -> Response {
    let state = &admission.state;
    let id = request_id(request.headers());
    let path = request.uri().path().to_owned();
    let dialect = Dialect::of(&path, request.headers());
    let counting = Counting::begin(state, &request);
    let origins = &state.config().origins;
    let added = origins.answer_headers(request.headers());
    let caller = ApiCaller {
        request_id: Arc::from(id.to_str().unwrap_or_default()),
        kind: kind_of(&path),
        holder: None,
        trace_parent: trace_parent(request.headers()),
        body_bytes: Arc::default(),
    };
    let span = info_span!(
        "request",
        request = &*caller.request_id,
        method = %request.method(),
        path,
        key = tracing::field::Empty
    );
    let answering = async {
        match origins.preflight(&request) {
            Some(response) => response,
            None => answer(&admission, caller, request, next, dialect).await,
        }
    };
    let mut response = answering.instrument(span).await;
    let headers = response.headers_mut();
    headers.extend(added);
    if dialect == Dialect::Anthropic {
        headers.insert(ANTHROPIC_REQUEST_ID, id.clone());
    }
    headers.insert(REQUEST_ID, id);
    let counting = counting.with_status(response.status().as_u16());
    response.map(|body| until_end(body, counting))
}

/// Runs the handler, or returns the reason why the request is refused.
async fn answer(
    admission: &Admission,
    mut caller: ApiCaller,
    request: Request<Body>,
    next: Next,
    dialect: Dialect,
) -> Response {
    let state = &admission.state;
    let is_limited = is_limited(&request);
    let admitted = check(state, &request).and_then(|holder| {
        caller.holder = holder;
        let limited = caller.holder.as_ref().filter(|_| is_limited);
        limited.map(|holder| holder.take()).transpose()
    });
    if let Some(key) = caller.key_name() {
        tracing::Span::current().record("key", key);
    }
    let (response, pass) = match admitted {
        Ok(pass) => (caller.clone().scope(next.run(request)).await, pass),
        Err(err) => (err.into_response(), None),
    };
    let refused = response.extensions().get::<ResponseError>().cloned();
    let mut response = match refused {
        Some(ResponseError(err)) => {
            state.journal().note_error(&caller, &err);
            match admission.render_error {
                Some(render) => render(&err),
                None => refuse(state, &err, dialect, &caller.request_id),
            }
        }
        None => response,
    };
    if let Some(holder) = caller.holder.as_ref().filter(|_| is_limited) {
        holder.add_limit_headers(response.headers_mut());
    }
    debug!(status = response.status().as_u16(), "responded");
    response.map(|body| until_end(body, pass))
}

/// Checks whether the request may be answered, and returns the key's holder.
fn check(state: &ServerState, request: &Request<Body>) -> Result<Option<Arc<Holder>>, ApiError> {
    if let Some(WrongHosts(found)) = request.extensions().get() {
        return Err(ApiError::HostHeaders { found: *found });
    }
    state.config().hosts.check(request.headers())?;
    let path = request.uri().path();
    let holder = state.api_keys().check(request.method(), path, request.headers())?;
    if let (Some(_), Some(connection)) = (&holder, request.extensions().get::<Connection>()) {
        connection.proved();
    }
    // Health requests and administrators are served even if all other slots are taken.
    let is_in_reserve = path == "/metrics"
        || path == "/health"
        || path.starts_with("/health/")
        || holder.as_ref().is_some_and(|holder| holder.is_admin());
    match request.extensions().get::<TooBusy>() {
        Some(TooBusy { limit }) if !is_in_reserve => {
            Err(ApiError::TooManyStreams { limit: *limit })
        }
        _ => Ok(holder),
    }
}

/// The response for an error, with the best known time to retry after.
fn refuse(state: &ServerState, err: &ApiError, dialect: Dialect, request_id: &str) -> Response {
    let mut response = dialect.refuse(err, request_id);
    if response.headers().contains_key(RETRY_AFTER) && !err.has_measured_retry() {
        let after = pace::retry_after(state, response.status());
        response.headers_mut().insert(RETRY_AFTER, seconds(after));
    }
    response
}

fn trace_parent(headers: &HeaderMap) -> Option<TraceParent> {
    TraceParent::parse(headers.get("traceparent")?.to_str().ok()?)
}

/// Counts an HTTP request when it is dropped.
struct Counting {
    journal: Arc<Journal>,
    began: Instant,
    class: HttpClass,
}

impl Counting {
    fn begin(state: &ServerState, request: &Request<Body>) -> Counting {
        // Unknown methods and paths are counted together, because clients could send any number of
        // them.
        let method = match *request.method() {
            Method::GET => "GET",
            Method::HEAD => "HEAD",
            Method::POST => "POST",
            Method::DELETE => "DELETE",
            Method::OPTIONS => "OPTIONS",
            _ => "other",
        };
        let route = request.extensions().get::<MatchedPath>();
        let route = route.map_or("unknown", MatchedPath::as_str).to_owned();
        let journal = Arc::clone(state.journal());
        journal.http_began();
        Counting { journal, began: Instant::now(), class: (method, route, 0) }
    }

    fn with_status(mut self, status: u16) -> Counting {
        self.class.2 = status;
        self
    }

    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        // If the client disconnected before there was a status, 499 is counted, as proxies do.
        if self.class.2 == 0 {
            self.class.2 = 499;
        }
        let class = std::mem::replace(&mut self.class, ("other", String::new(), 0));
        self.journal.http_ended(class, self.elapsed());
    }
}

/// The client's id for the request if it can safely be logged, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_fit = |id: &&HeaderValue| {
        (1..=REQUEST_ID_BYTES_MAX).contains(&id.len())
            && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    headers.get(REQUEST_ID).filter(is_fit).cloned().unwrap_or_else(|| {
        HeaderValue::try_from(new_id("req_")).expect("letters and digits make a header value")
    })
}

/// Answers requests for paths that do not exist.
async fn unknown_path(request: axum::extract::Request) -> ApiError {
    ApiError::UnknownPath { path: request.uri().path().to_owned() }
}
