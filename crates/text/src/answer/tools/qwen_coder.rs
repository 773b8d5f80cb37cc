//! Qwen3-Coder, Nemotron and Step 3.5: tags that contain the names of the tool and of its parameters.
//!
//! ```text
//! <tool_call>
//! <function=weather>
//! <parameter=city>
//! Oslo
//! </parameter>
//! </function>
//! </tool_call>
//! ```

use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::lark::Close;
use super::super::pattern::{Pattern, Position, Step};
use super::super::reasoning::bare;
use super::ToolFamily;

const STEPS: &[Step] = &[
    Step::Literal("<tool_call>"),
    Step::Space,
    Step::Literal("<function="),
    Step::Word,
    Step::Literal(">"),
    Step::Space,
    Step::Branch(&[("<parameter=", 1), ("</function>", 5)]),
    Step::Literal("<parameter="),
    Step::Until(">"),
    Step::Until("</parameter>"),
    Step::Back(5),
    Step::Literal("</function>"),
    Step::Space,
    Step::Literal("</tool_call>"),
];

const CLOSE: Close = Close { before: "\n", tag: "</parameter>", after: "\n" };

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "qwen3_coder",
    aliases: &["qwen3_xml", "nemotron", "nemotron3", "nemotron_v3", "step3p5"],
    signs: &[&["<tool_call>", "<function="]],
    patterns: &[
        Pattern { trigger: "<tool_call>", place: Position::Anywhere, steps: STEPS, form: FORM },
        // Models sometimes omit the outer tag.
        Pattern {
            trigger: "<function=",
            place: Position::Anywhere,
            steps: STEPS.split_at(12).0.split_at(2).1,
            form: FORM,
        },
        bare("</tool_call>", Position::AfterCall, &[Step::Literal("</tool_call>")]),
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
    item: |lark, tool| {
        let open = |name: &str| format!("<parameter={name}>\n");
        let parameters = lark.parameters(tool, open, CLOSE)?;
        let head = lark.text(&format!("<function={}>\n", tool.name));
        Ok(format!("{head} {parameters} {}", lark.text("</function>")))
    },
};

const FORM: Form = Form::Tags { is_wrapped: true };
