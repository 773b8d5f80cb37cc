//! The output of a template.

/// The character, a noncharacter of Unicode, that marks a place in a text at which a control token
/// written by a message is broken up.
pub(crate) const MARK: char = '\u{fdd0}';

/// The text of a conversation as the model's template writes it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RenderedPrompt {
    text: String,
    /// Bytes of `text` at which control tokens are broken up, in ascending order.
    breaks: Vec<usize>,
}

impl RenderedPrompt {
    /// Wraps a text in which every control token counts as the template's.
    pub(super) fn of_text(text: String) -> RenderedPrompt {
        RenderedPrompt { text, breaks: Vec::new() }
    }

    /// Converts a template's output: removes the marks and records their positions.
    pub(super) fn of_output(output: String) -> RenderedPrompt {
        if !output.contains(MARK) {
            return RenderedPrompt::of_text(output);
        }
        let mut rendered = RenderedPrompt::default();
        let mut chars = output.chars().peekable();
        while let Some(char) = chars.next() {
            if char == MARK && chars.next_if_eq(&MARK).is_none() {
                rendered.breaks.push(rendered.text.len());
            } else {
                rendered.text.push(char);
            }
        }
        rendered
    }

    /// Returns the text, in which control tokens written by messages look like those of the
    /// template.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Cuts the text to `len` bytes.
    ///
    /// # Panics
    /// Panics if `len` lies within a character.
    pub fn truncate(&mut self, len: usize) {
        self.text.truncate(len);
        self.breaks.retain(|at| *at <= len);
    }

    /// Whether the text has places where the tokenizer must not find control tokens.
    pub(crate) fn has_breaks(&self) -> bool {
        !self.breaks.is_empty()
    }

    /// Returns the text with `mark` at every break.
    pub(crate) fn marked(&self, mark: char) -> String {
        let mut marked = String::with_capacity(self.text.len() + 4 * self.breaks.len());
        let mut rest = 0;
        for &at in &self.breaks {
            marked.push_str(&self.text[rest..at]);
            marked.push(mark);
            rest = at;
        }
        marked.push_str(&self.text[rest..]);
        marked
    }
}
