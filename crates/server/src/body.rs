//! Reads a request's body and parses it to a wire type, with errors that say where it is wrong.

use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, ORIGIN};
use axum::http::{HeaderMap, HeaderName, Request};
use futures_util::StreamExt;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::error::Category;

use crate::caller::Caller;
use crate::error::ApiError;
use crate::limits::ServerLimits;

/// Reads the whole body of a request that declares JSON.
///
/// The content type is required, because it keeps web pages, which may send plain text to any
/// address, from using a server on the visitor's own machine.
pub(crate) async fn read_json_body(
    request: Request<Body>,
    limits: &ServerLimits,
) -> Result<Bytes, ApiError> {
    check_content_type(request.headers())?;
    read_bytes(request, limits).await
}

/// Reads the body of a request to Ollama's API. Ollama's documentation and clients send JSON
/// without a content type, or with curl's default one.
///
/// Browsers add `Origin` or `Sec-Fetch-*` to requests of web pages. A request with such a header,
/// or with any other content type, must declare JSON, as in [`read_json_body`].
pub(crate) async fn read_unlabelled_json_body(
    request: Request<Body>,
    limits: &ServerLimits,
) -> Result<Bytes, ApiError> {
    if !is_unlabelled(request.headers()) {
        check_content_type(request.headers())?;
    }
    read_bytes(request, limits).await
}

/// Returns whether a request comes from a program, not a browser, and declares no content type.
fn is_unlabelled(headers: &HeaderMap) -> bool {
    /// The default content type of curl's `-d`.
    const CURL: &[u8] = b"application/x-www-form-urlencoded";
    let is_of_browser =
        |name: &HeaderName| *name == ORIGIN || name.as_str().starts_with("sec-fetch-");
    headers.get(CONTENT_TYPE).is_none_or(|found| found.as_bytes() == CURL)
        && !headers.keys().any(is_of_browser)
}

/// Reads the whole body of a request, with any content type.
pub(crate) async fn read_bytes(
    request: Request<Body>,
    limits: &ServerLimits,
) -> Result<Bytes, ApiError> {
    check_encoding(request.headers())?;
    let reading = read_body(request, limits);
    let timeout = limits.body_timeout;
    tokio::time::timeout(timeout, reading).await.unwrap_or(Err(ApiError::BodyLate { timeout }))
}

/// Rejects compressed bodies, whose length is unknown before they are decompressed.
fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let found = headers.get(CONTENT_ENCODING).map(|it| String::from_utf8_lossy(it.as_bytes()));
    match found {
        Some(found) if !found.trim().is_empty() && !found.eq_ignore_ascii_case("identity") => {
            Err(ApiError::Encoded { found: found.into_owned() })
        }
        _ => Ok(()),
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let found = headers.get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let essence = found.as_deref().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let is_json = essence.eq_ignore_ascii_case("application/json");
    match is_json {
        true => Ok(()),
        false => Err(ApiError::NotJson { found: found.map(|found| found.into_owned()) }),
    }
}

async fn read_body(request: Request<Body>, limits: &ServerLimits) -> Result<Bytes, ApiError> {
    let limit_bytes = limits.body_bytes;
    let announced = announced_bytes(request.headers());
    let asks_first = request.headers().contains_key(EXPECT);
    let mut frames = request.into_body().into_data_stream();
    let too_long = announced.is_some_and(|announced| announced > limit_bytes as u64);
    // A client that waits for `100 Continue` has not sent anything yet.
    if too_long && asks_first {
        return Err(ApiError::BodyTooLarge { limit_bytes, found_bytes: announced });
    }
    let mut body = Vec::new();
    let mut seen_bytes: u64 = 0;
    while let Some(frame) = frames.next().await {
        let frame = frame.map_err(|err| ApiError::BodyCut { reason: err.to_string() })?;
        seen_bytes += frame.len() as u64;
        if too_long || seen_bytes > limit_bytes as u64 {
            body = Vec::new();
            if seen_bytes > limits.discard_bytes {
                break;
            }
        } else {
            body.extend_from_slice(&frame);
        }
    }
    if too_long || seen_bytes > limit_bytes as u64 {
        return Err(ApiError::BodyTooLarge { limit_bytes, found_bytes: announced });
    }
    Caller::current().set_body_bytes(body.len());
    Ok(Bytes::from(body))
}

