//! MiniMax M2: several calls between one pair of tags.
//!
//! ```text
//! <minimax:tool_call>
//! <invoke name="weather">
//! <parameter name="city">Oslo</parameter>
//! </invoke>
//! </minimax:tool_call>
//! ```

use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::lark::Close;
use super::super::pattern::{Pattern, Position, Step};
use super::super::reasoning::bare;
use super::super::schema::Types;
use super::ToolFamily;

const STEPS: &[Step] = &[
    Step::Literal("<minimax:tool_call>"),
    Step::Space,
    Step::Literal("<invoke name=\""),
    Step::Word,
    Step::Literal("\">"),
    Step::Space,
    Step::Branch(&[("<parameter name=\"", 1), ("</invoke>", 5)]),
    Step::Literal("<parameter name=\""),
    Step::Until("\">"),
    Step::Until("</parameter>"),
    Step::Back(5),
    Step::Literal("</invoke>"),
];

const CLOSE: Close<'static> = Close { before: "", tag: "</parameter>", after: "\n" };

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "minimax_m2",
    aliases: &["minimax"],
    signs: &[&["<minimax:tool_call>"]],
    vocabulary: &[],
    patterns: &[
        Pattern {
            trigger: "<minimax:tool_call>",
            place: Position::Anywhere,
            steps: STEPS,
            form: FORM,
        },
        Pattern {
            trigger: "<invoke name=\"",
            place: Position::AfterCall,
            steps: STEPS.split_at(2).1,
            form: FORM,
        },
        bare("</minimax:tool_call>", Position::AfterCall, &[Step::Literal("</minimax:tool_call>")]),
    ],
    marks: &[],
    frame: Frame {
        before: "\n\n",
        trigger: "<minimax:tool_call>",
        open: "\n",
        separator: Some("\n"),
        close: "\n</minimax:tool_call>",
        free: Free::Anywhere,
    },
    item: |lark, tool| {
        let open = |name: &str, _: &Types| format!("<parameter name=\"{name}\">");
        let parameters = lark.parameters(tool, open, CLOSE)?;
        let head = lark.text(&format!("<invoke name=\"{}\">\n", tool.name));
        Ok(format!("{head} {parameters} {}", lark.text("</invoke>")))
    },
};

const FORM: Form = Form::Tags { is_wrapped: false, is_typed: false };
