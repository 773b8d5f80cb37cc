//! Mistral: a JSON list of calls, or in newer models a marker before each call.
//!
//! ```text
//! [TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}, "id": "abcdef123"}]
//! [TOOL_CALLS]weather[ARGS]{"city": "Oslo"}
//! [TOOL_CALLS]weather[CALL_ID]abcdef123[ARGS]{"city": "Oslo"}
//! ```
//!
//! A call ends where its JSON does.

use super::super::ToolCall;
use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::json::Needs;
use super::super::lark::Lark;
use super::super::pattern::{Pattern, Position, Step};
use super::ToolFamily;

const PATTERNS: &[Pattern] = &[Pattern {
    trigger: "[TOOL_CALLS]",
    place: Position::Anywhere,
    steps: &[
        Step::Literal("[TOOL_CALLS]"),
        Step::Space,
        Step::Branch(&[("[", 7), ("{", 7), ("", 1)]),
        Step::Word,
        Step::Branch(&[("[CALL_ID]", 1), ("[ARGS]", 3), ("", 4)]),
        Step::Literal("[CALL_ID]"),
        Step::Word,
        Step::Literal("[ARGS]"),
        Step::Space,
        Step::Json { opened: 0 },
    ],
    form: FORM,
}];

pub(super) static WITH_ARGS: ToolFamily = ToolFamily {
    name: "mistral_args",
    aliases: &["devstral", "magistral"],
    signs: &[&["[TOOL_CALLS]", "[ARGS]"]],
    vocabulary: &[],
    patterns: PATTERNS,
    marks: &["[ARGS]", "[CALL_ID]"],
    frame: Frame {
        before: "",
        trigger: "[TOOL_CALLS]",
        open: "",
        separator: Some("[TOOL_CALLS]"),
        close: "",
        free: Free::Anywhere,
    },
    item: |lark, tool| {
        let head = lark.text(&format!("{}[ARGS]", tool.name));
        Ok(format!("{head} {}", Lark::arguments(tool)))
    },
};

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "mistral",
    aliases: &[],
    signs: &[&["[TOOL_CALLS]"]],
    vocabulary: &[],
    patterns: PATTERNS,
    marks: &["[ARGS]", "[CALL_ID]"],
    frame: Frame {
        before: "",
        trigger: "[TOOL_CALLS]",
        open: "[",
        separator: Some(", "),
        close: "]",
        free: Free::Anywhere,
    },
    item: |lark, tool| Ok(lark.named_json(tool, "arguments")),
};

/// Form of calls in a list. The id of each comes last, so a call is reported only once it is
/// complete.
const FORM: Form = Form::Json { head, needs: Needs::Nothing, streams: false };

fn head(fields: &[&str]) -> Option<ToolCall> {
    let (name, id) = fields.split_first()?;
    let id = id.first().map(|id| (*id).to_owned());
    Some(ToolCall { id, ..ToolCall::new(name, "") })
}
