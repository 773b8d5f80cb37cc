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

/// Numbers that Python's `json` writes and JSON does not have, with transformers' notation for them.
/// The longer name comes first.
const PYTHON_NUMBERS: [(&str, &str); 3] = [
    ("-Infinity", r#"{"__float__": "-Infinity"}"#),
    ("Infinity", r#"{"__float__": "Infinity"}"#),
    ("NaN", r#"{"__float__": "NaN"}"#),
];

/// Parses the text of a `config.json`, in which Python may have written numbers that JSON does not
/// have.
///
/// # Errors
/// Fails if it is not JSON even without them.
pub fn parse_config(text: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(text).or_else(|err| {
        let plain = std::str::from_utf8(text).map(without_python_numbers);
        plain.ok().and_then(|plain| serde_json::from_str(&plain).ok()).ok_or(err)
    })
}

/// Replaces [`PYTHON_NUMBERS`] outside of strings.
fn without_python_numbers(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let (mut rest, mut is_string) = (text, false);
    while let Some(next) = rest.chars().next() {
        let number = PYTHON_NUMBERS.iter().find(|(name, _)| !is_string && rest.starts_with(name));
        if let Some((name, notation)) = number {
            plain.push_str(notation);
            rest = &rest[name.len()..];
            continue;
        }
        // In a string a backslash keeps the next character from ending it.
        let is_escape = is_string && next == '\\';
        let taken: String = rest.chars().take(1 + usize::from(is_escape)).collect();
        is_string ^= next == '"';
        plain.push_str(&taken);
        rest = &rest[taken.len()..];
    }
    plain
}

/// Maximum number of fields of a configuration in which the field with a value of the wrong type is looked
/// for: many more than any model has.
const FIELDS_SEARCHED_MAX: usize = 1000;

/// Reads the fields that `C` declares from `config`; others are ignored unless `C` denies them.
///
/// # Errors
/// Fails if a field is missing or has a value of the wrong type; the error names the field.
pub fn parse<C: DeserializeOwned>(config: &Value) -> Result<C, SpecError> {
    C::deserialize(config).map_err(|err| {
        let reason = err.to_string();
        let field = field_of::<C>(config, &reason);
        let reason = field.map_or(reason.clone(), |field| format!("`{field}`: {reason}"));
        SpecError::Malformed { reason }
    })
}

/// Returns the field whose value has the wrong type, which the parser does not name: the only one
/// that contains the value in its message, or the one with which the message stays the same.
fn field_of<C: DeserializeOwned>(config: &Value, reason: &str) -> Option<String> {
    if reason.starts_with("missing field") {
        return None;
    }
    let value = value_in(reason).unwrap_or_default();
    let fields = config.as_object().filter(|fields| fields.len() <= FIELDS_SEARCHED_MAX)?;
    let contain = fields.iter().filter(|(_, it)| it.to_string().contains(value));
    let names: Vec<&String> = contain.map(|(name, _)| name).collect();
    if let [name] = names[..] {
        return Some(name.clone());
    }
    let field = names.iter().find(|field| {
        let is_kept = |name: &String| name == **field || !names.contains(&name);
        let kept = fields.iter().filter(|(name, _)| is_kept(name));
        let kept: Map<String, Value> =
            kept.map(|(name, value)| (name.clone(), value.clone())).collect();
        C::deserialize(Value::Object(kept)).err().is_some_and(|err| err.to_string() == reason)
    });
    field.map(|field| (*field).clone())
}

/// Returns the value that a message of the parser contains, as it begins in JSON.
fn value_in(reason: &str) -> Option<&str> {
    let rest =
        ["invalid type: ", "invalid value: "].iter().find_map(|it| reason.strip_prefix(it))?;
    let (found, _) = rest.split_once(", expected")?;
    Some(match found {
        "map" => "{",
        "sequence" => "[",
        _ => found.strip_prefix("string ").or_else(|| found.split('`').nth(1)).unwrap_or(found),
    })
}

/// Returns `config` in which a field that a family names differently, `(theirs, ours)`, has our name, and
/// absent fields have their default. The family's own name counts if both are stated; of several
/// names for one field, the last one. A default of `null` removes the field. A base of the rotation that
/// `rope_parameters` states is not absent.
pub fn completed(config: &Value, renames: &[(&str, &str)], defaults: &Value) -> Value {
    let mut fields = config.as_object().cloned().unwrap_or_default();
    let is_absent = |fields: &Map<String, Value>, name: &str| {
        let parameters = fields.get("rope_parameters").filter(|_| name == "rope_theta");
        let is_elsewhere = parameters.is_some_and(|it| it["rope_theta"].is_number());
        fields.get(name).is_none_or(Value::is_null) && !is_elsewhere
    };
    for (theirs, ours) in renames {
        if let Some(value) = fields.get(*theirs).filter(|value| !value.is_null()).cloned() {
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

/// Fields that are true or false in every family that reads them, and for which mlx-lm takes `null` as
/// false, as Python's conditions do, whatever their default. Not among them: `rope_interleave`, for which
/// Mistral 4 takes `null` as its default, and `mla_use_nope`, which mlx-lm's Kimi Linear does not read.
pub const FLAGS: &[&str] = &[
    "add_full_attention_sink_bias",
    "add_swa_attention_sink_bias",
    "altup_correct_scale",
    "attention_bias",
    "attention_k_eq_v",
    "attention_out_bias",
    "attn_temperature_tuning",
    "bias",
    "block_auto_adjust_ff_dim",
    "conv_bias",
    "enable_moe_block",
    "gating",
    "index_kpool_always_select_tail",
    "index_kpool_compress",
    "indexer_rope_interleave",
    "latent_moe_use_norm",
    "layer_norm_bias",
    "linear_allow_neg_eigval",
    "lm_head_bias",
    "mamba_conv_bias",
    "mamba_norm_before_gate",
    "mamba_proj_bias",
    "mamba_rms_norm",
    "mamba_use_mlp",
    "mla_scale_kv_lora",
    "mla_scale_q_lora",
    "mla_use_output_gate",
    "mlp_bias",
    "moe_renormalize",
    "moe_router_enable_expert_bias",
    "moe_router_enable_shared_expert",
    "mup_enabled",
    "no_bias",
    "norm_expert_weight",
    "norm_head",
    "norm_topk_prob",
    "post_norm",
    "projectors_bias",
    "qk_layernorm",
    "qk_norm",
    "qkv_bias",
    "rope_traditional",
    "route_norm",
    "router_bias",
    "safe_gate",
    "tie_word_embeddings",
    "use_bias",
    "use_cla",
    "use_double_wide_mlp",
    "use_expert_bias",
    "use_full_rank_gate",
    "use_gemma_norm",
    "use_head_wise_attn_gate",
    "use_mixed_mlp_moe",
    "use_parallel_residual",
    "use_qk_norm",
    "use_qkv_bias",
];

/// Returns `config` in which the [`FLAGS`] that are `null` are false, also in its parts.
pub fn null_as_false(config: &Value) -> Value {
    let Value::Object(fields) = config else { return config.clone() };
    let fields = fields.iter().map(|(name, value)| {
        let is_flag = value.is_null() && FLAGS.contains(&name.as_str());
        (name.clone(), if is_flag { Value::Bool(false) } else { null_as_false(value) })
    });
    Value::Object(fields.collect())
}

/// Returns `config` in which absent fields have their default, but those that are `null` keep it.
pub fn defaulted(config: &Value, defaults: &Value) -> Value {
    let mut fields = config.as_object().cloned().unwrap_or_default();
    for (name, default) in defaults.as_object().into_iter().flatten() {
        fields.entry(name).or_insert_with(|| default.clone());
    }
    Value::Object(fields)
}

/// Returns a factor after checking that it is a positive number.
///
/// # Errors
/// Fails if it is zero, negative, subnormal, infinite or NaN.
pub fn factor(field: &'static str, value: f32) -> Result<f32, SpecError> {
    if value.is_normal() && 0.0 < value {
        return Ok(value);
    }
    Err(bad_value(field, value, "a positive number"))
}

/// Returns a size after checking its bounds.
///
/// # Errors
/// Fails if it is not in 1 to 2^24.
pub fn dimension(field: &'static str, size: u32) -> Result<usize, SpecError> {
    bounded(field, size, 1..=MAX_DIMENSION)
}

/// Returns a number of layers or of experts after checking its bounds.
///
/// # Errors
/// Fails if it is not in 1 to 4096.
pub fn count(field: &'static str, number: u32) -> Result<usize, SpecError> {
    bounded(field, number, 1..=MAX_COUNT)
}

/// Returns the number of experts that a token passes after checking it.
///
/// # Errors
/// Fails if it is 0 or more than `num_experts`.
pub fn experts_per_token(number: u32, num_experts: usize) -> Result<usize, SpecError> {
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
///
/// # Errors
/// Fails if the setting is refused.
pub fn setting(
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
pub fn unsupported(
    what: &'static str,
    found: &dyn Display,
    supported: &'static [&'static str],
) -> SpecError {
    SpecError::Setting { what, found: found.to_string(), supported }
}

/// Creates an error about a value.
pub fn bad_value(
    field: &'static str,
    found: impl Display,
    expected: impl Into<String>,
) -> SpecError {
    SpecError::Value { field, found: found.to_string(), expected: expected.into() }
}

/// Formats an optional value for an error.
pub fn or_absent(value: Option<impl Display>) -> String {
    value.map_or_else(|| "absent".to_owned(), |value| value.to_string())
}

/// A number, or transformers' notation for one that JSON cannot hold: `{"__float__": "Infinity"}`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number")]
enum Float {
    Number(f64),
    Tagged { __float__: Tag },
}

impl Float {
    fn value(self) -> f64 {
        match self {
            Float::Number(number) => number,
            Float::Tagged { __float__: Tag::Infinity } => f64::INFINITY,
            Float::Tagged { __float__: Tag::NegativeInfinity } => f64::NEG_INFINITY,
            Float::Tagged { __float__: Tag::NaN } => f64::NAN,
        }
    }
}

#[derive(Deserialize)]
enum Tag {
    Infinity,
    #[serde(rename = "-Infinity")]
    NegativeInfinity,
    NaN,
}

/// Deserializes an `Option<f64>`, for `#[serde(deserialize_with = "float")]`.
///
/// # Errors
/// Fails if the value is neither `null` nor a number, in JSON's or transformers' notation.
pub fn float<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    Ok(Option::<Float>::deserialize(deserializer)?.map(Float::value))
}

/// Deserializes an `Option<[f64; 2]>`, for `#[serde(deserialize_with = "float_pair")]`.
///
/// # Errors
/// Fails if the value is neither `null` nor two numbers, in JSON's or transformers' notation.
pub fn float_pair<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<[f64; 2]>, D::Error> {
    Ok(Option::<[Float; 2]>::deserialize(deserializer)?.map(|pair| pair.map(Float::value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Sample {
        #[serde(default, deserialize_with = "float")]
        theta: Option<f64>,
    }

    #[derive(Debug, Deserialize)]
    struct Sizes {
        #[expect(dead_code, reason = "only parsed")]
        layers: u32,
        #[serde(flatten)]
        #[expect(dead_code, reason = "only parsed")]
        inner: Inner,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only parsed")]
    struct Inner {
        heads: u32,
        width: u32,
        bias: Option<bool>,
    }

    #[test]
    fn a_value_of_another_type_is_reported_with_its_field() {
        let error = |config: Value| parse::<Sizes>(&config).unwrap_err().to_string();
        let nulls = serde_json::json!({"bias": null, "heads": null, "layers": 1, "width": null});
        assert_eq!(error(nulls), "`heads`: invalid type: null, expected u32");
        let text = serde_json::json!({"heads": 2, "layers": 1, "width": "wide"});
        assert_eq!(error(text), "`width`: invalid type: string \"wide\", expected u32");
        let negative = serde_json::json!({"heads": 2, "layers": -1, "width": 1});
        assert_eq!(error(negative), "`layers`: invalid value: integer `-1`, expected u32");
        let list = serde_json::json!({"heads": [2], "layers": 1, "width": 1});
        assert_eq!(error(list), "`heads`: invalid type: sequence, expected u32");
        assert_eq!(error(serde_json::json!({"layers": 1})), "missing field `heads`");
        let error = parse::<Sample>(&serde_json::json!({"other": "a", "theta": "b"}));
        assert_eq!(error.unwrap_err().to_string(), "`theta`: expected a number");
    }

    #[test]
    fn of_two_names_that_of_the_family_counts() {
        let config = serde_json::json!({"theirs": 1, "ours": 2, "none": null, "other": 3});
        let renames = [("theirs", "ours"), ("none", "other"), ("absent", "other")];
        let fields = completed(&config, &renames, &serde_json::json!({"none": 4, "other": 5}));
        assert_eq!(fields, serde_json::json!({"theirs": 1, "ours": 1, "none": 4, "other": 3}));
        let config_with_base = serde_json::json!({"rope_parameters": {"rope_theta": 5.0}});
        let base = serde_json::json!({"rope_theta": 1.0});
        assert_eq!(completed(&config_with_base, &[], &base), config_with_base);
        let defaults = serde_json::json!({"none": 4, "absent": 5});
        let fields = defaulted(&config, &defaults);
        assert_eq!((&fields["none"], &fields["absent"]), (&Value::Null, &5.into()));
    }

    #[test]
    fn a_flag_that_is_null_is_false() {
        let part = |flag: Value| serde_json::json!({"bias": flag, "head_dim": null});
        let config = |flag: Value| serde_json::json!({"attention_bias": flag, "mlp_bias": true, "text_config": part(flag)});
        assert_eq!(null_as_false(&config(Value::Null)), config(false.into()));
        assert!(FLAGS.is_sorted());
    }

    #[test]
    fn numbers_that_only_python_writes_are_read() {
        let text = br#"{"a": [0.0, Infinity], "b": -Infinity, "c": NaN, "d": "NaN \" Infinity"}"#;
        let config = parse_config(text).unwrap();
        let float = |name: &str| serde_json::json!({"__float__": name});
        assert_eq!(config["a"], serde_json::json!([0.0, float("Infinity")]));
        assert_eq!((&config["b"], &config["c"]), (&float("-Infinity"), &float("NaN")));
        assert_eq!(config["d"], "NaN \" Infinity");
        assert!(parse_config(b"{\"a\": Infinit}").is_err());
        assert!(parse_config(b"{\"a\": \xff}").is_err());
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
