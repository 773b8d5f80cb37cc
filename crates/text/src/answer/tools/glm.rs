//! GLM 4.5 and later, and Laguna: alternating keys and values. The line breaks may be missing.
//!
//! ```text
//! <tool_call>weather
//! <arg_key>city</arg_key>
//! <arg_value>Oslo</arg_value>
//! </tool_call>
//! ```

use super::super::ToolSpec;
use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::lark::{Close, Lark, ToolGrammarError};
use super::super::pattern::{Pattern, Position, Step};
use super::super::schema::Types;
use super::ToolFamily;

const CLOSE: Close<'static> = Close { before: "", tag: "</arg_value>", after: "\n" };

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "glm45",
    aliases: &["glm4", "glm47", "glm4_moe", "poolside_v1"],
    signs: &[&["<arg_key>"]],
    vocabulary: &[],
    patterns: &[Pattern {
        trigger: "<tool_call>",
        place: Position::Anywhere,
        steps: &[
            Step::Literal("<tool_call>"),
            Step::Space,
            Step::Word,
            Step::Space,
            Step::Branch(&[("<arg_key>", 1), ("</tool_call>", 7)]),
            Step::Literal("<arg_key>"),
            Step::Until("</arg_key>"),
            Step::Space,
            Step::Literal("<arg_value>"),
            Step::Until("</arg_value>"),
            Step::Back(7),
            Step::Literal("</tool_call>"),
        ],
        form: Form::Tags { is_wrapped: false, is_typed: false },
    }],
    marks: &[],
    frame: Frame {
        before: "\n",
        trigger: "<tool_call>",
        open: "",
        separator: Some("</tool_call>\n<tool_call>"),
        close: "</tool_call>",
        free: Free::Anywhere,
    },
    item,
};

fn item(lark: &mut Lark<'_>, tool: &ToolSpec) -> Result<String, ToolGrammarError> {
    let open = |name: &str, _: &Types| format!("<arg_key>{name}</arg_key>\n<arg_value>");
    let parameters = lark.parameters(tool, open, CLOSE)?;
    Ok(format!("{} {parameters}", lark.text(&format!("{}\n", tool.name))))
}
