//! A parser for JSON with comments and trailing commas. It records the place of every value in the
//! text and knows nothing of hosts.

/// Maximum depth of nesting; no hostfile needs more than three.
const DEPTH_MAX: usize = 16;

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    /// Byte position of the value's first character.
    pub(super) at: usize,
    pub(super) value: Value,
}

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool,
    Number(String),
    String(String),
    Array(Vec<Node>),
    /// Keys in the order of the text; a key may occur twice.
    Object(Vec<(Key, Node)>),
}

/// A key of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    pub(super) at: usize,
    pub(super) name: String,
}

/// A syntax error.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct SyntaxError {
    pub(super) at: usize,
    pub(super) expected: &'static str,
    /// The character at `at`; `None` at the end of the text.
    pub(super) found: Option<char>,
}

impl Value {
    /// Describes the value for error messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Value::Null => "null".to_owned(),
            Value::Bool => "true or false".to_owned(),
            Value::Number(text) => format!("the number {text}"),
            Value::String(text) => format!("the string {text:?}"),
            Value::Array(_) => "a list".to_owned(),
            Value::Object(_) => "an object".to_owned(),
        }
    }
}

/// Parses one value. Anything after it is an error.
pub(super) fn parse(text: &str) -> Result<Node, SyntaxError> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    let node = reader.value()?;
    reader.skip_blanks()?;
    match reader.peek() {
        None => Ok(node),
        Some(_) => Err(reader.error("nothing after the value")),
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn error(&self, expected: &'static str) -> SyntaxError {
        SyntaxError { at: self.at, expected, found: self.peek() }
    }

    fn take(&mut self, wanted: &str) -> bool {
        let is_there = self.text[self.at..].starts_with(wanted);
        if is_there {
            self.at += wanted.len();
        }
        is_there
    }

    /// Skips blanks and comments.
    fn skip_blanks(&mut self) -> Result<(), SyntaxError> {
        loop {
            let rest = &self.text[self.at..];
            let trimmed = rest.trim_start_matches([' ', '\t', '\n', '\r', '\u{feff}']);
            self.at += rest.len() - trimmed.len();
            if trimmed.starts_with("//") {
                self.at += trimmed.find('\n').unwrap_or(trimmed.len());
            } else if let Some(comment) = trimmed.strip_prefix("/*") {
                let Some(end) = comment.find("*/") else {
                    return Err(self.error("`*/` at the end of this comment"));
                };
                self.at += end + 4;
            } else {
                return Ok(());
            }
        }
    }

    fn value(&mut self) -> Result<Node, SyntaxError> {
        self.skip_blanks()?;
        let at = self.at;
        let value = match self.peek() {
            Some('{') => self.nested(Self::object)?,
            Some('[') => self.nested(Self::array)?,
            Some('"') => Value::String(self.string()?),
            Some('-' | '0'..='9') => Value::Number(self.number()),
            _ if self.take("null") => Value::Null,
            _ if self.take("true") || self.take("false") => Value::Bool,
            _ => return Err(self.error("a value")),
        };
        Ok(Node { at, value })
    }

    fn nested(
        &mut self,
        read: fn(&mut Self) -> Result<Value, SyntaxError>,
    ) -> Result<Value, SyntaxError> {
        if self.depth == DEPTH_MAX {
            return Err(self.error("less nesting"));
        }
        self.depth += 1;
        self.at += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn array(&mut self) -> Result<Value, SyntaxError> {
        let mut nodes = Vec::new();
        loop {
            self.skip_blanks()?;
            if self.take("]") {
                return Ok(Value::Array(nodes));
            }
            nodes.push(self.value()?);
            self.skip_blanks()?;
            if !self.take(",") && self.peek() != Some(']') {
                return Err(self.error("`,` or `]`"));
            }
        }
    }

    fn object(&mut self) -> Result<Value, SyntaxError> {
        let mut entries = Vec::new();
        loop {
            self.skip_blanks()?;
            if self.take("}") {
                return Ok(Value::Object(entries));
            }
            let at = self.at;
            if self.peek() != Some('"') {
                return Err(self.error("a name in quotes, or `}`"));
            }
            let key = Key { at, name: self.string()? };
            self.skip_blanks()?;
            if !self.take(":") {
                return Err(self.error("`:`"));
            }
            entries.push((key, self.value()?));
            self.skip_blanks()?;
            if !self.take(",") && self.peek() != Some('}') {
                return Err(self.error("`,` or `}`"));
            }
        }
    }

    fn number(&mut self) -> String {
        let rest = &self.text[self.at..];
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.');
        let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += len;
        rest[..len].to_owned()
    }

    fn string(&mut self) -> Result<String, SyntaxError> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.error("`\"` at the end of the string")),
                Some('"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some('\\') => {
                    self.at += 1;
                    text.push(self.escape()?);
                }
                Some(c) => {
                    self.at += c.len_utf8();
                    text.push(c);
                }
            }
        }
    }

    /// Reads the character after a backslash.
    fn escape(&mut self) -> Result<char, SyntaxError> {
        const EXPECTED: &str =
            "an escape of JSON: one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX";
        let escaped = match self.peek() {
            Some(c @ ('"' | '\\' | '/')) => c,
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => {
                self.at += 1;
                return self.unicode().ok_or_else(|| self.error(EXPECTED));
            }
            _ => return Err(self.error(EXPECTED)),
        };
        self.at += 1;
        Ok(escaped)
    }

    /// Reads four hexadecimal digits, or a surrogate pair with `\u` between its halves.
    fn unicode(&mut self) -> Option<char> {
        let first = self.unit()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first);
        }
        if !self.take("\\u") {
            return None;
        }
        let second = self.unit()?.checked_sub(0xdc00).filter(|&low| low < 0x400)?;
        char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + second)
    }

    fn unit(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let unit = u32::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
        self.at += 4;
        Some(unit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Converts a node without its places.
    fn plain(node: &Node) -> serde_json::Value {
        match &node.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool => true.into(),
            Value::Number(text) => serde_json::from_str(text).unwrap(),
            Value::String(text) => text.clone().into(),
            Value::Array(nodes) => nodes.iter().map(plain).collect(),
            Value::Object(entries) => {
                let entries = entries.iter().map(|(key, node)| (key.name.clone(), plain(node)));
                serde_json::Value::Object(entries.collect())
            }
        }
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            Just(serde_json::Value::Bool(true)),
            any::<i32>().prop_map(Into::into),
            any::<String>().prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 20, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                prop::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn comments_and_trailing_commas_are_no_values() {
        let text = "// hosts\n[ /* none\n yet */ \"a//b\", {\"k\": [1,],}, ] // end";
        let node = parse(text).unwrap();
        assert_eq!(plain(&node), serde_json::json!(["a//b", {"k": [1]}]));
        let Value::Array(nodes) = node.value else { panic!("a list") };
        assert_eq!(&text[nodes[0].at..nodes[0].at + 6], "\"a//b\"");
    }

    #[test]
    fn escapes_are_those_of_json() {
        let text = r#""\"\\\/\b\f\n\r\t\u00e9\ud83e\udd8c""#;
        let wanted = "\"\\/\u{8}\u{c}\n\r\té🦌".to_owned();
        assert_eq!(parse(text).unwrap().value, Value::String(wanted));
        for text in [r#""\x""#, r#""\u00g0""#, r#""\ud83e""#, r#""\ud83e\u0041""#, r#""\"#] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_named_with_its_place() {
        for (text, at, expected) in [
            ("", 0, "a value"),
            ("[1 2]", 3, "`,` or `]`"),
            ("[,]", 1, "a value"),
            ("{a: 1}", 1, "a name in quotes, or `}`"),
            ("{\"a\" 1}", 5, "`:`"),
            ("[\"a", 3, "`\"` at the end of the string"),
            ("[1] 2", 4, "nothing after the value"),
            ("[1 /* 2]", 3, "`*/` at the end of this comment"),
        ] {
            let err = parse(text).unwrap_err();
            assert_eq!((err.at, err.expected), (at, expected), "{text}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(parse(&deep).unwrap_err().at, DEPTH_MAX);
    }

    proptest! {
        #[test]
        fn plain_json_is_read_as_others_read_it(json in json()) {
            prop_assert_eq!(plain(&parse(&json.to_string()).unwrap()), json.clone());
            let pretty = serde_json::to_string_pretty(&json).unwrap();
            prop_assert_eq!(plain(&parse(&pretty).unwrap()), json);
        }

        #[test]
        fn any_text_is_a_value_or_an_error(text in "[\\[\\]{}\",:/*\\\\u0-9a-f é\n]{0,40}") {
            parse(&text).ok();
        }
    }
}
