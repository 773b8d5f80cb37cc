//! gpt-oss: a message to a function, on the commentary channel or on the analysis channel. The
//! recipient stands before or after the channel.
//!
//! ```text
//! <|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>
//! <|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Oslo"}
//! ```
//!
//! `<|call|>` ends the model's turn, so it is a stop token and not part of the text: a call ends
//! where its JSON does. The reasoning format reads the other messages.

use super::super::ToolCall;
use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::json::Needs;
use super::super::lark::Lark;
use super::super::pattern::{Pattern, Position, Step};
use super::ToolFamily;

/// Creates the pattern of a call whose head begins with the trigger.
macro_rules! call {
    ($trigger:literal, $place:expr) => {
        Pattern {
            trigger: $trigger,
            place: $place,
            steps: &[
                Step::Literal($trigger),
                Step::Word,
                Step::Until("<|message|>"),
                Step::Space,
                Step::Json { opened: 0 },
            ],
            form: FORM,
        }
    };
}

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "harmony",
    aliases: &["gpt_oss", "openai"],
    signs: &[&["<|channel|>", "<|message|>"]],
    vocabulary: &[],
    patterns: &[
        call!("<|channel|>commentary to=functions.", Position::Anywhere),
        call!("<|channel|>analysis to=functions.", Position::Anywhere),
        call!("<|start|>assistant to=functions.", Position::Anywhere),
        // The prompt ends with the role, so an answer may begin with the recipient.
        call!(" to=functions.", Position::Start),
    ],
    marks: &["<|constrain|>", "<|call|>"],
    frame: Frame {
        before: "<|start|>assistant",
        trigger: "",
        open: "<|channel|>commentary to=functions.",
        separator: None,
        close: "",
        free: Free::Start {
            text: "<|channel|>final<|message|>",
            is_open: false,
            body: "/(?s:.*)/",
            end: "",
            to_calls: None,
        },
    },
    item: |lark, tool| {
        let head = lark.text(&format!("{} <|constrain|>json<|message|>", tool.name));
        Ok(format!("{head} {}", Lark::arguments(tool)))
    },
};

/// Form of a call. The header between the name and the arguments names the format of the
/// arguments; it is ignored, because the format can be seen from the arguments themselves.
const FORM: Form = Form::Json {
    head: |fields| Some(ToolCall::new(fields.first()?, "")),
    needs: Needs::Nothing,
    streams: true,
};
