//! Grammars that constrain a model to tool calls that its parser reads, in llguidance's dialect of
//! Lark (`docs/syntax.md` of guidance-ai/llguidance).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::ToolSpec;
use super::frame::{Frame, Free};
use super::schema::{Types, properties};
use crate::TokenId;

/// Matches any text.
const TEXT: &str = "/(?s:.*)/";

/// The types of JSON Schema.
const TYPE_NAMES: [&str; 7] = ["string", "integer", "number", "boolean", "array", "object", "null"];

/// The tool calls, and the text before them, that a grammar allows in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolDemand {
    /// Number of calls.
    pub calls: CallCount,
    /// Whether text may come before the calls. Ignored for families whose calls are recognised only
    /// at the beginning of an answer: they never write text before a call.
    pub text_before: bool,
}

/// Number of calls in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallCount {
    /// None or several; text may stand alone. Text that begins like a call must be one.
    Any,
    /// One or several; exactly one if the family cannot write several.
    AtLeastOne,
    /// Exactly one.
    ExactlyOne,
}

/// Reason why tool calls cannot be constrained by a grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolGrammarError {
    /// The request has no tools.
    #[error("a tool call is required, but the request has no tools")]
    NoTools,
    /// A schema has a keyword that cannot be enforced, because the model writes text parameters
    /// without quotes.
    #[error(
        "parameter {parameter:?} of tool {tool:?} has {keyword:?}, which cannot be enforced for \
         this model, because it writes parameters as plain text\n\
         hint: leave {keyword:?} out, or \"strict\""
    )]
    Keyword {
        /// Name of the tool.
        tool: String,
        /// Name of the parameter.
        parameter: String,
        /// The keyword of its schema that cannot be enforced.
        keyword: String,
    },
}

/// The text that closes a parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Close<'a> {
    /// Text before the tag; the parser accepts values without it.
    pub(crate) before: &'a str,
    /// The tag that ends the value; no value contains it.
    pub(crate) tag: &'a str,
    pub(crate) after: &'a str,
}

/// A grammar under construction.
#[derive(Debug)]
pub(crate) struct Lark<'a> {
    /// Special tokens of the format, with their text.
    special: &'a [(TokenId, String)],
    rules: Vec<String>,
}

/// A parameter of a tool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameter<'a> {
    pub(crate) name: &'a str,
    pub(crate) schema: &'a Value,
}

impl<'a> Lark<'a> {
    /// Creates a grammar without rules.
    pub(crate) fn new(special: &'a [(TokenId, String)]) -> Lark<'a> {
        Lark { special, rules: Vec::new() }
    }
}

impl Lark<'_> {
    /// Returns the text of the grammar: its rules, and `start` as the body of the rule `start`.
    pub(crate) fn finish(&self, start: &str) -> String {
        format!("%llguidance {{}}\nstart: {start}\n{}\n", self.rules.join("\n"))
    }

    /// Returns the body of the start rule: text and calls as `frame` and `demand` allow. `call` is
    /// the name of the rule that matches one call.
    pub(crate) fn start(&mut self, frame: &Frame, call: &str, demand: ToolDemand) -> String {
        let Frame { before, trigger, open, separator, close, free } = frame;
        let several = match (demand.calls, separator) {
            (CallCount::Any | CallCount::AtLeastOne, Some(separator)) => {
                format!("({} {call})*", self.text(separator))
            }
            _ => String::new(),
        };
        let calls = format!("{} {call} {several} {}", self.text(open), self.text(close));
        let before = self.optional(before);
        let head = self.text(trigger);
        match (demand.calls, free) {
            (CallCount::Any, Free::Start { text, is_open, body, end, to_calls }) => {
                let mut text = self.text(text);
                if *is_open {
                    text = format!("({text})?");
                }
                let end = self.optional(end);
                let more = to_calls.map(|to_calls| {
                    format!("| {before} {text} {} {head} {calls}", self.text_until(to_calls))
                });
                let more = more.unwrap_or_default();
                format!("{before} {head} {calls} | {before} {text} {body} {end} {more}")
            }
            (CallCount::Any, Free::Anywhere) => {
                let head = self.text_until(trigger);
                if self.is_special(trigger) {
                    format!("{TEXT} | {head} {calls}")
                } else {
                    format!("({head} {calls})? {}", self.rule(TEXT))
                }
            }
            (_, Free::Anywhere) if demand.text_before => {
                format!("{} {calls}", self.text_until(trigger))
            }
            _ => format!("{before} {head} {calls}"),
        }
    }

    /// Returns an expression that matches this text or nothing.
    fn optional(&self, text: &str) -> String {
        if text.is_empty() { String::new() } else { format!("({})?", self.text(text)) }
    }

    /// Adds a rule and returns its name.
    pub(crate) fn rule(&mut self, body: &str) -> String {
        self.rule_with("", body)
    }

