//! Hermes and most Qwen models: JSON between tags. Some models write calls in square brackets
//! instead.
//!
//! ```text
//! <tool_call>
//! {"name": "weather", "arguments": {"city": "Oslo"}}
//! </tool_call>
//! [Calling tool: weather({"city": "Oslo"})]
//! ```

use super::super::ToolCall;
use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::json::Needs;
use super::super::pattern::{Pattern, Position, Step};
use super::ToolFamily;

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "hermes",
    aliases: &["qwen", "qwen3", "qwen25", "nous", "granite4"],
    signs: &[&["<tool_call>"]],
    vocabulary: &[],
    patterns: &[
        Pattern {
            trigger: "<tool_call>",
            place: Position::Anywhere,
            steps: &[
                Step::Literal("<tool_call>"),
                Step::Space,
                Step::Json { opened: 0 },
                Step::Space,
                Step::Literal("</tool_call>"),
            ],
            form: FORM,
        },
        Pattern {
            trigger: "[Calling tool:",
            place: Position::Anywhere,
            steps: &[
                Step::Literal("[Calling tool:"),
                Step::Space,
                Step::Word,
                Step::Literal("("),
                Step::Json { opened: 0 },
                Step::Literal(")]"),
            ],
            form: FORM,
        },
    ],
    marks: &[],
    frame: Frame {
        before: "\n\n",
        trigger: "<tool_call>",
        open: "\n",
        separator: Some("\n</tool_call>\n<tool_call>\n"),
        close: "\n</tool_call>",
        free: Free::Anywhere,
    },
    item: |lark, tool| Ok(lark.named_json(tool, "arguments")),
};

const FORM: Form = Form::Json {
    head: |fields| Some(ToolCall::new(fields.first()?, "")),
    needs: Needs::Nothing,
    streams: true,
};
