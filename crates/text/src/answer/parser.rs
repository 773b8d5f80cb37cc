//! Splits an answer into segments while it is arriving.
//!
//! ```text
//!              trigger of a pattern              steps match: calls
//!   Content ─────────────────────────▶ Markup ──────────────────────▶ Content
//!    ▲   │                               │  they do not: content
//!    │   │ the reasoning's opening       └─────────────────────────▶ Content
//!    │   ▼
//!   Reasoning   (its closing leads back)
//! ```
//!
//! Text is held back while it may still become markup, and white space while it may turn out to
//! precede markup; both are bounded. A call is reported from the beginning of its arguments, and
//! stays a call. Every decision depends on the text alone, never on where it was cut into pieces.

use std::sync::Arc;

use super::form::Form;
use super::live::{LiveCalls, Outcome};
use super::pattern::{
    Matcher, Pattern, Position, Progress, ceil_char_boundary, compare, floor_char_boundary,
};
use super::segment::Segment;
use super::{AnswerFormat, ToolSpec, Tools};

/// Maximum size of a call; a longer one is content. Bounds how much text can be held back.
pub(crate) const CALL_BYTES_MAX: usize = 256 << 10;

/// Maximum number of bytes of white space before markup that are held back and dropped.
const SPACE_BYTES_MAX: usize = 256;

/// How an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerEnd {
    /// The model ended the answer.
    Stopped,
    /// The answer was cut before its end, by a limit, a stop string or a stop token of the request:
    /// text that may have become markup is dropped.
    Cut,
}

/// Separates reasoning and tool calls from content in text that arrives in pieces. The result does
/// not depend on how the text was cut: two adjacent segments of text, or of reasoning, mean the
/// same as one.
#[derive(Debug)]
pub struct AnswerParser {
    format: AnswerFormat,
    tools: Tools,
    /// Triggers that leave the mode. A trigger that is the beginning of another one comes after it.
    triggers: Vec<Trigger>,
    /// Text that is not settled yet, from `start` on; the bytes before `start` are settled.
    held: String,
    start: usize,
    /// Position up to which no trigger begins.
    scanned: usize,
    mode: Mode,
    place: Position,
    /// Whether white space is dropped until other text comes.
    drops_space: bool,
    end: Option<AnswerEnd>,
    segments: Vec<Segment>,
    /// Number of bytes examined, each counted every time; tests bound this number.
    pub(crate) work: u64,
}

#[derive(Debug)]
enum Mode {
    Content,
    Reasoning,
    /// A pattern matches so far; it begins at `markup` in the held text.
    Markup {
        markup: usize,
        matcher: Matcher,
        calls: Box<LiveCalls>,
    },
}

/// A text that makes the parser leave the current mode.
#[derive(Debug, Clone, Copy)]
struct Trigger {
    text: &'static str,
    place: Position,
    leads_to: LeadsTo,
}

#[derive(Debug, Clone, Copy)]
enum LeadsTo {
    Pattern(&'static Pattern),
    Reasoning,
    Content,
    /// The trigger ends the reasoning and is the beginning of a call.
    Call,
}

impl AnswerParser {
    /// Creates a parser for an answer from its first byte on. `in_reasoning` says that the prompt
    /// has already opened the reasoning (see [`AnswerFormat::opened_by`]). If `tools` is given,
    /// only those tools can be called, and their schemas give the types of parameters that the
    /// model does not write as JSON.
    pub fn new(
        format: &AnswerFormat,
        tools: Option<Arc<[ToolSpec]>>,
        in_reasoning: bool,
    ) -> AnswerParser {
        let in_reasoning = in_reasoning && format.reasoning.is_some();
        let mut parser = AnswerParser {
            format: format.clone(),
            tools: Tools(tools),
            triggers: Vec::new(),
            held: String::new(),
            start: 0,
            scanned: 0,
            mode: Mode::Content,
            place: Position::Start,
            drops_space: false,
            end: None,
            segments: Vec::new(),
            work: 0,
        };
        parser.enter(if in_reasoning { Mode::Reasoning } else { Mode::Content });
        parser.drops_space = in_reasoning;
        parser
    }

    /// Takes the next piece of the answer and returns the segments that it settles.
    pub fn push(&mut self, piece: &str) -> Vec<Segment> {
        self.held.push_str(piece);
        self.settle()
    }

