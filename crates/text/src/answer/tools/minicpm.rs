//! MiniCPM 5: tags that contain the names of the tool and of its parameters, without a tag around
//! them. A value with `<`, `&` or line breaks is a CDATA section.
//!
//! ```text
//! <function name="weather"><param name="city">Oslo</param></function>
//! <function name="we"><param name="note"><![CDATA[a < b]]></param></function>
//! ```

use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::lark::Close;
use super::super::pattern::{Pattern, Position, Step};
use super::super::schema::Types;
use super::ToolFamily;

const CLOSE: Close<'static> = Close { before: "", tag: "</param>", after: "" };

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "minicpm5",
    aliases: &[],
    signs: &[&["<function name=\"", "<param name=\""]],
    vocabulary: &[],
    patterns: &[Pattern {
        trigger: "<function name=\"",
        place: Position::Anywhere,
        steps: &[
            Step::Literal("<function name=\""),
            Step::Word,
            Step::Literal("\">"),
            Step::Space,
            Step::Branch(&[("<param", 1), ("</function>", 10)]),
            Step::Literal("<param name=\""),
            Step::Until("\">"),
            Step::Branch(&[("<![CDATA[", 1), ("", 5)]),
            Step::Literal("<![CDATA["),
            Step::Until("]]>"),
            Step::Literal("</param>"),
            Step::Branch(&[("", 2)]),
            Step::Until("</param>"),
            Step::Back(10),
            Step::Literal("</function>"),
        ],
        form: Form::Tags { is_wrapped: false, is_typed: false },
    }],
    marks: &[],
    frame: Frame {
        before: "\n",
        trigger: "<function name=\"",
        open: "",
        separator: Some("</function>\n<function name=\""),
        close: "</function>",
        free: Free::Anywhere,
    },
    item: |lark, tool| {
        let open = |name: &str, _: &Types| format!("<param name=\"{name}\">");
        let parameters = lark.parameters(tool, open, CLOSE)?;
        Ok(format!("{} {parameters}", lark.text(&format!("{}\">", tool.name))))
    },
};
