//! Tables of the endpoints and their parameters as Markdown, from the OpenAPI document.

use std::fmt::Write;

use serde_json::{Map, Value};
use utoipa::openapi::OpenApi;

/// Maximum depth of nested schema references; a greater depth is a bug.
const DEPTH_MAX: usize = 16;

/// Status of a parameter that has an effect.
const ACCEPTED: &str = "yes";

/// Status of a parameter that is refused unless its value asks for nothing.
const REFUSED: &str = "refused";

/// Writes one table of all endpoints and one of each endpoint's parameters, as Markdown.
///
/// # Panics
/// If schemas refer to each other without an end.
pub fn tables(document: &OpenApi) -> String {
    let document = serde_json::to_value(document).expect("a description is JSON");
    let mut page = String::from("| Endpoint | Answers |\n|---|---|\n");
    let operations = operations(&document);
    for (name, operation) in &operations {
        let summary = cell(&operation["summary"]);
        writeln!(page, "| `{name}` | {summary} |").expect("a string takes everything");
    }
    for (name, operation) in &operations {
        let parameters = parameters(&document, operation);
        if parameters.is_empty() {
            continue;
        }
        write!(
            page,
            "\n### `{name}`\n\n| Parameter | Type | Status | Meaning |\n|---|---|---|---|\n"
        )
        .expect("a string takes everything");
        for Parameter { name, kind, status, meaning } in parameters {
            writeln!(page, "| `{name}` | {kind} | {status} | {meaning} |")
                .expect("a string takes everything");
        }
    }
    page
}

/// Names such as `POST /path` with their operations, in the order of the description.
fn operations(document: &Value) -> Vec<(String, &Value)> {
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in item.as_object().into_iter().flatten() {
            operations.push((format!("{} {path}", method.to_uppercase()), operation));
        }
    }
    operations
}

struct Parameter {
    name: String,
    kind: String,
    status: String,
    meaning: String,
}

fn parameters(document: &Value, operation: &Value) -> Vec<Parameter> {
    let mut parameters = Vec::new();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        parameters.push(Parameter {
            name: parameter["name"].as_str().unwrap_or_default().to_owned(),
            kind: kind(document, &parameter["schema"], 0),
            status: ACCEPTED.to_owned(),
            meaning: cell(&parameter["description"]),
        });
    }
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    let mut collected = Collected { document, parameters };
    collected.add(body, &SchemaContext::default());
    let mut parameters = collected.parameters;
    // Parameters without effect and refused ones go to the end.
    parameters.sort_by_key(|parameter| match parameter.status.as_str() {
        ACCEPTED => 0,
        REFUSED => 2,
        _ => 1,
    });
    parameters
}

/// The context of a schema within a body.
#[derive(Default)]
struct SchemaContext {
    /// Prefix of the names of the schema's properties.
    prefix: String,
    /// Status that applies to all properties of the schema.
    status: Option<String>,
    depth: usize,
}

/// The parameters found so far; of several with the same name, the first one is kept.
struct Collected<'a> {
    document: &'a Value,
    parameters: Vec<Parameter>,
}

impl Collected<'_> {
    /// Appends the properties of a schema, of the schemas it consists of, and of objects in it.
    fn add(&mut self, schema: &Value, context: &SchemaContext) {
        assert!(context.depth < DEPTH_MAX, "schemas refer to each other without an end");
        let schema = resolve(self.document, schema);
        let depth = context.depth + 1;
        let status_of = |it: &Value| it["x-status"].as_str().map(str::to_owned);
        let whole = status_of(schema).or_else(|| context.status.clone());
        for part in schema["allOf"].as_array().into_iter().flatten() {
            self.add(
                part,
                &SchemaContext { prefix: context.prefix.clone(), status: whole.clone(), depth },
            );
        }
        for (name, property) in schema["properties"].as_object().unwrap_or(&Map::new()) {
            let name = format!("{}{name}", context.prefix);
            let status = status_of(property).or_else(|| whole.clone());
            if self.parameters.iter().any(|known| known.name == name) {
                continue;
            }
            let target = object_of(self.document, property);
            let alternatives = property["oneOf"].as_array().into_iter().flatten();
            let described = std::iter::once(property).chain(alternatives).chain([target]);
            let mut meanings = described.map(|it| cell(&it["description"]));
            self.parameters.push(Parameter {
                name: name.clone(),
                kind: kind(self.document, property, 0),
                status: status.clone().unwrap_or_else(|| ACCEPTED.to_owned()),
                meaning: meanings.find(|it| !it.is_empty()).unwrap_or_default(),
            });
            self.add(target, &SchemaContext { prefix: format!("{name}."), status, depth });
        }
    }
}

/// The schema that a property refers to, directly or as its only alternative besides null.
fn object_of<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let alternatives = schema["oneOf"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut present = alternatives.iter().filter(|it| it["type"] != "null");
    match (present.next(), present.next()) {
        (Some(only), None) => resolve(document, only),
        _ => resolve(document, schema),
    }
}

/// The schema that a reference refers to; the schema itself if it is not a reference.
fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let name = schema["$ref"].as_str().and_then(|it| it.strip_prefix("#/components/schemas/"));
    name.map_or(schema, |name| &document["components"]["schemas"][name])
}

/// The type in words, without saying that the value may be absent or null.
fn kind(document: &Value, schema: &Value, depth: usize) -> String {
    if depth >= DEPTH_MAX {
        return "…".to_owned();
    }
    let schema = resolve(document, schema);
    let each = |list: &Value| {
        let mut kinds: Vec<String> = Vec::new();
        for part in list.as_array().into_iter().flatten() {
            let kind = kind(document, part, depth + 1);
            if part["type"] != "null" && !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds.join(" or ")
    };
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        return values.join(", ");
    }
    for alternatives in ["oneOf", "anyOf", "allOf"] {
        if schema[alternatives].is_array() {
            return each(&schema[alternatives]);
        }
    }
    let first = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().find(|kind| *kind != "null"),
        kind => Some(kind),
    };
    match first.and_then(Value::as_str) {
        Some("array") => format!("list of {}", kind(document, &schema["items"], depth + 1)),
        Some(kind) => kind.to_owned(),
        None => "any".to_owned(),
    }
}

/// Formats a text as a table cell: its first paragraph on one line.
fn cell(text: &Value) -> String {
    let text = text.as_str().unwrap_or_default();
    let first = text.split("\n\n").next().unwrap_or_default();
    first.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
