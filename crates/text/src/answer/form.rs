//! How the markup of a pattern carries calls.

use super::json::Needs;
use super::{ToolCall, Tools};

/// How the markup of a pattern names the tools and their arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Form {
    /// The markup carries no call.
    Bare,
    /// The call is JSON, captured last. If something was captured before it, the JSON is the
    /// arguments and `head` reads the name from the earlier captures; else the JSON is an object or
    /// a list of objects with names and arguments.
    Json {
        head: Head,
        needs: Needs,
        /// Whether calls in the JSON are reported before the markup is complete.
        streams: bool,
    },
    /// Arguments without markup of their own, captured last: JSON between brackets, or source code,
    /// which becomes the parameter `code`. `head` reads the name from the earlier captures.
    Code { head: Head },
    /// The name, followed by alternating parameter names and values, or by the arguments as JSON.
    Tags {
        /// Whether line breaks separate values from their tags.
        is_wrapped: bool,
        /// Whether the type of each value is captured between the parameter's name and the value.
        is_typed: bool,
    },
    /// Text that only the family's own function can read, such as literals of Python. The function
    /// takes the captured fields, the unfinished text if the markup was cut, and the tools of the
    /// request, and returns all calls and whether the last one is cut; `None` if the fields hold no
    /// calls.
    Literals(fn(&[&str], Option<&str>, &Tools) -> Option<ReadCalls>),
}

/// Reads the id and the name of a call from the fields captured before its arguments; `None` if
/// the name has not been captured yet.
pub(crate) type Head = fn(&[&str]) -> Option<ToolCall>;

/// The calls that a form's function has read.
#[derive(Debug, Default)]
pub(crate) struct ReadCalls {
    pub(crate) calls: Vec<ToolCall>,
    /// Whether the arguments of the last call lack their end.
    pub(crate) is_cut: bool,
}
