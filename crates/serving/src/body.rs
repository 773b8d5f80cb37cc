//! Reads a request's body and parses it once, with errors that say where it is wrong.

use std::fmt;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, ORIGIN};
use axum::http::{HeaderMap, HeaderName, Request};
use futures_util::StreamExt;
use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use serde_json::error::Category;
use serde_json::{Map, Value};

use crate::body_memory::BodyMemory;
use crate::caller::ApiCaller;
use crate::error::ApiError;
use crate::limits::ServerLimits;

/// Length in bytes from which a body is parsed on a thread of its own: parsing it takes longer than
/// other streams should wait.
const LONG_BODY_BYTES: usize = 256 << 10;

/// Reads the body of a request that declares JSON.
///
/// The content type is required, because it keeps web pages, which may send plain text to any
/// address, from using a server on the visitor's own machine.
pub async fn read_json(
    request: Request<Body>,
    limits: &ServerLimits,
    memory: &BodyMemory,
) -> Result<Bytes, ApiError> {
    check_content_type(request.headers())?;
    read_bytes(request, limits, memory).await
}

/// Reads the body of a request to Ollama's API. Ollama's documentation and clients send JSON
/// without a content type, or with curl's default one.
///
/// Browsers add `Origin` or `Sec-Fetch-*` to requests of web pages. A request with such a header,
/// or with any other content type, must declare JSON, as in [`read_json`].
pub async fn read_unlabelled_json(
    request: Request<Body>,
    limits: &ServerLimits,
    memory: &BodyMemory,
) -> Result<Bytes, ApiError> {
    if !is_unlabelled(request.headers()) {
        check_content_type(request.headers())?;
    }
    read_bytes(request, limits, memory).await
}

/// Parses a body that has been read, on a thread of its own if it is long.
pub async fn parse_json(bytes: Bytes) -> Result<JsonBody, ApiError> {
    if bytes.len() < LONG_BODY_BYTES {
        return JsonBody::parse(&bytes);
    }
    let parsing = tokio::task::spawn_blocking(move || JsonBody::parse(&bytes));
    parsing.await.unwrap_or_else(|err| {
        Err(ApiError::Internal { what: format!("parsing the body failed: {err}") })
    })
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
pub async fn read_bytes(
    request: Request<Body>,
    limits: &ServerLimits,
    memory: &BodyMemory,
) -> Result<Bytes, ApiError> {
    check_encoding(request.headers())?;
    let reading = read_body(request, limits, memory);
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
    if is_json {
        Ok(())
    } else {
        Err(ApiError::NotJson { found: found.map(|found| found.into_owned()) })
    }
}

async fn read_body(
    request: Request<Body>,
    limits: &ServerLimits,
    memory: &BodyMemory,
) -> Result<Bytes, ApiError> {
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
    let mut arriving = memory.body();
    let mut seen_bytes: u64 = 0;
    while let Some(frame) = frames.next().await {
        let frame = frame.map_err(|err| ApiError::BodyCut { reason: err.to_string() })?;
        seen_bytes += frame.len() as u64;
        if too_long || seen_bytes > limit_bytes as u64 {
            body = Vec::new();
            arriving.clear();
            if seen_bytes > limits.discard_bytes {
                break;
            }
        } else {
            arriving.grow_to(body.len() + frame.len())?;
            body.extend_from_slice(&frame);
        }
    }
    if too_long || seen_bytes > limit_bytes as u64 {
        return Err(ApiError::BodyTooLarge { limit_bytes, found_bytes: announced });
    }
    ApiCaller::current().set_body_bytes(body.len());
    Ok(Bytes::from(body))
}

fn announced_bytes(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The JSON object that a request's body holds. The bytes are parsed once; every part of an
/// endpoint then reads the typed fields that it needs.
#[derive(Debug)]
pub struct JsonBody {
    /// The body's JSON, which is always an object.
    object: Value,
    /// Names of fields whose values are nested too deeply; they are null in `object`.
    too_deep: Vec<String>,
}

impl JsonBody {
    /// Creates a body with these fields.
    pub fn of(fields: Map<String, Value>) -> JsonBody {
        JsonBody { object: Value::Object(fields), too_deep: Vec::new() }
    }

    /// Parses the bytes of a body.
    ///
    /// # Errors
    /// Returns an error if they are not JSON, not an object, or if an object has a member twice.
    pub fn parse(bytes: &[u8]) -> Result<JsonBody, ApiError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|err| ApiError::NotUtf8 { offset: err.valid_up_to() })?;
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let Parsed(body) = serde_path_to_error::deserialize(&mut deserializer)
            .map_err(|err| describe(err.path().to_string(), err.inner()))?;
        deserializer.end().map_err(|err| describe(String::new(), &err))?;
        body.ok_or_else(|| ApiError::WrongType {
            param: "body".to_owned(),
            reason: "expected an object".to_owned(),
        })
    }

    /// Reads the fields of a wire type; other fields are ignored.
    ///
    /// # Errors
    /// Returns an error that names the field that has a wrong type.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_path_to_error::deserialize(Fields(self))
            .map_err(|err| describe(err.path().to_string(), err.inner()))
    }

    /// Reads the name of the model. Everything else depends on the model, so this is read first.
    pub fn model(&self) -> Result<Option<String>, ApiError> {
        #[derive(Deserialize)]
        struct Model {
            model: Option<String>,
        }
        Ok(self.read::<Model>()?.model)
    }

    /// Returns whether the client asks for a stream. A value of another type is reported by the
    /// endpoint.
    pub fn asks_for_stream(&self) -> bool {
        self.object["stream"] == true
    }

    /// Returns the value of the field `name`; none if the body has no such field.
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.object.get(name)
    }

    /// The names of all fields.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.object.as_object().into_iter().flat_map(|fields| fields.keys()).map(String::as_str)
    }

    /// The fields, for an endpoint that rewrites them.
    pub fn fields_mut(&mut self) -> &mut Map<String, Value> {
        self.object.as_object_mut().expect("a body is an object")
    }

    /// Takes the elements of a list out of the body; none if it is absent or no list.
    pub fn take_list(&mut self, name: &str) -> Vec<Value> {
        match self.object.get_mut(name).map(Value::take) {
            Some(Value::Array(elements)) => elements,
            _ => Vec::new(),
        }
    }
}

