//! How the markup of a pattern carries calls.

use super::ToolCall;
use super::json::Needs;

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
    /// The name, followed by alternating parameter names and values.
    Tags {
        /// Whether line breaks separate values from their tags.
        is_wrapped: bool,
    },
    /// Literals of Python or Gemma. The function takes the captured fields, and the unfinished text
    /// if the markup was cut, and returns all calls and whether the last one is cut; `None` if the
    /// fields hold no calls.
    Literals(fn(&[&str], Option<&str>) -> Option<ReadCalls>),
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
