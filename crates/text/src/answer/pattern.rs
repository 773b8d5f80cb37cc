//! Markup as a list of steps, matched while the text is still coming.
//!
//! A family of models describes each form of its markup by a [`Pattern`]: what it begins with,
//! the steps that follow, and how the fields that the steps captured become calls. A [`Matcher`]
//! remembers where it stopped, so that a byte is looked at a bounded number of times however the
//! text was cut.

use std::ops::Range;

use super::live::Form;

/// The longest name of a tool.
const NAME_BYTES_MAX: usize = 256;

/// One form of markup.
#[derive(Debug)]
pub(crate) struct Pattern {
    /// What it begins with. The steps match from its first byte on.
    pub(crate) trigger: &'static str,
    pub(crate) place: Place,
    pub(crate) steps: &'static [Step],
    /// How it says what is called.
    pub(crate) form: Form,
}

/// Where a pattern counts. White space does not change the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Anywhere,
    /// Where the answer begins, which is after the reasoning.
    Start,
    AfterCall,
    StartOrAfterCall,
}

/// One step of a pattern. Words, what comes before a marker, and JSON are captured.
#[derive(Debug)]
pub(crate) enum Step {
    /// Exactly this.
    Literal(&'static str),
    /// White space, perhaps none.
    Space,
    /// The name of a tool: letters, digits and `_-.:/`.
    Word,
    /// Everything up to this marker, which ends it.
    Until(&'static str),
    /// A JSON object or array; so many of its brackets have been opened by steps before.
    Json { opened: usize },
    /// Python between brackets, likewise.
    Python { opened: usize },
    /// Goes on so many steps further, by the first of these that comes next. It is not consumed.
    Branch(&'static [(&'static str, usize)]),
    /// Goes back so many steps.
    Back(usize),
    /// The answer ends here.
    End,
}

impl Step {
    /// The text that the step looks for, if it is one.
    pub(crate) fn literal(&self) -> Option<&'static str> {
        match self {
            Step::Literal(text) | Step::Until(text) => Some(text),
            _ => None,
        }
    }
}

/// What the text so far led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It depends on what comes next.
    More,
    /// The pattern matches this number of bytes.
    Matched(usize),
    /// It does not match. So many bytes, at least one, have been looked at in vain; another
    /// pattern may begin after them.
    Failed(usize),
}

/// A pattern and how far it matches.
#[derive(Debug)]
pub(crate) struct Matcher {
    pattern: &'static Pattern,
    step: usize,
    /// Where the step begins.
    pos: usize,
    /// Up to where the step has looked.
    scanned: usize,
    brackets: Option<Brackets>,
    /// What the last step between brackets has taken.
    bracketed: Option<Range<usize>>,
    fields: Vec<Range<usize>>,
    /// Bytes looked at, each time one is.
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

    /// What was captured so far.
    pub(crate) fn fields<'a>(&self, text: &'a str) -> Vec<&'a str> {
        self.fields.iter().map(|field| &text[field.clone()]).collect()
    }

    /// What was captured before `end`.
    pub(crate) fn fields_before<'a>(&self, end: usize, text: &'a str) -> Vec<&'a str> {
        let fields = self.fields.iter().filter(|field| field.end <= end);
        fields.map(|field| &text[field.clone()]).collect()
    }

    pub(crate) fn num_fields(&self) -> usize {
        self.fields.len()
    }

    /// What the last step between brackets has taken, whole or not.
    pub(crate) fn bracketed(&self) -> Option<Range<usize>> {
        self.bracketed.clone()
    }

    /// What the step that is not over has before it.
    pub(crate) fn rest<'a>(&self, text: &'a str) -> &'a str {
        &text[self.pos..]
    }

    /// Text that certainly belongs to what a step up to a marker will capture; none in other steps.
    pub(crate) fn marked_text<'a>(&self, text: &'a str) -> Option<&'a str> {
        let is_marked = matches!(self.pattern.steps.get(self.step), Some(Step::Until(_)));
        is_marked.then(|| &text[self.pos..self.scanned])
    }

    /// Whether the steps that repeat are over.
    pub(crate) fn is_past_loop(&self) -> bool {
        let back = self.pattern.steps.iter().rposition(|step| matches!(step, Step::Back(_)));
        back.is_some_and(|back| self.step > back + 1)
    }

    /// Goes on with `text`, which begins where the pattern does and has only ever grown.
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

    /// Takes one step; `Matched(0)` says that it is done.
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
            Step::Until(end) => self.until(text, end),
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

    /// The step has consumed `len` bytes.
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

    /// Bytes of one kind: white space, perhaps none, or at least one byte of a name.
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

    fn until(&mut self, text: &str, end: &str) -> Progress {
        let unseen = self.scanned;
        let found = text[unseen..].find(end);
        self.work += found.map_or(text.len() - unseen, |found| found + end.len()) as u64;
        match found {
            Some(found) => {
                let field = self.pos..unseen + found;
                self.done(unseen + found + end.len() - self.pos, Some(field))
            }
            None => {
                // The end may have begun.
                let begun = text.len().saturating_sub(end.len() - 1).max(self.scanned);
                self.scanned = ceil_char_boundary(text, begun);
                Progress::More
            }
        }
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

/// Whether `text` begins with `literal`; unknown if it is too short to tell.
pub(crate) fn compare(text: &str, literal: &str) -> Option<bool> {
    let len = text.len().min(literal.len());
    match text.as_bytes()[..len] == literal.as_bytes()[..len] {
        false => Some(false),
        true if len == literal.len() => Some(true),
        true => None,
    }
}

/// The end of the last whole character before `idx`.
pub(crate) fn floor_char_boundary(text: &str, idx: usize) -> usize {
    let idx = idx.min(text.len());
    (0..=idx).rev().find(|idx| text.is_char_boundary(*idx)).unwrap_or(0)
}

/// The beginning of the first whole character from `idx` on.
pub(crate) fn ceil_char_boundary(text: &str, idx: usize) -> usize {
    (idx..text.len()).find(|idx| text.is_char_boundary(*idx)).unwrap_or(text.len())
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte)
}

/// What stands between brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Json,
    Python,
}

/// Where between brackets a text is.
#[derive(Debug)]
struct Brackets {
    depth: usize,
    /// Inside a string, what ends it.
    quote: Option<u8>,
    escaped: bool,
}

/// What one byte led to.
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
            // Before the first bracket there is nothing.
            (None, _) if self.depth == 0 => return Bracket::Wrong,
            (None, _) if language == Language::Json && !is_bare_json(byte) => {
                return Bracket::Wrong;
            }
            (None, _) => {}
        }
        match self.depth == 0 {
            true => Bracket::Wrong,
            false => Bracket::Within,
        }
    }
}

/// Bytes that occur in JSON outside of strings, brackets aside: separators, white space, numbers
/// and the letters of `true`, `false` and `null`. Anything else ends the wait for the rest.
fn is_bare_json(byte: u8) -> bool {
    matches!(
        byte,
        b':' | b',' | b' ' | b'\t' | b'\r' | b'\n' | b'0'..=b'9' | b'+' | b'-' | b'.' | b'E'
    ) || b"truefalsn".contains(&byte)
}
