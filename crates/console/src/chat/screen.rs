//! How an answer looks: reasoning dimmed and apart from the answer. Output that is no terminal gets
//! the answer alone.

use std::fmt::Display;
use std::io::IsTerminal;

use serde_json::Value;

use crate::output::{self, OutputError};

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Marks reasoning where there are no colours.
const BEGIN: &str = "[reasoning] ";

/// The part of an answer that is being printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Part {
    Nothing,
    Reasoning,
    Text,
}

/// Prints one answer.
pub(super) struct Screen {
    /// Whether standard output is a terminal.
    is_terminal: bool,
    has_colors: bool,
    part: Part,
}

impl Screen {
    pub(super) fn new(has_colors: bool) -> Screen {
        let is_terminal = std::io::stdout().is_terminal();
        Screen { is_terminal, has_colors: has_colors && is_terminal, part: Part::Nothing }
    }

    pub(super) fn reasoning(&mut self, text: &str) -> Result<(), OutputError> {
        if !self.is_terminal {
            return Ok(());
        }
        let begin = self.enter(Part::Reasoning);
        output::piece(format_args!("{begin}{text}"))
    }

    pub(super) fn text(&mut self, text: &str) -> Result<(), OutputError> {
        let begin = self.enter(Part::Text);
        output::piece(format_args!("{begin}{text}"))
    }

    pub(super) fn tool_call(&mut self, call: &Value) -> Result<(), OutputError> {
        let begin = self.enter(Part::Text);
        output::line(format_args!("{begin}{call}"))
    }

    /// Ends the line of an answer that was interrupted.
    pub(super) fn interrupted(&mut self) -> Result<(), OutputError> {
        let end = self.enter(Part::Nothing);
        output::line(format_args!("{end} … (interrupted)"))
    }

    pub(super) fn end(&mut self) -> Result<(), OutputError> {
        let end = self.enter(Part::Nothing);
        output::line(end)
    }

    /// Returns the text to print where `part` begins: it separates and colours the parts of the
    /// answer.
    fn enter(&mut self, part: Part) -> impl Display + use<> {
        let before = std::mem::replace(&mut self.part, part);
        match (before, part) {
            (before, part) if before == part => "",
            (_, Part::Reasoning) if self.has_colors => DIM,
            (_, Part::Reasoning) => BEGIN,
            (Part::Reasoning, Part::Text) if self.has_colors => "\x1b[0m\n\n",
            (Part::Reasoning, Part::Text) => "\n\n",
            (Part::Reasoning, Part::Nothing) if self.has_colors => PLAIN,
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(has_colors: bool) -> String {
        let mut screen = Screen { is_terminal: true, has_colors, part: Part::Nothing };
        let parts = [
            (Part::Reasoning, "a"),
            (Part::Reasoning, "b"),
            (Part::Text, "c"),
            (Part::Text, "d"),
            (Part::Nothing, ""),
        ];
        parts.map(|(part, text)| format!("{}{text}", screen.enter(part))).concat()
    }

    #[test]
    fn reasoning_is_dimmed_or_marked_and_the_answer_is_plain() {
        assert_eq!(shown(true), "\x1b[2mab\x1b[0m\n\ncd");
        assert_eq!(shown(false), "[reasoning] ab\n\ncd");
    }
}
