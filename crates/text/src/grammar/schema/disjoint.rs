//! Proves that the alternatives of `oneOf` exclude each other, so that it means the same as `anyOf`.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::references;

/// Maximum number of comparisons for one schema. Beyond it, nothing counts as proven.
pub(super) const COMPARISONS_MAX: usize = 2_000_000;
/// Maximum nesting of objects whose members are compared.
const DEPTH_MAX: usize = 8;

/// Types of JSON values, as bits. Whole numbers are a type of their own.
const TYPES: [(&str, u8); 7] = [
    ("null", 1),
    ("boolean", 2),
    ("integer", 4),
    ("number", 4 | 8),
    ("string", 16),
    ("array", 32),
    ("object", OBJECT),
];
const OBJECT: u8 = 64;
const ANY: u8 = 127;

/// Whether no value satisfies two of the alternatives, as far as can be proven from their types,
/// their constants, and the members that they require. `root` is the document of references, `left`
/// the number of comparisons that are left.
pub(super) fn exclude_each_other(root: &Value, alternatives: &[Value], left: &mut usize) -> bool {
    let mut prover = Prover { root, left: *left };
    let parts: Vec<Parts> = alternatives.iter().map(|it| prover.parts(&[it])).collect();
    let is_proven = parts
        .iter()
        .enumerate()
        .all(|(idx, one)| parts[idx + 1..].iter().all(|other| prover.is_disjoint(one, other, 0)));
    *left = prover.left;
    is_proven
}

/// Schemas that must all hold.
#[derive(Clone, Default)]
struct Parts<'a> {
    schemas: Vec<&'a Map<String, Value>>,
    /// Lists of alternatives, one of which must hold in addition.
    choices: Vec<&'a Vec<Value>>,
    is_false: bool,
}

struct Prover<'a> {
    root: &'a Value,
    left: usize,
}

