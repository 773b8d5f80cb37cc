//! Functionary 3.1: tags that name the tool, around JSON. Functionary 3.2: messages, each with its
//! recipient on the first line; the prompt has written the first `>>>`.
//!
//! ```text
//! <function=weather>{"city": "Oslo"}</function><function=time>{}</function>
//!
//! all
//! I look.>>>weather
//! {"city": "Oslo"}>>>time
//! {}
//! ```

use super::super::ToolCall;
use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::json::Needs;
use super::super::lark::Lark;
use super::super::pattern::{Pattern, Position, Step};
use super::ToolFamily;

/// One call of Functionary 3.1, which Llama 3 writes too.
pub(super) const TAGGED: Pattern = Pattern {
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
};

pub(super) static V31: ToolFamily = ToolFamily {
    name: "functionary",
    aliases: &["meetkai", "functionary_v3_1"],
    signs: &[&["<function=", "</function>", "<|start_header_id|>"]],
    patterns: &[TAGGED],
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

const MESSAGE: &[Step] =
    &[Step::Literal(">>>"), Step::Word, Step::Literal("\n"), Step::Space, Step::Json { opened: 0 }];

pub(super) static V32: ToolFamily = ToolFamily {
    name: "functionary_v3_2",
    aliases: &["functionary_v3"],
    signs: &[&[">>>all"]],
    patterns: &[
        // Messages to the user.
        Pattern {
            trigger: ">>>all\n",
            place: Position::Anywhere,
            steps: &[Step::Literal(">>>all\n")],
            form: Form::Bare,
        },
        Pattern {
            trigger: "all\n",
            place: Position::Start,
            steps: &[Step::Literal("all\n")],
            form: Form::Bare,
        },
        Pattern { trigger: ">>>", place: Position::Anywhere, steps: MESSAGE, form: FORM },
        Pattern { trigger: "", place: Position::Start, steps: MESSAGE.split_at(1).1, form: FORM },
    ],
    marks: &[],
    frame: Frame {
        before: "",
        trigger: "",
        open: "",
        separator: Some(">>>"),
        close: "",
        free: Free::Start { text: "all\n", body: "/(>{0,2}[^>])*>{0,2}/", to_calls: Some(">>>") },
    },
    item: |lark, tool| {
        let head = lark.text(&format!("{}\n", tool.name));
        Ok(format!("{head} {}", Lark::arguments(tool)))
    },
};

const FORM: Form = Form::Json {
    head: |fields| Some(ToolCall::new(fields.first()?, "")),
    needs: Needs::Nothing,
    streams: true,
};