    fn rule_with(&mut self, options: &str, body: &str) -> String {
        let name = format!("r{}", self.rules.len());
        self.rules.push(format!("{name}{options}: {body}"));
        name
    }

    /// Returns an expression that matches exactly this text; special tokens in it match as tokens.
    pub(crate) fn text(&self, mut text: &str) -> String {
        let mut parts = Vec::new();
        while let Some((at, (token, written))) = self.next_special(text) {
            if at > 0 {
                parts.push(Value::from(&text[..at]).to_string());
            }
            parts.push(format!("<[{token}]>"));
            text = &text[at + written.len()..];
        }
        if !text.is_empty() {
            parts.push(Value::from(text).to_string());
        }
        parts.join(" ")
    }

    /// Returns an expression that matches any text up to and including the first `end`.
    pub(crate) fn text_until(&mut self, end: &str) -> String {
        self.limited_until("(?s:.*)", end)
    }

    fn limited_until(&mut self, regex: &str, end: &str) -> String {
        match self.next_special(end) {
            Some((0, _)) => format!("/{regex}/ {}", self.text(end)),
            Some((at, _)) => {
                let rest = self.text(&end[at..]);
                format!("{} {rest}", self.limited_until(regex, &end[..at]))
            }
            None => self.rule_with("[lazy]", &format!("/{regex}{}/", escaped(end))),
        }
    }

    fn close(&self, Close { before, tag, after }: Close<'_>) -> String {
        self.text(&format!("{before}{tag}{after}"))
    }

    fn is_special(&self, text: &str) -> bool {
        matches!(self.next_special(text), Some((0, _)))
    }

    /// Returns the first special token in a text, and its position.
    fn next_special(&self, text: &str) -> Option<(usize, &(TokenId, String))> {
        let found = self.special.iter().filter_map(|token| Some((text.find(&token.1)?, token)));
        // Of two tokens that begin at the same place, the longer one counts.
        found.min_by_key(|(at, token)| (*at, std::cmp::Reverse(token.1.len())))
    }

    /// Returns an expression that matches JSON of this schema.
    pub(crate) fn json(schema: &Value) -> String {
        format!("%json {schema}")
    }

    /// Returns an expression that matches the arguments of a call of `tool`, as a JSON object.
    pub(crate) fn arguments(tool: &ToolSpec) -> String {
        Lark::json(&arguments_schema(tool))
    }

    /// Returns an expression that matches a call of `tool` as `{"name": NAME, KEY: ARGUMENTS}`.
    pub(crate) fn named_json(&self, tool: &ToolSpec, key: &str) -> String {
        let name = Value::from(tool.name.as_str());
        let head = self.text(&format!("{{\"name\": {name}, \"{key}\": "));
        format!("{head} {} \"}}\"", Lark::arguments(tool))
    }

    /// Returns an expression that matches the parameters in the order of the schema, each between
    /// `open(name, types)` and `close`. Text is written without quotes, everything else as JSON.
    pub(crate) fn parameters(
        &mut self,
        tool: &ToolSpec,
        open: impl Fn(&str, &Types) -> String,
        close: Close<'_>,
    ) -> Result<String, ToolGrammarError> {
        let Some(known) = properties(&tool.parameters) else {
            return Ok(self.unknown_parameters(open, close));
        };
        let mut parts = Vec::new();
        for (name, schema) in known {
            let types = Types::of(schema, &tool.parameters);
            let value = if types.is_text() {
                self.plain_text(tool, Parameter { name, schema }, close)?
            } else {
                format!("{} {}", Lark::json(&part(tool, schema)), self.close(close))
            };
            let body = format!("{} {value}", self.text(&open(name, &types)));
            let optional = if is_required(tool, name) { "" } else { "?" };
            parts.push(format!("({body}){optional}"));
        }
        Ok(parts.join(" "))
    }

    /// Returns an expression that matches any parameters, for a tool whose schema names none.
    fn unknown_parameters(
        &mut self,
        open: impl Fn(&str, &Types) -> String,
        close: Close<'_>,
    ) -> String {
        let opened = TYPE_NAMES.map(|name| split_name(|key| open(key, &Types::written(name))));
        let opened: BTreeSet<(String, String)> = opened.into_iter().collect();
        let heads = opened.iter().map(|(before, after)| {
            format!("{} /[A-Za-z0-9_]+/ {}", self.text(before), self.text(after))
        });
        let heads = heads.collect::<Vec<_>>().join(" | ");
        let value = format!("{} {}", self.text_until(close.tag), self.text(close.after));
        format!("(({heads}) {value})*")
    }

