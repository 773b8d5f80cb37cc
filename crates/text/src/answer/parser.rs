//! Takes an answer apart while it is coming.
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
//! Text is held back while it may still become markup, and white space before it while it may
//! touch markup, both bounded. A call is reported from where its arguments begin, and stays one. Every decision depends on the text alone, never on where it was cut.

use std::sync::Arc;

use super::live::{Form, LiveCalls, Outcome};
use super::pattern::{
    Matcher, Pattern, Place, Progress, ceil_char_boundary, compare, floor_char_boundary,
};
use super::{AnswerFormat, ToolCall, ToolSpec, Tools};

/// A call longer than this is content. It bounds how much text can be held back.
pub(crate) const CALL_BYTES_MAX: usize = 256 << 10;

/// Of the white space before markup no more than this is held back and dropped.
const SPACE_BYTES_MAX: usize = 256;

/// A settled piece of the model's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// Content; never empty.
    Text(String),
    /// What the model thought before it answered; never empty.
    Reasoning(String),
    /// A tool call begins, with the arguments that are there already.
    Call(ToolCall),
    /// More of the arguments of the call that began last.
    Arguments(String),
    /// The call that began last is over. Its arguments are whole unless the model made a mistake. In an answer
    /// that was cut this may be missing.
    CallEnd,
}

/// How an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerEnd {
    /// The model has ended it, or a stop string.
    Stopped,
    /// The model would have gone on: what may have become markup is left out.
    Cut,
}

/// Separates reasoning and tool calls from content in text that comes in pieces. The result does
/// not depend on how the text was cut: two neighbouring segments of text, or of reasoning, mean
/// the same as one.
#[derive(Debug)]
pub struct AnswerParser {
    format: AnswerFormat,
    tools: Tools,
    triggers: Vec<Trigger>,
    /// Text that is not settled; what lies before `start` is.
    held: String,
    start: usize,
    /// Up to where no trigger begins.
    scanned: usize,
    mode: Mode,
    place: Place,
    /// White space is dropped until something else comes.
    drops_space: bool,
    end: Option<AnswerEnd>,
    segments: Vec<Segment>,
    /// Bytes looked at, each time one is: the measure that tests bound.
    pub(crate) work: u64,
}

#[derive(Debug)]
enum Mode {
    Content,
    Reasoning,
    /// A pattern matches so far; `markup` is where it begins in the held text.
    Markup {
        markup: usize,
        matcher: Matcher,
        calls: Box<LiveCalls>,
    },
}

/// What leaves the mode.
#[derive(Debug, Clone, Copy)]
struct Trigger {
    text: &'static str,
    place: Place,
    leads_to: LeadsTo,
}

