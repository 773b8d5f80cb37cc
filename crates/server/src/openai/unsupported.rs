//! Refuses fields that would change the answer but that this server does not support, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use super::responses::request::ResponseBody;
use super::schema::{ChatBody, CompletionBody};
use jackalope_serving::body::JsonBody;
use jackalope_serving::error::ApiError;

/// Minimum length of a name that is compared: shorter names differ by a letter or two from names
/// with another meaning.
const NAME_CHARS_MIN: usize = 6;

/// Maximum length of a name that is compared: longer names are no typing mistakes, and are slow to
/// compare.
const NAME_BYTES_MAX: usize = 40;

/// Maximum number of typing mistakes in a name: letters left out, added, changed or swapped.
const MISTAKES_MAX: usize = 2;

/// A field that is refused unless its value changes nothing.
struct UnsupportedField {
    name: &'static str,
    is_harmless: fn(&Value) -> bool,
    hint: Option<&'static str>,
}

const fn never(name: &'static str, hint: Option<&'static str>) -> UnsupportedField {
    UnsupportedField { name, is_harmless: |_| false, hint }
}

const fn unless(
    name: &'static str,
    is_harmless: fn(&Value) -> bool,
    hint: Option<&'static str>,
) -> UnsupportedField {
    UnsupportedField { name, is_harmless, hint }
}

const SAMPLERS: Option<&str> = Some("use top_p, top_k or min_p");
const PENALTY: Option<&str> = Some("use repetition_penalty");
const MAX_TOKENS: Option<&str> = Some("use max_tokens");

/// The fields of [`Unsupported`](super::request::Unsupported).
const FIELDS: [UnsupportedField; 28] = [
    never("grammar", Some("use guided_grammar, in Lark's notation")),
    never("json_schema", Some("use response_format")),
    never("format", Some("use response_format")),
    never("system", Some("put it into a message")),
    never("stop_sequences", Some("use stop")),
    unless("n_predict", is_negative, MAX_TOKENS),
    never("max_new_tokens", MAX_TOKENS),
    unless("min_new_tokens", is_zero, Some("use min_tokens")),
    unless("modalities", all_text, Some("answers are text")),
    never("audio", Some("answers are text")),
    never("prediction", None),
    never("web_search_options", None),
    never("chat_template", Some("the model's own template is used")),
    never("documents", Some("put them into a message")),
    never("use_beam_search", None),
    unless("length_penalty", is_one, None),
    never("prompt_logprobs", Some("use echo and logprobs of /v1/completions")),
    never("logits_processors", None),
    unless("repeat_penalty", is_one, PENALTY),
    unless("mirostat", is_zero, SAMPLERS),
    unless("typical_p", is_zero_or_one, SAMPLERS),
    unless("tfs_z", is_zero_or_one, SAMPLERS),
    unless("top_a", is_zero, SAMPLERS),
    unless("top_n_sigma", is_zero_or_less, SAMPLERS),
    unless("xtc_probability", is_zero, SAMPLERS),
    unless("dynatemp_range", is_zero, Some("use temperature")),
    unless("dry_multiplier", is_zero, PENALTY),
    unless("no_repeat_ngram_size", is_zero, PENALTY),
];

fn all_text(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(|it| it == "text"))
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn is_zero_or_one(value: &Value) -> bool {
    is_zero(value) || is_one(value)
}

fn is_negative(value: &Value) -> bool {
    value.as_f64().is_some_and(|it| it < 0.0)
}

fn is_zero_or_less(value: &Value) -> bool {
    value.as_f64().is_some_and(|it| it <= 0.0)
}

/// The names of all fields of a body.
pub(super) type FieldNames = LazyLock<BTreeSet<String>>;

pub(super) static CHAT: FieldNames = LazyLock::new(field_names::<ChatBody>);
pub(super) static COMPLETION: FieldNames = LazyLock::new(field_names::<CompletionBody>);
pub(super) static RESPONSE: FieldNames = LazyLock::new(field_names::<ResponseBody>);

/// The names of the fields in a schema, including those of its parts.
fn field_names<T: ToSchema>() -> BTreeSet<String> {
    let mut parts = Vec::new();
    T::schemas(&mut parts);
    let parts: BTreeMap<String, RefOr<Schema>> = parts.into_iter().collect();
    let json = |schema: &RefOr<Schema>| serde_json::to_value(schema).expect("a schema is JSON");
    let mut names = BTreeSet::new();
    let mut open = vec![json(&T::schema())];
    while let Some(schema) = open.pop() {
        names.extend(schema["properties"].as_object().into_iter().flatten().map(|it| it.0.clone()));
        open.extend(schema["allOf"].as_array().into_iter().flatten().cloned());
        let part = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        open.extend(part.and_then(|name| parts.get(name)).map(json));
    }
    names
}

/// Refuses fields that this server does not support, and misspelled names of known fields. Other
/// unknown fields are ignored, as OpenAI's clients expect.
pub(super) fn check(body: &JsonBody, known: &'static FieldNames) -> Result<(), ApiError> {
    for UnsupportedField { name, is_harmless, hint } in &FIELDS {
        let Some(value) = body.field(name) else { continue };
        if !is_nothing(value) && !is_harmless(value) {
            let hint = hint.map(str::to_owned);
            return Err(ApiError::NotSupported { param: (*name).to_owned(), hint });
        }
    }
    let mut names: Vec<&str> = body.names().collect();
    names.sort_unstable();
    match names.into_iter().find_map(|name| Some((name, meant(name, known)?))) {
        None => Ok(()),
        Some((name, meant)) => Err(ApiError::not_supported(name, format!("did you mean {meant}?"))),
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Returns the field of a body that a misspelled name resembles; none for a known name or one that
/// resembles no field.
fn meant(name: &str, known: &'static FieldNames) -> Option<&'static str> {
    let is_comparable = NAME_CHARS_MIN <= name.chars().count() && name.len() <= NAME_BYTES_MAX;
    if !is_comparable {
        return None;
    }
    if known.contains(name) {
        return None;
    }
    let alike = known.iter().map(|known| (strsim::osa_distance(known, name), known.as_str()));
    let alike = alike.filter(|(_, known)| NAME_CHARS_MIN <= known.len());
    alike.filter(|(mistakes, _)| *mistakes <= MISTAKES_MAX).min().map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_names_are_recognised_and_others_left_alone() {
        for (name, wanted) in [
            ("max_token", "max_tokens"),
            ("temprature", "temperature"),
            ("tempurature", "temperature"),
            ("presense_penalty", "presence_penalty"),
            ("respone_format", "response_format"),
            ("tool_chioce", "tool_choice"),
        ] {
            assert_eq!(meant(name, &CHAT), Some(wanted));
        }
        for name in ["max_tokens", "invented", "top_n", "user_id", "extra_body", "seeds", "create"]
        {
            assert_eq!(meant(name, &CHAT), None, "{name}");
        }
        assert_eq!(meant(&"x".repeat(1 << 20), &CHAT), None);
        for known in [&CHAT, &COMPLETION, &RESPONSE] {
            assert_eq!(meant("temprature", known), Some("temperature"));
        }
    }

    #[test]
    fn every_unsupported_field_is_described_and_nothing_else() {
        let refused: BTreeSet<String> = FIELDS.iter().map(|it| it.name.to_owned()).collect();
        assert_eq!(refused, field_names::<super::super::request::Unsupported>());
    }
}
