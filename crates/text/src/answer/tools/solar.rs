//! Solar Open: messages between special tokens, with an id for each call; Solar Open 2: keys and
//! values between special tokens.
//!
//! ```text
//! <|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>weather
//! <|tool_call:args|>{"city": "Oslo"}<|tool_call:end|>
//!
//! <|tool_call:start|>weather
//! <|tool_arg:start|>city<|tool_arg:value|>Oslo<|tool_arg:end|>
//! <|tool_call:end|>
//! ```
//!
//! The first form has no line breaks in it. Its reasoning format reads the other messages.

use super::super::ToolCall;
use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::json::Needs;
use super::super::lark::{Close, Lark};
use super::super::pattern::{Pattern, Position, Step};
use super::super::schema::Types;
use super::ToolFamily;

const STEPS: &[Step] = &[
    Step::Literal("<|tool_calls|>"),
    Step::Space,
    Step::Literal("<|tool_call:begin|>"),
    Step::Until("<|tool_call:name|>"),
    Step::Word,
    Step::Literal("<|tool_call:args|>"),
    Step::Space,
    Step::Json { opened: 0 },
    Step::Space,
    Step::Literal("<|tool_call:end|>"),
];

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "solar_open",
    aliases: &[],
    signs: &[&["<|tool_call:begin|>"]],
    vocabulary: &["<|tool_calls|>", "<|tool_call:begin|>"],
    patterns: &[
        Pattern { trigger: "<|tool_calls|>", place: Position::Anywhere, steps: STEPS, form: FORM },
        Pattern {
            trigger: "<|tool_call:begin|>",
            place: Position::Anywhere,
            steps: STEPS.split_at(2).1,
            form: FORM,
        },
    ],
    marks: &[],
    frame: Frame {
        before: "<|begin|>assistant",
        trigger: "<|tool_calls|>",
        open: "<|tool_call:begin|>",
        separator: Some("<|tool_call:end|><|tool_call:begin|>"),
        close: "<|tool_call:end|>",
        free: Free::Start {
            text: "<|content|>",
            is_open: false,
            body: "/(?s:.*)/",
            end: "",
            to_calls: Some("<|end|><|begin|>assistant"),
        },
    },
    item: |lark, tool| {
        let head = lark.text(&format!("<|tool_call:name|>{}<|tool_call:args|>", tool.name));
        Ok(format!("/[a-z0-9]{{10}}/ {head} {}", Lark::arguments(tool)))
    },
};

const FORM: Form = Form::Json {
    head: |fields| {
        let [id, name] = fields else { return None };
        let id = (!id.is_empty()).then(|| (*id).to_owned());
        Some(ToolCall { id, ..ToolCall::new(name, "") })
    },
    needs: Needs::Nothing,
    streams: true,
};

const CLOSE: Close<'static> = Close { before: "", tag: "<|tool_arg:end|>", after: "\n" };

pub(super) static SECOND: ToolFamily = ToolFamily {
    name: "solar_open2",
    aliases: &[],
    signs: &[&["<|tool_call:start|>"]],
    vocabulary: &["<|tool_call:start|>", "<|tool_arg:start|>"],
    patterns: &[Pattern {
        trigger: "<|tool_call:start|>",
        place: Position::Anywhere,
        steps: &[
            Step::Literal("<|tool_call:start|>"),
            Step::Space,
            Step::Word,
            Step::Space,
            Step::Branch(&[("<|tool_arg:start|>", 1), ("<|tool_call:end|>", 5)]),
            Step::Literal("<|tool_arg:start|>"),
            Step::Until("<|tool_arg:value|>"),
            Step::Until("<|tool_arg:end|>"),
            Step::Back(5),
            Step::Literal("<|tool_call:end|>"),
        ],
        form: Form::Tags { is_wrapped: false, is_typed: false },
    }],
    marks: &[],
    frame: Frame {
        before: "\n",
        trigger: "<|tool_call:start|>",
        open: "",
        separator: Some("<|tool_call:end|>\n<|tool_call:start|>"),
        close: "<|tool_call:end|>",
        free: Free::Anywhere,
    },
    item: |lark, tool| {
        let open = |name: &str, _: &Types| format!("<|tool_arg:start|>{name}<|tool_arg:value|>");
        let parameters = lark.parameters(tool, open, CLOSE)?;
        Ok(format!("{} {parameters}", lark.text(&format!("{}\n", tool.name))))
    },
};
