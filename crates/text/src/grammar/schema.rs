//! Prepares a JSON schema for the compiler: refuses what the compiler would ignore, rewrites what
//! it reads differently from the standard, and removes annotations.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::formats::{self, Format};
use super::{
    GrammarError, REGEX_BYTES_MAX, SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX, SCHEMA_RESOLVED_DEPTH_MAX,
    check_bytes,
};

/// Keywords that only describe and forbid nothing. They are removed, as are those that begin with
/// `x-`.
const ANNOTATIONS: [&str; 16] = [
    "$anchor",
    "$comment",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "deprecated",
    "description",
    "discriminator",
    "example",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
];

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Largest number up to which a 64-bit float holds every whole number.
const EXACT_MAX: u64 = 1 << 53;

/// Returns the schema as it is compiled, including settings for the compiler. A schema with
/// `"x-guidance": {"lenient": true}` is enforced as far as possible.
///
/// # Errors
/// Fails if the schema is too large, or has a keyword that cannot be enforced.
pub(super) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    check_bytes("schema", schema.to_string().len(), SCHEMA_BYTES_MAX)?;
    let is_lenient = schema.get("x-guidance").is_some_and(|it| it["lenient"] == true);
    let reader = Reader { root: schema, is_lenient };
    let mut prepared = match reader.schema(schema, "#", 0)? {
        Value::Object(members) => members,
        Value::Bool(true) => Map::new(),
        _ => return Err(refused("false", "#", "no value satisfies it")),
    };
    // Without `\u` escapes a name can be written in one way only, so none can bypass the schema.
    let settings = json!({
        "item_separator": ", ?",
        "key_separator": ": ?",
        "whitespace_flexible": false,
        "json_allowed_escapes": "nrbtf\\\"",
        "lenient": is_lenient,
    });
    prepared.insert("x-guidance".to_owned(), settings);
    let prepared = Value::Object(prepared);
    check_resolved_depth(&prepared)?;
    Ok(prepared)
}

