//! Prepares a JSON schema for the compiler: refuses what the compiler would ignore, rewrites what
//! it reads differently from the standard, and removes annotations.

mod disjoint;
mod numbers;
mod pattern;
mod references;

use std::cell::Cell;
use std::collections::HashSet;

use serde_json::{Map, Value, json};

use numbers::{EXACT_MAX, Multiple};
use references::Targets;

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

/// Whether keywords that cannot be enforced are removed instead of refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Leniency {
    /// They are refused.
    None,
    /// They are removed from schemas with `"x-guidance": {"lenient": true}`, as grammars of tool calls
    /// mark those that need not be strict.
    IfMarked,
}

/// Returns the schema as it is compiled, including settings for the compiler.
///
/// # Errors
/// Fails if the schema is too large, or has a keyword that cannot be enforced.
pub(super) fn prepare(schema: &Value, leniency: Leniency) -> Result<Value, GrammarError> {
    check_bytes("schema", schema.to_string().len(), SCHEMA_BYTES_MAX)?;
    let is_marked = schema.get("x-guidance").is_some_and(|it| it["lenient"] == true);
    let is_lenient = is_marked && leniency == Leniency::IfMarked;
    let comparisons_left = Cell::new(disjoint::COMPARISONS_MAX);
    let reader = Reader { root: schema, is_lenient, targets: Targets::default(), comparisons_left };
    let mut prepared = match reader.schema(schema, "#", 0)? {
        Value::Object(members) => members,
        Value::Bool(true) => Map::new(),
        _ => return Err(refused("false", "#", "no value satisfies it")),
    };
    reader.add_targets(&mut prepared)?;
    // Without `\u` escapes a name can be written in one way only, so none can bypass the schema.
    let settings = json!({
        "item_separator": ", ?",
        "key_separator": ": ?",
        "whitespace_flexible": false,
        "json_allowed_escapes": "nrbtf\\\"",
        "lenient": is_lenient,
    });
    prepared.insert("x-guidance".to_owned(), settings);
    let mut prepared = Value::Object(prepared);
    check_resolved_depth(&prepared)?;
    check_multiples(&prepared)?;
    if !references::replace_endless(&mut prepared) {
        let reason = "no value satisfies it: a part that must be there is refused by its own schema, or \
                      refers to itself without an end";
        return Err(GrammarError::Compile { what: "schema", reason: reason.to_owned() });
    }
    Ok(prepared)
}

/// Refuses multiples whose intersection the compiler cannot compute. It intersects those of one
/// schema and, where schemas are combined in other ways, some of them all, so that all have to go
/// together there.
fn check_multiples(root: &Value) -> Result<(), GrammarError> {
    let (mut multiples, mut is_combined, mut is_computed) = (Vec::new(), false, true);
    let mut left = vec![root];
    while let Some(value) = left.pop() {
        match value {
            Value::Array(list) => left.extend(list),
            Value::Object(members) => {
                let here = numbers::multiples_at(members);
                is_computed &= here.len() < 2 || numbers::are_combinable(&here);
                multiples.extend(here);
                is_combined |= combines_schemas(members);
                left.extend(members.values());
            }
            _ => {}
        }
    }
    if !is_computed || (is_combined && !numbers::are_combinable(&multiples)) {
        let reason = "the common multiple of those that are combined is too large\n\
                      hint: use multiples whose common multiple is at most 20000";
        return Err(refused("multipleOf", "#", reason));
    }
    Ok(())
}

/// Whether a prepared schema combines others, apart from multiples in its `allOf`.
fn combines_schemas(members: &Map<String, Value>) -> bool {
    let all = members.get("allOf").and_then(Value::as_array);
    all.is_some_and(|all| !all.iter().all(numbers::is_only_multiple))
        || ["anyOf", "oneOf", "$ref", "patternProperties"]
            .iter()
            .any(|it| members.contains_key(*it))
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
    targets: Targets,
    comparisons_left: Cell<usize>,
}

