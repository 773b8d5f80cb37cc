//! Literals of Python, and of Gemma's own notation, converted to JSON.

use serde_json::Value;

use super::schema::json_object;

/// Maximum nesting depth of a value; deeper ones are refused.
const DEPTH_MAX: usize = 64;

/// Reads values from the front of a text.
#[derive(Debug)]
pub(crate) struct Literals<'a> {
    rest: &'a str,
    /// Text that stands for a quotation mark; the text between two of them is taken literally.
    /// `None`: strings have Python's quotation marks and escapes.
    mark: Option<&'static str>,
}

/// Members of an object, with their values in JSON.
#[derive(Debug, Default)]
pub(crate) struct Members {
    pub(crate) members: Vec<(String, String)>,
    /// Whether the end of the object was read.
    pub(crate) is_whole: bool,
}

impl Members {
    /// Returns the object, without its closing brace if that was missing.
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

    /// Consumes `literal` after optional white space; `None` if it does not come next.
    pub(crate) fn take(&mut self, literal: &str) -> Option<()> {
        self.rest = self.rest.trim_ascii_start().strip_prefix(literal)?;
        Some(())
    }

    /// Reads a name: letters, digits and the other characters that names of tools and parameters
    /// have.
    pub(crate) fn name(&mut self) -> Option<&'a str> {
        let text = self.rest.trim_ascii_start();
        let fits = |character: char| character.is_alphanumeric() || "_-.$@".contains(character);
        let len = text.find(|character| !fits(character)).unwrap_or(text.len());
        let (name, rest) = text.split_at(len);
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    /// Reads `key=value` or `key:value` pairs, separated by commas up to `close`, as members of an
    /// object. If the text breaks off, returns the members before the break.
    pub(crate) fn members(&mut self, equals: &str, close: &str) -> Members {
        let mut members = Members::default();
        let read = self.members_at(equals, close, DEPTH_MAX, &mut members.members);
        members.is_whole = read.is_some();
        members
    }

    /// Reads members up to `close` and appends them; returns `None` at the first that is malformed
    /// or cut.
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
            // Without a comma or `close` after it, the value may still continue.
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

    /// Reads one value and returns it as JSON.
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

    /// Reads a string: `Some(None)` if the next value is not a string, `None` if the string is
    /// broken.
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

    /// Reads the rest of a string of Python or JSON after its opening quotation mark.
    fn quoted(&mut self, quote: char) -> Option<String> {
        // UTF-16 code units, since JSON escapes a character beyond U+FFFF as a surrogate pair.
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
