//! Arguments of a tool call as an object, for protocols that send them as one.

use serde_json::{Map, Value};

/// Name of the member that holds arguments which are not a JSON object, so that nothing the model
/// wrote is lost.
const NO_OBJECT: &str = "arguments";

/// Converts the arguments of a tool call to an object. From arguments that were cut off, the object
/// contains the complete members and the beginning of a string.
pub fn arguments_object(arguments: &str) -> Map<String, Value> {
    if arguments.trim().is_empty() {
        return Map::new();
    }
    serde_json::from_str(arguments)
        .ok()
        .or_else(|| Prefix::read(arguments)?.object())
        .unwrap_or_else(|| Map::from_iter([(NO_OBJECT.to_owned(), arguments.into())]))
}

/// Maximum depth of JSON that is completed.
const DEPTH_MAX: usize = 100;

/// Maximum length in bytes of an incomplete escape sequence, as in `\ud83e\udd8`.
const ESCAPE_BYTES_MAX: usize = 12;

/// JSON whose end is missing.
#[derive(Debug)]
struct Prefix<'a> {
    json: &'a str,
    /// The characters that close the open brackets.
    closers: String,
    is_in_string: bool,
    /// The offset after the last value that is certainly complete, and the closing characters
    /// there.
    certain: (usize, String),
}

impl<'a> Prefix<'a> {
    fn read(json: &'a str) -> Option<Prefix<'a>> {
        let mut prefix = Prefix {
            json,
            closers: String::new(),
            is_in_string: false,
            certain: (0, String::new()),
        };
        let mut is_escaped = false;
        for (idx, byte) in json.bytes().enumerate() {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' if prefix.is_in_string => is_escaped = true,
                b'"' => prefix.is_in_string = !prefix.is_in_string,
                _ if prefix.is_in_string => {}
                b'{' | b'[' => {
                    prefix.closers.insert(0, if byte == b'{' { '}' } else { ']' });
                    prefix.certain = (idx + 1, prefix.closers.clone());
                }
                b'}' | b']' => {
                    if prefix.closers.is_empty() {
                        return None;
                    }
                    prefix.closers.remove(0);
                }
                b',' => prefix.certain = (idx, prefix.closers.clone()),
                _ => {}
            }
            if prefix.closers.len() > DEPTH_MAX {
                return None;
            }
        }
        Some(prefix)
    }

    /// Parses as much of the object as is present.
    fn object(&self) -> Option<Map<String, Value>> {
        let Prefix { json, closers, .. } = self;
        if self.is_in_string {
            let shortest = json.len().saturating_sub(ESCAPE_BYTES_MAX);
            let ends = (shortest..=json.len()).rev().filter(|end| json.is_char_boundary(*end));
            let texts = ends.map(|end| format!("{}\"{closers}", &json[..end]));
            if let Some(object) = texts.filter_map(|it| serde_json::from_str(&it).ok()).next() {
                return Some(object);
            }
        }
        // A number may be incomplete, but a closed bracket or string is complete.
        let is_closed = json.trim_end().ends_with(['}', ']', '"']);
        let all = is_closed.then(|| serde_json::from_str(&format!("{json}{closers}")).ok());
        let (end, closers) = &self.certain;
        all.flatten().or_else(|| serde_json::from_str(&format!("{}{closers}", &json[..*end])).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_become_an_object_and_nothing_is_lost() {
        for (written, object) in [
            (r#"{"b": 1, "a": [true]}"#, r#"{"b":1,"a":[true]}"#),
            ("", "{}"),
            (" ", "{}"),
            ("[1]", r#"{"arguments":"[1]"}"#),
            ("{", "{}"),
            (r#"{"a"#, "{}"),
            (r#"{"a":"#, "{}"),
            (r#"{"a": 1"#, "{}"),
            (r#"{"a": 1,"#, r#"{"a":1}"#),
            (r#"{"a": 1, "b": "x"#, r#"{"a":1,"b":"x"}"#),
            (r#"{"a": "x\"#, r#"{"a":"x"}"#),
            (r#"{"a": "é\ud83e\udd"#, r#"{"a":"é"}"#),
            (r#"{"a": "x""#, r#"{"a":"x"}"#),
            (r#"{"a": [{"b": tr"#, r#"{"a":[{}]}"#),
            (r#"{"a": [1, {"b": true}"#, r#"{"a":[1,{"b":true}]}"#),
            (r#"{"a": [1, 2"#, r#"{"a":[1]}"#),
            (r#"{"a" 1, "b"#, r#"{"arguments":"{\"a\" 1, \"b"}"#),
        ] {
            assert_eq!(Value::from(arguments_object(written)).to_string(), object);
        }
    }
}
