//! Qwen3-Coder, Nemotron and Step 3.5: tags that contain the names of the tool and of its parameters.
//! Seed-OSS has another tag around them, and no line breaks around values.
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

use super::super::ToolSpec;
use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::lark::{Close, Lark, ToolGrammarError};
use super::super::pattern::{Pattern, Position, Step};
use super::super::reasoning::bare;
use super::super::schema::Types;
use super::ToolFamily;

/// Returns the steps of a call between these tags.
const fn steps(open: &'static str, close: &'static str) -> [Step; 14] {
    [
        Step::Literal(open),
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
        Step::Literal(close),
    ]
}

const STEPS: &[Step] = &steps("<tool_call>", "</tool_call>");

/// A call without the outer tag, which models sometimes omit.
const INNER: Pattern = Pattern {
    trigger: "<function=",
    place: Position::Anywhere,
    steps: STEPS.split_at(12).0.split_at(2).1,
    form: FORM,
};

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "qwen3_coder",
    aliases: &["qwen3_xml", "nemotron", "nemotron3", "nemotron_v3", "step3p5"],
    signs: &[&["<tool_call>", "<function="]],
    vocabulary: &[],
    patterns: &[
        Pattern { trigger: "<tool_call>", place: Position::Anywhere, steps: STEPS, form: FORM },
        INNER,
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
    item: |lark, tool| item(lark, tool, "\n"),
};

pub(super) static SEED_OSS: ToolFamily = ToolFamily {
    name: "seed_oss",
    aliases: &[],
    signs: &[&["<seed:tool_call>"]],
    vocabulary: &["<seed:tool_call>", "</seed:tool_call>"],
    patterns: &[
        Pattern {
            trigger: "<seed:tool_call>",
            place: Position::Anywhere,
            steps: &steps("<seed:tool_call>", "</seed:tool_call>"),
            form: FORM,
        },
        INNER,
        bare("</seed:tool_call>", Position::AfterCall, &[Step::Literal("</seed:tool_call>")]),
    ],
    marks: &[],
    frame: Frame {
        before: "\n\n",
        trigger: "<seed:tool_call>",
        open: "\n",
        separator: Some("\n</seed:tool_call>\n<seed:tool_call>\n"),
        close: "\n</seed:tool_call>",
        free: Free::Anywhere,
    },
    item: |lark, tool| item(lark, tool, ""),
};

/// Builds the grammar of a call whose values have `space` around them.
fn item(
    lark: &mut Lark<'_>,
    tool: &ToolSpec,
    space: &'static str,
) -> Result<String, ToolGrammarError> {
    let open = |name: &str, _: &Types| format!("<parameter={name}>{space}");
    let close = Close { before: space, tag: "</parameter>", after: "\n" };
    let parameters = lark.parameters(tool, open, close)?;
    let head = lark.text(&format!("<function={}>\n", tool.name));
    Ok(format!("{head} {parameters} {}", lark.text("</function>")))
}

const FORM: Form = Form::Tags { is_wrapped: true, is_typed: false };
