//! Resolves the references of a schema, and replaces those whose target no finite value satisfies.

use std::cell::RefCell;
use std::collections::HashMap;

use serde_json::{Map, Value};

/// Returns the JSON pointer (RFC 6901) of a reference within the same document, or `None` if it
/// does not lead to a schema. `%20` and the like are decoded.
pub(super) fn pointer(reference: &str) -> Option<String> {
    let fragment = decoded(reference.strip_prefix('#')?)?;
    if fragment.is_empty() || fragment == "/" {
        return Some(String::new());
    }
    leads_through_schemas(fragment.strip_prefix('/')?).then_some(fragment)
}

/// Decodes percent-encoded bytes (RFC 3986).
fn decoded(fragment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut parts = fragment.split('%');
    bytes.extend(parts.next().unwrap_or_default().bytes());
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let is_hex = digits.bytes().all(|it| it.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
        bytes.extend(rest.bytes());
    }
    String::from_utf8(bytes).ok()
}

/// Whether every step of the pointer is a keyword that holds a schema, or a name below one.
/// Annotations are removed, so a reference into them would lead nowhere.
fn leads_through_schemas(pointer: &str) -> bool {
    let mut steps = pointer.split('/');
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

/// The targets of references, numbered in the order in which they are found. A prepared schema has
/// them under these numbers in its `$defs`, because the compiler reads no escapes in references.
#[derive(Debug, Default)]
pub(super) struct Targets {
    pointers: RefCell<Vec<String>>,
    numbers: RefCell<HashMap<String, usize>>,
}

impl Targets {
    /// Returns the reference to a target in the prepared schema.
    pub(super) fn add(&self, pointer: String) -> String {
        if pointer.is_empty() {
            return "#".to_owned();
        }
        let mut pointers = self.pointers.borrow_mut();
        let idx = *self.numbers.borrow_mut().entry(pointer).or_insert_with_key(|pointer| {
            pointers.push(pointer.clone());
            pointers.len() - 1
        });
        format!("#/$defs/{idx}")
    }

    /// Returns the pointer of a target in the schema as it was sent.
    pub(super) fn get(&self, idx: usize) -> Option<String> {
        self.pointers.borrow().get(idx).cloned()
    }
}

/// Replaces each schema that needs a value without an end by `false`, so that the compiler leaves
/// out the optional members and items that have it. Returns false if the whole schema needs one.
pub(super) fn replace_endless(root: &mut Value) -> bool {
    let definitions = root.get("$defs").and_then(Value::as_object).map_or(0, Map::len);
    // The last one stands for the root.
    let mut ends = Ends { known: vec![false; definitions + 1] };
    let schema = |idx: usize| root.get("$defs").and_then(|it| it.get(idx.to_string()));
    let schema = |idx: usize| schema(idx).unwrap_or(root);
    let mut dependents = vec![Vec::new(); definitions + 1];
    for idx in 0..=definitions {
        let mut used = Vec::new();
        used_by(schema(idx), &mut used);
        used.iter().for_each(|it| dependents[ends.position(it)].push(idx));
    }
    let mut left: Vec<usize> = (0..=definitions).collect();
    while let Some(idx) = left.pop() {
        if !ends.known[idx] && ends.schema(schema(idx)) {
            ends.known[idx] = true;
            left.append(&mut dependents[idx]);
        }
    }
    if !ends.known[definitions] {
        return false;
    }
    if ends.known.contains(&false) {
        ends.replace(root);
    }
    true
}

/// Collects the references of a schema, apart from its definitions.
fn used_by<'a>(schema: &'a Value, used: &mut Vec<&'a str>) {
    let members = schema.as_object().into_iter().flatten();
    let mut left: Vec<&Value> =
        members.filter(|(name, _)| *name != "$defs").map(|(_, it)| it).collect();
    used.extend(schema.get("$ref").and_then(Value::as_str));
    while let Some(value) = left.pop() {
        match value {
            Value::Array(list) => left.extend(list),
            Value::Object(members) => {
                used.extend(members.get("$ref").and_then(Value::as_str));
                left.extend(members.values());
            }
            _ => {}
        }
    }
}

/// Which targets of references some finite value satisfies, as far as is known.
struct Ends {
    known: Vec<bool>,
}