/// Rejects a schema that is too deep once every `$ref` is followed, each target once; the compiler
/// recurses over the schema in the same way.
fn check_resolved_depth(root: &Value) -> Result<(), GrammarError> {
    let mut followed = HashSet::new();
    let mut left = vec![(root, 0)];
    while let Some((value, depth)) = left.pop() {
        if SCHEMA_RESOLVED_DEPTH_MAX < depth {
            let (what, unit) = ("schema", "levels of nesting and references");
            let limit = SCHEMA_RESOLVED_DEPTH_MAX;
            return Err(GrammarError::TooLarge { what, found: depth, limit, unit });
        }
        match value {
            Value::Array(list) => left.extend(list.iter().rev().map(|it| (it, depth))),
            Value::Object(members) => {
                left.extend(members.values().rev().map(|it| (it, depth + 1)));
                if let Some(target) = members.get("$ref").and_then(Value::as_str)
                    && followed.insert(target)
                    && let Some(target) = root.pointer(target.trim_start_matches('#'))
                {
                    left.push((target, depth + 1));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn refused(keyword: &str, path: &str, reason: impl Into<String>) -> GrammarError {
    let (keyword, path) = (keyword.to_owned(), path.to_owned());
    GrammarError::Keyword { keyword, path, reason: reason.into() }
}

/// Appends a name to a JSON pointer (RFC 6901).
fn step(path: &str, name: &str) -> String {
    format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"))
}

struct Reader<'a> {
    root: &'a Value,
    /// Whether keywords that cannot be enforced are removed instead of refused.
    is_lenient: bool,
}

impl Reader<'_> {
    fn schema(&self, schema: &Value, path: &str, depth: usize) -> Result<Value, GrammarError> {
        let members = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(members) => members,
            _ => return Err(refused("schema", path, "it must be an object or a boolean")),
        };
        if SCHEMA_DEPTH_MAX < depth {
            let limit = SCHEMA_DEPTH_MAX;
            let (what, unit) = ("schema", "levels of nesting");
            return Err(GrammarError::TooLarge { what, found: depth, limit, unit });
        }
        let mut prepared = Map::new();
        // Further schemas that must hold in addition.
        let mut also = Vec::new();
        for (keyword, value) in members {
            let is_annotation =
                keyword.starts_with("x-") && (keyword != "x-guidance" || self.is_lenient);
            if is_annotation || ANNOTATIONS.contains(&keyword.as_str()) {
                self.forgive(check_annotation(keyword, value, path))?;
                continue;
            }
            if keyword == "format" {
                let read = self.format(value, path, &mut prepared, &mut also);
                self.forgive(read)?;
                continue;
            }
            let read = self.keyword(keyword, value, path, depth);
            if let Some(value) = self.forgive(read)? {
                prepared.insert(keyword.clone(), value);
            }
        }
        self.forgive(check_together(members, path))?;
        if members.contains_key("properties") {
            // Otherwise the compiler ignores patterns for names that have a schema of their own.
            let patterns = prepared.get("patternProperties").cloned();
            also.extend(patterns.map(|patterns| json!({ "patternProperties": patterns })));
        }
        if !also.is_empty() {
            let all = prepared.entry("allOf").or_insert_with(|| json!([]));
            all.as_array_mut().expect("allOf was just checked to be a list").extend(also);
        }
        Ok(Value::Object(prepared))
    }

    /// Turns the error of a keyword that cannot be enforced into `None` if the schema is lenient.
    fn forgive<T>(&self, read: Result<T, GrammarError>) -> Result<Option<T>, GrammarError> {
        match read {
            Err(GrammarError::Keyword { .. }) if self.is_lenient => Ok(None),
            read => read.map(Some),
        }
    }

    fn keyword(
        &self,
        keyword: &str,
        value: &Value,
        path: &str,
        depth: usize,
    ) -> Result<Value, GrammarError> {
        let place = step(path, keyword);
        let wrong = |expected: &str| Err(refused(keyword, path, format!("it must be {expected}")));
        match keyword {
            "items" if value.is_array() => self.list(value, &place, depth),
            "items" | "additionalItems" | "additionalProperties" => {
                self.schema(value, &place, depth + 1)
            }
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => match value.as_array() {
                Some(list) if !list.is_empty() => self.list(value, &place, depth),
                _ => wrong("a list of schemas that is not empty"),
            },
            "properties" | "patternProperties" | "$defs" | "definitions" => {
                self.map(value, keyword, path, depth)
            }
            "$ref" => self.reference(value, path),
            "type" => {
                if is_type(value) {
                    Ok(value.clone())
                } else {
                    wrong("one of JSON's types, or a list of them")
                }
            }
            "enum" if value.as_array().is_none_or(Vec::is_empty) => {
                wrong("a list of values that is not empty")
            }
            "enum" | "const" => checked_numbers(keyword, value, path),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                let is_draft4 = keyword.starts_with("exclusive") && value.is_boolean();
                if value.is_number() || is_draft4 {
                    checked_numbers(keyword, value, path)
                } else {
                    wrong("a number")
                }
            }
            "multipleOf" => match value.as_f64() {
                Some(number) if 0.0 < number => checked_numbers(keyword, value, path),
                _ => wrong("a number above 0"),
            },
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" => {
                if value.as_u64().is_some_and(|it| it <= u32::MAX.into()) {
                    Ok(value.clone())
                } else {
                    wrong("a whole number from 0 to 4294967295")
                }
            }
            "pattern" => match value.as_str() {
                Some(pattern) => {
                    check_bytes("pattern", pattern.len(), REGEX_BYTES_MAX)?;
                    Ok(value.clone())
                }
                None => wrong("a string"),
            },
            "required" => match value.as_array() {
                Some(names) if names.iter().all(Value::is_string) => Ok(value.clone()),
                _ => wrong("a list of strings"),
            },
            _ => Err(refused(keyword, path, "this keyword is not known here")),
        }
    }

    fn list(&self, value: &Value, place: &str, depth: usize) -> Result<Value, GrammarError> {
        let list = value.as_array().into_iter().flatten().enumerate();
        let schema = |(idx, it)| self.schema(it, &format!("{place}/{idx}"), depth + 1);
        list.map(schema).collect::<Result<Vec<Value>, _>>().map(Value::Array)
    }

    fn map(
        &self,
        value: &Value,
        keyword: &str,
        path: &str,
        depth: usize,
    ) -> Result<Value, GrammarError> {
        let Some(members) = value.as_object() else {
            return Err(refused(keyword, path, "it must be an object of schemas"));
        };
        let place = step(path, keyword);
        let schema = |(name, it): (&String, &Value)| {
            if keyword == "patternProperties" {
                check_bytes("pattern", name.len(), REGEX_BYTES_MAX)?;
            }
            Ok((name.clone(), self.schema(it, &step(&place, name), depth + 1)?))
        };
        members.iter().map(schema).collect::<Result<Map<_, _>, _>>().map(Value::Object)
    }

    /// Checks a reference, which must lead to a place in the same schema.
    fn reference(&self, value: &Value, path: &str) -> Result<Value, GrammarError> {
        let Some(target) = value.as_str() else {
            return Err(refused("$ref", path, "it must be a string"));
        };
        if target == "#" || target == "#/" {
            return Ok(json!("#"));
        }
        if !target.starts_with("#/") {
            let reason = format!(
                "{target} is not in the schema itself; write what it refers to under $defs, and \
                 \"#/$defs/name\""
            );
            return Err(refused("$ref", path, reason));
        }
        let is_plain = !target.contains(['~', '%']);
        match self.root.pointer(&target[1..]) {
            // Annotations are removed, so a reference into them would lead nowhere.
            Some(_) if is_plain && leads_through_schemas(target) => Ok(value.clone()),
            _ => Err(refused("$ref", path, format!("there is no schema at {target}"))),
        }
    }

    fn format(
        &self,
        value: &Value,
        path: &str,
        prepared: &mut Map<String, Value>,
        also: &mut Vec<Value>,
    ) -> Result<(), GrammarError> {
        let format = value.as_str();
        match format.and_then(formats::enforce) {
            None => {
                let reason = format!("the format {value} is not known here; use pattern");
                return Err(refused("format", path, reason));
            }
            Some(Format::Known) => _ = prepared.insert("format".to_owned(), value.clone()),
            Some(Format::Schema(schema)) => also.push(schema),
            Some(Format::Nothing) => {}
        }
        Ok(())
    }
}

