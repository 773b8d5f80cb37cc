//! Standard output: what a command says, to people or to the next program of a pipe.

use std::fmt::Display;
use std::io::{self, Write};

use jackalope_cluster::log;

/// Standard output cannot be written to.
#[derive(Debug, thiserror::Error)]
#[error("writing to standard output: {0}")]
pub(crate) struct OutputError(#[from] io::Error);

impl OutputError {
    /// Whoever read has had enough, as `head` has after some lines: an end, not a failure.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Prints a line.
pub(crate) fn line(text: impl Display) -> Result<(), OutputError> {
    Ok(writeln!(io::stdout(), "{text}")?)
}

/// A number with its noun, in the plural unless it is one.
pub(crate) fn counted(num: usize, noun: &str) -> String {
    let plural = if num == 1 { "" } else { "s" };
    format!("{num} {noun}{plural}")
}

/// Tells people on standard error what is going on.
pub(crate) fn note(text: &str) {
    // Never blocks: if standard error is not read, the line is dropped.
    log::line(text);
}

/// Prints a piece of a line at once.
pub(crate) fn piece(text: impl Display) -> Result<(), OutputError> {
    let mut stdout = io::stdout();
    write!(stdout, "{text}")?;
    Ok(stdout.flush()?)
}
