//! Constraints on the tokens of an answer: `response_format`, vLLM's equivalents, and lists of
//! tokens and words.

use jackalope_protocol::TokenId;
use jackalope_serving::body::reason_of;
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{SamplingParams, StructuredOutput};
use jackalope_text::grammar::Constraint;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// Maximum length of a schema's name, in characters.
const NAME_CHARS_MAX: usize = 64;

/// The fields that bound tokens.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct Structure {
    /// Structure of the answer: `text`, `json_object` or `json_schema`; enforced by constrained
    /// decoding. As in llama.cpp, `json_object` may have a `schema`. An answer has at most one
    /// structure.
    response_format: Option<Value>,
    /// JSON schema of the answer, in vLLM's form; enforced.
    guided_json: Option<Value>,
    /// Regular expression that the whole answer matches.
    guided_regex: Option<Value>,
    /// Strings, one of which is the answer.
    guided_choice: Option<Value>,
    /// Grammar of the answer, in Lark's notation.
    guided_grammar: Option<Value>,
    /// Structure of the answer in vLLM's newer form: one of `json`, `regex`, `choice`, `grammar` and
    /// `json_object`.
    structured_outputs: Option<Value>,
    /// Minimum number of tokens to generate; until then, no stop token is sampled, and stop strings do
    /// not end the answer. Default: 0.
    min_tokens: Option<u32>,
    /// Ids of the only tokens that may be sampled.
    allowed_token_ids: Option<Vec<TokenId>>,
    /// Words to avoid, as in vLLM: the tokens of each word, encoded with and without a leading space,
    /// are never generated one after the other. Other tokens can still spell the word.
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

impl Structure {
    /// Adds the constraints to the sampling parameters.
    pub(super) fn apply(mut self, sampling: &mut SamplingParams) -> Result<(), ApiError> {
        sampling.min_tokens = self.min_tokens.unwrap_or(0);
        sampling.allowed_token_ids = self.allowed_token_ids.take();
        sampling.bad_words = self.bad_words.take().unwrap_or_default();
        sampling.structure = self.structured_output()?;
        Ok(())
    }

    /// Returns the one structure of a request.
    fn structured_output(self) -> Result<Option<StructuredOutput>, ApiError> {
        let wanted = [
            ("response_format", self.response_format, response_format as Reader),
            ("structured_outputs", self.structured_outputs, structured_outputs),
            ("guided_json", self.guided_json, json_schema),
            ("guided_regex", self.guided_regex, regex),
            ("guided_choice", self.guided_choice, choice),
            ("guided_grammar", self.guided_grammar, grammar),
        ];
        let mut found: Option<StructuredOutput> = None;
        for (param, value, read) in wanted {
            let Some(value) = value.filter(|value| !value.is_null()) else { continue };
            let Some(next) = read(param, &value)? else { continue };
            if let Some(first) = &found {
                let expected =
                    format!("absent beside {}: an answer has one structure", first.param);
                return Err(ApiError::out_of_range(param, &"present", expected));
            }
            found = Some(next);
        }
        Ok(found)
    }
}

/// Reads a `response_format` that came in the field `param`, without the level `json_schema`.
pub(super) fn text_format(
    param: &'static str,
    format: &Value,
) -> Result<Option<StructuredOutput>, ApiError> {
    let names = [("response_format.json_schema", param), ("response_format", param)];
    let found = response_format("response_format", format).map_err(|err| err.renamed(&names))?;
    Ok(found.map(|StructuredOutput { param: found, constraint }| {
        let inner = found.strip_prefix("response_format").unwrap_or_default();
        let inner = inner.strip_prefix(".json_schema").unwrap_or(inner);
        StructuredOutput::new(format!("{param}{inner}"), constraint)
    }))
}

type Reader = fn(&str, &Value) -> Result<Option<StructuredOutput>, ApiError>;

fn response_format(param: &str, value: &Value) -> Result<Option<StructuredOutput>, ApiError> {
    // Older clients send the type alone.
    let kind = value.get("type").unwrap_or(value).as_str().unwrap_or_default();
    match kind {
        "text" => Ok(None),
        "json_object" => json_object(param, value.get("schema")),
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

/// Reads `json_object`, which has a schema in llama.cpp's form. A schema without keywords allows any
/// object.
fn json_object(param: &str, schema: Option<&Value>) -> Result<Option<StructuredOutput>, ApiError> {
    match schema.filter(|schema| !schema.is_null() && **schema != json!({})) {
        Some(schema) => json_schema(&format!("{param}.schema"), schema),
        None => Ok(Some(StructuredOutput::new(param, Constraint::JsonObject))),
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
fn structured_outputs(param: &str, value: &Value) -> Result<Option<StructuredOutput>, ApiError> {
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
            Value::Bool(true) => Ok(Some(StructuredOutput::new(param, Constraint::JsonObject))),
            Value::Bool(false) => Ok(None),
            _ => Err(ApiError::WrongType { param, reason: "it must be a boolean".to_owned() }),
        },
        _ => Err(ApiError::not_supported(
            param,
            "there are json, regex, choice, grammar and json_object",
        )),
    }
}

fn json_schema(param: &str, value: &Value) -> Result<Option<StructuredOutput>, ApiError> {
    StructuredOutput::json_schema(param, value).map(Some)
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

fn regex(param: &str, value: &Value) -> Result<Option<StructuredOutput>, ApiError> {
    Ok(Some(StructuredOutput::new(param, Constraint::Regex(text(param, value)?))))
}

fn grammar(param: &str, value: &Value) -> Result<Option<StructuredOutput>, ApiError> {
    Ok(Some(StructuredOutput::new(param, Constraint::Lark(text(param, value)?))))
}

fn choice(param: &str, value: &Value) -> Result<Option<StructuredOutput>, ApiError> {
    let wrong = || ApiError::WrongType {
        param: param.to_owned(),
        reason: "it must be a list of strings, one of which is the answer".to_owned(),
    };
    let text = |choice: &Value| choice.as_str().map(str::to_owned);
    let choices = value.as_array().ok_or_else(wrong)?.iter().map(text);
    let choices = choices.collect::<Option<_>>().ok_or_else(wrong)?;
    Ok(Some(StructuredOutput::new(param, Constraint::Choice(choices))))
}
