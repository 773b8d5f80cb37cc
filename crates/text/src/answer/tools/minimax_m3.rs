//! MiniMax M3: an element for each parameter, with a special token before every tag. Objects have
//! an element for each member, lists one for each item.
//!
//! ```text
//! ]<]minimax[>[<tool_call>
//! ]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Oslo]<]minimax[>[</city>
//! ]<]minimax[>[<tags>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[</tags>
//! ]<]minimax[>[</invoke>
//! ]<]minimax[>[</tool_call>
//! ```

use serde_json::Value;

use super::super::form::{Form, ReadCalls};
use super::super::frame::{Frame, Free};
use super::super::lark::{Close, Lark, Parameter, ToolGrammarError, is_required, part};
use super::super::pattern::{Pattern, Position, Step};
use super::super::reasoning::bare;
use super::super::schema::{Types, json_object, properties, referred};
use super::super::{ToolCall, ToolSpec, Tools};
use super::ToolFamily;

/// The special token before every tag.
const MARK: &str = "]<]minimax[>[";

/// Maximum nesting depth of a value; deeper ones are refused, and are written as JSON by grammars.
const DEPTH_MAX: usize = 16;

const STEPS: &[Step] = &[
    Step::Literal("]<]minimax[>[<tool_call>"),
    Step::Space,
    Step::Literal("]<]minimax[>[<invoke name=\""),
    Step::Word,
    Step::Literal("\">"),
    Step::Until("]<]minimax[>[</invoke>"),
];

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "minimax_m3",
    aliases: &[],
    signs: &[&["]<]minimax[>["], &["<mm:think>"]],
    vocabulary: &["]<]minimax[>["],
    patterns: &[
        Pattern {
            trigger: "]<]minimax[>[<tool_call>",
            place: Position::Anywhere,
            steps: STEPS,
            form: FORM,
        },
        Pattern {
            trigger: "]<]minimax[>[<invoke name=\"",
            place: Position::AfterCall,
            steps: STEPS.split_at(2).1,
            form: FORM,
        },
        bare(
            "]<]minimax[>[</tool_call>",
            Position::AfterCall,
            &[Step::Literal("]<]minimax[>[</tool_call>")],
        ),
    ],
    marks: &[],
    frame: Frame {
        before: "\n\n",
        trigger: "]<]minimax[>[<tool_call>",
        open: "\n",
        separator: Some("\n"),
        close: "\n]<]minimax[>[</tool_call>",
        free: Free::Anywhere,
    },
    item,
};

const FORM: Form = Form::Literals(read);

/// Reads the elements in the second field, or in `rest` if the call has no end.
fn read(fields: &[&str], rest: Option<&str>, tools: &Tools) -> Option<ReadCalls> {
    let (name, body) = fields.split_first()?;
    let root = tools.parameters(name).unwrap_or(&Value::Null);
    let mut elements = Elements { rest: body.first().copied().or(rest)?, root };
    let mut children = Vec::new();
    let is_whole = elements.children(&mut children, DEPTH_MAX).is_some() && !body.is_empty();
    if !is_whole && rest.is_none() {
        return None;
    }
    let mut arguments = elements.members(children, root);
    if !is_whole {
        arguments.pop();
    }
    let calls = vec![ToolCall::new(name, &arguments)];
    Some(ReadCalls { calls, is_cut: !is_whole })
}

/// An element with its text and the elements within it.
struct Element<'a> {
    tag: &'a str,
    text: String,
    children: Vec<Element<'a>>,
}

/// Reads elements from the front of a text.
struct Elements<'a> {
    rest: &'a str,
    /// The schema of the tool's parameters.
    root: &'a Value,
}

impl<'a> Elements<'a> {
    /// Reads elements up to the end of the text and appends them; returns `None` where one is
    /// malformed or cut.
    fn children(&mut self, children: &mut Vec<Element<'a>>, depth: usize) -> Option<()> {
        while !self.rest.trim_ascii().is_empty() {
            self.rest = self.rest.trim_ascii_start().strip_prefix(MARK)?;
            children.push(self.element(depth)?);
        }
        Some(())
    }

