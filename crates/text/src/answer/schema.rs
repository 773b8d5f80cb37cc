//! Values that a model writes as plain text, typed by the JSON schema of the tool.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Maximum depth to which `anyOf` and similar keywords are followed.
const DEPTH_MAX: usize = 8;

/// The types that a JSON schema allows; empty if it names none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Types(Vec<String>);

impl Types {
    /// Collects the types of a schema, which may refer to parts of `root`. A schema that names no
    /// type stands for text.
    pub(crate) fn of(schema: &Value, root: &Value) -> Types {
        let mut types = Types::default();
        types.add(schema, root, DEPTH_MAX);
        types
    }

    /// Returns the type that the model wrote beside a value: a name of JSON Schema, or `true` for
    /// text and `false` for everything else.
    pub(crate) fn written(name: &str) -> Types {
        Types(vec![if name == "true" { "string" } else { name }.to_owned()])
    }

    /// Returns the first type that the schema names; `string` if it names none.
    pub(crate) fn first(&self) -> &str {
        self.0.first().map_or("string", String::as_str)
    }

    /// Whether a value may be text, which the model then writes without quotes.
    pub(crate) fn is_text(&self) -> bool {
        self.0.is_empty() || self.has("string")
    }

    /// Whether a value can be nothing but text.
    pub(crate) fn is_only_text(&self) -> bool {
        self.0.iter().all(|name| name == "string")
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|known| known == name)
    }

    fn add(&mut self, schema: &Value, root: &Value, depth: usize) {
        let Some(left) = depth.checked_sub(1) else { return };
        if let Some(schema) = referred(schema, root) {
            return self.add(schema, root, left);
        }
        match &schema["type"] {
            Value::String(name) => self.0.push(name.clone()),
            Value::Array(names) => {
                self.0.extend(names.iter().filter_map(Value::as_str).map(str::to_owned));
            }
            _ => {}
        }
        let listed = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
        self.0.extend(listed.map(|value| type_of(value).to_owned()));
        for key in ["anyOf", "oneOf", "allOf"] {
            for part in schema[key].as_array().into_iter().flatten() {
                self.add(part, root, left);
            }
        }
    }

    /// Returns the written value as JSON. If the schema allows text, JSON of another allowed type
    /// stays as it was written and everything else becomes a string. If it does not, any valid JSON
    /// stays as it was written and everything else becomes a string.
    pub(crate) fn json(&self, written: &str) -> String {
        let text = || Value::from(written).to_string();
        let trimmed = written.trim_ascii();
        // Templates also print Python's words.
        let word = match trimmed.to_ascii_lowercase().as_str() {
            "true" => Some(("boolean", "true")),
            "false" => Some(("boolean", "false")),
            "null" | "none" => Some(("null", "null")),
            _ => None,
        };
        if self.is_text() {
            if let Some((_, word)) = word.filter(|(name, _)| self.has(name)) {
                return word.to_owned();
            }
            let other: Option<&RawValue> = serde_json::from_str(trimmed).ok();
            let other = other.filter(|value| {
                let name = serde_json::from_str(value.get()).map_or("string", |v| type_of(&v));
                name != "string" && (self.has(name) || name == "integer" && self.has("number"))
            });
            return other.map_or_else(text, |value| value.get().to_owned());
        }
        if let Some((_, word)) = word {
            return word.to_owned();
        }
        let value: Option<&RawValue> = serde_json::from_str(trimmed).ok();
        value.map_or_else(text, |value| value.get().to_owned())
    }
}

/// Returns the part of `root` that `$ref` refers to, if the schema has one.
pub(crate) fn referred<'a>(schema: &Value, root: &'a Value) -> Option<&'a Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the properties of a tool's parameters.
pub(crate) fn properties(parameters: &Value) -> Option<&Map<String, Value>> {
    parameters.get("properties")?.as_object()
}

/// Builds a JSON object from keys and values that are JSON already.
pub(crate) fn json_object<K: AsRef<str>>(members: &[(K, String)]) -> String {
    let members: Vec<String> = members
        .iter()
        .map(|(key, value)| format!("{}: {value}", Value::from(key.as_ref())))
        .collect();
    format!("{{{}}}", members.join(", "))
}