#[derive(Debug, Clone, Copy)]
enum LeadsTo {
    Pattern(&'static Pattern),
    Reasoning,
    Content,
}

impl AnswerParser {
    /// Starts with the first byte of an answer. The prompt may have opened the reasoning already
    /// (see [`AnswerFormat::opened_by`]). If `tools` is given, only they can be called; their
    /// schemas say how parameters are written that the model does not write as JSON.
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
            place: Place::Start,
            drops_space: false,
            end: None,
            segments: Vec::new(),
            work: 0,
        };
        parser.enter(if in_reasoning { Mode::Reasoning } else { Mode::Content });
        parser.drops_space = in_reasoning;
        parser
    }

    /// Takes the next piece of the answer and returns what is settled by it.
    pub fn push(&mut self, piece: &str) -> Vec<Segment> {
        self.held.push_str(piece);
        self.settle()
    }

    /// The answer has ended: what was held back is what it looks like, and nothing if the answer was
    /// cut within markup.
    pub fn finish(&mut self, end: AnswerEnd) -> Vec<Segment> {
        self.end = Some(end);
        self.settle()
    }

    /// Whether the text so far ends within the reasoning.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.mode, Mode::Reasoning)
    }

    /// Text that is held back.
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

    /// What can leave a mode.
    fn enter(&mut self, mode: Mode) {
        self.triggers.clear();
        let reasoning = self.format.reasoning;
        match &mode {
            Mode::Reasoning => {
                self.triggers.extend(reasoning.map(|reasoning| Trigger {
                    text: reasoning.close(),
                    place: Place::Anywhere,
                    leads_to: LeadsTo::Content,
                }));
            }
            Mode::Content | Mode::Markup { .. } => {
                self.triggers.extend(reasoning.map(|reasoning| Trigger {
                    text: reasoning.open(),
                    place: reasoning.family.place,
                    leads_to: LeadsTo::Reasoning,
                }));
                let markup = reasoning.map_or(&[][..], |reasoning| reasoning.family.markup);
                let patterns = self.format.tools.map_or(&[][..], |tools| tools.family.patterns);
                self.triggers.extend(patterns.iter().chain(markup).map(|pattern| Trigger {
                    text: pattern.trigger,
                    place: pattern.place,
                    leads_to: LeadsTo::Pattern(pattern),
                }));
            }
        }
        self.mode = mode;
    }

    /// Looks for the next trigger; true if all that is held has been looked at.
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
            LeadsTo::Reasoning | LeadsTo::Content => {
                self.skip(at + trigger.text.len());
                self.place = Place::Start;
                self.drops_space = true;
                self.enter(match trigger.leads_to {
                    LeadsTo::Reasoning => Mode::Reasoning,
                    _ => Mode::Content,
                });
            }
        }
        false
    }

    /// Where the next trigger begins, or may begin, and which it is.
    fn find_trigger(&mut self) -> (usize, Option<Trigger>) {
        let bytes = self.held.as_bytes();
        while self.scanned < bytes.len() {
            self.work += 1;
            let byte = bytes[self.scanned];
            let mut has_begun = false;
            for trigger in &self.triggers {
                if trigger.text.as_bytes()[0] != byte || !counts(trigger.place, self.place) {
                    continue;
                }
                self.work += trigger.text.len() as u64;
                match compare(&self.held[self.scanned..], trigger.text) {
                    Some(true) => return (self.scanned, Some(*trigger)),
                    Some(false) => {}
                    None => has_begun |= self.end != Some(AnswerEnd::Stopped),
                }
            }
            if has_begun {
                break;
            }
            if !byte.is_ascii_whitespace() {
                self.place = Place::Anywhere;
            }
            self.scanned += 1;
        }
        (self.scanned, None)
    }

    /// Goes on through markup; true if all that is held has been looked at.
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

    /// The markup up to `end` is calls, or markup alone.
    fn accept(&mut self, end: usize) {
        let Mode::Markup { markup, calls, .. } = &self.mode else { return };
        if matches!(calls.form(), Form::Bare) {
            // White space before is the content's, unless it came after a call.
            let markup = *markup;
            self.release(markup);
        } else {
            self.place = Place::AfterCall;
            self.drops_space = true;
        }
        self.skip(end);
        self.mode = Mode::Content;
    }

    /// What looked like markup is content up to `end`, but for white space that may yet touch
    /// other markup.
    fn reject(&mut self, end: usize) {
        let Mode::Markup { markup, .. } = self.mode else { return };
        let end = (markup + self.held[markup..end].trim_ascii_end().len()).max(markup + 1);
        self.mode = Mode::Content;
        self.place = Place::Anywhere;
        self.scanned = end;
        self.release(end);
    }

    /// Leaves out everything up to `end`.
    fn skip(&mut self, end: usize) {
        self.start = end;
        self.scanned = end;
    }

    /// Passes on what is held up to `end`.
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

    /// How much of the white space before `end` is held back; none once the answer has ended.
    fn trailing_space(&self, end: usize) -> usize {
        if self.triggers.is_empty() || self.end.is_some() && end == self.held.len() {
            return 0;
        }
        let space = self.held.as_bytes()[self.start..end].iter().rev().take(SPACE_BYTES_MAX);
        space.take_while(|byte| byte.is_ascii_whitespace()).count()
    }
}

/// Whether a pattern counts where the text is.
fn counts(place: Place, now: Place) -> bool {
    match place {
        Place::Anywhere => true,
        Place::StartOrAfterCall => matches!(now, Place::Start | Place::AfterCall),
        Place::Start | Place::AfterCall => now == place,
    }
}