/// Deserializes the fields of a wire type; fails if one of them is nested too deeply.
struct Fields<'a>(&'a JsonBody);

impl<'de> Deserializer<'de> for Fields<'de> {
    type Error = serde_json::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, serde_json::Error> {
        match self.0.too_deep.iter().find(|field| fields.contains(&field.as_str())) {
            Some(field) => Err(serde_json::Error::custom(format!("{TOO_DEEP}`{field}`"))),
            None => (&self.0.object).deserialize_struct(name, fields, visitor),
        }
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, serde_json::Error> {
        (&self.0.object).deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Maximum number of levels of nested lists and objects in a field that is read. The parser has a
/// limit itself, a little above this one.
const LEVELS_MAX: usize = 125;

/// Beginning of the error for a field with more than [`LEVELS_MAX`] levels.
const TOO_DEEP: &str = "nested too deeply: ";

/// A body; none if its JSON is not an object.
struct Parsed(Option<JsonBody>);

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Parsed, D::Error> {
        let mut body = JsonBody::of(Map::new());
        let seed = UniqueMembers { level: 0, too_deep: &mut false, body: Some(&mut body) };
        let value = seed.deserialize(deserializer)?;
        Ok(Parsed(value.is_object().then(|| JsonBody { object: value, ..body })))
    }
}

/// Parses a JSON value and rejects an object that has a member twice: other parsers would silently
/// use one of the two.
struct UniqueMembers<'a> {
    /// Number of lists and objects around the value.
    level: usize,
    /// Set if the value has too many levels; it is then incomplete.
    too_deep: &'a mut bool,
    /// The body, if the value is the whole of it; gets the names of its fields that are too deep.
    body: Option<&'a mut JsonBody>,
}

impl UniqueMembers<'_> {
    fn inner(&mut self) -> UniqueMembers<'_> {
        UniqueMembers { level: self.level + 1, too_deep: self.too_deep, body: None }
    }
}

