//! LongCat: alternating keys and values, or JSON in the first models. Both read both.
//!
//! ```text
//! <longcat_tool_call>weather
//! <longcat_arg_key>city</longcat_arg_key>
//! <longcat_arg_value>Oslo</longcat_arg_value>
//! </longcat_tool_call>
//! <longcat_tool_call>
//! {"name": "weather", "arguments": {"city": "Oslo"}}
//! </longcat_tool_call>
//! ```

use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::json::Needs;
use super::super::lark::Close;
use super::super::pattern::{Pattern, Position, Step};
use super::super::schema::Types;
use super::ToolFamily;

const CLOSE: Close<'static> = Close { before: "", tag: "</longcat_arg_value>", after: "\n" };

const JSON: &[Step] = &[
    Step::Literal("<longcat_tool_call>"),
    Step::Space,
    Step::Json { opened: 0 },
    Step::Space,
    Step::Literal("</longcat_tool_call>"),
];

const JSON_FORM: Form = Form::Json { head: |_| None, needs: Needs::Nothing, streams: true };

const PATTERNS: &[Pattern] = &[
    Pattern {
        trigger: "<longcat_tool_call>{",
        place: Position::Anywhere,
        steps: JSON,
        form: JSON_FORM,
    },
    Pattern {
        trigger: "<longcat_tool_call>\n{",
        place: Position::Anywhere,
        steps: JSON,
        form: JSON_FORM,
    },
    Pattern {
        trigger: "<longcat_tool_call>",
        place: Position::Anywhere,
        steps: &[
            Step::Literal("<longcat_tool_call>"),
            Step::Space,
            Step::Word,
            Step::Space,
            Step::Branch(&[("<longcat_arg_key>", 1), ("</longcat_tool_call>", 7)]),
            Step::Literal("<longcat_arg_key>"),
            Step::Until("</longcat_arg_key>"),
            Step::Space,
            Step::Literal("<longcat_arg_value>"),
            Step::Until("</longcat_arg_value>"),
            Step::Back(7),
            Step::Literal("</longcat_tool_call>"),
        ],
        form: Form::Tags { is_wrapped: false, is_typed: false },
    },
];

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "longcat",
    aliases: &[],
    signs: &[&["<longcat_arg_key>"]],
    vocabulary: &[],
    patterns: PATTERNS,
    marks: &[],
    frame: Frame {
        before: "\n",
        trigger: "<longcat_tool_call>",
        open: "",
        separator: Some("</longcat_tool_call>\n<longcat_tool_call>"),
        close: "</longcat_tool_call>",
        free: Free::Anywhere,
    },
    item: |lark, tool| {
        let open = |name: &str, _: &Types| {
            format!("<longcat_arg_key>{name}</longcat_arg_key>\n<longcat_arg_value>")
        };
        let parameters = lark.parameters(tool, open, CLOSE)?;
        Ok(format!("{} {parameters}", lark.text(&format!("{}\n", tool.name))))
    },
};

pub(super) static WITH_JSON: ToolFamily = ToolFamily {
    name: "longcat_json",
    aliases: &[],
    signs: &[&["<longcat_tool_call>"]],
    vocabulary: &[],
    patterns: PATTERNS,
    marks: &[],
    frame: Frame {
        before: "\n",
        trigger: "<longcat_tool_call>",
        open: "\n",
        separator: Some("\n</longcat_tool_call>\n<longcat_tool_call>\n"),
        close: "\n</longcat_tool_call>",
        free: Free::Anywhere,
    },
    item: |lark, tool| Ok(lark.named_json(tool, "arguments")),
};