    /// Returns an expression that matches the text of a parameter, without quotes, and `close`.
    pub(crate) fn plain_text(
        &mut self,
        tool: &ToolSpec,
        parameter: Parameter<'_>,
        close: Close<'_>,
    ) -> Result<String, ToolGrammarError> {
        let Parameter { name, schema } = parameter;
        let listed =
            schema["enum"].as_array().cloned().or_else(|| Some(vec![schema.get("const")?.clone()]));
        if let Some(listed) = listed {
            let words = listed.iter().map(|value| match value.as_str() {
                Some(word) => self.text(word),
                None => self.text(&value.to_string()),
            });
            // An empty word matches the empty string.
            let words: Vec<String> =
                words.map(|word| if word.is_empty() { "\"\"".to_owned() } else { word }).collect();
            return Ok(format!("({}) {}", words.join(" | "), self.close(close)));
        }
        let keyword = ["pattern", "format"].into_iter().find(|key| schema.get(*key).is_some());
        if let Some(keyword) = keyword.filter(|_| tool.strict) {
            return Err(ToolGrammarError::Keyword {
                tool: tool.name.clone(),
                parameter: name.to_owned(),
                keyword: keyword.to_owned(),
            });
        }
        let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
        let regex = match (bound("minLength"), bound("maxLength")) {
            (None, None) => "(?s:.*)".to_owned(),
            (min, max) => of_length(min.unwrap_or(0), max, close.before),
        };
        let after = self.text(close.after);
        Ok(format!("{} {after}", self.limited_until(&regex, close.tag)))
    }
}

/// Returns an expression that matches a value with so many characters and the newline before its tag, if the
/// format has one. Without that newline, a value must not end in one, because the parser would remove it.
fn of_length(min: u64, max: Option<u64>, newline: &str) -> String {
    let any = |min: u64, max: Option<u64>| {
        let max = max.map_or(String::new(), |max| max.to_string());
        format!("(?s:.{{{min},{max}}})")
    };
    if newline.is_empty() {
        return any(min, max);
    }
    let bare = match max {
        Some(0) => String::new(),
        _ => {
            let bare = format!("{}[^\\n]", any(min.saturating_sub(1), max.map(|max| max - 1)));
            if min == 0 { format!("({bare})?") } else { bare }
        }
    };
    format!("({}\\n|{bare})", any(min, max))
}

/// Returns an expression that matches members with `comma` between them: all `required` ones, then
/// any of the `optional` ones.
pub(crate) fn comma_separated(required: &[String], optional: &[String], comma: &str) -> String {
    let others = |from: usize| -> String {
        optional[from..].iter().map(|member| format!(" ({comma} {member})?")).collect()
    };
    if !required.is_empty() {
        return format!("{}{}", required.join(&format!(" {comma} ")), others(0));
    }
    let firsts = optional.iter().enumerate();
    let firsts: Vec<String> =
        firsts.map(|(idx, first)| format!("{first}{}", others(idx + 1))).collect();
    if firsts.is_empty() { String::new() } else { format!("({})?", firsts.join(" | ")) }
}

/// Whether the schema of a tool requires this parameter.
pub(crate) fn is_required(tool: &ToolSpec, parameter: &str) -> bool {
    let required = tool.parameters["required"].as_array();
    required.is_some_and(|names| names.iter().any(|name| name == parameter))
}

/// Returns the schema of one parameter with the definitions of the tool's schema, to which it may
/// refer.
pub(crate) fn part(tool: &ToolSpec, schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(members) = &mut schema {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = tool.parameters.get(key) {
                members.insert(key.to_owned(), definitions.clone());
            }
        }
        add_leniency(members, tool);
    }
    schema
}

/// Returns the schema of the arguments, which are always an object.
fn arguments_schema(tool: &ToolSpec) -> Value {
    let mut members = tool.parameters.as_object().cloned().unwrap_or_default();
    if !members.contains_key("type") {
        members.insert("type".to_owned(), "object".into());
    }
    add_leniency(&mut members, tool);
    Value::Object(members)
}

/// Marks the schema as lenient, unless the client asked for strictness: keywords that cannot be
/// enforced are then ignored instead of refused.
fn add_leniency(members: &mut Map<String, Value>, tool: &ToolSpec) {
    if !tool.strict {
        members.insert("x-guidance".to_owned(), json!({"lenient": true}));
    }
}

/// Returns the text that `open` writes before a parameter's name, and the text after the name.
fn split_name(open: impl Fn(&str) -> String) -> (String, String) {
    let marked = open("\0");
    let (before, after) = marked.split_once('\0').unwrap_or((&marked, ""));
    (before.to_owned(), after.to_owned())
}

/// Returns a text as a regular expression between slashes.
fn escaped(text: &str) -> String {
    let mut regex = String::new();
    for character in text.chars() {
        match character {
            '\n' => regex.push_str("\\n"),
            _ => {
                if ".+*?()|[]{}^$/\\".contains(character) {
                    regex.push('\\');
                }
                regex.push(character);
            }
        }
    }
    regex
}
