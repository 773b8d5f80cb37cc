//! Constraints on the tokens of an answer: `response_format`, vLLM's equivalents, and lists of
//! tokens and words.

use axum::body::Bytes;
use jackalope_protocol::TokenId;
use jackalope_text::grammar::Constraint;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::body::{parse, reason_of};
use crate::error::ApiError;
use crate::generate::{Wishes, bad_runs};
use crate::registry::Serving;

/// Maximum length of a schema's name, in characters.
const NAME_CHARS_MAX: usize = 64;

/// The fields that bound tokens.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct Structure {
    /// `text`, `json_object` or `json_schema`: enforced while drawing. There is one structure per
    /// answer.
    response_format: Option<Value>,
    /// vLLM's name for a schema, which is enforced.
    guided_json: Option<Value>,
    /// A regular expression that the whole answer fits.
    guided_regex: Option<Value>,
    /// The answer is one of these strings.
    guided_choice: Option<Value>,
    /// A grammar in Lark's notation.
    guided_grammar: Option<Value>,
    /// One of `json`, `regex`, `choice`, `grammar` and `json_object`: vLLM's newer name for the
    /// same.
    structured_outputs: Option<Value>,
    /// The answer does not end before so many tokens.
    min_tokens: Option<u32>,
    /// Only these tokens are drawn.
    allowed_token_ids: Option<Vec<TokenId>>,
    /// None of these words is written.
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

/// Reads the constraints that a body asks for.
pub(super) fn read(body: &Bytes, wishes: &mut Wishes, serving: &Serving) -> Result<(), ApiError> {
    let mut fields: Structure = parse(body)?;
    wishes.options.min_tokens = fields.min_tokens.unwrap_or(0);
    wishes.options.allowed_tokens = fields.allowed_token_ids.take();
    let words = fields.bad_words.take().unwrap_or_default();
    let runs = bad_runs(&words, serving)?;
    let (tokens, runs): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| run.len() == 1);
    wishes.options.banned_tokens = tokens.into_iter().flatten().collect();
    wishes.guidance.forbid(runs);
    if let Some((param, constraint)) = constraint(fields)? {
        wishes.guidance.constrain(param, constraint);
    }
    Ok(())
}

/// Applies a `response_format` that came in the field `param`.
pub(super) fn read_format(
    param: &'static str,
    format: &Value,
    wishes: &mut Wishes,
) -> Result<(), ApiError> {
    let renamed = |err: ApiError| err.renamed(&[("response_format", param)]);
    if let Some((found, constraint)) =
        response_format("response_format", format).map_err(renamed)?
    {
        let inner = found.strip_prefix("response_format").unwrap_or_default();
        let inner = inner.strip_prefix(".json_schema").unwrap_or(inner);
        wishes.guidance.constrain(format!("{param}{inner}"), constraint);
    }
    Ok(())
}

/// Returns the one constraint of a request, and the field it came from.
fn constraint(fields: Structure) -> Result<Option<(String, Constraint)>, ApiError> {
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
                ApiError::WrongType { param: param.clone(), reason: reason_of(&err) }
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

/// Reads vLLM's object, of which exactly one member may be present.
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

fn json_schema(param: &str, value: &Value) -> Result<Option<(String, Constraint)>, ApiError> {
    schema(param, value).map(Some)
}

/// Reads a JSON schema, or the text of one, that came in the field `param`.
pub(crate) fn schema(param: &str, value: &Value) -> Result<(String, Constraint), ApiError> {
    let wrong = |reason: String| ApiError::WrongType { param: param.to_owned(), reason };
    let schema = match value {
        Value::String(text) => serde_json::from_str(text).map_err(|err| wrong(err.to_string()))?,
        schema => schema.clone(),
    };
    if !schema.is_object() && !schema.is_boolean() {
        return Err(wrong("a JSON schema is an object".to_owned()));
    }
    Ok((param.to_owned(), Constraint::JsonSchema(schema)))
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
