//! Markup as a list of steps, matched while the text is still arriving.
//!
//! Each form of a family's markup is a [`Pattern`]: its trigger, the steps that follow, and how the
//! fields captured by the steps become calls. A [`Matcher`] remembers where it stopped, so that
//! each byte is examined a bounded number of times however the text was cut.

use std::ops::Range;

use super::form::Form;

/// Maximum length of a tool's name.
const NAME_BYTES_MAX: usize = 256;

/// One form of markup.
#[derive(Debug)]
pub(crate) struct Pattern {
    /// Text that the markup begins with. The steps match from its first byte on.
    pub(crate) trigger: &'static str,
    pub(crate) place: Position,
    pub(crate) steps: &'static [Step],
    /// How the captured fields become calls.
    pub(crate) form: Form,
}

/// Where a pattern applies. White space does not change the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    Anywhere,
    /// At the beginning of the answer, after the reasoning.
    Start,
    AfterCall,
    StartOrAfterCall,
}

/// One step of a pattern. Words, the text before a marker, and JSON are captured.
#[derive(Debug)]
pub(crate) enum Step {
    /// Matches exactly this text.
    Literal(&'static str),
    /// Matches white space, possibly none.
    Space,
    /// Captures the name of a tool: letters, digits and `_-.:/`.
    Word,
    /// Captures everything up to this marker and consumes the marker.
    Until(&'static str),
    /// Consumes everything up to this marker, and the marker, without capturing it.
    Skip(&'static str),
    /// Captures everything up to the first place where this text stands in front of a name; the
    /// text is not consumed. If there is no such place or no text, captures the rest of the answer.
    Rest(Option<&'static str>),
    /// Captures a JSON object or array, of which earlier steps have consumed `opened` opening
    /// brackets.
    Json { opened: usize },
    /// Captures Python between brackets, with `opened` as for JSON.
    Python { opened: usize },
    /// Goes forward by the number of steps that is listed with the first of these texts that comes
    /// next. The text is not consumed.
    Branch(&'static [(&'static str, usize)]),
    /// Goes back this number of steps.
    Back(usize),
    /// Matches the end of the answer.
    End,
}

impl Step {
    /// Returns the text of a `Step::Literal`, `Step::Until` or `Step::Skip`; `None` for other steps.
    pub(crate) fn literal(&self) -> Option<&'static str> {
        match self {
            Step::Literal(text) | Step::Until(text) | Step::Skip(text) => Some(text),
            _ => None,
        }
    }
}

/// Result of matching the text so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The result depends on text that has not arrived.
    More,
    /// The pattern matches this number of bytes.
    Matched(usize),
    /// The pattern does not match. This number of bytes, at least one, has been examined in vain;
    /// another pattern may begin after them.
    Failed(usize),
}

/// A pattern and how far it has matched.
#[derive(Debug)]
pub(crate) struct Matcher {
    pattern: &'static Pattern,
    step: usize,
    /// Position at which the current step begins.
    pos: usize,
    /// Position up to which the current step has scanned.
    scanned: usize,
    brackets: Option<Brackets>,
    /// Range of the text that the last JSON or Python step has scanned; see [`Matcher::bracketed`].
    bracketed: Option<Range<usize>>,
    fields: Vec<Range<usize>>,
    /// Number of bytes examined; a byte counts each time that it is examined.
    pub(crate) work: u64,
}

impl Matcher {
    pub(crate) fn new(pattern: &'static Pattern) -> Matcher {
        Matcher {
            pattern,
            step: 0,
            pos: 0,
            scanned: 0,
            brackets: None,
            bracketed: None,
            fields: Vec::new(),
            work: 0,
        }
    }

