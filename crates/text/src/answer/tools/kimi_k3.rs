//! Kimi K3: channels between special tokens. Each argument says its type; all of them may be one
//! JSON object instead.
//!
//! ```text
//! <|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|>
//! <|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|>
//! <|close|>call<|sep|><|close|>tools<|sep|>
//! ```
//!
//! There are no line breaks in it. The reasoning format reads the other channels.

use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::lark::Close;
use super::super::pattern::{Pattern, Position, Step};
use super::super::reasoning::bare;
use super::super::schema::Types;
use super::ToolFamily;

const STEPS: &[Step] = &[
    Step::Literal("<|open|>tools<|sep|>"),
    Step::Space,
    Step::Literal("<|open|>call tool=\""),
    Step::Word,
    // The number of the call.
    Step::Skip("<|sep|>"),
    Step::Space,
    Step::Branch(&[("<|open|>json", 10), ("", 1)]),
    Step::Space,
    Step::Branch(&[("<|open|>argument", 1), ("<|close|>call", 6)]),
    Step::Literal("<|open|>argument key=\""),
    Step::Until("\" type=\""),
    Step::Until("\"<|sep|>"),
    Step::Until("<|close|>argument<|sep|>"),
    Step::Back(6),
    Step::Literal("<|close|>call<|sep|>"),
    // Past the JSON, to the end of the pattern.
    Step::Branch(&[("", 9)]),
    Step::Literal("<|open|>json"),
    Step::Skip("<|sep|>"),
    Step::Space,
    Step::Json { opened: 0 },
    Step::Space,
    Step::Literal("<|close|>json<|sep|>"),
    Step::Space,
    Step::Literal("<|close|>call<|sep|>"),
];

const CLOSE: Close<'static> = Close { before: "", tag: "<|close|>argument<|sep|>", after: "" };

const FORM: Form = Form::Tags { is_wrapped: false, is_typed: true };

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "kimi_k3",
    aliases: &[],
    signs: &[&["<|open|>", "<|close|>", "<|sep|>"]],
    vocabulary: &["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"],
    patterns: &[
        Pattern {
            trigger: "<|open|>tools<|sep|>",
            place: Position::Anywhere,
            steps: STEPS,
            form: FORM,
        },
        Pattern {
            trigger: "<|open|>call tool=\"",
            place: Position::AfterCall,
            steps: STEPS.split_at(2).1,
            form: FORM,
        },
        bare(
            "<|close|>tools<|sep|>",
            Position::AfterCall,
            &[Step::Literal("<|close|>tools<|sep|>")],
        ),
    ],
    marks: &[],
    frame: Frame {
        before: "<|open|>response<|sep|><|close|>response<|sep|>",
        trigger: "<|open|>tools<|sep|>",
        open: "",
        separator: Some(""),
        close: "<|close|>tools<|sep|>",
        free: Free::Start {
            text: "<|open|>response<|sep|>",
            is_open: true,
            body: "/(?s:.*)/",
            end: "<|close|>response<|sep|><|close|>message<|sep|>",
            to_calls: Some("<|close|>response<|sep|>"),
        },
    },
    item: |lark, tool| {
        let open = |name: &str, types: &Types| {
            format!("<|open|>argument key=\"{name}\" type=\"{}\"<|sep|>", type_name(types))
        };
        let parameters = lark.parameters(tool, open, CLOSE)?;
        let head = lark.text(&format!("<|open|>call tool=\"{}\" index=\"", tool.name));
        let (middle, close) = (lark.text("\"<|sep|>"), lark.text("<|close|>call<|sep|>"));
        Ok(format!("{head} /[0-9]{{1,3}}/ {middle} {parameters} {close}"))
    },
};

/// Returns the family's name of the type of a value.
fn type_name(types: &Types) -> &str {
    match types.first() {
        _ if types.is_text() => "string",
        "integer" => "number",
        other => other,
    }
}
