//! Grammars that hold a model to calls which its parser reads, in llguidance's dialect of Lark
//! (`docs/syntax.md` of guidance-ai/llguidance).

use serde_json::{Map, Value, json};

use super::ToolSpec;
use super::schema::{Types, properties};
use super::tools::{Frame, Free, ToolFamily};
use crate::TokenId;

/// Any text.
const TEXT: &str = "/(?s:.*)/";

/// What an answer shall contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolDemand {
    /// How many calls there are.
    pub calls: CallCount,
    /// Whether text may come before them. Families whose calls are only calls at the beginning of
    /// an answer write none.
    pub text_before: bool,
}

/// How many calls an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallCount {
    /// None or several; text may stand alone. What begins like a call is one.
    Any,
    /// One or several, where the family knows several.
    AtLeastOne,
    /// One.
    ExactlyOne,
}

/// Why tool calls cannot be held to a grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolGrammarError {
    /// There is nothing to call.
    #[error("a call is asked for, but there are no tools")]
    NoTools,
    /// The model writes text without quotes, about which a schema can say less.
    #[error(
        "parameter {parameter:?} of tool {tool:?} has {keyword:?}, which cannot be enforced for \
         this model, because it writes parameters as plain text\n\
         hint: leave {keyword:?} out, or \"strict\""
    )]
    Keyword {
        /// The tool.
        tool: String,
        /// The parameter in question.
        parameter: String,
        /// What its schema asks for.
        keyword: String,
    },
}

/// What closes a parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Close {
    /// Before the tag; the parser does not insist on it.
    pub(crate) before: &'static str,
    /// The end of the value: no text of a value contains it.
    pub(crate) tag: &'static str,
    pub(crate) after: &'static str,
}

/// A grammar in the making.
#[derive(Debug)]
pub(crate) struct Lark<'a> {
    /// Tokens that stand for text of their own.
    special: &'a [(TokenId, String)],
    rules: Vec<String>,
}

/// The grammar of a family's calls, or of JSON instead of them.
pub(crate) fn grammar(
    family: &ToolFamily,
    special: &[(TokenId, String)],
    tools: &[ToolSpec],
    demand: ToolDemand,
    instead: Option<&Value>,
) -> Result<String, ToolGrammarError> {
    if tools.is_empty() {
        return Err(ToolGrammarError::NoTools);
    }
    let mut lark = Lark { special, rules: Vec::new() };
    let items: Result<Vec<String>, _> = tools
        .iter()
        .map(|tool| {
            let body = (family.item)(&mut lark, tool)?;
            Ok(lark.rule(&body))
        })
        .collect();
    let call = lark.rule(&items?.join(" | "));
    let mut start = lark.start(&family.frame, &call, demand);
    if let Some(schema) = instead {
        let json = lark.rule(&format!("%json {schema}"));
        start = format!("{start} | {json}");
    }
    Ok(format!("%llguidance {{}}\nstart: {start}\n{}\n", lark.rules.join("\n")))
}

