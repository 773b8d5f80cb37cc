//! What bounds the tokens of an answer: `response_format`, vLLM's names for the same, and lists of
//! tokens and words.

use std::sync::Arc;

use axum::body::Bytes;
use jackalope_engine::{Guide, Request, RequestOptions};
use jackalope_protocol::TokenId;
use jackalope_text::grammar::{CompiledGrammar, Constraint};
use serde::Deserialize;
use serde_json::Value;

use super::wishes::check_count;
use crate::ServerState;
use crate::body::parse;
use crate::error::ApiError;
use crate::generate::{AfterReasoning, GrammarGuide, Reasoning, WithoutRuns};

/// Longest name of a schema.
const NAME_CHARS_MAX: usize = 64;
/// Most words that must not occur.
const BAD_WORDS_MAX: usize = 256;
/// Longest of them.
const BAD_WORD_BYTES_MAX: usize = 256;

/// The fields that bound tokens.
#[derive(Debug, Default, Deserialize)]
struct Fields {
    response_format: Option<Value>,
    guided_json: Option<Value>,
    guided_regex: Option<Value>,
    guided_choice: Option<Value>,
    guided_grammar: Option<Value>,
    structured_outputs: Option<Value>,
    min_tokens: Option<u32>,
    allowed_token_ids: Option<Vec<TokenId>>,
    bad_words: Option<Vec<String>>,
}

/// `response_format` of the type `json_schema`.
#[derive(Debug, Deserialize)]
struct NamedSchema {
    name: String,
    schema: Option<Value>,
    #[serde(rename = "description")]
    _description: Option<String>,
    /// Every schema is enforced, strict or not.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

/// Everything that follows the tokens of a choice to bound the next one.
#[derive(Clone, Debug, Default)]
pub(super) struct Guidance {
    pub(super) grammar: Option<Arc<CompiledGrammar>>,
    /// How the model thinks, if it may do so before the grammar, or within a budget.
    pub(super) reasoning: Option<Reasoning>,
    /// Runs of two tokens or more that must not occur.
    runs: Vec<Vec<TokenId>>,
    /// Tokens that end a choice.
    ends: Vec<TokenId>,
}

impl Guidance {
    /// Reads and compiles what a body asks for, and puts what needs no guide into `options`.
    pub(super) fn read(
        body: &Bytes,
        options: &mut RequestOptions,
        state: &ServerState,
    ) -> Result<Guidance, ApiError> {
        let mut fields: Fields = parse(body)?;
        options.min_tokens = fields.min_tokens.unwrap_or(0);
        options.allowed_tokens = fields.allowed_token_ids.take();
        let words = fields.bad_words.take().unwrap_or_default();
        let runs = bad_runs(&words, state)?;
        let (tokens, runs): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| run.len() == 1);
        options.banned_tokens = tokens.into_iter().flatten().collect();
        let grammar = match constraint(fields)? {
            None => None,
            Some((param, constraint)) => {
                let grammar = state.grammars().compile(&constraint, state.text());
                Some(grammar.map_err(|source| ApiError::Structure { param, source })?)
            }
        };
        let mut ends = options.stop_tokens.clone();
        ends.extend(state.text().tokenizer.eos_token_ids());
        Ok(Guidance { grammar, reasoning: None, runs, ends })
    }

    /// The request with the guide of one choice, if anything follows its tokens.
    pub(super) fn apply(&self, request: Request) -> Request {
        match self.guide() {
            Some(guide) => request.with_guide(guide),
            None => request,
        }
    }

    fn guide(&self) -> Option<Box<dyn Guide>> {
        let mut guide: Option<Box<dyn Guide>> = None;
        if let Some(grammar) = &self.grammar {
            guide = Some(Box::new(GrammarGuide::new(grammar.start())));
        }
        if let Some(reasoning) = &self.reasoning
            && (guide.is_some() || reasoning.budget_tokens.is_some())
        {
            guide = Some(Box::new(AfterReasoning::new(reasoning.clone(), guide)));
        }
        if !self.runs.is_empty() {
            guide = Some(Box::new(WithoutRuns::new(self.runs.clone(), self.ends.clone(), guide)));
        }
        guide
    }
}

/// The one constraint of a request, and the field it came from.
fn constraint(fields: Fields) -> Result<Option<(String, Constraint)>, ApiError> {
    let wanted = [
        ("response_format", fields.response_format, response_format as Reader),
        ("structured_outputs", fields.structured_outputs, structured_outputs),
        ("guided_json", fields.guided_json, json_schema),
        ("guided_regex", fields.guided_regex, regex),
        ("guided_choice", fields.guided_choice, choice),
        ("guided_grammar", fields.guided_grammar, grammar),
    ];
    let mut found: Option<(String, Constraint)> = None;
    for (param, value, read) in wanted {
        let Some(value) = value.filter(|value| !value.is_null()) else { continue };
        let Some(next) = read(param, &value)? else { continue };
        if let Some((first, _)) = &found {
            let expected = format!("absent beside {first}: an answer has one structure");
            return Err(ApiError::out_of_range(param, &"present", expected));
        }
        found = Some(next);
    }
    Ok(found)
}

type Reader = fn(&str, &Value) -> Result<Option<(String, Constraint)>, ApiError>;

