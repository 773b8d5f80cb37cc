//! DeepSeek V3.2 and later (DSML): tags that contain a special token. Each parameter says whether
//! it is text; the arguments may be JSON instead.
//!
//! ```text
//! <｜DSML｜function_calls>
//! <｜DSML｜invoke name="weather">
//! <｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>
//! <｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
//! </｜DSML｜invoke>
//! </｜DSML｜function_calls>
//! ```
//!
//! V4 names the section `tool_calls`, V4.1 `calls`, with a space before the names of all tags.

use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::lark::Close;
use super::super::pattern::{Pattern, Position, Step};
use super::super::reasoning::bare;
use super::super::schema::Types;
use super::ToolFamily;

const FORM: Form = Form::Tags { is_wrapped: false, is_typed: true };

/// Creates the family of a version from the names of its tags.
macro_rules! version {
    ($family:ident, $steps:ident, $name:literal, $signs:expr, $vocabulary:expr,
        $section:literal, $invoke:literal, $parameter:literal) => {
        const $steps: &[Step] = &[
            Step::Literal(concat!("<｜DSML｜", $section, ">")),
            Step::Space,
            Step::Literal(concat!("<｜DSML｜", $invoke, " name=\"")),
            Step::Word,
            // A call without parameters may have no closing tag.
            Step::Branch(&[("\"/>", 17), ("", 1)]),
            Step::Literal("\">"),
            Step::Space,
            Step::Branch(&[("{", 10), ("", 1)]),
            Step::Space,
            Step::Branch(&[
                (concat!("<｜DSML｜", $parameter), 1),
                (concat!("</｜DSML｜", $invoke), 6),
            ]),
            Step::Literal(concat!("<｜DSML｜", $parameter, " name=\"")),
            Step::Until("\" string=\""),
            Step::Until("\">"),
            Step::Until(concat!("</｜DSML｜", $parameter, ">")),
            Step::Back(6),
            Step::Literal(concat!("</｜DSML｜", $invoke, ">")),
            // Past the other forms, to the end of the pattern.
            Step::Branch(&[("", 6)]),
            // The arguments as JSON.
            Step::Json { opened: 0 },
            Step::Space,
            Step::Literal(concat!("</｜DSML｜", $invoke, ">")),
            Step::Branch(&[("", 2)]),
            Step::Literal("\"/>"),
        ];

        pub(super) static $family: ToolFamily = ToolFamily {
            name: $name,
            aliases: &[],
            signs: $signs,
            vocabulary: $vocabulary,
            patterns: &[
                Pattern {
                    trigger: concat!("<｜DSML｜", $section, ">"),
                    place: Position::Anywhere,
                    steps: $steps,
                    form: FORM,
                },
                // Models sometimes omit the tag of the section.
                Pattern {
                    trigger: concat!("<｜DSML｜", $invoke, " name=\""),
                    place: Position::Anywhere,
                    steps: $steps.split_at(2).1,
                    form: FORM,
                },
                bare(
                    concat!("</｜DSML｜", $section, ">"),
                    Position::AfterCall,
                    &[Step::Literal(concat!("</｜DSML｜", $section, ">"))],
                ),
            ],
            marks: &["｜DSML｜"],
            frame: Frame {
                before: "\n\n",
                trigger: concat!("<｜DSML｜", $section, ">"),
                open: "\n",
                separator: Some("\n"),
                close: concat!("\n</｜DSML｜", $section, ">"),
                free: Free::Anywhere,
            },
            item: |lark, tool| {
                let open = |name: &str, types: &Types| {
                    let is_text = types.is_text();
                    let tag = concat!("<｜DSML｜", $parameter);
                    format!("{tag} name=\"{name}\" string=\"{is_text}\">")
                };
                let tag = concat!("</｜DSML｜", $parameter, ">");
                let parameters =
                    lark.parameters(tool, open, Close { before: "", tag, after: "\n" })?;
                let head = format!(concat!("<｜DSML｜", $invoke, " name=\"{}\">\n"), tool.name);
                let close = lark.text(concat!("</｜DSML｜", $invoke, ">"));
                Ok(format!("{} {parameters} {close}", lark.text(&head)))
            },
        };
    };
}

version!(
    V41,
    STEPS_V41,
    "deepseek_v41",
    &[&["｜DSML｜", " calls>"]],
    &[],
    " calls",
    " invoke",
    " parameter"
);
version!(
    V4,
    STEPS_V4,
    "deepseek_v4",
    &[&["｜DSML｜", "tool_calls>"]],
    &[],
    "tool_calls",
    "invoke",
    "parameter"
);
version!(
    V32,
    STEPS_V32,
    "deepseek_v32",
    &[&["｜DSML｜"]],
    &["｜DSML｜"],
    "function_calls",
    "invoke",
    "parameter"
);