/// Whether every step of the pointer is a keyword that holds a schema, or a name below one.
fn leads_through_schemas(target: &str) -> bool {
    let mut steps = target.split('/').skip(1);
    while let Some(keyword) = steps.next() {
        let has_name = match keyword {
            "properties" | "patternProperties" | "$defs" | "definitions" | "allOf" | "anyOf"
            | "oneOf" | "prefixItems" => true,
            "items" | "additionalProperties" | "additionalItems" => false,
            _ => return false,
        };
        if has_name && steps.next().is_none() {
            return false;
        }
    }
    true
}

fn is_type(value: &Value) -> bool {
    let is_name = |it: &Value| it.as_str().is_some_and(|it| TYPES.contains(&it));
    match value.as_array() {
        Some(list) => !list.is_empty() && list.iter().all(is_name),
        None => is_name(value),
    }
}

/// Refuses an `$id` below the root, which would make references relative to it, and an unknown
/// `$schema`.
fn check_annotation(keyword: &str, value: &Value, path: &str) -> Result<(), GrammarError> {
    match keyword {
        "$id" | "id" if path != "#" => {
            Err(refused(keyword, path, "only the whole schema can have an id"))
        }
        "$schema" if !value.as_str().is_some_and(|it| it.contains("json-schema.org/")) => {
            Err(refused(keyword, path, format!("{value} is not a draft of JSON Schema")))
        }
        _ => Ok(()),
    }
}

/// Refuses keywords that cannot be enforced together.
fn check_together(members: &Map<String, Value>, path: &str) -> Result<(), GrammarError> {
    let items_are_list = members.get("items").is_some_and(Value::is_array);
    if members.contains_key("additionalItems") && !items_are_list {
        return Err(refused("additionalItems", path, "it needs items to be a list"));
    }
    if items_are_list && members.contains_key("prefixItems") {
        return Err(refused("prefixItems", path, "items is a list already"));
    }
    // Generated names of additional members may repeat, and a repeated name counts once.
    let least = members.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    let num_required = members.get("required").and_then(Value::as_array).map_or(0, Vec::len);
    if (num_required.max(1) as u64) < least {
        let reason = "only as many members as required names can be counted on, or one";
        return Err(refused("minProperties", path, reason));
    }
    Ok(())
}

/// Checks that all numbers are exact as 64-bit floats, which is how they are compiled.
fn checked_numbers(keyword: &str, value: &Value, path: &str) -> Result<Value, GrammarError> {
    let is_exact = |number: &serde_json::Number| match (number.as_u64(), number.as_i64()) {
        (Some(whole), _) => whole <= EXACT_MAX,
        (None, Some(whole)) => whole.unsigned_abs() <= EXACT_MAX,
        (None, None) => number.as_f64().is_some_and(f64::is_finite),
    };
    let mut left = vec![value];
    while let Some(value) = left.pop() {
        match value {
            Value::Number(number) if !is_exact(number) => {
                let reason = format!("{number} is beyond 2^53, where numbers are not exact");
                return Err(refused(keyword, path, reason));
            }
            Value::Array(list) => left.extend(list),
            Value::Object(members) => left.extend(members.values()),
            _ => {}
        }
    }
    Ok(value.clone())
}
