//! Differences between Python's values and minijinja's: how they are printed, and what counts as a
//! sequence.

use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Error, Output, State, Value};

/// Maximum depth of a printed list; deeper parts are cut off.
const DEPTH_MAX: usize = 200;

/// Writes `{{ value }}`.
pub(super) fn write(out: &mut Output, _: &mut State, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text).map_err(Error::from),
        None => out.write_str(&string(value)).map_err(Error::from),
    }
}

/// Implements `value|string`, Python's `str`.
pub(super) fn string(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number | ValueKind::Map | ValueKind::Seq => {
            let mut text = String::new();
            write_repr(&mut text, value, 0);
            text
        }
        _ => value.to_string(),
    }
}

/// Implements `value is iterable`; `none` is not iterable.
pub(super) fn is_iterable(value: &Value) -> bool {
    match value.kind() {
        ValueKind::None => false,
        ValueKind::String => true,
        _ => value.try_iter().is_ok(),
    }
}

/// Implements `value is sequence`: values with a length and an index, strings and dictionaries
/// included.
pub(super) fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Map => true,
        ValueKind::Undefined => true,
        // In minijinja the sum of two lists is an iterable, in Python a list.
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    }
}

/// Formats a float as Python's `repr` does: the shortest digits that parse to the same value, with
/// an exponent if it is below -4 or above 15.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() || value.is_infinite() {
        return value.to_string().to_lowercase();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("{:e} writes an e");
    let exponent: i32 = exponent.parse().expect("{:e} writes a number after the e");
    match exponent {
        // `to_string` never writes an exponent.
        -4..16 => match value.to_string() {
            text if text.contains('.') => text,
            text => text + ".0",
        },
        _ => format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}

/// Writes a value as Python's `repr` does.
fn write_repr(out: &mut String, value: &Value, depth: usize) {
    match value.kind() {
        _ if depth > DEPTH_MAX => out.push_str("..."),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.push_str(&float(number)),
            Err(_) => out.push_str(&value.to_string()),
        },
        ValueKind::Map => {
            out.push('{');
            for (idx, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if idx > 0 { ", " } else { "" });
                write_repr(out, &key, depth + 1);
                out.push_str(": ");
                write_repr(out, &value.get_item(&key).unwrap_or_default(), depth + 1);
            }
            out.push('}');
        }
        ValueKind::Seq => {
            let [open, close] = if value.is_tuple() { ['(', ')'] } else { ['[', ']'] };
            out.push(open);
            for (idx, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if idx > 0 { ", " } else { "" });
                write_repr(out, &item, depth + 1);
            }
            if value.is_tuple() && value.len() == Some(1) {
                out.push(',');
            }
            out.push(close);
        }
        _ => write!(out, "{value:?}").expect("writing to a string cannot fail"),
    }
}
