//! Functionary 3.1: tags that name the tool, around JSON.
//!
//! ```text
//! <function=weather>{"city": "Oslo"}</function><function=time>{}</function>
//! ```

use super::super::ToolCall;
use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::json::Needs;
use super::super::lark::Lark;
use super::super::pattern::{Pattern, Position, Step};
use super::ToolFamily;

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "functionary",
    aliases: &["meetkai"],
    signs: &[&["<function=", "</function>", "<|start_header_id|>"]],
    patterns: &[Pattern {
        trigger: "<function=",
        place: Position::Anywhere,
        steps: &[
            Step::Literal("<function="),
            Step::Word,
            Step::Literal(">"),
            Step::Space,
            Step::Json { opened: 0 },
            Step::Space,
            Step::Literal("</function>"),
        ],
        form: FORM,
    }],
    marks: &[],
    frame: Frame {
        before: "",
        trigger: "<function=",
        open: "",
        separator: Some("</function><function="),
        close: "</function>",
        free: Free::Anywhere,
    },
    item: |lark, tool| {
        let head = lark.text(&format!("{}>", tool.name));
        Ok(format!("{head} {}", Lark::arguments(tool)))
    },
};

const FORM: Form = Form::Json {
    head: |fields| Some(ToolCall::new(fields.first()?, "")),
    needs: Needs::Nothing,
    streams: true,
};
