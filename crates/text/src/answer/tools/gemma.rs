//! Gemma 4, and FunctionGemma, which is based on Gemma 3: names without quotes, and a special mark
//! around text.
//!
//! ```text
//! <|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>
//! <start_function_call>call:weather{city:<escape>Oslo<escape>}<end_function_call>
//! ```
//!
//! Gemma 3 itself was trained to write Python calls, which is the pythonic format.

use serde_json::Value;

use super::super::form::{Form, ReadCalls};
use super::super::frame::{Frame, Free};
use super::super::lark::{
    Close, Lark, Parameter, ToolGrammarError, comma_separated, is_required, part,
};
use super::super::literal::Literals;
use super::super::pattern::{Pattern, Position, Step};
use super::super::schema::{Types, properties, referred};
use super::super::{ToolCall, ToolSpec};
use super::ToolFamily;

const MARK: &str = "<|\"|>";
const ESCAPE: &str = "<escape>";

/// Maximum depth to which schemas of nested values are followed; deeper values may be anything.
const DEPTH_MAX: usize = 8;

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "gemma4",
    aliases: &["gemma"],
    signs: &[&["<|tool_call>"]],
    vocabulary: &[],
    patterns: &[Pattern {
        trigger: "<|tool_call>",
        place: Position::Anywhere,
        steps: &[
            Step::Literal("<|tool_call>"),
            Step::Space,
            Step::Literal("call:"),
            Step::Word,
            Step::Literal("{"),
            Step::Until("<tool_call|>"),
        ],
        form: Form::Literals(|fields, rest, _| read(fields, rest, MARK)),
    }],
    marks: &[MARK],
    frame: Frame {
        before: "",
        trigger: "<|tool_call>",
        open: "call:",
        separator: Some("<tool_call|><|tool_call>call:"),
        close: "<tool_call|>",
        free: Free::Anywhere,
    },
    item: |lark, tool| item(lark, tool, MARK),
};

pub(super) static FUNCTION_GEMMA: ToolFamily = ToolFamily {
    name: "function_gemma",
    aliases: &["functiongemma"],
    signs: &[&["<start_function_call>"]],
    vocabulary: &[],
    patterns: &[Pattern {
        trigger: "<start_function_call>",
        place: Position::Anywhere,
        steps: &[
            Step::Literal("<start_function_call>"),
            Step::Space,
            Step::Literal("call:"),
            Step::Word,
            Step::Literal("{"),
            Step::Until("<end_function_call>"),
        ],
        form: Form::Literals(|fields, rest, _| read(fields, rest, ESCAPE)),
    }],
    marks: &[ESCAPE],
    frame: Frame {
        before: "",
        trigger: "<start_function_call>",
        open: "call:",
        separator: Some("<end_function_call><start_function_call>call:"),
        close: "<end_function_call>",
        free: Free::Anywhere,
    },
    item: |lark, tool| item(lark, tool, ESCAPE),
};

fn read(fields: &[&str], rest: Option<&str>, mark: &'static str) -> Option<ReadCalls> {
    let (name, body) = fields.split_first()?;
    let mut literals = Literals::marked(body.first().copied().or(rest)?, mark);
    let arguments = literals.members(":", "}");
    let is_whole = arguments.is_whole && literals.is_empty();
    let is_read = rest.is_some() || is_whole;
    let calls = vec![ToolCall::new(name, &arguments.json())];
    is_read.then_some(ReadCalls { calls, is_cut: !is_whole })
}

fn item(
    lark: &mut Lark<'_>,
    tool: &ToolSpec,
    mark: &'static str,
) -> Result<String, ToolGrammarError> {
    let (mut required, mut optional) = (Vec::new(), Vec::new());
    for (name, schema) in properties(&tool.parameters).into_iter().flatten() {
        let head = lark.text(&format!("{name}:"));
        let value = value(lark, tool, Parameter { name, schema }, mark, DEPTH_MAX)?;
        let member = lark.rule(&format!("{head} {value}"));
        if is_required(tool, name) { &mut required } else { &mut optional }.push(member);
    }
    let head = lark.text(&format!("{}{{", tool.name));
    Ok(format!("{head} {} \"}}\"", comma_separated(&required, &optional, "\",\"")))
}

/// Returns the grammar of one value of a parameter, or of a part of one.
fn value(
    lark: &mut Lark<'_>,
    tool: &ToolSpec,
    parameter: Parameter<'_>,
    mark: &'static str,
    depth: usize,
) -> Result<String, ToolGrammarError> {
    let Parameter { name, schema } = parameter;
    let schema = referred(schema, &tool.parameters).unwrap_or(schema);
    let types = Types::of(schema, &tool.parameters);
    let Some(left) = depth.checked_sub(1).filter(|_| !types.is_text()) else {
        let close = Close { before: "", tag: mark, after: "" };
        let text = lark.plain_text(tool, Parameter { name, schema }, close)?;
        return Ok(format!("{} {text}", lark.text(mark)));
    };
    if types.has("array") {
        let any = Value::Bool(true);
        let items = schema.get("items").unwrap_or(&any);
        let item = value(lark, tool, Parameter { name, schema: items }, mark, left)?;
        let item = lark.rule(&item);
        return Ok(format!("\"[\" ({item} (\",\" {item})*)? \"]\""));
    }
    if types.has("object") {
        let mut members = Vec::new();
        for (key, inner) in properties(schema).into_iter().flatten() {
            let body = value(lark, tool, Parameter { name, schema: inner }, mark, left)?;
            members.push(lark.rule(&format!("{} {body}", lark.text(&format!("{key}:")))));
        }
        return Ok(format!("\"{{\" {} \"}}\"", comma_separated(&members, &[], "\",\"")));
    }
    Ok(Lark::json(&part(tool, schema)))
}
