//! Command R7B and Command A: a JSON list between special tokens. The first Command R: a JSON list
//! in a code fence.
//!
//! ```text
//! <|START_ACTION|>[
//!     {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Oslo"}}
//! ]<|END_ACTION|>
//!
//! Action:
//! ```json
//! [{"tool_name": "weather", "parameters": {"city": "Oslo"}}]```
//! ```
//!
//! The ids count calls from zero in every conversation, so they are not reported.

use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::json::Needs;
use super::super::lark::Lark;
use super::super::pattern::{Pattern, Position, Step};
use super::super::{ToolCall, ToolSpec};
use super::ToolFamily;

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "cohere",
    aliases: &["command_r7b", "command_a", "cohere_command3", "cohere_command4"],
    signs: &[&["<|START_ACTION|>"]],
    vocabulary: &["<|START_ACTION|>", "<|END_ACTION|>"],
    patterns: &[Pattern {
        trigger: "<|START_ACTION|>",
        place: Position::Anywhere,
        steps: &[
            Step::Literal("<|START_ACTION|>"),
            Step::Space,
            Step::Json { opened: 0 },
            Step::Space,
            Step::Literal("<|END_ACTION|>"),
        ],
        form: FORM,
    }],
    marks: &[],
    frame: Frame {
        before: "",
        trigger: "<|START_ACTION|>",
        open: "[\n    {\"tool_call_id\": \"",
        separator: Some(",\n    {\"tool_call_id\": \""),
        close: "\n]<|END_ACTION|>",
        free: Free::Start {
            text: "<|START_RESPONSE|>",
            is_open: false,
            body: "/(?s:.*)/",
            end: "<|END_RESPONSE|>",
            to_calls: None,
        },
    },
    item: |lark, tool| {
        let head = lark.text(&format!("\", {}", head(tool)));
        Ok(format!("/[0-9]{{1,3}}/ {head} {} \"}}\"", Lark::arguments(tool)))
    },
};

pub(super) static COMMAND_R: ToolFamily = ToolFamily {
    name: "command_r",
    aliases: &[],
    signs: &[&["Action:", "\"tool_name\""]],
    vocabulary: &[],
    patterns: &[Pattern {
        trigger: "Action:",
        place: Position::Anywhere,
        steps: &[
            Step::Literal("Action:"),
            Step::Space,
            Step::Literal("```json"),
            Step::Space,
            Step::Json { opened: 0 },
            Step::Space,
            Step::Literal("```"),
        ],
        form: FORM,
    }],
    marks: &[],
    frame: Frame {
        before: "\n",
        trigger: "Action:",
        open: "\n```json\n[\n    {",
        separator: Some(",\n    {"),
        close: "\n]```",
        free: Free::Anywhere,
    },
    item: |lark, tool| {
        let head = lark.text(&head(tool));
        Ok(format!("{head} {} \"}}\"", Lark::arguments(tool)))
    },
};

/// Returns the members of a call up to its arguments.
fn head(tool: &ToolSpec) -> String {
    let name = serde_json::Value::from(tool.name.as_str());
    format!("\"tool_name\": {name}, \"parameters\": ")
}

const FORM: Form = Form::Json {
    head: |fields| Some(ToolCall::new(fields.first()?, "")),
    needs: Needs::Nothing,
    streams: true,
};
