//! Checks grammars in Lark's notation, and prepares the JSON schemas inside them like any other.

use serde_json::Value;

use super::schema::Leniency;
use super::{GRAMMAR_DEFINITIONS_MAX, GRAMMAR_DEPTH_MAX, GrammarError, schema};

/// The keyword before a JSON schema.
const JSON: &str = "%json";

/// Returns the grammar with its JSON schemas prepared for the compiler; see [`schema::prepare`].
///
/// # Errors
/// Fails if the grammar is too large, is written in another notation, or contains a schema that
/// cannot be enforced.
pub(super) fn prepare(grammar: &str) -> Result<String, GrammarError> {
    check_size(grammar)?;
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
        prepared.push_str(&schema::prepare(&found, Leniency::IfMarked)?.to_string());
    }
    prepared.push_str(rest);
    Ok(prepared)
}

/// Rejects a grammar with too many definitions or too deeply nested brackets.
fn check_size(grammar: &str) -> Result<(), GrammarError> {
    let too_large =
        |found, limit, unit| Err(GrammarError::TooLarge { what: "grammar", found, limit, unit });
    let (mut num_definitions, mut depth) = (0, 0_usize);
    for (_, byte) in code(grammar) {
        match byte {
            b':' => num_definitions += 1,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if GRAMMAR_DEPTH_MAX < depth {
            return too_large(depth, GRAMMAR_DEPTH_MAX, "levels of brackets");
        }
    }
    if GRAMMAR_DEFINITIONS_MAX < num_definitions {
        too_large(num_definitions, GRAMMAR_DEFINITIONS_MAX, "rules and terminals")
    } else {
        Ok(())
    }
}

/// Returns the position of the next schema, or of a sign of another notation, outside of strings,
/// regular expressions and comments.
fn next_place(grammar: &str) -> Option<usize> {
    let bytes = grammar.as_bytes();
    let is_place = |rest: &[u8]| rest.starts_with(JSON.as_bytes()) || rest.starts_with(b"::=");
    code(grammar).map(|(idx, _)| idx).find(|idx| is_place(&bytes[*idx..]))
}

/// Returns the bytes outside of strings, regular expressions and comments, with their positions.
fn code(grammar: &str) -> impl Iterator<Item = (usize, u8)> + '_ {
    let bytes = grammar.as_bytes();
    let mut quote = None;
    let mut idx = 0;
    std::iter::from_fn(move || {
        while idx < bytes.len() {
            let (at, byte, rest) = (idx, bytes[idx], &bytes[idx..]);
            idx += 1;
            match quote {
                Some(_) if byte == b'\\' => idx += 1,
                Some(end) if byte == end || byte == b'\n' => quote = None,
                Some(_) => {}
                None if byte == b'#' || rest.starts_with(b"//") => {
                    idx = at + rest.iter().position(|it| *it == b'\n').unwrap_or(rest.len());
                }
                None if byte == b'"' || byte == b'/' => quote = Some(byte),
                None => return Some((at, byte)),
            }
        }
        None
    })
}