impl<'de> DeserializeSeed<'de> for UniqueMembers<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.level <= LEVELS_MAX {
            return deserializer.deserialize_any(self);
        }
        *self.too_deep = true;
        IgnoredAny::deserialize(deserializer).map(|_| Value::Null)
    }
}

impl<'de> Visitor<'de> for UniqueMembers<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Value, A::Error> {
        if self.body.is_some() {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Value::Null);
        }
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element_seed(self.inner())? {
            elements.push(element);
        }
        Ok(Value::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            if members.contains_key(&name) {
                return Err(A::Error::custom(format!("duplicate field `{name}`")));
            }
            let value = map.next_value_seed(self.inner())?;
            if let Some(body) = &mut self.body
                && std::mem::take(self.too_deep)
            {
                body.too_deep.push(name.clone());
            }
            members.insert(name, value);
        }
        Ok(Value::Object(members))
    }
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

/// Returns the path of the key that occurs twice in the object at `path`; none if `reason` is
/// another error.
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
pub fn reason_of(err: &serde_json::Error) -> String {
    let full = err.to_string();
    let place = format!(" at line {} column {}", err.line(), err.column());
    let reason = without_type_names(full.strip_suffix(&place).unwrap_or(&full));
    let plain = |reason: String, (theirs, ours): (&str, &str)| reason.replace(theirs, ours);
    WORDS.into_iter().fold(reason, plain)
}

fn describe(path: String, err: &serde_json::Error) -> ApiError {
    let (line, column) = (err.line(), err.column());
    let reason = reason_of(err);
    if let Some(field) = reason.strip_prefix(TOO_DEEP) {
        let reason = format!("it is nested more than {LEVELS_MAX} levels deep");
        return ApiError::WrongType { param: field.trim_matches('`').to_owned(), reason };
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_an_object_whose_members_have_names_of_their_own() {
        for (body, param, reason) in [
            ("[]", "body", "expected an object"),
            ("5", "body", "expected an object"),
            (r#"{"a": 1, "a": 1}"#, "a", "it is there twice"),
            (r#"{"a": [0, {"b": {}, "b": 1}]}"#, "a[1].b", "it is there twice"),
        ] {
            let err = JsonBody::parse(body.as_bytes()).unwrap_err();
            assert_eq!(err.to_string(), format!("{param}: {reason}"), "{body}");
        }
        for body in ["", "{", "{} {}", r#"{"a": 1e999}"#, r#"{"a": "\ud800"}"#] {
            let err = JsonBody::parse(body.as_bytes()).unwrap_err();
            assert!(matches!(err, ApiError::BrokenJson { .. }), "{body}: {err}");
        }
    }

    #[test]
    fn a_field_that_is_nested_too_deeply_is_refused_only_where_it_is_read() {
        #[derive(Debug, Deserialize)]
        struct Wire {
            known: Option<Value>,
        }
        for (levels, is_fine) in [(LEVELS_MAX, true), (LEVELS_MAX + 1, false), (100_000, false)] {
            let value = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
            for field in ["known", "unknown"] {
                let text = format!("{{\"{field}\": {value}, \"x\": [1]}}");
                let body = JsonBody::parse(text.as_bytes()).unwrap();
                assert_eq!(body.field("x"), Some(&serde_json::json!([1])));
                let read = body.read::<Wire>().map(|wire| wire.known.is_some());
                let message = read.as_ref().map_err(ToString::to_string);
                assert_eq!(read.is_ok(), is_fine || field == "unknown", "{levels}: {message:?}");
                assert!(read.is_ok() || message.unwrap_err().starts_with("known: it is nested"));
            }
        }
    }

    #[test]
    fn values_are_read_as_they_were_written() {
        let text =
            r#"{"z": [null, true, -1, 18446744073709551615, 0.5, "é"], "a": {"c": 1, "b": 2}}"#;
        let body = JsonBody::parse(text.as_bytes()).unwrap();
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(body.read::<Value>().unwrap().to_string(), expected.to_string());
    }
}
