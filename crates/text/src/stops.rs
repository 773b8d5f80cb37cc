//! Finds stop strings while the text is still arriving.
//!
//! A stop string may begin in one token and end three tokens later. So text that could be the
//! beginning of one is held back, but not more: the longest suffix of the text so far that is a
//! prefix of some stop string. The Knuth–Morris–Pratt automaton of each stop string tracks that
//! suffix, so the cost per byte and stop string is constant.

/// Result of [`StopStrings::push`] for one piece of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// Text that may be emitted: it is not and cannot become part of a stop string.
    pub text: String,
    /// Index of the stop string that ended the text, in the list given to [`StopStrings::new`].
    /// Later text is dropped.
    pub hit: Option<usize>,
}

/// Cuts a text at the first of several stop strings.
///
/// The stop string that is complete first wins; of several that are complete at the same byte, the
/// one that began earliest, then the one listed first. So the result depends on the text alone and
/// not on how it was cut into pieces. Empty stop strings never match.
#[derive(Debug, Clone)]
pub struct StopStrings {
    automata: Vec<Automaton>,
    held: String,
    done: bool,
}

/// The Knuth–Morris–Pratt automaton of one stop string.
#[derive(Debug, Clone)]
struct Automaton {
    /// Index of the stop string in the list given to [`StopStrings::new`].
    stop_idx: usize,
    pattern: Vec<u8>,
    /// `borders[n]`: length of the longest proper border of the first `n + 1` bytes.
    borders: Vec<usize>,
    /// Number of bytes of the pattern that the text so far ends with.
    matched: usize,
}

impl StopStrings {
    /// Creates a search for these strings.
    pub fn new(stops: Vec<String>) -> StopStrings {
        let automata = stops
            .into_iter()
            .enumerate()
            .filter(|(_, stop)| !stop.is_empty())
            .map(|(stop_idx, stop)| Automaton::new(stop_idx, stop.into_bytes()))
            .collect();
        StopStrings { automata, held: String::new(), done: false }
    }

    /// Takes the next piece of text and returns the text that it settles. A stop string that this piece
    /// completes ends the text only if `may_end` is true; otherwise it is ordinary text.
    pub fn push(&mut self, piece: &str, may_end: bool) -> Stopped {
        if self.done {
            return Stopped { text: String::new(), hit: None };
        }
        for (byte_idx, byte) in piece.bytes().enumerate() {
            let complete = self
                .automata
                .iter_mut()
                .filter_map(|automaton| {
                    automaton.advance(byte).then_some((automaton.pattern.len(), automaton.stop_idx))
                })
                .reduce(|best, next| if next.0 > best.0 { next } else { best });
            if let Some((stop_len, stop_idx)) = complete.filter(|_| may_end) {
                self.done = true;
                // Both ends of the match lie between characters, because the stop string consists
                // of whole characters.
                self.held.push_str(&piece[..=byte_idx]);
                self.held.truncate(self.held.len() - stop_len);
                return Stopped { text: std::mem::take(&mut self.held), hit: Some(stop_idx) };
            }
        }
        self.held.push_str(piece);
        let hold = self.automata.iter().map(Automaton::open_len).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - hold);
        Stopped { text: std::mem::replace(&mut self.held, kept), hit: None }
    }

    /// Ends the text and returns what was held back, which was not a stop string.
    pub fn finish(&mut self) -> String {
        self.done = true;
        std::mem::take(&mut self.held)
    }
}

impl Automaton {
    fn new(stop_idx: usize, pattern: Vec<u8>) -> Automaton {
        let mut borders = vec![0; pattern.len()];
        let mut border = 0;
        for idx in 1..pattern.len() {
            while border > 0 && pattern[border] != pattern[idx] {
                border = borders[border - 1];
            }
            if pattern[border] == pattern[idx] {
                border += 1;
            }
            borders[idx] = border;
        }
        Automaton { stop_idx, pattern, borders, matched: 0 }
    }

    /// Takes one byte; returns true if it completes the pattern.
    fn advance(&mut self, byte: u8) -> bool {
        self.matched = self.open_len();
        while self.matched > 0 && self.pattern[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        if self.pattern[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.pattern.len()
    }

    /// Number of bytes at the end of the text so far with which the pattern may still be completed.
    fn open_len(&self) -> usize {
        if self.matched < self.pattern.len() {
            return self.matched;
        }
        self.borders[self.matched - 1]
    }
}