impl<'a> Prover<'a> {
    /// Collects what must hold, through references and `allOf`.
    fn parts(&mut self, schemas: &[&'a Value]) -> Parts<'a> {
        let mut parts = Parts::default();
        let mut seen = HashSet::new();
        let mut left = schemas.to_vec();
        while let Some(schema) = left.pop() {
            self.left = self.left.saturating_sub(1);
            parts.is_false |= *schema == false;
            let Some(members) = schema.as_object() else { continue };
            if self.left == 0 || !seen.insert(std::ptr::from_ref(members)) {
                continue;
            }
            parts.schemas.push(members);
            let list = |keyword: &str| members.get(keyword).and_then(Value::as_array);
            left.extend(list("allOf").into_iter().flatten());
            parts.choices.extend(["anyOf", "oneOf"].iter().filter_map(|it| list(it)));
            let reference = members.get("$ref").and_then(Value::as_str);
            let pointer = reference.and_then(references::pointer);
            left.extend(pointer.and_then(|it| self.root.pointer(&it)));
        }
        parts
    }

    fn is_disjoint(&mut self, left: &Parts<'a>, right: &Parts<'a>, depth: usize) -> bool {
        if self.left == 0 || DEPTH_MAX < depth {
            return false;
        }
        self.left -= 1;
        if self.is_disjoint_directly(left, right, depth) {
            return true;
        }
        let (open, other) = if left.choices.is_empty() { (right, left) } else { (left, right) };
        let mut rest = open.clone();
        let Some(choice) = rest.choices.pop() else { return false };
        choice.iter().all(|alternative| {
            let more = self.parts(&[alternative]);
            let mut all = rest.clone();
            all.schemas.extend(more.schemas);
            all.choices.extend(more.choices);
            all.is_false |= more.is_false;
            self.is_disjoint(&all, other, depth + 1)
        })
    }

    /// Whether the two exclude each other, without a look at their alternatives.
    fn is_disjoint_directly(&mut self, left: &Parts<'a>, right: &Parts<'a>, depth: usize) -> bool {
        let types = left.types() & right.types();
        if left.is_false || right.is_false || types == 0 {
            return true;
        }
        let constants = |parts: &Parts<'a>| -> Vec<Vec<&'a Value>> {
            parts.schemas.iter().filter_map(|it| constants(it)).collect()
        };
        let (ours, theirs) = (constants(left), constants(right));
        let num_values = |all: &[Vec<&Value>]| all.iter().map(Vec::len).sum::<usize>();
        self.left = self.left.saturating_sub(num_values(&ours) * num_values(&theirs));
        if self.left == 0 {
            return false;
        }
        let is_common = |one: &&Value, many: &[&Value]| many.iter().any(|it| is_equal(one, it));
        let differ = |ours: &Vec<&Value>, theirs: &Vec<&Value>| {
            !ours.iter().any(|it| types & type_of(it) != 0 && is_common(it, theirs))
        };
        ours.iter().any(|ours| theirs.iter().any(|theirs| differ(ours, theirs)))
            || (types == OBJECT && self.members_are_disjoint(left, right, depth))
    }

    /// Whether a member that one of the two requires has different values in both.
    fn members_are_disjoint(&mut self, left: &Parts<'a>, right: &Parts<'a>, depth: usize) -> bool {
        let both = left.schemas.iter().chain(&right.schemas);
        let names = both.filter_map(|it| it.get("required")?.as_array()).flatten();
        let names: HashSet<&str> = names.filter_map(Value::as_str).collect();
        names.iter().any(|name| {
            let (ours, theirs) = (left.member(name), right.member(name));
            let (ours, theirs) = (self.parts(&ours), self.parts(&theirs));
            self.is_disjoint(&ours, &theirs, depth + 1)
        })
    }
}

impl<'a> Parts<'a> {
    fn types(&self) -> u8 {
        self.schemas.iter().fold(ANY, |types, part| types & types_of(part))
    }

    /// Returns the schemas that the member must satisfy.
    fn member(&self, name: &str) -> Vec<&'a Value> {
        let schema = |part: &&'a Map<String, Value>| {
            let others = part.get("additionalProperties");
            let others = others.filter(|_| !part.contains_key("patternProperties"));
            part.get("properties").and_then(|it| it.get(name)).or(others)
        };
        self.schemas.iter().filter_map(schema).collect()
    }
}

/// Returns the types that the keywords of one schema allow.
fn types_of(members: &Map<String, Value>) -> u8 {
    let named = |name: &Value| {
        let known = TYPES.iter().find(|(known, _)| name == known);
        known.map_or(ANY, |(_, bits)| *bits)
    };
    let types = match members.get("type") {
        Some(Value::Array(list)) => list.iter().fold(0, |types, it| types | named(it)),
        Some(name) => named(name),
        None => ANY,
    };
    let values = constants(members);
    types & values.map_or(ANY, |all| all.iter().fold(0, |types, it| types | type_of(it)))
}

/// Returns the values of `const` or `enum`, if the schema has one of them.
fn constants(members: &Map<String, Value>) -> Option<Vec<&Value>> {
    let one = members.get("const").map(|it| vec![it]);
    one.or_else(|| Some(members.get("enum")?.as_array()?.iter().collect()))
}

fn type_of(value: &Value) -> u8 {
    match value {
        Value::Null => 1,
        Value::Bool(_) => 2,
        Value::Number(number) if number.as_f64().is_some_and(|it| it.fract() != 0.0) => 8,
        Value::Number(_) => 4,
        Value::String(_) => 16,
        Value::Array(_) => 32,
        Value::Object(_) => OBJECT,
    }
}

/// Whether two values are the same in JSON Schema, where 1 and 1.0 are.
fn is_equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.as_f64() == right.as_f64(),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(a, b)| is_equal(a, b))
        }
        (Value::Object(left), Value::Object(right)) => {
            let same = |(name, it): (&String, &Value)| {
                right.get(name).is_some_and(|other| is_equal(it, other))
            };
            left.len() == right.len() && left.iter().all(same)
        }
        _ => left == right,
    }
}
