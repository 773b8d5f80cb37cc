//! gRPC on HTTP/2: a message consists of a compression flag (one byte), a length (four bytes) and
//! protobuf; the status of a call is sent in the trailers.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use jackalope_protocol::counted;
use prost::Message;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use jackalope_server::ServerState;
use jackalope_serving::body::read_bytes;
use jackalope_serving::error::ApiError;
use jackalope_serving::limits::ServerLimits;

/// Path prefix of every call.
pub(crate) const SERVICE: &str = "/backend.Backend/";

/// Content type of calls and answers.
pub(crate) const CONTENT: &str = "application/grpc";

/// Number of bytes before a message.
const PREFIX_BYTES: usize = 5;

/// Maximum length of an error message in characters, because clients limit the size of headers.
const MESSAGE_CHARS_MAX: usize = 1000;

/// The gRPC status codes that this server uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Code {
    Ok = 0,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// The status of a call.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Status {
    code: Code,
    message: String,
}

/// The status of a call, set at its end.
pub(crate) type Ending = Arc<OnceLock<Status>>;

impl Status {
    pub(crate) const OK: Status = Status { code: Code::Ok, message: String::new() };

    /// Converts an error to gRPC's terms. LocalAI reloads a model if the message says "model not
    /// loaded", and chooses another route if it says "model identity mismatch".
    pub(crate) fn of(err: &ApiError) -> Status {
        let code = match (err, err.status()) {
            (ApiError::UnknownPath { .. } | ApiError::WrongMethod { .. }, _) => Code::Unimplemented,
            (ApiError::NotLoaded { .. }, _) => Code::FailedPrecondition,
            (_, StatusCode::UNAUTHORIZED) => Code::Unauthenticated,
            (_, StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST) => Code::PermissionDenied,
            (_, StatusCode::NOT_FOUND) => Code::NotFound,
            (_, StatusCode::CONFLICT) => Code::FailedPrecondition,
            (_, StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT) => {
                Code::DeadlineExceeded
            }
            (_, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS) => {
                Code::ResourceExhausted
            }
            (_, StatusCode::SERVICE_UNAVAILABLE) => Code::Unavailable,
            (_, status) if status.is_client_error() => Code::InvalidArgument,
            _ => Code::Internal,
        };
        let message = match err {
            ApiError::UnknownModel { .. } => format!("model identity mismatch: {err}"),
            ApiError::NotLoaded { model } if model.is_empty() => {
                "model not loaded\nhint: call LoadModel first".to_owned()
            }
            ApiError::NotLoaded { model } => {
                format!("model not loaded: {model}\nhint: call LoadModel first")
            }
            ApiError::UnknownPath { path } | ApiError::WrongMethod { path, .. } => {
                let call = path.rsplit('/').next().unwrap_or_default();
                format!("{call} is not what this backend does\nhint: it serves models of text")
            }
            err => err.to_string(),
        };
        Status { code, message }
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status", HeaderValue::from(self.code as u16));
        if !self.message.is_empty() {
            let message = HeaderValue::try_from(percent_encoded(&self.message));
            headers.insert("grpc-message", message.expect("what is left is printable"));
        }
        headers
    }
}

/// Percent-encodes a message for a header, as gRPC specifies; a long message is cut off.
fn percent_encoded(text: &str) -> String {
    let text: String = text.chars().take(MESSAGE_CHARS_MAX).collect();
    let encoded = |byte: u8| match byte {
        b'%' | 0..=0x1f | 0x7f.. => format!("%{byte:02X}"),
        byte => char::from(byte).to_string(),
    };
    text.bytes().map(encoded).collect()
}

/// Reads the one message of a call.
pub(crate) async fn read<M: Message + Default>(
    request: Request<Body>,
    state: &ServerState,
) -> Result<M, ApiError> {
    let found = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    if !found.is_some_and(|it| it.starts_with(CONTENT.as_bytes())) {
        return Err(malformed(format!("the content type must be {CONTENT}")));
    }
    // The limit applies to the message without its prefix.
    let limits = ServerLimits::clone(state.limits());
    let limits = ServerLimits { body_bytes: limits.body_bytes + PREFIX_BYTES, ..limits };
    let body = read_bytes(request, &limits, state.body_memory()).await?;
    let Some((prefix, message)) = body.split_at_checked(PREFIX_BYTES) else {
        return Err(malformed("a message has five bytes before it".to_owned()));
    };
    if prefix[0] != 0 {
        return Err(malformed("messages must not be compressed".to_owned()));
    }
    let announced = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
    if announced as usize != message.len() {
        let (announced, found) = (counted(announced, "byte"), message.len());
        return Err(malformed(format!("the prefix announces {announced}, and {found} came")));
    }
    M::decode(message).map_err(|err| malformed(err.to_string()))
}

fn malformed(reason: String) -> ApiError {
    ApiError::WrongType { param: "message".to_owned(), reason }
}

/// Appends a message with its prefix.
pub(crate) fn push(message: &impl Message, buffer: &mut Vec<u8>) {
    let length = u32::try_from(message.encoded_len()).expect("answers are bounded");
    buffer.push(0);
    buffer.extend_from_slice(&length.to_be_bytes());
    message.encode_raw(buffer);
}

/// The response to a successful call.
pub(crate) fn answer(message: &impl Message) -> Response {
    let mut buffer = Vec::new();
    push(message, &mut buffer);
    let ending = Arc::new(OnceLock::from(Status::OK));
    with_trailers(Body::from(buffer).into_response(), ending)
}

/// The response to a call that failed.
pub(crate) fn refusal(err: &ApiError) -> Response {
    let mut response = Body::empty().into_response();
    let headers = response.headers_mut();
    headers.extend(Status::of(err).headers());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT));
    response
}

/// A stream of messages whose status is sent in trailers. The stream is dropped if the client
/// accepts nothing for `patience`: the write timeout of the connection, which carries other calls
/// too, does not detect that.
pub(crate) fn streamed(response: Response, ending: Ending, patience: Duration) -> Response {
    with_trailers(response.map(|body| impatient(body, patience)), ending)
}

fn with_trailers(response: Response, ending: Ending) -> Response {
    let trailers = async move {
        let cut = || Status::of(&ApiError::ShuttingDown);
        Some(Ok(ending.get().cloned().unwrap_or_else(cut).headers()))
    };
    let mut response = response.map(|body| Body::new(body.with_trailers(trailers)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT));
    response
}

fn impatient(body: Body, patience: Duration) -> Body {
    let (sender, receiver) = mpsc::channel(1);
    let mut frames = body.into_data_stream();
    let mut relay = JoinSet::new();
    relay.spawn(async move {
        while let Some(Ok(frame)) = frames.next().await {
            if !matches!(
                timeout(patience, sender.send(Ok::<_, axum::Error>(frame))).await,
                Ok(Ok(()))
            ) {
                return;
            }
        }
    });
    // Dropping the set aborts its task when the client disconnects.
    let frames = stream::unfold((receiver, relay), |(mut receiver, relay)| async move {
        Some((receiver.recv().await?, (receiver, relay)))
    });
    Body::from_stream(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_in_headers_are_printable() {
        assert_eq!(percent_encoded("100 %, café\nhint: x"), "100 %25, caf%C3%A9%0Ahint: x");
    }
}