fn announced_bytes(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The model that the body names. Everything else depends on the model, so this is parsed first;
/// the body is a JSON object if this succeeds.
pub(crate) fn model_of(body: &[u8]) -> Result<Option<String>, ApiError> {
    #[derive(Deserialize)]
    struct Model {
        model: Option<String>,
    }
    check_object(body)?;
    Ok(parse::<Model>(body)?.model)
}

/// The name in a path. A name that is not UTF-8 becomes one that matches nothing.
pub(crate) fn name_in_path(name: Result<Path<String>, PathRejection>) -> String {
    name.map_or_else(|_| char::REPLACEMENT_CHARACTER.to_string(), |Path(name)| name)
}

/// Checks that the body is a JSON object. The wire types' own deserializers would also accept a
/// list.
fn check_object(body: &[u8]) -> Result<(), ApiError> {
    parse::<IgnoredAny>(body)?;
    match body.trim_ascii_start().first() {
        Some(b'{') => Ok(()),
        _ => Err(ApiError::WrongType {
            param: "body".to_owned(),
            reason: "expected an object".to_owned(),
        }),
    }
}

/// Parses a wire type. Unknown fields are ignored.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let text =
        std::str::from_utf8(body).map_err(|err| ApiError::NotUtf8 { offset: err.valid_up_to() })?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value: T = serde_path_to_error::deserialize(&mut deserializer).map_err(|err| {
        let path = err.path().to_string();
        describe(path, err.inner())
    })?;
    deserializer.end().map_err(|err| describe(String::new(), &err))?;
    Ok(value)
}

/// Phrases of the JSON parser, and their replacements in plain words.
const WORDS: [(&str, &str); 10] = [
    ("expected u32", "expected an integer from 0 to 4294967295"),
    ("expected i64", "expected an integer"),
    ("expected f64", "expected a number"),
    ("expected a sequence", "expected a list"),
    ("expected a map", "expected an object"),
    ("invalid type: map", "invalid type: object"),
    ("invalid type: sequence", "invalid type: list"),
    ("EOF while parsing", "it ends within"),
    ("expected ident", "expected a value"),
    ("unknown variant", "unknown value"),
];

/// The path of a key that occurs twice in an object, if that is the error.
fn duplicate(path: &str, reason: &str) -> Option<String> {
    let name = reason.strip_prefix("duplicate field `")?.strip_suffix('`')?;
    Some(if path == "." { name.to_owned() } else { format!("{path}.{name}") })
}

/// Replaces the names of Rust types, which mean nothing to clients.
fn without_type_names(reason: &str) -> String {
    let Some((before, after)) = reason.split_once("expected struct ") else {
        return reason.to_owned();
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    format!("{before}expected an object{}", after.trim_start_matches(is_name))
}

/// The reason of a parser error, in plain words.
pub(crate) fn reason_of(err: &serde_json::Error) -> String {
    let full = err.to_string();
    let place = format!(" at line {} column {}", err.line(), err.column());
    let reason = without_type_names(full.strip_suffix(&place).unwrap_or(&full));
    let plain = |reason: String, (theirs, ours): (&str, &str)| reason.replace(theirs, ours);
    WORDS.into_iter().fold(reason, plain)
}

fn describe(path: String, err: &serde_json::Error) -> ApiError {
    let (line, column) = (err.line(), err.column());
    let reason = reason_of(err);
    if let Some(param) = duplicate(&path, &reason) {
        return ApiError::WrongType { param, reason: "it is there twice".to_owned() };
    }
    match err.classify() {
        Category::Data if path == "." => ApiError::WrongType { param: "body".to_owned(), reason },
        Category::Data => ApiError::WrongType { param: path, reason },
        Category::Io | Category::Syntax | Category::Eof => {
            ApiError::BrokenJson { reason, line, column }
        }
    }
}
