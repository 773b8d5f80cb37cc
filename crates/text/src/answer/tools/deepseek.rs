//! DeepSeek: V3 and R1 put the arguments into a code fence, V3.1 does not. One pattern reads both.
//!
//! ```text
//! <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
//! ```json
//! {"city": "Oslo"}
//! ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
//!
//! <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
//! ```

use super::super::ToolCall;
use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::json::Needs;
use super::super::lark::Lark;
use super::super::pattern::{Pattern, Position, Step};
use super::super::reasoning::bare;
use super::ToolFamily;

const STEPS: &[Step] = &[
    Step::Literal("<｜tool▁calls▁begin｜>"),
    Step::Space,
    Step::Literal("<｜tool▁call▁begin｜>"),
    Step::Space,
    Step::Word,
    Step::Literal("<｜tool▁sep｜>"),
    Step::Space,
    Step::Branch(&[("{", 9), ("", 1)]),
    Step::Word,
    Step::Space,
    Step::Literal("```json"),
    Step::Space,
    Step::Json { opened: 0 },
    Step::Space,
    Step::Literal("```"),
    Step::Branch(&[("", 2)]),
    Step::Json { opened: 0 },
    Step::Space,
    Step::Literal("<｜tool▁call▁end｜>"),
];

const PATTERNS: &[Pattern] = &[
    Pattern {
        trigger: "<｜tool▁calls▁begin｜>",
        place: Position::Anywhere,
        steps: STEPS,
        form: FORM,
    },
    Pattern {
        trigger: "<｜tool▁call▁begin｜>",
        place: Position::Anywhere,
        steps: STEPS.split_at(2).1,
        form: FORM,
    },
    bare("<｜tool▁calls▁end｜>", Position::AfterCall, &[Step::Literal("<｜tool▁calls▁end｜>")]),
];

pub(super) static V3: ToolFamily = ToolFamily {
    name: "deepseek_v3",
    aliases: &["deepseek", "deepseek_r1"],
    signs: &[&["<｜tool▁calls▁begin｜>", "```json"]],
    vocabulary: &[],
    patterns: PATTERNS,
    marks: &[],
    frame: Frame {
        before: "",
        trigger: "<｜tool▁calls▁begin｜>",
        open: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        separator: Some("\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>"),
        close: "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        free: Free::Anywhere,
    },
    item: |lark, tool| {
        let head = lark.text(&format!("{}\n```json\n", tool.name));
        Ok(format!("{head} {}", Lark::arguments(tool)))
    },
};

pub(super) static V31: ToolFamily = ToolFamily {
    name: "deepseek_v31",
    aliases: &[],
    signs: &[&["<｜tool▁calls▁begin｜>"]],
    vocabulary: &[],
    patterns: PATTERNS,
    marks: &[],
    frame: Frame {
        before: "",
        trigger: "<｜tool▁calls▁begin｜>",
        open: "<｜tool▁call▁begin｜>",
        separator: Some("<｜tool▁call▁end｜><｜tool▁call▁begin｜>"),
        close: "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        free: Free::Anywhere,
    },
    item: |lark, tool| {
        let head = lark.text(&format!("{}<｜tool▁sep｜>", tool.name));
        Ok(format!("{head} {}", Lark::arguments(tool)))
    },
};

const FORM: Form = Form::Json { head, needs: Needs::Nothing, streams: true };

/// Reads the name of a call, which is the last field; V3 writes the kind of the call before the
/// name.
fn head(fields: &[&str]) -> Option<ToolCall> {
    match fields {
        ["function"] => None,
        fields => Some(ToolCall::new(fields.last()?, "")),
    }
}
