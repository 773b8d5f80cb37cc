//! Writes server-sent events.

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde::Serialize;

/// Content type of an event stream.
pub const STREAM_TYPE: &str = "text/event-stream; charset=utf-8";

/// A comment, which clients ignore. Sent while there is nothing else to send.
pub const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// The end of a successful stream.
pub const DONE: &str = "data: [DONE]\n\n";

/// Appends one event. Serialised JSON contains no raw line break, so one `data:` line is enough.
pub fn push_event(buffer: &mut Vec<u8>, payload: &impl Serialize) {
    buffer.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *buffer, payload).expect("our wire types have string keys");
    buffer.extend_from_slice(b"\n\n");
}

/// Appends one event with a name.
pub fn push_named(buffer: &mut Vec<u8>, name: &str, payload: &impl Serialize) {
    buffer.extend_from_slice(b"event: ");
    buffer.extend_from_slice(name.as_bytes());
    buffer.push(b'\n');
    push_event(buffer, payload);
}

/// Builds a streaming response.
pub fn response(
    content_type: &'static str,
    frames: impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send + 'static,
) -> Response {
    let mut response = Body::from_stream(frames).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Makes nginx forward every event immediately.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
