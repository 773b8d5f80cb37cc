//! Fields of `config.json` that are left out or `null`: they have the defaults of mlx-lm, as its
//! dataclasses state them.

use std::collections::BTreeMap;
use std::path::Path;

use jackalope_config::fields::FLAGS;
use jackalope_families::model_spec;
use jackalope_spec::{ModelSpec, SpecError};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::checkpoints::{sample, samples};
use crate::touched::sources;

/// Defaults of the dataclasses of mlx-lm, and the samples of the types that have them.
const DEFAULTS: &str = include_str!("../data/defaults.json");

#[derive(Deserialize)]
struct Defaults {
    samples: Vec<String>,
    /// Fields that are left out too, because they count more than those that have the defaults.
    #[serde(default)]
    without: Vec<String>,
    fields: Map<String, Value>,
}

/// Returns what a configuration says after an edit of the fields of its language model.
fn reading(
    config: &Value,
    edit: impl FnOnce(&mut Map<String, Value>),
) -> Result<ModelSpec, SpecError> {
    let mut config = config.clone();
    let has_part = config["text_config"].is_object();
    let fields = if has_part { &mut config["text_config"] } else { &mut config };
    edit(fields.as_object_mut().unwrap());
    model_spec(&config)
}

/// Returns another number or the opposite flag; `None` for other values.
fn another(value: &Value) -> Option<Value> {
    let twice = |number: f64| Value::from(2.0 * number);
    match value {
        Value::Bool(flag) => Some((!flag).into()),
        Value::Number(_) => {
            value.as_u64().map(|it| (2 * it + 2).into()).or(value.as_f64().map(twice))
        }
        _ => None,
    }
}

#[test]
fn a_field_that_is_left_out_has_the_default_of_mlx_lm() {
    let configs: BTreeMap<String, Value> =
        samples().into_iter().map(|it| (it.name, it.config)).collect();
    let mut wrong = Vec::new();
    for entry in serde_json::from_str::<Vec<Defaults>>(DEFAULTS).unwrap() {
        for (field, default) in &entry.fields {
            let mut matters = false;
            for name in &entry.samples {
                let read = |value: Option<Value>| {
                    reading(&configs[name], |fields| {
                        fields.retain(|key, _| key != field && !entry.without.contains(key));
                        fields.extend(value.map(|value| (field.clone(), value)));
                    })
                };
                let (stated, absent) = (read(Some(default.clone())), read(None));
                matters |= another(default).is_none_or(|it| read(Some(it)) != stated);
                // Some defaults do not fit the other fields of a sample, which is the error then.
                let error = absent.as_ref().err().map(ToString::to_string).unwrap_or_default();
                let is_read = !error.contains("missing field") && !error.contains("is absent");
                if stated != absent || !is_read {
                    wrong.push(format!("{name}, {field}: {error}"));
                }
            }
            if !matters {
                wrong.push(format!("{:?} do not show the default of {field}", entry.samples));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_rank_of_queries_that_is_null_is_not_the_default() {
    for name in ["deepseek_v2-f32", "deepseek_v3-f32", "kimi_vl-f32", "glm4_moe_lite-f32"] {
        let config = sample(name).config;
        let absent = reading(&config, |fields| drop(fields.remove("q_lora_rank")));
        let null = reading(&config, |fields| fields["q_lora_rank"] = Value::Null);
        let has_rank = |spec: ModelSpec| format!("{:?}", spec.layers[0]).contains("q_a_proj");
        assert!(has_rank(absent.unwrap()) && !has_rank(null.unwrap()), "{name}");
    }
}

#[test]
fn a_flag_that_is_null_is_false_in_every_family() {
    for sample in samples().into_iter().filter(|sample| sample.name.ends_with("-f32")) {
        for flag in FLAGS {
            let with = |value: Value| {
                reading(&sample.config, |fields| drop(fields.insert((*flag).to_owned(), value)))
            };
            assert!(with(Value::Null) == with(false.into()), "{}: {flag}", sample.name);
        }
    }
}

/// Booleans for which `null` is not false, with the reason at [`FLAGS`].
const NOT_FLAGS: [&str; 2] = ["rope_interleave", "mla_use_nope"];

#[test]
fn every_field_that_is_true_or_false_is_a_flag() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let files = ["families/src", "config/src"].map(|folder| sources(&crates.join(folder)));
    let mut found = Vec::new();
    for path in files.into_iter().flatten() {
        let text = std::fs::read_to_string(&path).unwrap();
        // The fields of a structure that is read begin after its derived traits.
        for item in text.split("Deserialize)]").skip(1) {
            let fields = item.split("\n}").next().unwrap().lines();
            found.extend(fields.filter_map(|line| {
                let (name, kind) = line.trim().trim_end_matches(',').split_once(": ")?;
                let is_flag = ["bool", "Option<bool>"].contains(&kind);
                is_flag.then(|| name.rsplit(' ').next().unwrap().to_owned())
            }));
        }
    }
    assert!(50 < found.len(), "{found:?}");
    found.retain(|name| !FLAGS.contains(&name.as_str()) && !NOT_FLAGS.contains(&name.as_str()));
    // Not read from `config.json`, but set by the family.
    found.retain(|name| name != "normalizes_one");
    assert!(found.is_empty(), "not in FLAGS: {found:?}");
}