impl Ends {
    fn position(&self, reference: &str) -> usize {
        let number = reference.strip_prefix("#/$defs/").and_then(|it| it.parse().ok());
        number.unwrap_or(self.known.len() - 1)
    }

    /// Whether some finite value satisfies the schema, as far as references decide.
    fn schema(&self, schema: &Value) -> bool {
        let Some(members) = schema.as_object() else { return *schema != false };
        let mut parts = Vec::new();
        collect_parts(members, &mut parts);
        let in_place = |part: &&Map<String, Value>| {
            let list = |keyword: &str| part.get(keyword).and_then(Value::as_array);
            let reference = part.get("$ref").and_then(Value::as_str);
            reference.is_none_or(|it| self.known[self.position(it)])
                && list("allOf").is_none_or(|all| all.iter().all(|it| *it != false))
                && list("anyOf").is_none_or(|any| any.iter().any(|it| self.schema(it)))
                && list("oneOf").is_none_or(|any| any.iter().any(|it| self.schema(it)))
        };
        parts.iter().all(in_place) && self.some_type(&parts)
    }

    /// Whether some type that all parts allow has a finite value.
    fn some_type(&self, parts: &[&Map<String, Value>]) -> bool {
        let is_of = |stated: &Value, name: &str| {
            stated == name || (stated == "number" && name == "integer")
        };
        let allows = |part: &&Map<String, Value>, name: &str| match part.get("type") {
            Some(Value::Array(list)) => list.iter().any(|it| is_of(it, name)),
            Some(one) => is_of(one, name),
            None => true,
        };
        let allowed = |name: &str| parts.iter().all(|part| allows(part, name));
        let has_values = parts.iter().any(|it| it.contains_key("const") || it.contains_key("enum"));
        let scalars = ["null", "boolean", "integer", "number", "string"];
        has_values
            || scalars.iter().any(|name| allowed(name))
            || (allowed("array") && parts.iter().all(|part| self.items(part)))
            || (allowed("object") && self.members(parts))
    }

    /// Whether the items that an array must have end.
    fn items(&self, part: &Map<String, Value>) -> bool {
        let least = part.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        let least = usize::try_from(least).unwrap_or(usize::MAX);
        let listed = part.get("prefixItems").or(part.get("items")).and_then(Value::as_array);
        let listed = listed.map_or(&[][..], Vec::as_slice);
        let others = part.get("items").filter(|it| !it.is_array()).or(part.get("additionalItems"));
        listed.iter().take(least).all(|it| self.schema(it))
            && (least <= listed.len() || others.is_none_or(|it| self.schema(it)))
    }

    /// Whether the members that an object must have end.
    fn members(&self, parts: &[&Map<String, Value>]) -> bool {
        let names = parts.iter().filter_map(|it| it.get("required")?.as_array()).flatten();
        names.filter_map(Value::as_str).all(|name| {
            parts.iter().all(|part| {
                let own = part.get("properties").and_then(|it| it.get(name));
                let others = part.get("additionalProperties");
                let others = others.filter(|_| !part.contains_key("patternProperties"));
                own.or(others).is_none_or(|it| self.schema(it))
            })
        })
    }

    /// Replaces each schema that refers to an endless one.
    fn replace(&self, schema: &mut Value) {
        let reference = schema.get("$ref").and_then(Value::as_str);
        if reference.is_some_and(|it| !self.known[self.position(it)]) {
            *schema = Value::Bool(false);
            return;
        }
        for (keyword, value) in schema.as_object_mut().into_iter().flatten() {
            match keyword.as_str() {
                "properties" | "patternProperties" | "$defs" => {
                    let members = value.as_object_mut().into_iter().flatten();
                    members.for_each(|(_, it)| self.replace(it));
                }
                "items"
                | "additionalItems"
                | "additionalProperties"
                | "prefixItems"
                | "allOf"
                | "anyOf"
                | "oneOf" => match value {
                    Value::Array(list) => list.iter_mut().for_each(|it| self.replace(it)),
                    one => self.replace(one),
                },
                _ => {}
            }
        }
    }
}

/// Collects a schema and those in its `allOf`, without those behind references.
fn collect_parts<'a>(members: &'a Map<String, Value>, parts: &mut Vec<&'a Map<String, Value>>) {
    parts.push(members);
    let all = members.get("allOf").and_then(Value::as_array).into_iter().flatten();
    all.filter_map(Value::as_object).for_each(|it| collect_parts(it, parts));
}