    /// Returns the fields captured so far.
    pub(crate) fn fields<'a>(&self, text: &'a str) -> Vec<&'a str> {
        self.fields.iter().map(|field| &text[field.clone()]).collect()
    }

    /// Returns the fields captured before `end`.
    pub(crate) fn fields_before<'a>(&self, end: usize, text: &'a str) -> Vec<&'a str> {
        let fields = self.fields.iter().filter(|field| field.end <= end);
        fields.map(|field| &text[field.clone()]).collect()
    }

    pub(crate) fn num_fields(&self) -> usize {
        self.fields.len()
    }

    /// Returns the range of the text that the last JSON or Python step has scanned, even if the
    /// closing bracket has not arrived; `None` before such a step.
    pub(crate) fn bracketed(&self) -> Option<Range<usize>> {
        self.bracketed.clone()
    }

    /// Returns the text from the beginning of the unfinished step on.
    pub(crate) fn rest<'a>(&self, text: &'a str) -> &'a str {
        &text[self.pos..]
    }

    /// Returns text that a `Step::Until` or `Step::Rest` will certainly capture; `None` in other
    /// steps.
    pub(crate) fn marked_text<'a>(&self, text: &'a str) -> Option<&'a str> {
        let step = self.pattern.steps.get(self.step);
        let is_marked = matches!(step, Some(Step::Until(_) | Step::Rest(_)));
        is_marked.then(|| &text[self.pos..self.scanned])
    }

    /// Whether the matcher is past the steps that repeat, and not before JSON that stands for them.
    pub(crate) fn is_past_loop(&self) -> bool {
        let steps = self.pattern.steps;
        let back = steps.iter().position(|step| matches!(step, Step::Back(_)));
        let mut left = steps.iter().skip(self.step);
        back.is_some_and(|back| self.step > back + 1)
            && !left.any(|step| matches!(step, Step::Json { .. }))
    }

    /// Continues with `text`, which begins where the pattern does and has only grown since the last
    /// call.
    pub(crate) fn advance(&mut self, text: &str, has_ended: bool) -> Progress {
        while let Some(step) = self.pattern.steps.get(self.step) {
            let progress = self.take(step, text, has_ended);
            if progress != Progress::Matched(0) {
                return progress;
            }
            self.scanned = self.pos;
        }
        Progress::Matched(self.pos)
    }

    /// Runs one step; returns `Matched(0)` once the step is complete.
    fn take(&mut self, step: &Step, text: &str, has_ended: bool) -> Progress {
        let rest = &text[self.pos..];
        match step {
            Step::Literal(literal) => match compare(rest, literal) {
                Some(true) => self.done(literal.len(), None),
                Some(false) => self.failed(self.pos),
                None => Progress::More,
            },
            Step::Space => self.run(rest, has_ended, usize::MAX, |byte| byte.is_ascii_whitespace()),
            Step::Word => self.run(rest, has_ended, NAME_BYTES_MAX, is_name_byte),
            Step::Until(end) => self.until(text, end, true),
            Step::Skip(end) => self.until(text, end, false),
            Step::Rest(end) => self.rest_of_answer(text, *end, has_ended),
            Step::Json { opened } => self.brackets(text, Language::Json, *opened),
            Step::Python { opened } => self.brackets(text, Language::Python, *opened),
            Step::Branch(branches) => self.branch(rest, branches),
            Step::Back(steps) => {
                self.step -= steps;
                Progress::Matched(0)
            }
            Step::End if !rest.is_empty() => self.failed(self.pos),
            Step::End if has_ended => self.done(0, None),
            Step::End => Progress::More,
        }
    }

    /// Ends the step, which has consumed `len` bytes and captured `field`, if any.
    fn done(&mut self, len: usize, field: Option<Range<usize>>) -> Progress {
        self.work += len as u64;
        self.pos += len;
        self.step += 1;
        self.fields.extend(field);
        Progress::Matched(0)
    }

    fn failed(&self, at: usize) -> Progress {
        Progress::Failed(at.max(1))
    }

    /// Consumes bytes of one kind: white space, possibly none, or a name of at least one byte.
    fn run(&mut self, rest: &str, has_ended: bool, max: usize, fits: fn(u8) -> bool) -> Progress {
        let seen = self.scanned - self.pos;
        let more = rest.as_bytes()[seen..].iter().take_while(|byte| fits(**byte)).count();
        self.work += 1 + more as u64;
        let (len, is_name) = (seen + more, max != usize::MAX);
        self.scanned = self.pos + len;
        if len > max {
            return self.failed(self.pos);
        }
        if len == rest.len() && !has_ended {
            return Progress::More;
        }
        match is_name {
            true if len == 0 => self.failed(self.pos),
            true => self.done(len, Some(self.pos..self.pos + len)),
            false => self.done(len, None),
        }
    }

    fn until(&mut self, text: &str, end: &str, is_captured: bool) -> Progress {
        let unseen = self.scanned;
        let found = text[unseen..].find(end);
        self.work += found.map_or(text.len() - unseen, |found| found + end.len()) as u64;
        match found {
            Some(found) => {
                let field = self.pos..unseen + found;
                let len = unseen + found + end.len() - self.pos;
                self.done(len, is_captured.then_some(field))
            }
            None => {
                // The marker may have begun.
                let begun = text.len().saturating_sub(end.len() - 1).max(self.scanned);
                self.scanned = ceil_char_boundary(text, begun);
                Progress::More
            }
        }
    }

    fn rest_of_answer(&mut self, text: &str, end: Option<&str>, has_ended: bool) -> Progress {
        self.work += (text.len() - self.scanned) as u64;
        let end = end.unwrap_or_default();
        while let Some(found) = text[self.scanned..].find(end).filter(|_| !end.is_empty()) {
            let found = self.scanned + found;
            match text.as_bytes().get(found + end.len()) {
                Some(byte) if is_name_byte(*byte) => {
                    return self.done(found - self.pos, Some(self.pos..found));
                }
                Some(_) => self.scanned = ceil_char_boundary(text, found + 1),
                None if has_ended => break,
                None => {
                    self.scanned = found;
                    return Progress::More;
                }
            }
        }
        if has_ended {
            return self.done(text.len() - self.pos, Some(self.pos..text.len()));
        }
        // The end may have begun.
        let begun = (1..end.len()).rev().find(|len| text[self.pos..].ends_with(&end[..*len]));
        self.scanned = self.scanned.max(text.len() - begun.unwrap_or(0));
        Progress::More
    }

    fn brackets(&mut self, text: &str, language: Language, opened: usize) -> Progress {
        let mut brackets =
            self.brackets.take().unwrap_or(Brackets { depth: opened, quote: None, escaped: false });
        let start = self.scanned;
        let whole = if opened > 0 { 0 } else { self.pos };
        for (idx, &byte) in text.as_bytes().iter().enumerate().skip(start) {
            self.work += 1;
            match brackets.take(byte, language) {
                Bracket::Within => {}
                Bracket::Closed => {
                    self.bracketed = Some(whole..idx + 1);
                    return self.done(idx + 1 - self.pos, Some(whole..idx + 1));
                }
                Bracket::Wrong => {
                    let end = floor_char_boundary(text, idx);
                    self.bracketed = (end > self.pos).then_some(whole..end);
                    return self.failed(end);
                }
            }
        }
        self.scanned = text.len();
        self.bracketed = (text.len() > self.pos).then_some(whole..text.len());
        self.brackets = Some(brackets);
        Progress::More
    }

    fn branch(&mut self, rest: &str, branches: &[(&str, usize)]) -> Progress {
        for (next, steps) in branches {
            self.work += 1 + next.len() as u64;
            match compare(rest, next) {
                Some(true) => {
                    self.step += steps;
                    return Progress::Matched(0);
                }
                Some(false) => {}
                None => return Progress::More,
            }
        }
        self.failed(self.pos)
    }
}