impl Lark<'_> {
    fn start(&mut self, frame: &Frame, call: &str, demand: ToolDemand) -> String {
        let Frame { before, trigger, open, separator, close, free } = frame;
        let several = match (demand.calls, separator) {
            (CallCount::Any | CallCount::AtLeastOne, Some(separator)) => {
                format!("({} {call})*", self.text(separator))
            }
            _ => String::new(),
        };
        let calls = format!("{} {call} {several} {}", self.text(open), self.text(close));
        let before = match before.is_empty() {
            true => String::new(),
            false => format!("({})?", self.text(before)),
        };
        let head = self.text(trigger);
        match (demand.calls, free) {
            (CallCount::Any, Free::Start { text, body }) => {
                format!("{before} {head} {calls} | {before} {} {body}", self.text(text))
            }
            (CallCount::Any, Free::Anywhere) => {
                let head = self.text_until(trigger);
                match self.is_special(trigger) {
                    true => format!("{TEXT} | {head} {calls}"),
                    false => format!("({head} {calls})? {}", self.rule(TEXT)),
                }
            }
            (_, Free::Anywhere) if demand.text_before => {
                format!("{} {calls}", self.text_until(trigger))
            }
            _ => format!("{before} {head} {calls}"),
        }
    }

    /// A rule of its own, by its name.
    pub(crate) fn rule(&mut self, body: &str) -> String {
        self.rule_with("", body)
    }

    fn rule_with(&mut self, options: &str, body: &str) -> String {
        let name = format!("r{}", self.rules.len());
        self.rules.push(format!("{name}{options}: {body}"));
        name
    }

    /// Exactly this text; what are tokens of their own are those tokens.
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

    /// Any text up to and with `end`.
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

    fn close(&self, Close { before, tag, after }: Close) -> String {
        self.text(&format!("{before}{tag}{after}"))
    }

    fn is_special(&self, text: &str) -> bool {
        matches!(self.next_special(text), Some((0, _)))
    }

    /// The first token of its own in a text, and where it is.
    fn next_special(&self, text: &str) -> Option<(usize, &(TokenId, String))> {
        let found = self.special.iter().filter_map(|token| Some((text.find(&token.1)?, token)));
        // Of two that begin at the same place the longer one is meant.
        found.min_by_key(|(at, token)| (*at, std::cmp::Reverse(token.1.len())))
    }

    /// JSON of this schema.
    pub(crate) fn json(schema: &Value) -> String {
        format!("%json {schema}")
    }

    /// The arguments of a call as JSON.
    pub(crate) fn arguments(tool: &ToolSpec) -> String {
        Lark::json(&arguments_schema(tool))
    }

    /// `{"name": NAME, KEY: ARGUMENTS}`.
    pub(crate) fn named_json(&self, tool: &ToolSpec, key: &str) -> String {
        let name = Value::from(tool.name.as_str());
        let head = self.text(&format!("{{\"name\": {name}, \"{key}\": "));
        format!("{head} {} \"}}\"", Lark::arguments(tool))
    }

    /// Each parameter between what `open` says and its close, in the order of the schema. Text is
    /// written as it is, everything else as JSON.
    pub(crate) fn parameters(
        &mut self,
        tool: &ToolSpec,
        open: impl Fn(&str) -> String,
        close: Close,
    ) -> Result<String, ToolGrammarError> {
        let Some(known) = properties(&tool.parameters) else {
            let (before, after) = split_name(&open);
            let (before, after) = (self.text(&before), self.text(&after));
            let value = format!("{} {}", self.text_until(close.tag), self.text(close.after));
            return Ok(format!("({before} /[A-Za-z0-9_]+/ {after} {value})*"));
        };
        let mut parts = Vec::new();
        for (name, schema) in known {
            let types = Types::of(schema, &tool.parameters);
            let value = match types.is_text() {
                true => self.plain_text(tool, (name, schema), close)?,
                false => format!("{} {}", Lark::json(&part(tool, schema)), self.close(close)),
            };
            let body = format!("{} {value}", self.text(&open(name)));
            let optional = if is_required(tool, name) { "" } else { "?" };
            parts.push(format!("({body}){optional}"));
        }
        Ok(parts.join(" "))
    }

    /// The text of a parameter, without quotes, and its close.
    pub(crate) fn plain_text(
        &mut self,
        tool: &ToolSpec,
        (parameter, schema): (&str, &Value),
        close: Close,
    ) -> Result<String, ToolGrammarError> {
        let listed =
            schema["enum"].as_array().cloned().or_else(|| Some(vec![schema.get("const")?.clone()]));
        if let Some(listed) = listed {
            let words = listed.iter().map(|value| match value.as_str() {
                Some(word) => self.text(word),
                None => self.text(&value.to_string()),
            });
            // An empty word is no text at all.
            let words: Vec<String> =
                words.map(|word| if word.is_empty() { "\"\"".to_owned() } else { word }).collect();
            return Ok(format!("({}) {}", words.join(" | "), self.close(close)));
        }
        let keyword = ["pattern", "format"].into_iter().find(|key| schema.get(*key).is_some());
        if let Some(keyword) = keyword.filter(|_| tool.strict) {
            return Err(ToolGrammarError::Keyword {
                tool: tool.name.clone(),
                parameter: parameter.to_owned(),
                keyword: keyword.to_owned(),
            });
        }
        let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
        let regex = match (bound("minLength"), bound("maxLength")) {
            (None, None) => "(?s:.*)".to_owned(),
            (min, max) => {
                // What stands before the tag is text to the expression.
                let max = max.map(|max| (max + close.before.len() as u64).to_string());
                let max = max.unwrap_or_default();
                format!("(?s:.{{{},{max}}})", min.unwrap_or(0))
            }
        };
        let after = self.text(close.after);
        Ok(format!("{} {after}", self.limited_until(&regex, close.tag)))
    }
}

/// Members with commas between them: all that are required, then any of the others.
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
    match firsts.is_empty() {
        true => String::new(),
        false => format!("({})?", firsts.join(" | ")),
    }
}

/// Whether a tool cannot be called without a parameter.
pub(crate) fn is_required(tool: &ToolSpec, parameter: &str) -> bool {
    let required = tool.parameters["required"].as_array();
    required.is_some_and(|names| names.iter().any(|name| name == parameter))
}

/// The schema of a part of a tool's parameters, which may refer to definitions beside it.
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

/// The schema of the arguments, which are always an object.
fn arguments_schema(tool: &ToolSpec) -> Value {
    let mut members = tool.parameters.as_object().cloned().unwrap_or_default();
    if !members.contains_key("type") {
        members.insert("type".to_owned(), "object".into());
    }
    add_leniency(&mut members, tool);
    Value::Object(members)
}

/// What cannot be enforced is an error only where the client asked for strictness.
fn add_leniency(members: &mut Map<String, Value>, tool: &ToolSpec) {
    if !tool.strict {
        members.insert("x-guidance".to_owned(), json!({"lenient": true}));
    }
}

/// What stands before and after a parameter's name.
fn split_name(open: impl Fn(&str) -> String) -> (String, String) {
    let marked = open("\0");
    let (before, after) = marked.split_once('\0').unwrap_or((&marked, ""));
    (before.to_owned(), after.to_owned())
}

/// A text as a regular expression between slashes.
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
