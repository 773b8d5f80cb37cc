//! Literals of Python, and of Gemma's own notation, as JSON.

use serde_json::Value;

use super::schema::json_object;

/// Deeper values are refused.
const DEPTH_MAX: usize = 64;

/// Reads values from the front of a text.
#[derive(Debug)]
pub(crate) struct Literals<'a> {
    rest: &'a str,
    /// Stands for a quotation mark; what is between two of them is text as it is. Python's
    /// quotation marks otherwise.
    mark: Option<&'static str>,
}

/// Members of an object, their values in JSON.
#[derive(Debug, Default)]
pub(crate) struct Members {
    pub(crate) members: Vec<(String, String)>,
    /// The object's end was there.
    pub(crate) is_whole: bool,
}

impl Members {
    /// The object, without its end if that is missing.
    pub(crate) fn json(&self) -> String {
        let mut json = json_object(&self.members);
        if !self.is_whole {
            json.pop();
        }
        json
    }
}

impl<'a> Literals<'a> {
    pub(crate) fn python(text: &'a str) -> Literals<'a> {
        Literals { rest: text, mark: None }
    }

    pub(crate) fn marked(text: &'a str, mark: &'static str) -> Literals<'a> {
        Literals { rest: text, mark: Some(mark) }
    }

    /// Whether nothing is left but white space.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.trim_ascii().is_empty()
    }

    /// Takes `literal`, after white space.
    pub(crate) fn take(&mut self, literal: &str) -> Option<()> {
        self.rest = self.rest.trim_ascii_start().strip_prefix(literal)?;
        Some(())
    }

    /// A name: letters, digits and what else names of tools and parameters have.
    pub(crate) fn name(&mut self) -> Option<&'a str> {
        let text = self.rest.trim_ascii_start();
        let fits = |character: char| character.is_alphanumeric() || "_-.$@".contains(character);
        let len = text.find(|character| !fits(character)).unwrap_or(text.len());
        let (name, rest) = text.split_at(len);
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    /// `key=value` or `key:value`, separated by commas up to `close`, as members of an object; as many of them as
    /// there are if something is missing.
    pub(crate) fn members(&mut self, equals: &str, close: &str) -> Members {
        let mut members = Members::default();
        let read = self.members_at(equals, close, DEPTH_MAX, &mut members.members);
        members.is_whole = read.is_some();
        members
    }

    /// Appends members; nothing if something is wrong.
    fn members_at(
        &mut self,
        equals: &str,
        close: &str,
        depth: usize,
        members: &mut Vec<(String, String)>,
    ) -> Option<()> {
        loop {
            if self.take(close).is_some() {
                return Some(());
            }
            let key = match self.string()? {
                Some(key) => key,
                None => self.name()?.to_owned(),
            };
            self.take(equals)?;
            let value = self.value(depth)?;
            // More of it may come.
            let is_certain = self.take(",").is_some();
            if !is_certain {
                self.take(close)?;
            }
            members.retain(|(known, _)| *known != key);
            members.push((key, value));
            if !is_certain {
                return Some(());
            }
        }
    }

    /// One value as JSON.
    fn value(&mut self, depth: usize) -> Option<String> {
        let left = depth.checked_sub(1)?;
        if let Some(text) = self.string()? {
            return Some(Value::from(text).to_string());
        }
        if self.take("{").is_some() {
            let mut members = Vec::new();
            self.members_at(":", "}", left, &mut members)?;
            return Some(json_object(&members));
        }
        for (open, close) in [("[", "]"), ("(", ")")] {
            if self.take(open).is_some() {
                return self.items(close, left);
            }
        }
        let text = self.rest.trim_ascii_start();
        let ends = |character: char| ",]})".contains(character) || character.is_ascii_whitespace();
        let (word, rest) = text.split_at(text.find(ends).unwrap_or(text.len()));
        self.rest = rest;
        match word {
            "True" | "true" => Some("true".to_owned()),
            "False" | "false" => Some("false".to_owned()),
            "None" | "null" => Some("null".to_owned()),
            _ => {
                let number: &serde_json::value::RawValue = serde_json::from_str(word).ok()?;
                Some(number.get().to_owned())
            }
        }
    }

    fn items(&mut self, close: &str, depth: usize) -> Option<String> {
        let mut items = Vec::new();
        while self.take(close).is_none() {
            items.push(self.value(depth)?);
            if self.take(",").is_none() {
                self.take(close)?;
                break;
            }
        }
        Some(format!("[{}]", items.join(", ")))
    }

    /// A string; `Some(None)` if what comes next is none, nothing if it is a broken one.
    #[expect(clippy::option_option, reason = "absent and broken are two things")]
    fn string(&mut self) -> Option<Option<String>> {
        if let Some(mark) = self.mark {
            return match self.take(mark) {
                None => Some(None),
                Some(()) => {
                    let (text, rest) = self.rest.split_once(mark)?;
                    self.rest = rest;
                    Some(Some(text.to_owned()))
                }
            };
        }
        for quote in ['"', '\''] {
            if self.take(quote.encode_utf8(&mut [0])).is_some() {
                return self.quoted(quote).map(Some);
            }
        }
        Some(None)
    }

    /// The rest of a string of Python or JSON after its opening quotation mark.
    fn quoted(&mut self, quote: char) -> Option<String> {
        // Units of UTF-16, since JSON writes a character beyond them as two.
        let mut text: Vec<u16> = Vec::new();
        let mut chars = self.rest.chars();
        loop {
            let character = match chars.next()? {
                '\\' => match chars.next()? {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    '0' => '\0',
                    '\n' => continue,
                    digits @ ('x' | 'u' | 'U') => {
                        let len = match digits {
                            'x' => 2,
                            'u' => 4,
                            _ => 8,
                        };
                        let (hex, rest) = chars.as_str().split_at_checked(len)?;
                        chars = rest.chars();
                        let code = u32::from_str_radix(hex, 16).ok()?;
                        match char::from_u32(code) {
                            Some(character) => character,
                            None => {
                                text.push(u16::try_from(code).ok()?);
                                continue;
                            }
                        }
                    }
                    plain @ ('\\' | '/' | '"' | '\'') => plain,
                    other => {
                        text.push(u16::from(b'\\'));
                        other
                    }
                },
                end if end == quote => {
                    self.rest = chars.as_str();
                    return String::from_utf16(&text).ok();
                }
                plain => plain,
            };
            text.extend_from_slice(character.encode_utf16(&mut [0; 2]));
        }
    }
}
