//! Methods of Python's strings and dictionaries that templates call and minijinja-contrib lacks.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// Handles every method that a value does not have itself.
pub(super) fn call(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let ours = match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => of_string(text, method, args),
        _ => None,
    };
    ours.unwrap_or_else(|| pycompat::unknown_method_callback(state, value, method, args))
}

/// Calls one of the methods of this module; `None` if there is no such method.
fn of_string(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let done = match method {
        "removeprefix" => {
            one(args).map(|prefix| Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            one(args).map(|suffix| Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => one(args).map(|separator| {
            let (before, after) = text.split_once(separator).unwrap_or((text, ""));
            let found = &text[before.len()..text.len() - after.len()];
            list(vec![before, found, after])
        }),
        "rpartition" => one(args).map(|separator| {
            let (before, after) = text.rsplit_once(separator).unwrap_or(("", text));
            let found = &text[before.len()..text.len() - after.len()];
            list(vec![before, found, after])
        }),
        "rsplit" => rsplit(text, args),
        "splitlines" => split_lines(text, args),
        "index" => one(args).and_then(|part| match text.find(part) {
            Some(idx) => Ok(Value::from(text[..idx].chars().count())),
            None => Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
        }),
        "zfill" => from_args(args).map(|(width,): (usize,)| {
            let (sign, digits) = match text.strip_prefix(['-', '+']) {
                Some(digits) => text.split_at(text.len() - digits.len()),
                None => ("", text),
            };
            let missing = width.min(PADDED_MAX).saturating_sub(text.chars().count());
            Value::from(format!("{sign}{}{digits}", "0".repeat(missing)))
        }),
        "ljust" | "rjust" | "center" => pad(text, method, args),
        "casefold" => from_args(args).map(|()| Value::from(text.to_lowercase())),
        "isdecimal" => from_args(args)
            .map(|()| Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))),
        _ => return None,
    };
    Some(done)
}

/// Maximum number of characters to which text is padded.
const PADDED_MAX: usize = 10_000;

fn list(items: Vec<&str>) -> Value {
    items.into_iter().map(Value::from).collect()
}

fn one(args: &[Value]) -> Result<&str, Error> {
    let (argument,): (&str,) = from_args(args)?;
    Ok(argument)
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, splits): (Option<&str>, Option<i64>) = from_args(args)?;
    let splits = splits.and_then(|splits| usize::try_from(splits).ok());
    let parts = splits.map_or(usize::MAX, |splits| splits.saturating_add(1));
    let mut pieces: Vec<&str> = match separator {
        Some(separator) => text.rsplitn(parts, separator).collect(),
        None => {
            let mut rest = text.trim_end();
            let mut pieces = Vec::new();
            while !rest.is_empty() && pieces.len() + 1 < parts {
                let start = rest
                    .rfind(char::is_whitespace)
                    .map_or(0, |idx| idx + rest[idx..].chars().next().map_or(0, char::len_utf8));
                pieces.push(&rest[start..]);
                rest = rest[..start].trim_end();
            }
            pieces.extend((!rest.is_empty()).then_some(rest));
            pieces
        }
    };
    pieces.reverse();
    Ok(list(pieces))
}

/// Splits text into lines. Python breaks lines at more characters than `\n`.
fn split_lines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep_ends,): (Option<bool>,) = from_args(args)?;
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let is_break = |c: char| {
            matches!(
                c,
                '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                    ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
            )
        };
        let end = rest.find(is_break).unwrap_or(rest.len());
        let ending = match &rest[end..] {
            tail if tail.starts_with("\r\n") => 2,
            tail => tail.chars().next().map_or(0, char::len_utf8),
        };
        let line_end = if keep_ends.unwrap_or(false) { end + ending } else { end };
        lines.push(&rest[..line_end]);
        rest = &rest[end + ending..];
    }
    Ok(list(lines))
}

fn pad(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (usize, Option<char>) = from_args(args)?;
    let missing = width.min(PADDED_MAX).saturating_sub(text.chars().count());
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // CPython puts the extra padding character on the left if the width is odd.
        _ => missing / 2 + (missing & width & 1),
    };
    let fill = |count| std::iter::repeat_n(fill.unwrap_or(' '), count).collect::<String>();
    Ok(Value::from(format!("{}{text}{}", fill(left), fill(missing - left))))
}
