//! JSON between tags of a family's own: Nemotron Nano 2, Hunyuan, MiniMax Text 01 and M1, and
//! InternLM.
//!
//! ```text
//! <TOOLCALL>[{"name": "weather", "arguments": {"city": "Oslo"}}]</TOOLCALL>
//!
//! <tool_calls>[{"name": "weather", "arguments": {"city": "Oslo"}}]</tool_calls>
//!
//! <tool_calls>
//! {"name": "weather", "arguments": {"city": "Oslo"}}
//! {"name": "time", "arguments": {}}
//! </tool_calls>
//!
//! <|action_start|><|plugin|>
//! {"name": "weather", "parameters": {"city": "Oslo"}}<|action_end|>
//! ```

use super::super::form::Form;
use super::super::frame::{Frame, Free};
use super::super::json::Needs;
use super::super::pattern::{Pattern, Position, Step};
use super::super::reasoning::bare;
use super::ToolFamily;

pub(super) static NEMOTRON: ToolFamily = ToolFamily {
    name: "nemotron_json",
    aliases: &["nemotron_nano_v2"],
    signs: &[&["<TOOLCALL>"]],
    vocabulary: &[],
    patterns: &[Pattern {
        trigger: "<TOOLCALL>",
        place: Position::Anywhere,
        steps: &[
            Step::Literal("<TOOLCALL>"),
            Step::Space,
            Step::Json { opened: 0 },
            Step::Space,
            Step::Literal("</TOOLCALL>"),
        ],
        form: FORM,
    }],
    marks: &[],
    frame: Frame {
        before: "\n\n",
        trigger: "<TOOLCALL>",
        open: "[",
        separator: Some(", "),
        close: "]</TOOLCALL>",
        free: Free::Anywhere,
    },
    item: |lark, tool| Ok(lark.named_json(tool, "arguments")),
};

/// A list, or lines of calls.
const TOOL_CALLS: &[Pattern] = &[
    Pattern {
        trigger: "<tool_calls>",
        place: Position::Anywhere,
        steps: &[Step::Literal("<tool_calls>"), Step::Space, Step::Json { opened: 0 }],
        form: FORM,
    },
    Pattern {
        trigger: "{",
        place: Position::AfterCall,
        steps: &[Step::Json { opened: 0 }],
        form: FORM,
    },
    bare("</tool_calls>", Position::AfterCall, &[Step::Literal("</tool_calls>")]),
];

pub(super) static HUNYUAN: ToolFamily = ToolFamily {
    name: "hunyuan_a13b",
    aliases: &["hunyuan"],
    signs: &[&["<tool_calls>["]],
    vocabulary: &[],
    patterns: TOOL_CALLS,
    marks: &[],
    frame: Frame {
        before: "\n",
        trigger: "<tool_calls>",
        open: "[",
        separator: Some(", "),
        close: "]</tool_calls>",
        free: Free::Anywhere,
    },
    item: |lark, tool| Ok(lark.named_json(tool, "arguments")),
};

pub(super) static MINIMAX: ToolFamily = ToolFamily {
    name: "minimax_m1",
    aliases: &["tool_calls"],
    signs: &[&["<tool_calls>"]],
    vocabulary: &[],
    patterns: TOOL_CALLS,
    marks: &[],
    frame: Frame {
        before: "\n",
        trigger: "<tool_calls>",
        open: "\n",
        separator: Some("\n"),
        close: "\n</tool_calls>",
        free: Free::Anywhere,
    },
    item: |lark, tool| Ok(lark.named_json(tool, "arguments")),
};

pub(super) static INTERNLM: ToolFamily = ToolFamily {
    name: "internlm",
    aliases: &["internlm2", "interns1"],
    signs: &[&["<|plugin|>"]],
    vocabulary: &["<|action_start|>", "<|plugin|>", "<|action_end|>"],
    patterns: &[Pattern {
        trigger: "<|action_start|>",
        place: Position::Anywhere,
        steps: &[
            Step::Literal("<|action_start|>"),
            Step::Space,
            Step::Literal("<|plugin|>"),
            Step::Space,
            Step::Json { opened: 0 },
            Step::Space,
            Step::Literal("<|action_end|>"),
        ],
        form: FORM,
    }],
    marks: &[],
    frame: Frame {
        before: "",
        trigger: "<|action_start|>",
        open: "<|plugin|>\n",
        separator: Some("<|action_end|><|action_start|><|plugin|>\n"),
        close: "<|action_end|>",
        free: Free::Anywhere,
    },
    item: |lark, tool| Ok(lark.named_json(tool, "parameters")),
};

const FORM: Form = Form::Json { head: |_| None, needs: Needs::Nothing, streams: true };