/// Whether `text` begins with `literal`; `None` if `text` is too short to decide.
pub(crate) fn compare(text: &str, literal: &str) -> Option<bool> {
    let len = text.len().min(literal.len());
    match text.as_bytes()[..len] == literal.as_bytes()[..len] {
        false => Some(false),
        true if len == literal.len() => Some(true),
        true => None,
    }
}

/// Returns the end of the last whole character before `idx`.
pub(crate) fn floor_char_boundary(text: &str, idx: usize) -> usize {
    let idx = idx.min(text.len());
    (0..=idx).rev().find(|idx| text.is_char_boundary(*idx)).unwrap_or(0)
}

/// Returns the beginning of the first whole character from `idx` on.
pub(crate) fn ceil_char_boundary(text: &str, idx: usize) -> usize {
    (idx..text.len()).find(|idx| text.is_char_boundary(*idx)).unwrap_or(text.len())
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte)
}

/// The language of the text between brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Json,
    Python,
}

/// Scanner state within text between brackets.
#[derive(Debug)]
struct Brackets {
    depth: usize,
    /// Inside a string: the quotation mark that ends it.
    quote: Option<u8>,
    escaped: bool,
}

/// Result of scanning one byte of text between brackets.
enum Bracket {
    Within,
    Closed,
    Wrong,
}

impl Brackets {
    fn take(&mut self, byte: u8, language: Language) -> Bracket {
        match (self.quote, byte) {
            (Some(_), 0..0x20) if language == Language::Json => return Bracket::Wrong,
            (Some(_), _) if self.escaped => self.escaped = false,
            (Some(_), b'\\') => self.escaped = true,
            (Some(quote), _) if quote == byte => self.quote = None,
            (Some(_), _) => {}
            (None, b'"') => self.quote = Some(byte),
            (None, b'\'') if language == Language::Python => self.quote = Some(byte),
            (None, b'{' | b'[') => self.depth += 1,
            (None, b'(') if language == Language::Python => self.depth += 1,
            (None, b'}' | b']' | b')') => match self.depth {
                0 => return Bracket::Wrong,
                1 => return Bracket::Closed,
                _ => self.depth -= 1,
            },
            // Nothing may come before the first bracket.
            (None, _) if self.depth == 0 => return Bracket::Wrong,
            (None, _) if language == Language::Json && !is_bare_json(byte) => {
                return Bracket::Wrong;
            }
            (None, _) => {}
        }
        if self.depth == 0 { Bracket::Wrong } else { Bracket::Within }
    }
}

/// Whether a byte occurs in JSON outside of strings, brackets aside: separators, white space,
/// numbers and the letters of `true`, `false` and `null`. Any other byte fails the match at once.
fn is_bare_json(byte: u8) -> bool {
    matches!(
        byte,
        b':' | b',' | b' ' | b'\t' | b'\r' | b'\n' | b'0'..=b'9' | b'+' | b'-' | b'.' | b'E'
    ) || b"truefalsn".contains(&byte)
}
