//! Kimi K2: a section of calls, each with an id that holds the tool's name and the call's number.
//!
//! ```text
//! <|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0
//! <|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>
//! ```

use super::super::ToolCall;
use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::json::Needs;
use super::super::lark::Lark;
use super::super::pattern::{Pattern, Position, Step};
use super::super::reasoning::bare;
use super::ToolFamily;

const STEPS: &[Step] = &[
    Step::Literal("<|tool_calls_section_begin|>"),
    Step::Space,
    Step::Literal("<|tool_call_begin|>"),
    Step::Space,
    Step::Word,
    Step::Space,
    Step::Literal("<|tool_call_argument_begin|>"),
    Step::Space,
    Step::Json { opened: 0 },
    Step::Space,
    Step::Literal("<|tool_call_end|>"),
];

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "kimi_k2",
    aliases: &["kimi", "moonshot"],
    signs: &[&["<|tool_calls_section_begin|>"], &["<|im_middle|>", "tool_declare"]],
    vocabulary: &["<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"],
    patterns: &[
        Pattern {
            trigger: "<|tool_calls_section_begin|>",
            place: Position::Anywhere,
            steps: STEPS,
            form: FORM,
        },
        Pattern {
            trigger: "<|tool_call_begin|>",
            place: Position::Anywhere,
            steps: STEPS.split_at(2).1,
            form: FORM,
        },
        bare(
            "<|tool_calls_section_end|>",
            Position::AfterCall,
            &[Step::Literal("<|tool_calls_section_end|>")],
        ),
    ],
    marks: &[],
    frame: Frame {
        before: "",
        trigger: "<|tool_calls_section_begin|>",
        open: "<|tool_call_begin|>functions.",
        separator: Some("<|tool_call_end|><|tool_call_begin|>functions."),
        close: "<|tool_call_end|><|tool_calls_section_end|>",
        free: Free::Anywhere,
    },
    item: |lark, tool| {
        let head = lark.text(&format!("{}:", tool.name));
        let middle = lark.text("<|tool_call_argument_begin|>");
        Ok(format!("{head} /[0-9]{{1,3}}/ {middle} {}", Lark::arguments(tool)))
    },
};

const FORM: Form = Form::Json { head, needs: Needs::Nothing, streams: true };

fn head(fields: &[&str]) -> Option<ToolCall> {
    let id = fields.first()?;
    let name = id.strip_prefix("functions.").unwrap_or(id);
    let is_number = |idx: &str| !idx.is_empty() && idx.bytes().all(|byte| byte.is_ascii_digit());
    let (name, has_id) = match name.rsplit_once(':') {
        Some((name, idx)) if is_number(idx) => (name, true),
        _ => (name, false),
    };
    Some(ToolCall { id: has_id.then(|| (*id).to_owned()), ..ToolCall::new(name, "") })
}