    /// Reads an element whose mark has been consumed.
    fn element(&mut self, depth: usize) -> Option<Element<'a>> {
        let left = depth.checked_sub(1)?;
        let (tag, rest) = self.rest.strip_prefix('<')?.split_once('>')?;
        self.rest = rest;
        let mut element = Element { tag, text: String::new(), children: Vec::new() };
        loop {
            let (text, rest) = self.rest.split_once(MARK)?;
            element.text.push_str(text);
            self.rest = rest;
            let Some(closed) = self.rest.strip_prefix("</") else {
                element.children.push(self.element(left)?);
                continue;
            };
            self.rest = closed.strip_prefix(tag)?.strip_prefix('>')?;
            return Some(element);
        }
    }

    /// Returns the elements as the members of a JSON object of this schema. Elements with the same
    /// tag are the items of a list.
    fn members(&self, elements: Vec<Element<'_>>, schema: &Value) -> String {
        let mut members: Vec<(String, Vec<String>)> = Vec::new();
        for element in elements {
            let known = properties(schema).and_then(|known| known.get(element.tag));
            let other = || schema.get("additionalProperties");
            let (tag, value) = (element.tag.to_owned(), self.value(element, known.or_else(other)));
            match members.iter_mut().find(|(key, _)| *key == tag) {
                Some((_, values)) => values.push(value),
                None => members.push((tag, vec![value])),
            }
        }
        let joined = members.into_iter().map(|(key, mut values)| match values.len() {
            1 => (key, values.remove(0)),
            _ => (key, format!("[{}]", values.join(", "))),
        });
        json_object(&joined.collect::<Vec<_>>())
    }

    fn value(&self, element: Element<'_>, schema: Option<&Value>) -> String {
        let schema = schema.unwrap_or(&Value::Null);
        let schema = referred(schema, self.root).unwrap_or(schema);
        let types = Types::of(schema, self.root);
        if element.children.is_empty() {
            let is_empty = element.text.trim_ascii().is_empty() && !types.is_text();
            return match is_empty {
                true if types.has("array") => "[]".to_owned(),
                true if types.has("object") => "{}".to_owned(),
                _ => types.json(&element.text),
            };
        }
        let is_list = element.children.iter().all(|child| child.tag == "item");
        if types.has("array") || is_list && !types.has("object") {
            let items = element.children.into_iter().map(|it| self.value(it, schema.get("items")));
            return format!("[{}]", items.collect::<Vec<_>>().join(", "));
        }
        self.members(element.children, schema)
    }
}

fn item(lark: &mut Lark<'_>, tool: &ToolSpec) -> Result<String, ToolGrammarError> {
    let members = members(lark, tool, &tool.parameters, DEPTH_MAX)?;
    let head = lark.text(&format!("{MARK}<invoke name=\"{}\">", tool.name));
    Ok(format!("{head} {members} {}", lark.text(&format!("{MARK}</invoke>"))))
}

/// Returns the grammar of the elements of an object, in the order of its schema.
fn members(
    lark: &mut Lark<'_>,
    tool: &ToolSpec,
    schema: &Value,
    depth: usize,
) -> Result<String, ToolGrammarError> {
    let required = schema["required"].as_array();
    let mut parts = Vec::new();
    for (name, inner) in properties(schema).into_iter().flatten() {
        let body = element(lark, tool, Parameter { name, schema: inner }, depth)?;
        let is_outer = std::ptr::eq(schema, &raw const tool.parameters);
        let is_required = match required {
            Some(names) if !is_outer => names.iter().any(|it| it == name),
            _ => is_required(tool, name),
        };
        parts.push(format!("({}){}", lark.rule(&body), if is_required { "" } else { "?" }));
    }
    Ok(parts.join(" "))
}

/// Returns the grammar of one element.
fn element(
    lark: &mut Lark<'_>,
    tool: &ToolSpec,
    parameter: Parameter<'_>,
    depth: usize,
) -> Result<String, ToolGrammarError> {
    let Parameter { name, schema } = parameter;
    let schema = referred(schema, &tool.parameters).unwrap_or(schema);
    let types = Types::of(schema, &tool.parameters);
    let open = lark.text(&format!("{MARK}<{name}>"));
    let after = format!("</{name}>");
    if types.is_text() {
        // No text contains the mark.
        let close = Close { before: "", tag: MARK, after: &after };
        return Ok(format!("{open} {}", lark.plain_text(tool, Parameter { name, schema }, close)?));
    }
    let close = lark.text(&format!("{MARK}{after}"));
    let body = match depth.checked_sub(1) {
        Some(left) if types.has("array") && schema.get("items").is_some() => {
            let items = Parameter { name: "item", schema: &schema["items"] };
            let item = element(lark, tool, items, left)?;
            format!("({})*", lark.rule(&item))
        }
        Some(left) if types.has("object") && properties(schema).is_some() => {
            members(lark, tool, schema, left)?
        }
        _ => Lark::json(&part(tool, schema)),
    };
    Ok(format!("{open} {body} {close}"))
}
