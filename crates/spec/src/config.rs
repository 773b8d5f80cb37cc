//! Reads fields of `config.json`.

use std::fmt::Display;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::error::SpecError;

/// Maximum size in `config.json`: far above any vocabulary, and products of two sizes still fit.
const MAX_DIMENSION: u32 = 1 << 24;

/// Maximum number of layers, and of experts in a layer: their tensors are listed by name.
const MAX_COUNT: u32 = 1 << 12;

/// Returns the fields that `C` declares.
pub(crate) fn parse<C: DeserializeOwned>(config: &Value) -> Result<C, SpecError> {
    C::deserialize(config).map_err(|err| SpecError::Malformed { reason: err.to_string() })
}

/// Returns `config` in which fields that are absent have the value of another name, `(theirs, ours)`,
/// or else their default. A default of `null` removes the field.
pub(crate) fn completed(config: &Value, renames: &[(&str, &str)], defaults: &Value) -> Value {
    let mut fields = config.as_object().cloned().unwrap_or_default();
    let is_absent =
        |fields: &Map<String, Value>, name: &str| fields.get(name).is_none_or(Value::is_null);
    for (theirs, ours) in renames {
        if let Some(value) = fields.get(*theirs).cloned()
            && is_absent(&fields, ours)
        {
            fields.insert((*ours).to_owned(), value);
        }
    }
    for (name, default) in defaults.as_object().into_iter().flatten() {
        if default.is_null() {
            fields.remove(name);
        } else if is_absent(&fields, name) {
            fields.insert(name.clone(), default.clone());
        }
    }
    Value::Object(fields)
}

/// Returns a factor after checking that it is a positive number.
pub(crate) fn factor(field: &'static str, value: f32) -> Result<f32, SpecError> {
    if value.is_normal() && 0.0 < value {
        return Ok(value);
    }
    Err(bad_value(field, value, "a positive number"))
}

/// Returns a size after checking its bounds.
pub(crate) fn dimension(field: &'static str, size: u32) -> Result<usize, SpecError> {
    bounded(field, size, 1..=MAX_DIMENSION)
}

/// Returns a number of layers or of experts after checking its bounds.
pub(crate) fn count(field: &'static str, number: u32) -> Result<usize, SpecError> {
    bounded(field, number, 1..=MAX_COUNT)
}

/// Returns the number of experts that a token passes after checking it.
pub(crate) fn experts_per_token(number: u32, num_experts: usize) -> Result<usize, SpecError> {
    let field = "num_experts_per_tok";
    match count(field, number)? {
        number if number <= num_experts => Ok(number),
        number => Err(bad_value(field, number, format!("at most {num_experts}"))),
    }
}

fn bounded(
    field: &'static str,
    number: u32,
    bounds: std::ops::RangeInclusive<u32>,
) -> Result<usize, SpecError> {
    if bounds.contains(&number) {
        return Ok(number as usize);
    }
    Err(bad_value(field, number, format!("a number from {} to {}", bounds.start(), bounds.end())))
}

/// Refuses a setting that is stated and not one of `supported`; anything passes if none is listed.
pub(crate) fn setting(
    what: &'static str,
    found: Option<&str>,
    supported: &'static [&'static str],
) -> Result<(), SpecError> {
    match found {
        Some(found) if !supported.is_empty() && !supported.contains(&found) => {
            Err(SpecError::Setting { what, found: found.to_owned(), supported })
        }
        _ => Ok(()),
    }
}

/// Creates an error about a setting that this version does not compute.
pub(crate) fn unsupported(
    what: &'static str,
    found: &dyn Display,
    supported: &'static [&'static str],
) -> SpecError {
    SpecError::Setting { what, found: found.to_string(), supported }
}

/// Creates an error about a value.
pub(crate) fn bad_value(
    field: &'static str,
    found: impl Display,
    expected: impl Into<String>,
) -> SpecError {
    SpecError::Value { field, found: found.to_string(), expected: expected.into() }
}

/// Formats an optional value for an error.
pub(crate) fn or_absent(value: Option<impl Display>) -> String {
    value.map_or_else(|| "absent".to_owned(), |value| value.to_string())
}

/// A number, or transformers' notation for one that JSON cannot hold: `{"__float__": "Infinity"}`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Float {
    Number(f64),
    Tagged { __float__: Tag },
}

#[derive(Deserialize)]
enum Tag {
    Infinity,
    #[serde(rename = "-Infinity")]
    NegativeInfinity,
    NaN,
}

/// Deserializes an `Option<f64>`, for `#[serde(deserialize_with = "float")]`.
pub(crate) fn float<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    Ok(Option::<Float>::deserialize(deserializer)?.map(|float| match float {
        Float::Number(number) => number,
        Float::Tagged { __float__: Tag::Infinity } => f64::INFINITY,
        Float::Tagged { __float__: Tag::NegativeInfinity } => f64::NEG_INFINITY,
        Float::Tagged { __float__: Tag::NaN } => f64::NAN,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Sample {
        #[serde(default, deserialize_with = "float")]
        theta: Option<f64>,
    }

    #[test]
    fn numbers_that_json_cannot_hold_are_understood() {
        let theta = |text: &str| serde_json::from_str::<Sample>(text).unwrap().theta;
        assert_eq!(theta("{}"), None);
        assert_eq!(theta(r#"{"theta": null}"#), None);
        assert_eq!(theta(r#"{"theta": 10000}"#), Some(1e4));
        assert_eq!(theta(r#"{"theta": 5e5}"#), Some(5e5));
        assert_eq!(theta(r#"{"theta": {"__float__": "Infinity"}}"#), Some(f64::INFINITY));
        assert_eq!(theta(r#"{"theta": {"__float__": "-Infinity"}}"#), Some(f64::NEG_INFINITY));
        assert!(theta(r#"{"theta": {"__float__": "NaN"}}"#).unwrap().is_nan());
        assert!(serde_json::from_str::<Sample>(r#"{"theta": {"__float__": "big"}}"#).is_err());
    }
}
