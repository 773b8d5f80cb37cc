//! Standard output of commands, for people or for the next program of a pipe.

use std::fmt::Display;
use std::io::{self, Write};

use jackalope_protocol::log;

/// Error of writing to standard output.
#[derive(Debug, thiserror::Error)]
#[error("writing to standard output: {0}")]
pub struct OutputError(#[from] io::Error);

impl OutputError {
    /// Whether the reader has closed the pipe, as `head` does after some lines. That is a normal
    /// end, not a failure.
    pub fn is_closed(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Prints a line.
pub fn line(text: impl Display) -> Result<(), OutputError> {
    Ok(writeln!(io::stdout(), "{text}")?)
}

/// Prints a note for people on standard error.
pub fn note(text: &str) {
    // Never blocks: if standard error is not read, the line is dropped.
    log::line(text);
}

/// Prints a part of a line and flushes it.
pub fn piece(text: impl Display) -> Result<(), OutputError> {
    let mut stdout = io::stdout();
    write!(stdout, "{text}")?;
    Ok(stdout.flush()?)
}
