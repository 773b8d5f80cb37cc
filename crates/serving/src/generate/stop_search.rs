//! Finds the stop string that ends a choice, once the choice has its minimum number of tokens.

use jackalope_text::{StopStrings, Stopped};

/// The search for the stop strings of a choice.
#[derive(Debug)]
pub(super) struct StopSearch {
    /// The search before any text.
    fresh: StopStrings,
    search: StopStrings,
    /// Text that was pushed and not returned.
    held: String,
}

impl StopSearch {
    /// Creates a search for these strings.
    pub(super) fn new(stops: &[String]) -> StopSearch {
        let fresh = StopStrings::new(stops.to_vec());
        StopSearch { search: fresh.clone(), fresh, held: String::new() }
    }

    /// Takes the next piece of text and returns the text that it settles. A stop string that this
    /// piece completes ends the choice only if `may_end` is true; otherwise it is ordinary text.
    pub(super) fn push(&mut self, piece: &str, may_end: bool) -> Stopped {
        self.held.push_str(piece);
        let stopped = self.search.push(piece);
        if stopped.hit.is_some() && !may_end {
            self.search = self.fresh.clone();
            return Stopped { text: std::mem::take(&mut self.held), hit: None };
        }
        self.held.drain(..stopped.text.len());
        stopped
    }

    /// Ends the text and returns what was held back, which was not a stop string.
    pub(super) fn finish(&mut self) -> String {
        self.search.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(text: &str, hit: Option<usize>) -> Stopped {
        Stopped { text: text.to_owned(), hit }
    }

    #[test]
    fn a_stop_string_counts_once_the_choice_may_end() {
        let mut search = StopSearch::new(&["ab".to_owned(), "c".to_owned()]);
        assert_eq!(search.push("xa", false), stopped("x", None));
        assert_eq!(search.push("bcy", false), stopped("abcy", None));
        assert_eq!(search.push("za", false), stopped("z", None));
        assert_eq!(search.push("bc", true), stopped("", Some(0)), "it may begin earlier");
    }

    #[test]
    fn text_that_is_held_back_is_returned_at_the_end() {
        let mut search = StopSearch::new(&["abc".to_owned()]);
        assert_eq!(search.push("xabcab", false), stopped("xabcab", None));
        assert_eq!(search.push("yab", true), stopped("y", None));
        assert_eq!(search.finish(), "ab");
    }
}
