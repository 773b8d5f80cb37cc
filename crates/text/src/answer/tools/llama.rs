//! Llama 3: JSON that begins the answer, with or without a marker before it, or tags that name the
//! tool.
//!
//! ```text
//! {"name": "weather", "parameters": {"city": "Oslo"}}; {"name": "time", "parameters": {}}
//! <|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}
//! <function=weather>{"city": "Oslo"}</function>
//! ```
//!
//! The JSON has no end marker, so the call ends where the JSON does.

use super::super::ToolCall;
use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::json::Needs;
use super::super::pattern::{Pattern, Position, Step};
use super::ToolFamily;
use super::functionary::TAGGED;
use super::generic::KEYS;

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "llama3_json",
    aliases: &["llama", "llama3", "llama4", "llama4_json"],
    signs: &[&["<|python_tag|>"], &["<|start_header_id|>", "\"parameters\""]],
    vocabulary: &[],
    patterns: &[
        Pattern {
            trigger: "<|python_tag|>",
            place: Position::Anywhere,
            steps: &[Step::Literal("<|python_tag|>"), Step::Space, Step::Json { opened: 0 }],
            form: FORM,
        },
        Pattern {
            trigger: "{",
            place: Position::StartOrAfterCall,
            steps: &[Step::Literal("{"), Step::Space, Step::Branch(KEYS), Step::Json { opened: 1 }],
            form: FORM,
        },
        Pattern {
            trigger: ";",
            place: Position::AfterCall,
            steps: &[Step::Literal(";"), Step::Space, Step::Json { opened: 0 }],
            form: FORM,
        },
        TAGGED,
    ],
    marks: &[],
    frame: Frame {
        before: "",
        trigger: "",
        open: "",
        separator: Some("; "),
        close: "",
        free: Free::Start {
            text: "",
            is_open: false,
            body: "/[^{;<\\s](?s:.*)/",
            end: "",
            to_calls: None,
        },
    },
    item: |lark, tool| Ok(lark.named_json(tool, "parameters")),
};

const FORM: Form = Form::Json {
    head: |fields| Some(ToolCall::new(fields.first()?, "")),
    needs: Needs::Arguments,
    streams: true,
};
