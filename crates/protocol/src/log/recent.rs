//! The last lines of this process's log, kept in memory for those who cannot see where it is written.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

/// Maximum number of lines that are kept.
pub const RECENT_LINES_MAX: usize = 500;

/// Maximum length of a kept line in bytes; longer ones are cut.
const RECENT_LINE_BYTES_MAX: usize = 2048;

static RECENT: Mutex<Recent> = Mutex::new(Recent { lines: VecDeque::new(), last: 0 });

/// A line of the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogLine {
    /// Number of the line since the process started, from 1 on.
    pub number: u64,
    /// Its text, without a line break and without a terminal's colours.
    pub text: String,
}

/// Keeps each buffer as one line. Never blocks and never fails. For `tracing_subscriber`, as
/// `with_writer(RecentLines::new)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecentLines;

impl RecentLines {
    /// Creates a writer to this process's kept lines.
    pub fn new() -> RecentLines {
        RecentLines
    }
}

impl Write for RecentLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        keep(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the kept lines with numbers greater than `after`, in order.
pub fn recent_lines(after: u64) -> Vec<LogLine> {
    RECENT.lock().unwrap_or_else(PoisonError::into_inner).after(after)
}

/// Keeps a buffer that the log writes as one line.
pub(super) fn keep(bytes: &[u8]) {
    RECENT.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
}

#[derive(Debug, Default)]
struct Recent {
    lines: VecDeque<LogLine>,
    /// Number of the last line.
    last: u64,
}

impl Recent {
    fn push(&mut self, bytes: &[u8]) {
        let cut = &bytes[..bytes.len().min(RECENT_LINE_BYTES_MAX)];
        let text = without_colours(String::from_utf8_lossy(cut).trim_end());
        if text.is_empty() {
            return;
        }
        self.last += 1;
        if self.lines.len() == RECENT_LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(LogLine { number: self.last, text });
    }

    fn after(&self, number: u64) -> Vec<LogLine> {
        self.lines.iter().filter(|line| number < line.number).cloned().collect()
    }
}

/// Removes the colour escapes of a terminal (`ESC [ … m`) from a line.
pub fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, behind)| behind);
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_by_number_without_colours() {
        let mut recent = Recent::default();
        for idx in 1..=RECENT_LINES_MAX + 3 {
            recent.push(format!("\u{1b}[32m INFO\u{1b}[0m line {idx}\n").as_bytes());
        }
        recent.push(b"\n");
        let lines = recent.after(0);
        assert_eq!(lines.len(), RECENT_LINES_MAX);
        assert_eq!(lines[0], LogLine { number: 4, text: " INFO line 4".to_owned() });
        let after = recent.after(RECENT_LINES_MAX as u64 + 2);
        assert_eq!(after.len(), 1, "{after:?}");
        assert!(recent.after(u64::MAX).is_empty());
    }

    #[test]
    fn long_lines_and_bytes_that_are_no_text_are_harmless() {
        let mut recent = Recent::default();
        recent.push(&[0xff; 3 * RECENT_LINE_BYTES_MAX]);
        recent.push("ä".repeat(RECENT_LINE_BYTES_MAX).as_bytes());
        let lines = recent.after(0);
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|line| line.text.len() <= 3 * RECENT_LINE_BYTES_MAX));
    }
}
