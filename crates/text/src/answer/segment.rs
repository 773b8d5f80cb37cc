//! What an answer is separated into.

use super::ToolCall;

/// A piece of the model's answer that can no longer change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// Content; never empty.
    Text(String),
    /// Reasoning of the model before its answer; never empty.
    Reasoning(String),
    /// A tool call begins, with the arguments known so far.
    Call(ToolCall),
    /// More arguments of the call that began last.
    Arguments(String),
    /// The call that began last has ended. Its arguments are valid JSON unless the model made a
    /// mistake. Can be missing in an answer that was cut.
    CallEnd,
}
