//! Models without a format of their own: the answer is one JSON object or list of calls and nothing
//! else, perhaps in a code fence, or JSON after the marker of Granite and Phi.
//!
//! ```text
//! [{"name": "weather", "arguments": {"city": "Oslo"}}]
//! <|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}]<|/tool_call|>
//! ```

use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::json::Needs;
use super::super::pattern::{Pattern, Position, Step};
use super::super::reasoning::bare;
use super::ToolFamily;

/// A call in JSON begins with one of these keys; other JSON is released without waiting for its
/// end.
pub(super) const KEYS: &[(&str, usize)] = &[
    ("\"name\"", 1),
    ("\"arguments\"", 1),
    ("\"parameters\"", 1),
    ("\"type\"", 1),
    ("\"function\"", 1),
    ("\"id\"", 1),
];

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "json",
    aliases: &["generic", "json_tools", "xlam", "granite", "granite3", "phi4", "phi4_mini_json"],
    signs: &[&["tools"]],
    vocabulary: &[],
    patterns: &[
        Pattern {
            trigger: "{",
            place: Position::Start,
            steps: &[
                Step::Literal("{"),
                Step::Space,
                Step::Branch(KEYS),
                Step::Json { opened: 1 },
                Step::Space,
                Step::End,
            ],
            form: WHOLE,
        },
        Pattern {
            trigger: "[",
            place: Position::Start,
            steps: &[
                Step::Literal("["),
                Step::Space,
                Step::Literal("{"),
                Step::Space,
                Step::Branch(KEYS),
                Step::Json { opened: 2 },
                Step::Space,
                Step::End,
            ],
            form: WHOLE,
        },
        Pattern {
            trigger: "```json",
            place: Position::Start,
            steps: &[
                Step::Literal("```json"),
                Step::Space,
                Step::Json { opened: 0 },
                Step::Space,
                Step::Literal("```"),
                Step::Space,
                Step::End,
            ],
            form: WHOLE,
        },
        Pattern {
            trigger: "<|tool_call|>",
            place: Position::Anywhere,
            steps: &[Step::Literal("<|tool_call|>"), Step::Space, Step::Json { opened: 0 }],
            form: MARKED,
        },
        bare("<|/tool_call|>", Position::AfterCall, &[Step::Literal("<|/tool_call|>")]),
    ],
    marks: &[],
    frame: Frame {
        before: "",
        trigger: "",
        open: "[",
        separator: Some(", "),
        close: "]",
        free: Free::Start {
            text: "",
            is_open: false,
            body: "/[^{\\[`<\\s](?s:.*)/",
            end: "",
            to_calls: None,
        },
    },
    item: |lark, tool| Ok(lark.named_json(tool, "arguments")),
};

/// Form of calls without a marker, which are recognised only once the answer has ended.
const WHOLE: Form = Form::Json { head: |_| None, needs: Needs::Arguments, streams: false };

/// Form of JSON after a marker, which is always a call and is reported while it arrives.
const MARKED: Form = Form::Json { head: |_| None, needs: Needs::Arguments, streams: true };
