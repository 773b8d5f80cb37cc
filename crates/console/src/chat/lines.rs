//! Input of a chat: messages of one or several lines, from a terminal or a pipe.

use std::fs::{self, OpenOptions};
use std::io::{self, BufReader, Stdin, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use rustyline::history::{History, SearchDirection};

use crate::events::read_line;
use crate::output;

/// Prompts of the first line of a message and of the others.
const PROMPT: &str = "> ";
const PROMPT_MORE: &str = ". ";

/// Begins and ends a message of several lines.
const FENCE: &str = "\"\"\"";

/// Maximum number of lines that are kept in the history.
const HISTORY_LINES_MAX: usize = 1000;

/// Maximum size of a message of several lines, in bytes.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Source of messages.
pub(super) enum Lines {
    /// A terminal, with editing and a history.
    Edited { editor: Box<DefaultEditor>, history: Option<PathBuf> },
    /// A pipe or a file: each line is a message.
    Plain(BufReader<Stdin>),
}

impl Lines {
    /// Reads the history, if there is one.
    pub(super) fn new(is_terminal: bool, history: Option<&Path>) -> anyhow::Result<Lines> {
        if !is_terminal {
            return Ok(Lines::Plain(BufReader::new(io::stdin())));
        }
        let config = rustyline::Config::builder()
            .auto_add_history(true)
            .max_history_size(HISTORY_LINES_MAX)?
            .build();
        let mut editor = DefaultEditor::with_config(config)?;
        let earlier = history.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        for line in earlier.lines() {
            editor.add_history_entry(line)?;
        }
        Ok(Lines::Edited { editor: Box::new(editor), history: history.map(Path::to_owned) })
    }

    /// Returns the next message; `None` at the end of the input. Ctrl-C discards what was typed, and
    /// ends the input if that was nothing.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<String>> {
        let Lines::Edited { editor, .. } = self else {
            return self.plain_message();
        };
        let mut message = Message::default();
        loop {
            let prompt = if message.is_begun() { PROMPT_MORE } else { PROMPT };
            match editor.readline(prompt) {
                Ok(line) => {
                    if let Some(text) = message.add(&line) {
                        return Ok(Some(text));
                    }
                }
                Err(ReadlineError::Interrupted) if message.is_begun() => {
                    message = Message::default();
                }
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => return Ok(None),
                Err(err) => return Err(err).context("reading the terminal"),
            }
        }
    }

    /// Reads a message from a pipe: one line, or several between fences or ended by `\`.
    fn plain_message(&mut self) -> anyhow::Result<Option<String>> {
        let Lines::Plain(reader) = self else { return Ok(None) };
        let mut message = Message::default();
        while let Some(line) = read_line(reader)? {
            if let Some(text) = message.add(line.trim_end_matches(['\r', '\n'])) {
                return Ok(Some(text));
            }
        }
        Ok(message.is_begun().then(|| message.text()))
    }

    /// Writes the history. Losing it is not worth an error.
    fn write_history(&self) -> io::Result<()> {
        let Lines::Edited { editor, history: Some(path) } = self else { return Ok(()) };
        let history = editor.history();
        let mut text = String::new();
        for index in 0..history.len() {
            if let Ok(Some(found)) = history.get(index, SearchDirection::Forward) {
                text.push_str(&found.entry.replace('\n', " "));
                text.push('\n');
            }
        }
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        // Only the user may read what was said.
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if let Err(err) = self.write_history() {
            output::note(&format!("warning: the history was not kept: {err}"));
        }
    }
}

/// A message that is being typed.
#[derive(Debug, Default)]
struct Message {
    lines: Vec<String>,
    is_fenced: bool,
}

impl Message {
    fn is_begun(&self) -> bool {
        self.is_fenced || !self.lines.is_empty()
    }

    /// Adds a line. Returns the message if it is complete.
    fn add(&mut self, line: &str) -> Option<String> {
        let mut line = line;
        if !self.is_begun()
            && let Some(rest) = line.trim_start().strip_prefix(FENCE)
        {
            self.is_fenced = true;
            line = rest;
        }
        let is_full = MESSAGE_BYTES_MAX < self.lines.iter().map(String::len).sum::<usize>();
        if self.is_fenced {
            let end = line.trim_end().strip_suffix(FENCE);
            self.push(end.unwrap_or(line));
            return (end.is_some() || is_full).then(|| self.text());
        }
        let more = line.strip_suffix('\\');
        self.lines.push(more.unwrap_or(line).to_owned());
        (more.is_none() || is_full).then(|| self.text())
    }

    /// Adds a line of a fenced message, unless it is the empty text after the fence that opens the
    /// message.
    fn push(&mut self, line: &str) {
        if !(self.lines.is_empty() && line.is_empty()) {
            self.lines.push(line.to_owned());
        }
    }

    fn text(&self) -> String {
        let text = self.lines.join("\n");
        if self.is_fenced { text.trim_end_matches('\n').to_owned() } else { text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(lines: &[&str]) -> Vec<String> {
        let mut message = Message::default();
        let mut all = Vec::new();
        for line in lines {
            if let Some(text) = message.add(line) {
                all.push(text);
                message = Message::default();
            }
        }
        all
    }

    #[test]
    fn a_backslash_and_fences_join_lines() {
        assert_eq!(messages(&["one", "two\\", "three"]), ["one", "two\nthree"]);
        let fenced = ["\"\"\"", "fn a() {", "", "}", "\"\"\"", "next"];
        assert_eq!(messages(&fenced), ["fn a() {\n\n}", "next"]);
        assert_eq!(messages(&["\"\"\"one", "two\"\"\""]), ["one\ntwo"]);
        assert_eq!(messages(&["\"\"\"one\"\"\""]), ["one"]);
        assert_eq!(messages(&["say \"\"\"x\"\"\""]), ["say \"\"\"x\"\"\""]);
    }
}
