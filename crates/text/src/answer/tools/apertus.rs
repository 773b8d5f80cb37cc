//! Apertus: a list of objects, each with the tool's name as its only key.
//!
//! ```text
//! <|tools_prefix|>[{"weather": {"city": "Oslo"}}, {"time": {}}]<|tools_suffix|>
//! ```
//!
//! A call ends where its arguments do, so each is reported while the list is arriving.

use serde_json::Value;

use super::super::ToolCall;
use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::json::Needs;
use super::super::lark::Lark;
use super::super::pattern::{Pattern, Position, Step};
use super::super::reasoning::bare;
use super::ToolFamily;

const STEPS: &[Step] = &[
    Step::Literal("<|tools_prefix|>"),
    Step::Space,
    Step::Literal("["),
    Step::Space,
    Step::Literal("{"),
    Step::Space,
    Step::Literal("\""),
    Step::Word,
    Step::Literal("\""),
    Step::Space,
    Step::Literal(":"),
    Step::Space,
    Step::Json { opened: 0 },
    Step::Space,
    Step::Literal("}"),
];

/// A further call of the list.
const NEXT: &[Step] = &[
    Step::Literal(","),
    Step::Space,
    Step::Literal("{"),
    Step::Space,
    Step::Literal("\""),
    Step::Word,
    Step::Literal("\""),
    Step::Space,
    Step::Literal(":"),
    Step::Space,
    Step::Json { opened: 0 },
    Step::Space,
    Step::Literal("}"),
];

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "apertus",
    aliases: &["apertus2509"],
    signs: &[&["<|tools_prefix|>"]],
    vocabulary: &["<|tools_prefix|>", "<|tools_suffix|>"],
    patterns: &[
        Pattern {
            trigger: "<|tools_prefix|>",
            place: Position::Anywhere,
            steps: STEPS,
            form: FORM,
        },
        Pattern { trigger: ",", place: Position::AfterCall, steps: NEXT, form: FORM },
        bare(
            "]",
            Position::AfterCall,
            &[Step::Literal("]"), Step::Space, Step::Literal("<|tools_suffix|>")],
        ),
    ],
    marks: &[],
    frame: Frame {
        before: "",
        trigger: "<|tools_prefix|>",
        open: "[",
        separator: Some(", "),
        close: "]<|tools_suffix|>",
        free: Free::Anywhere,
    },
    item: |lark, tool| {
        let head = lark.text(&format!("{{{}: ", Value::from(tool.name.as_str())));
        Ok(format!("{head} {} \"}}\"", Lark::arguments(tool)))
    },
};

const FORM: Form = Form::Json {
    head: |fields| Some(ToolCall::new(fields.first()?, "")),
    needs: Needs::Nothing,
    streams: true,
};
