//! Errors in Anthropic's form.

use axum::http::StatusCode;
use jackalope_serving::error::ApiError;
use serde_json::{Value, json};

/// Header that every client of Anthropic's API sends.
pub(crate) const ANTHROPIC_VERSION: &str = "anthropic-version";

/// Anthropic's HTTP status for an overloaded server.
const OVERLOADED: u16 = 529;

/// Returns the body of the response to a request that failed with `err`, with the request's id if
/// there is one.
pub(crate) fn to_json(err: &ApiError, request_id: Option<&str>) -> Value {
    let (_, kind) = status_and_kind(err);
    let mut body = json!({
        "type": "error",
        "error": {"type": kind, "message": err.message()},
    });
    if let Some(request_id) = request_id {
        body["request_id"] = request_id.into();
    }
    body
}

/// Returns the HTTP status of the response to a request that failed with `err`: 529 if the server
/// is overloaded or unavailable.
pub(crate) fn status(err: &ApiError) -> StatusCode {
    status_and_kind(err).0
}

fn status_and_kind(err: &ApiError) -> (StatusCode, &'static str) {
    let status = err.status();
    let is_overloaded = matches!(
        err,
        ApiError::QueueFull { .. }
            | ApiError::TooManyStreams { .. }
            | ApiError::BodyMemoryFull { .. }
    ) || status == StatusCode::SERVICE_UNAVAILABLE;
    if is_overloaded {
        let status = StatusCode::from_u16(OVERLOADED).expect("three digits are a status");
        return (status, "overloaded_error");
    }
    let kind = match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    };
    (status, kind)
}