fn response_format(param: &str, value: &Value) -> Result<Option<(String, Constraint)>, ApiError> {
    // Older clients send the type alone.
    let kind = value.get("type").unwrap_or(value).as_str().unwrap_or_default();
    match kind {
        "text" => Ok(None),
        "json_object" => Ok(Some((param.to_owned(), Constraint::JsonObject))),
        "json_schema" => {
            let param = format!("{param}.json_schema");
            let named = value.get("json_schema").cloned().unwrap_or_default();
            let named: NamedSchema = serde_json::from_value(named).map_err(|err| {
                ApiError::WrongType { param: param.clone(), reason: err.to_string() }
            })?;
            check_name(&param, &named.name)?;
            let schema = named.schema.ok_or_else(|| ApiError::WrongType {
                param: format!("{param}.schema"),
                reason: "a schema is required".to_owned(),
            })?;
            json_schema(&format!("{param}.schema"), &schema)
        }
        _ => {
            let found = value.get("type").unwrap_or(value).to_string();
            let expected = "text, json_object or json_schema";
            Err(ApiError::out_of_range(format!("{param}.type"), &found, expected))
        }
    }
}

fn check_name(param: &str, name: &str) -> Result<(), ApiError> {
    let is_legal = |it: char| it.is_ascii_alphanumeric() || it == '_' || it == '-';
    if (1..=NAME_CHARS_MAX).contains(&name.chars().count()) && name.chars().all(is_legal) {
        return Ok(());
    }
    let expected = format!("1 to {NAME_CHARS_MAX} letters, digits, underscores and hyphens");
    Err(ApiError::out_of_range(format!("{param}.name"), &format!("{name:?}"), expected))
}

/// vLLM's object with one of several members.
fn structured_outputs(
    param: &str,
    value: &Value,
) -> Result<Option<(String, Constraint)>, ApiError> {
    let wrong =
        |reason: &str| ApiError::WrongType { param: param.to_owned(), reason: reason.to_owned() };
    let Value::Object(members) = value else { return Err(wrong("it must be an object")) };
    let mut members = members.iter().filter(|(_, value)| !value.is_null());
    let Some((kind, value)) = members.next() else { return Ok(None) };
    if members.next().is_some() {
        return Err(wrong("an answer has one structure, so only one member may be present"));
    }
    let param = format!("{param}.{kind}");
    match kind.as_str() {
        "json" => json_schema(&param, value),
        "regex" => regex(&param, value),
        "choice" => choice(&param, value),
        "grammar" => grammar(&param, value),
        "json_object" => match value {
            Value::Bool(true) => Ok(Some((param, Constraint::JsonObject))),
            Value::Bool(false) => Ok(None),
            _ => Err(ApiError::WrongType { param, reason: "it must be a boolean".to_owned() }),
        },
        _ => {
            let hint = Some("there are json, regex, choice, grammar and json_object".to_owned());
            Err(ApiError::NotSupported { param, hint })
        }
    }
}

/// A schema, or the text of one.
fn json_schema(param: &str, value: &Value) -> Result<Option<(String, Constraint)>, ApiError> {
    let wrong = |reason: String| ApiError::WrongType { param: param.to_owned(), reason };
    let schema = match value {
        Value::String(text) => serde_json::from_str(text).map_err(|err| wrong(err.to_string()))?,
        schema => schema.clone(),
    };
    if !schema.is_object() && !schema.is_boolean() {
        return Err(wrong("a JSON schema is an object".to_owned()));
    }
    Ok(Some((param.to_owned(), Constraint::JsonSchema(schema))))
}

fn text(param: &str, value: &Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) if text.is_empty() => Err(ApiError::Empty { param: param.to_owned() }),
        Value::String(text) => Ok(text.clone()),
        _ => {
            let reason = "it must be a string".to_owned();
            Err(ApiError::WrongType { param: param.to_owned(), reason })
        }
    }
}

fn regex(param: &str, value: &Value) -> Result<Option<(String, Constraint)>, ApiError> {
    Ok(Some((param.to_owned(), Constraint::Regex(text(param, value)?))))
}

fn grammar(param: &str, value: &Value) -> Result<Option<(String, Constraint)>, ApiError> {
    Ok(Some((param.to_owned(), Constraint::Lark(text(param, value)?))))
}

fn choice(param: &str, value: &Value) -> Result<Option<(String, Constraint)>, ApiError> {
    let choices = Vec::<String>::deserialize(value)
        .map_err(|err| ApiError::WrongType { param: param.to_owned(), reason: err.to_string() })?;
    Ok(Some((param.to_owned(), Constraint::Choice(choices))))
}

/// The tokens of words that must not occur, as they are written at the beginning of a text and after
/// a blank.
fn bad_runs(words: &[String], state: &ServerState) -> Result<Vec<Vec<TokenId>>, ApiError> {
    check_count("bad_words", words.len(), BAD_WORDS_MAX)?;
    let mut runs = Vec::new();
    for (idx, word) in words.iter().enumerate() {
        let param = format!("bad_words[{idx}]");
        let trimmed = word.trim_start();
        if trimmed.is_empty() {
            return Err(ApiError::Empty { param });
        }
        if BAD_WORD_BYTES_MAX < word.len() {
            let expected = format!("at most {BAD_WORD_BYTES_MAX} bytes long");
            let found = format!("{} bytes long", word.len());
            return Err(ApiError::out_of_range(param, &found, expected));
        }
        for written in [trimmed.to_owned(), format!(" {trimmed}")] {
            let run = state.text().tokenizer.encode(&written, false);
            let run = run.map_err(|source| ApiError::Text { param: param.clone(), source })?;
            if !run.is_empty() && !runs.contains(&run) {
                runs.push(run);
            }
        }
    }
    Ok(runs)
}