impl Reader<'_> {
    /// Adds the targets of all references as definitions.
    fn add_targets(&self, prepared: &mut Map<String, Value>) -> Result<(), GrammarError> {
        let mut definitions = Map::new();
        while let Some(pointer) = self.targets.get(definitions.len()) {
            let target = self.root.pointer(&pointer).expect("a reference is resolved when added");
            let target = self.schema(target, &format!("#{pointer}"), 0)?;
            definitions.insert(definitions.len().to_string(), target);
        }
        if !definitions.is_empty() {
            prepared.insert("$defs".to_owned(), Value::Object(definitions));
        }
        Ok(())
    }

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
            if keyword == "multipleOf" {
                let compiled = self.forgive(compiled_multiples(value, path))?.unwrap_or_default();
                also.extend(compiled.iter().skip(1).map(|it| json!({ "multipleOf": it })));
                prepared.extend(compiled.first().map(|it| (keyword.clone(), json!(it))));
                continue;
            }
            let read = self.keyword(keyword, value, path, depth);
            let Some(read) = self.forgive(read)? else { continue };
            match keyword.as_str() {
                // Those that references lead to are added at the root.
                "$defs" | "definitions" => {}
                // A lenient schema allows what two alternatives accept.
                "oneOf" if self.is_lenient || self.exclude_each_other(value) => {
                    also.push(json!({ "anyOf": read }));
                }
                _ => _ = prepared.insert(keyword.clone(), read),
            }
        }
        self.forgive(check_together(&prepared, path))?;
        numbers::make_bounds_inclusive(&mut prepared);
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

    /// Whether the alternatives of a `oneOf` exclude each other.
    fn exclude_each_other(&self, alternatives: &Value) -> bool {
        let list = alternatives.as_array();
        let mut left = self.comparisons_left.get();
        let is_proven =
            list.is_some_and(|list| disjoint::exclude_each_other(self.root, list, &mut left));
        self.comparisons_left.set(left);
        is_proven
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
            "enum" | "const" => checked_constants(keyword, value, path),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                let is_draft4 = keyword.starts_with("exclusive") && value.is_boolean();
                match value.as_f64().and_then(|it| numbers::nearest_exact_bound(keyword, it)) {
                    Some(bound) => Ok(bound),
                    None if value.is_number() || is_draft4 => {
                        checked_constants(keyword, value, path)
                    }
                    None => wrong("a number"),
                }
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" => count(keyword, value, path),
            "pattern" => match value.as_str() {
                Some(pattern) => translated(keyword, pattern, path).map(Value::String),
                None => wrong("a string"),
            },
            "required" => match value.as_array() {
                Some(names) if names.iter().all(Value::is_string) => {
                    checked_constants(keyword, value, path)
                }
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
        let mut read = Map::new();
        for (name, schema) in members {
            let schema = self.schema(schema, &step(&place, name), depth + 1)?;
            let name = match keyword {
                "patternProperties" => translated(keyword, name, path)?,
                _ => name.clone(),
            };
            if keyword == "properties" {
                check_writable(keyword, &name, path)?;
            }
            // Different patterns can be the same after their translation.
            let both = read.shift_remove(&name).map(|first| json!({ "allOf": [first, schema] }));
            read.insert(name, both.unwrap_or(schema));
        }
        Ok(Value::Object(read))
    }

    /// Checks a reference, which must lead to a place in the same schema.
    fn reference(&self, value: &Value, path: &str) -> Result<Value, GrammarError> {
        let Some(target) = value.as_str() else {
            return Err(refused("$ref", path, "it must be a string"));
        };
        if !target.starts_with('#') || (target.len() > 1 && !target.starts_with("#/")) {
            let reason = format!(
                "{target} is not in the schema itself; write what it refers to under $defs, and \
                 \"#/$defs/name\""
            );
            return Err(refused("$ref", path, reason));
        }
        let pointer = references::pointer(target);
        match pointer.filter(|it| self.root.pointer(it).is_some()) {
            Some(pointer) => Ok(Value::String(self.targets.add(pointer))),
            None => Err(refused("$ref", path, format!("there is no schema at {target}"))),
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

/// Returns numbers that the compiler reads as multiples whose least common one is the given.
fn compiled_multiples(value: &Value, path: &str) -> Result<Vec<f64>, GrammarError> {
    let number = value.as_number().filter(|it| it.as_f64().is_some_and(|it| 0.0 < it));
    let Some(number) = number else {
        return Err(refused("multipleOf", path, "it must be a number above 0"));
    };
    Multiple::read(number).and_then(Multiple::as_compiled).ok_or_else(|| {
        let reason = format!(
            "found {number}, which the compiler of schemas cannot enforce exactly\n\
             hint: use a multiple with fewer digits, such as 0.01"
        );
        refused("multipleOf", path, reason)
    })
}

/// Returns a number of characters, items or members. In JSON Schema, 3.0 is the whole number 3; the
/// compiler reads only the latter.
fn count(keyword: &str, value: &Value, path: &str) -> Result<Value, GrammarError> {
    let limit = f64::from(u32::MAX);
    let is_count = |it: &f64| it.fract() == 0.0 && (0.0..=limit).contains(it);
    match value.as_f64().filter(is_count) {
        Some(count) => Ok(json!(count as u64)),
        None => Err(refused(keyword, path, "it must be a whole number from 0 to 4294967295")),
    }
}

/// Translates a pattern for the compiler.
fn translated(keyword: &str, pattern: &str, path: &str) -> Result<String, GrammarError> {
    check_bytes("pattern", pattern.len(), REGEX_BYTES_MAX)?;
    pattern::translate(pattern).map_err(|reason| refused(keyword, path, reason))
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

/// Checks that all numbers are exact as 64-bit floats, which is how they are compiled, and that all
/// strings can be written.
fn checked_constants(keyword: &str, value: &Value, path: &str) -> Result<Value, GrammarError> {
    let is_exact = |number: &serde_json::Number| match (number.as_u64(), number.as_i64()) {
        (Some(whole), _) => whole <= EXACT_MAX,
        (None, Some(whole)) => whole.unsigned_abs() <= EXACT_MAX,
        // Whole numbers of more than 64 bits are read as floats.
        (None, None) => number.as_f64().is_some_and(|it| it.abs() <= EXACT_MAX as f64),
    };
    let mut left = vec![value];
    while let Some(value) = left.pop() {
        match value {
            Value::Number(number) if !is_exact(number) => {
                let reason = format!("{number} is beyond 2^53, where numbers are not exact");
                return Err(refused(keyword, path, reason));
            }
            Value::String(text) => check_writable(keyword, text, path)?,
            Value::Array(list) => left.extend(list),
            Value::Object(members) => {
                members.keys().try_for_each(|name| check_writable(keyword, name, path))?;
                left.extend(members.values());
            }
            _ => {}
        }
    }
    Ok(value.clone())
}

/// Refuses a text with a character that is never generated. The compiler would drop it from a
/// constant, and not find a name with it among the names that a pattern matches.
fn check_writable(keyword: &str, text: &str, path: &str) -> Result<(), GrammarError> {
    match text.chars().find(|it| !pattern::is_writable(*it)) {
        Some(character) => Err(refused(keyword, path, pattern::unwritable(character))),
        None => Ok(()),
    }
}