    /// Ends the answer and returns the segments of the text that was held back; unfinished markup
    /// of a cut answer is dropped.
    pub fn finish(&mut self, end: AnswerEnd) -> Vec<Segment> {
        self.end = Some(end);
        self.settle()
    }

    /// Whether the text so far ends within the reasoning.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.mode, Mode::Reasoning)
    }

    /// Number of bytes in the buffer of text that is not settled.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.len()
    }

    fn settle(&mut self) -> Vec<Segment> {
        loop {
            let is_settled = match self.mode {
                Mode::Content | Mode::Reasoning => self.scan(),
                Mode::Markup { .. } => self.match_markup(),
            };
            if is_settled {
                break;
            }
        }
        self.held.drain(..self.start);
        self.scanned -= self.start;
        if let Mode::Markup { markup, .. } = &mut self.mode {
            *markup -= self.start;
        }
        self.start = 0;
        std::mem::take(&mut self.segments)
    }

    /// Changes the mode and collects the triggers that can leave it.
    fn enter(&mut self, mode: Mode) {
        self.triggers.clear();
        let reasoning = self.format.reasoning;
        match &mode {
            Mode::Reasoning => {
                self.triggers.extend(reasoning.map(|reasoning| Trigger {
                    text: reasoning.close(),
                    place: Position::Anywhere,
                    leads_to: LeadsTo::Content,
                }));
                let calls = reasoning.map_or(&[][..], |reasoning| reasoning.family.calls);
                self.triggers.extend(calls.iter().map(|text| Trigger {
                    text,
                    place: Position::Anywhere,
                    leads_to: LeadsTo::Call,
                }));
            }
            Mode::Content | Mode::Markup { .. } => {
                self.triggers.extend(reasoning.map(|reasoning| Trigger {
                    text: reasoning.open(),
                    place: reasoning.family.place,
                    leads_to: LeadsTo::Reasoning,
                }));
                let markup = reasoning.map_or(&[][..], |reasoning| reasoning.family.markup);
                let patterns = self.format.tool_patterns();
                self.triggers.extend(patterns.chain(markup).map(|pattern| Trigger {
                    text: pattern.trigger,
                    place: pattern.place,
                    leads_to: LeadsTo::Pattern(pattern),
                }));
            }
        }
        self.mode = mode;
    }

    /// Looks for the next trigger; returns true if all held text has been scanned.
    fn scan(&mut self) -> bool {
        let (at, found) = self.find_trigger();
        let space = self.trailing_space(at);
        self.release(at - space);
        let Some(trigger) = found else { return true };
        match trigger.leads_to {
            LeadsTo::Pattern(pattern) => {
                let calls = Box::new(LiveCalls::new(pattern));
                self.mode = Mode::Markup { markup: at, matcher: Matcher::new(pattern), calls };
            }
            LeadsTo::Reasoning | LeadsTo::Content | LeadsTo::Call => {
                let is_marker = !matches!(trigger.leads_to, LeadsTo::Call);
                self.skip(if is_marker { at + trigger.text.len() } else { at });
                self.place = Position::Start;
                self.drops_space = true;
                self.enter(match trigger.leads_to {
                    LeadsTo::Reasoning => Mode::Reasoning,
                    _ => Mode::Content,
                });
            }
        }
        false
    }

    /// Returns the next trigger and where it begins, or the position where one may begin.
    fn find_trigger(&mut self) -> (usize, Option<Trigger>) {
        let bytes = self.held.as_bytes();
        while self.scanned < bytes.len() {
            self.work += 1;
            let byte = bytes[self.scanned];
            let mut has_begun = false;
            for trigger in &self.triggers {
                let begins = trigger.text.as_bytes().first().is_none_or(|first| *first == byte);
                if !begins || !counts(trigger.place, self.place) {
                    continue;
                }
                self.work += trigger.text.len() as u64;
                match compare(&self.held[self.scanned..], trigger.text) {
                    Some(true) if !has_begun => return (self.scanned, Some(*trigger)),
                    Some(_) => {}
                    None => has_begun |= self.end != Some(AnswerEnd::Stopped),
                }
            }
            if has_begun {
                break;
            }
            if !byte.is_ascii_whitespace() {
                self.place = Position::Anywhere;
            }
            self.scanned += 1;
        }
        (self.scanned, None)
    }

    /// Continues to match markup; returns true if all held text has been scanned.
    fn match_markup(&mut self) -> bool {
        let Mode::Markup { markup, matcher, calls } = &mut self.mode else { return false };
        let markup = *markup;
        let limit = floor_char_boundary(&self.held, markup + CALL_BYTES_MAX);
        let text = &self.held[markup..limit];
        let is_too_long = self.held.len() >= markup + CALL_BYTES_MAX;
        let before = matcher.work + calls.work;
        let is_stopped = self.end == Some(AnswerEnd::Stopped);
        let progress = matcher.advance(text, is_stopped && !is_too_long);
        calls.advance(matcher, text, &self.tools);
        let (end, outcome) = match progress {
            Progress::Matched(len) => {
                (markup + len, Some(calls.matched(matcher, &text[..len], &self.tools)))
            }
            Progress::Failed(len) => {
                (ceil_char_boundary(&self.held, markup + len), Some(calls.failed()))
            }
            Progress::More if is_too_long || is_stopped => (limit, Some(calls.failed())),
            Progress::More if self.end.is_some() => {
                (limit, Some(calls.cut(matcher, text, &self.tools)))
            }
            Progress::More => (limit, None),
        };
        self.work += 1 + matcher.work + calls.work - before;
        self.segments.append(&mut calls.take_segments());
        match outcome {
            Some(Outcome::Markup) => self.accept(end),
            Some(Outcome::Content) => self.reject(end),
            None => return true,
        }
        false
    }

    /// Accepts the markup up to `end`, which is calls or markup without a call.
    fn accept(&mut self, end: usize) {
        let Mode::Markup { markup, calls, .. } = &self.mode else { return };
        if matches!(calls.form(), Form::Bare) {
            // White space before the markup belongs to the content, unless it follows a call.
            let markup = *markup;
            self.release(markup);
            if self.place == Position::Start {
                self.place = Position::Anywhere;
            }
        } else {
            self.place = Position::AfterCall;
            self.drops_space = true;
        }
        self.skip(end);
        self.mode = Mode::Content;
    }

    /// Treats what looked like markup as content up to `end`, except for white space that may
    /// precede other markup.
    fn reject(&mut self, end: usize) {
        let Mode::Markup { markup, .. } = self.mode else { return };
        let end = (markup + self.held[markup..end].trim_ascii_end().len()).max(markup + 1);
        self.mode = Mode::Content;
        self.place = Position::Anywhere;
        self.scanned = end;
        self.release(end);
    }

    /// Drops everything up to `end`.
    fn skip(&mut self, end: usize) {
        self.start = end;
        self.scanned = end;
    }

    /// Emits the held text up to `end`.
    fn release(&mut self, end: usize) {
        let mut text = &self.held[self.start..end];
        self.start = end;
        if self.drops_space {
            text = text.trim_ascii_start();
        }
        if text.is_empty() {
            return;
        }
        self.drops_space = false;
        let is_reasoning = self.is_reasoning();
        match (self.segments.last_mut(), is_reasoning) {
            (Some(Segment::Text(before)), false) => before.push_str(text),
            (Some(Segment::Reasoning(before)), true) => before.push_str(text),
            (_, false) => self.segments.push(Segment::Text(text.to_owned())),
            (_, true) => self.segments.push(Segment::Reasoning(text.to_owned())),
        }
    }

    /// Returns the number of bytes of white space before `end` to hold back; 0 once the answer has
    /// ended.
    fn trailing_space(&self, end: usize) -> usize {
        if self.triggers.is_empty() || self.end.is_some() && end == self.held.len() {
            return 0;
        }
        let space = self.held.as_bytes()[self.start..end].iter().rev().take(SPACE_BYTES_MAX);
        space.take_while(|byte| byte.is_ascii_whitespace()).count()
    }
}

/// Whether a pattern for `place` applies at the position `now`.
fn counts(place: Position, now: Position) -> bool {
    match place {
        Position::Anywhere => true,
        Position::StartOrAfterCall => matches!(now, Position::Start | Position::AfterCall),
        Position::Start | Position::AfterCall => now == place,
    }
}
