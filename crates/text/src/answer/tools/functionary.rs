//! Functionary 3.1: tags that name the tool, around JSON. Functionary 3.2: messages, each with its
//! recipient on the first line; the prompt has written the first `>>>`.
//!
//! ```text
//! <function=weather>{"city": "Oslo"}</function><function=time>{}</function>
//!
//! all
//! I look.>>>weather
//! {"city": "Oslo"}>>>time
//! {}>>>python
//! print(1 + 1)
//! ```
//!
//! Both write the code for a tool `python` without quotes: 3.2 as the message, 3.1 after
//! `<|python_tag|>`. The code becomes the argument `code`, as in llama.cpp.

use super::super::form::{Form, Head};
use super::super::frame::{Frame, Free};
use super::super::json::Needs;
use super::super::lark::{Lark, is_required};
use super::super::pattern::{Pattern, Position, Step};
use super::super::schema::{Types, properties};
use super::super::{ToolCall, ToolSpec};
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
    vocabulary: &[],
    patterns: &[
        TAGGED,
        Pattern {
            trigger: "<|python_tag|>",
            place: Position::Anywhere,
            steps: &[Step::Literal("<|python_tag|>"), Step::Space, Step::Rest(None)],
            form: Form::Code { head: |_| Some(ToolCall::new(PYTHON, "")) },
        },
    ],
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

/// The tool whose messages are source code.
const PYTHON: &str = "python";

/// A message to [`PYTHON`]: JSON or code.
const CODE: &[Step] = &[
    Step::Literal(">>>"),
    Step::Word,
    Step::Literal("\n"),
    Step::Space,
    Step::Branch(&[("{", 3), ("", 1)]),
    Step::Rest(Some(">>>")),
    // Past the JSON, to the end of the pattern.
    Step::Branch(&[("", 2)]),
    Step::Json { opened: 0 },
];

const MESSAGE: &[Step] =
    &[Step::Literal(">>>"), Step::Word, Step::Literal("\n"), Step::Space, Step::Json { opened: 0 }];

pub(super) static V32: ToolFamily = ToolFamily {
    name: "functionary_v3_2",
    aliases: &["functionary_v3"],
    signs: &[&[">>>all"]],
    vocabulary: &[],
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
        Pattern {
            trigger: ">>>python\n",
            place: Position::Anywhere,
            steps: CODE,
            form: Form::Code { head: HEAD },
        },
        Pattern {
            trigger: "python\n",
            place: Position::Start,
            steps: CODE.split_at(1).1,
            form: Form::Code { head: HEAD },
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
        free: Free::Start {
            text: "all\n",
            is_open: false,
            body: "/(>{0,2}[^>])*>{0,2}/",
            end: "",
            to_calls: Some(">>>"),
        },
    },
    item: |lark, tool| {
        let head = lark.text(&format!("{}\n", tool.name));
        let arguments = Lark::arguments(tool);
        if !takes_code(tool) {
            return Ok(format!("{head} {arguments}"));
        }
        // The lexer is greedy: nothing can follow the code, so code is the last call of an answer.
        let json = lark.rule(&arguments);
        Ok(format!("{head} ({json} | /[^\\s{{>](>{{0,2}}[^>])*/)"))
    },
};

/// Whether source code is a valid argument for a tool: it is [`PYTHON`], and its parameter `code`,
/// which is the only one required, is any text.
fn takes_code(tool: &ToolSpec) -> bool {
    const PLAIN: [&str; 5] = ["type", "title", "description", "default", "examples"];
    if tool.name != PYTHON {
        return false;
    }
    let Some(known) = properties(&tool.parameters) else {
        return tool.parameters["additionalProperties"] != false;
    };
    let is_text = known.get("code").is_some_and(|schema| {
        let mut keywords = schema.as_object().into_iter().flat_map(|schema| schema.keys());
        Types::of(schema, &tool.parameters).is_only_text()
            && keywords.all(|keyword| PLAIN.contains(&keyword.as_str()))
    });
    is_text && known.keys().all(|name| name == "code" || !is_required(tool, name))
}

const HEAD: Head = |fields| Some(ToolCall::new(fields.first()?, ""));

const FORM: Form = Form::Json { head: HEAD, needs: Needs::Nothing, streams: true };
