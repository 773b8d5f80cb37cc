//! The text that a family writes around its calls.

/// The text around calls in a grammar.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Text that may come before everything else.
    pub(crate) before: &'static str,
    /// Text that begins calls and never begins anything else.
    pub(crate) trigger: &'static str,
    pub(crate) open: &'static str,
    /// Text between two calls; a family without a separator can write only one call.
    pub(crate) separator: Option<&'static str>,
    pub(crate) close: &'static str,
    pub(crate) free: Free,
}

/// Where an answer may have text that is not a call.
#[derive(Debug)]
pub(crate) enum Free {
    /// Text may come before calls.
    Anywhere,
    /// Text may only come instead of calls: `text`, followed by a match of the Lark expression
    /// `body` and perhaps by `end`.
    Start {
        text: &'static str,
        /// Whether the prompt may have written `text` already.
        is_open: bool,
        body: &'static str,
        end: &'static str,
        /// Text after which calls may still follow; `None` if none can.
        to_calls: Option<&'static str>,
    },
}
