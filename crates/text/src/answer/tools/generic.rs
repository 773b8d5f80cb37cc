//! Models without a form of their own: an answer that is one JSON object or list of calls and
//! nothing else, perhaps in a fence, or JSON after the marker of Granite and Phi.
//!
//! ```text
//! [{"name": "weather", "arguments": {"city": "Oslo"}}]
//! <|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}]<|/tool_call|>
//! ```

use super::super::json::Needs;
use super::super::live::Form;
use super::super::pattern::{Pattern, Place, Step};
use super::super::reasoning::bare;
use super::{Frame, Free, ToolFamily};

/// With one of these keys a call in JSON begins; other JSON need not wait for its end.
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
    aliases: &["generic", "json_tools", "xlam", "granite", "phi4", "phi4_mini_json"],
    signs: &[&["tools"]],
    patterns: &[
        Pattern {
            trigger: "{",
            place: Place::Start,
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
            place: Place::Start,
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
            place: Place::Start,
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
            place: Place::Anywhere,
            steps: &[Step::Literal("<|tool_call|>"), Step::Space, Step::Json { opened: 0 }],
            form: MARKED,
        },
        bare("<|/tool_call|>", Place::AfterCall, &[Step::Literal("<|/tool_call|>")]),
    ],
    marks: &[],
    frame: Frame {
        before: "",
        trigger: "",
        open: "[",
        separator: Some(", "),
        close: "]",
        free: Free::Start { text: "", body: "/[^{\\[`<\\s](?s:.*)/" },
    },
    item: |lark, tool| Ok(lark.named_json(tool, "arguments")),
};

/// Only the end of the answer shows that it is a call.
const WHOLE: Form = Form::Json { head: |_| None, needs: Needs::Arguments, streams: false };

/// What follows a marker is a call.
const MARKED: Form = Form::Json { head: |_| None, needs: Needs::Arguments, streams: true };
