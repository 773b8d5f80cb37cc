//! Refuses fields that would change the answer but that this server does not support, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use serde::de::IgnoredAny;
use serde_json::Value;

use crate::body::parse;
use crate::error::ApiError;
use crate::openai::request::Unsupported;
use crate::openapi;

/// Minimum length of a name that is compared: shorter names differ by a letter or two from names
/// with another meaning.
const NAME_CHARS_MIN: usize = 6;

/// Maximum length of a name that is compared: longer names are no typing mistakes, and are slow to
/// compare.
const NAME_BYTES_MAX: usize = 40;

/// Maximum number of typing mistakes in a name: letters left out, added, changed or swapped.
const MISTAKES_MAX: usize = 2;

/// Names of the bodies' schemas in the API description.
const BODIES: [&str; 3] = ["ChatBody", "CompletionBody", "ResponseBody"];

/// Refuses fields that this server does not support, and misspelled names of known fields. Other
/// unknown fields are ignored, as OpenAI's clients expect.
///
/// # Panics
/// Panics if `schema` is not one of [`BODIES`].
pub(crate) fn check_unsupported(body: &[u8], schema: &'static str) -> Result<(), ApiError> {
    const NONE: &str = "";
    const SAMPLERS: &str = "use top_p, top_k or min_p";
    let fields: Unsupported = parse(body)?;
    let is_text = |value: &Value| value == "text";
    let all_text = |value: &Value| value.as_array().is_some_and(|list| list.iter().all(is_text));
    let is_zero = |value: &Value| value.as_f64() == Some(0.0);
    let is_one = |value: &Value| value.as_f64() == Some(1.0);
    let is_zero_or_one = |value: &Value| is_zero(value) || is_one(value);
    let is_negative = |value: &Value| value.as_f64().is_some_and(|it| it <= 0.0);
    let never = |_: &Value| false;
    type Harmless<'a> = &'a dyn Fn(&Value) -> bool;
    let table: [(&str, Option<Value>, Harmless<'_>, &str); 21] = [
        ("grammar", fields.grammar, &never, "use guided_grammar, in Lark's notation"),
        ("modalities", fields.modalities, &all_text, "answers are text"),
        ("audio", fields.audio, &never, "answers are text"),
        ("prediction", fields.prediction, &never, NONE),
        ("web_search_options", fields.web_search_options, &never, NONE),
        ("chat_template", fields.chat_template, &never, "the model's own template is used"),
        ("documents", fields.documents, &never, "put them into a message"),
        ("use_beam_search", fields.use_beam_search, &never, NONE),
        ("length_penalty", fields.length_penalty, &is_one, NONE),
        (
            "prompt_logprobs",
            fields.prompt_logprobs,
            &never,
            "use echo and logprobs of /v1/completions",
        ),
        ("logits_processors", fields.logits_processors, &never, NONE),
        ("repeat_penalty", fields.repeat_penalty, &is_one, "use repetition_penalty"),
        ("mirostat", fields.mirostat, &is_zero, SAMPLERS),
        ("typical_p", fields.typical_p, &is_zero_or_one, SAMPLERS),
        ("tfs_z", fields.tfs_z, &is_zero_or_one, SAMPLERS),
        ("top_a", fields.top_a, &is_zero, SAMPLERS),
        ("top_n_sigma", fields.top_n_sigma, &is_negative, SAMPLERS),
        ("xtc_probability", fields.xtc_probability, &is_zero, SAMPLERS),
        ("dynatemp_range", fields.dynatemp_range, &is_zero, "use temperature"),
        ("dry_multiplier", fields.dry_multiplier, &is_zero, "use repetition_penalty"),
        ("no_repeat_ngram_size", fields.no_repeat_ngram_size, &is_zero, "use repetition_penalty"),
    ];
    for (param, value, harmless, hint) in table {
        let Some(value) = value else { continue };
        if !is_nothing(&value) && !harmless(&value) {
            let hint = (!hint.is_empty()).then(|| hint.to_owned());
            return Err(ApiError::NotSupported { param: param.to_owned(), hint });
        }
    }
    let names: BTreeMap<String, IgnoredAny> = parse(body)?;
    match names.keys().find_map(|name| Some((name, meant(name, schema)?))) {
        None => Ok(()),
        Some((name, meant)) => Err(ApiError::NotSupported {
            param: name.clone(),
            hint: Some(format!("did you mean {meant}?")),
        }),
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

/// Returns the field of `body` that a misspelled name resembles; none for a known name or one that
/// resembles no field.
fn meant(name: &str, body: &'static str) -> Option<&'static str> {
    let is_comparable = NAME_CHARS_MIN <= name.chars().count() && name.len() <= NAME_BYTES_MAX;
    if !is_comparable {
        return None;
    }
    static NAMES: [OnceLock<BTreeSet<String>>; BODIES.len()] =
        [const { OnceLock::new() }; BODIES.len()];
    let place = BODIES.iter().position(|known| *known == body).expect("it is one of the bodies");
    let known = NAMES[place].get_or_init(|| openapi::field_names(body));
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
            assert_eq!(meant(name, "ChatBody"), Some(wanted));
        }
        for name in ["max_tokens", "invented", "top_n", "user_id", "extra_body", "seeds", "create"]
        {
            assert_eq!(meant(name, "ChatBody"), None, "{name}");
        }
        assert_eq!(meant(&"x".repeat(1 << 20), "ChatBody"), None);
        for body in BODIES {
            assert_eq!(meant("temprature", body), Some("temperature"), "{body}");
        }
    }
}
