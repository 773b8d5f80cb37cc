//! Grammars in Lark's notation: the JSON schemas inside them are checked like any other.

use serde_json::Value;

use super::{GrammarError, schema};

/// What a JSON schema follows.
const JSON: &str = "%json";

/// The grammar as it is compiled.
///
/// # Errors
/// It is written in another notation, or a schema in it cannot be enforced.
pub(super) fn prepare(grammar: &str) -> Result<String, GrammarError> {
    let mut prepared = String::with_capacity(grammar.len());
    let mut rest = grammar;
    while let Some(place) = next_place(rest) {
        let (before, at) = rest.split_at(place);
        prepared.push_str(before);
        let Some(text) = at.strip_prefix(JSON) else { return Err(GrammarError::Notation) };
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let found =
            values.next().unwrap_or(Ok(Value::Null)).map_err(|err| GrammarError::Compile {
                what: "grammar",
                reason: format!("{JSON} needs a schema: {err}"),
            })?;
        rest = &text[values.byte_offset()..];
        prepared.push_str(JSON);
        prepared.push(' ');
        prepared.push_str(&schema::prepare(&found)?.to_string());
    }
    prepared.push_str(rest);
    Ok(prepared)
}

/// Where the next schema, or a sign of another notation, stands outside of strings, regular
/// expressions and comments.
fn next_place(grammar: &str) -> Option<usize> {
    let bytes = grammar.as_bytes();
    let mut quote = None;
    let mut idx = 0;
    while idx < bytes.len() {
        let (byte, rest) = (bytes[idx], &bytes[idx..]);
        match quote {
            Some(_) if byte == b'\\' => idx += 1,
            Some(end) if byte == end || byte == b'\n' => quote = None,
            Some(_) => {}
            None if byte == b'#' || rest.starts_with(b"//") => {
                idx += rest.iter().position(|it| *it == b'\n').unwrap_or(rest.len());
            }
            None if byte == b'"' || byte == b'/' => quote = Some(byte),
            None if rest.starts_with(JSON.as_bytes()) || rest.starts_with(b"::=") => {
                return Some(idx);
            }
            None => {}
        }
        idx += 1;
    }
    None
}
