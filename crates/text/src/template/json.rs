//! The `tojson` filter: Python's `json.dumps`, whose exact output, spaces included, models were
//! trained on.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, Value};

use super::python;

/// Maximum depth of a value; a deeper one is an error, as it would eventually be in Python.
const DEPTH_MAX: usize = 200;

/// An item of a list, or a value of a dictionary with its key.
type Entry = (Option<String>, Value);

/// Layout of the output.
struct Layout {
    ensure_ascii: bool,
    /// Indentation of one level; `None` writes everything on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// Implements `value|tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let layout = Layout::of_args(&args.into_values())?;
    let mut out = String::new();
    layout.write(&mut out, value, 0)?;
    Ok(out)
}

impl Layout {
    fn of_args(args: &[Value]) -> Result<Layout, Error> {
        const NAMES: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];
        let (positional, kwargs): (&[Value], Kwargs) = from_args(args)?;
        if positional.len() > NAMES.len() {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        let argument = |idx: usize| -> Result<Option<Value>, Error> {
            let given = match positional.get(idx) {
                Some(value) => Some(value.clone()),
                None => kwargs.get(NAMES[idx])?,
            };
            Ok(given.filter(|value| !value.is_none() && !value.is_undefined()))
        };
        let indent = argument(1)?.map(|indent| match indent.as_usize() {
            Some(spaces) => " ".repeat(spaces.min(DEPTH_MAX)),
            None => indent.as_str().unwrap_or_default().to_owned(),
        });
        let (item, key) = match argument(2)? {
            Some(pair) => (pair.get_item_by_index(0)?, pair.get_item_by_index(1)?),
            None if indent.is_some() => (",".into(), ": ".into()),
            None => (", ".into(), ": ".into()),
        };
        let layout = Layout {
            ensure_ascii: argument(0)?.is_some_and(|value| value.is_true()),
            indent,
            item_separator: item.to_string(),
            key_separator: key.to_string(),
            sort_keys: argument(3)?.is_some_and(|value| value.is_true()),
        };
        kwargs.assert_all_used()?;
        Ok(layout)
    }

    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::new(ErrorKind::BadSerialization, "the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_string(out, value.as_str().unwrap_or_default()),
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()?.checked() {
                    let key = key?;
                    entries.push((Some(key_text(&key)?), value.get_item(&key)?));
                }
                if self.sort_keys {
                    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.write_entries(out, ['{', '}'], &entries, depth)?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked().map(|item| Ok((None, item?)));
                let entries = items.collect::<Result<Vec<Entry>, Error>>()?;
                self.write_entries(out, ['[', ']'], &entries, depth)?;
            }
            kind => {
                let text = format!("a value of type {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::BadSerialization, text));
            }
        }
        Ok(())
    }

    fn write_entries(
        &self,
        out: &mut String,
        brackets: [char; 2],
        entries: &[Entry],
        depth: usize,
    ) -> Result<(), Error> {
        out.push(brackets[0]);
        for (idx, (key, value)) in entries.iter().enumerate() {
            if idx > 0 {
                out.push_str(&self.item_separator);
            }
            self.break_line(out, depth + 1);
            if let Some(key) = key {
                self.write_string(out, key);
                out.push_str(&self.key_separator);
            }
            self.write(out, value, depth + 1)?;
        }
        if !entries.is_empty() {
            self.break_line(out, depth);
        }
        out.push(brackets[1]);
        Ok(())
    }

    fn break_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn write_string(&self, out: &mut String, text: &str) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\u{1f}' => push_escape(out, u16::try_from(character).unwrap_or_default()),
                // Only characters above ASCII are escaped; DEL stays as it is.
                '\u{80}'.. if self.ensure_ascii => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        push_escape(out, *unit);
                    }
                }
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}

fn push_escape(out: &mut String, unit: u16) {
    write!(out, "\\u{unit:04x}").expect("writing to a string cannot fail");
}

/// Converts a key to a string as `json.dumps` does.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::Number => Ok(number(key)),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        kind => {
            let text = format!("keys must be strings, numbers, booleans or none, not {kind}");
            Err(Error::new(ErrorKind::BadSerialization, text))
        }
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(number) if number.is_nan() => "NaN".to_owned(),
        Ok(number) if number.is_infinite() => {
            if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
        }
        Ok(number) => python::float(number),
        Err(_) => value.to_string(),
    }
}
