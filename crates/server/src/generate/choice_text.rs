//! The tokens of one choice become text, piece by piece.
//!
//! Every token runs through three filters, each of which may hold text back: the detokeniser (an
//! incomplete character), the stop strings (what may become one) and the answer's parser (an
//! unfinished call). The log-probability of a token is passed on once the text at which the token begins is
//! past the stop strings, so that nothing is told of text that a stop string takes away.

use std::collections::VecDeque;

use jackalope_engine::FinishReason;
use jackalope_protocol::{Logprob, TokenId};
use jackalope_text::{AnswerEnd, AnswerParser, Detokenizer, Segment, StopStrings, ToolCall};

use super::job::TextRules;

/// What is newly known of a choice.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Delta {
    pub(crate) reasoning: String,
    pub(crate) text: String,
    pub(crate) calls: Vec<CallDelta>,
    pub(crate) scored: Vec<ScoredToken>,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) finish: Option<Finish>,
    /// The stop string that ended the choice.
    pub(crate) stop: Option<String>,
}

impl Delta {
    /// Appends what came after.
    pub(crate) fn absorb(&mut self, next: Delta) {
        self.reasoning.push_str(&next.reasoning);
        self.text.push_str(&next.text);
        next.calls.into_iter().for_each(|call| self.absorb_call(call));
        self.scored.extend(next.scored);
        self.tokens.extend(next.tokens);
        self.finish = self.finish.or(next.finish);
        self.stop = self.stop.take().or(next.stop);
    }

    /// Appends a call, or what came of the last one.
    fn absorb_call(&mut self, next: CallDelta) {
        match self.calls.last_mut() {
            Some(call) if next.head.is_none() => {
                call.arguments.push_str(&next.arguments);
                call.is_whole |= next.is_whole;
            }
            _ => self.calls.push(next),
        }
    }

    /// True if something else than the end is newly known.
    pub(crate) fn has_content(&self) -> bool {
        !(self.reasoning.is_empty()
            && self.text.is_empty()
            && self.calls.is_empty()
            && self.scored.is_empty()
            && self.tokens.is_empty())
    }

    /// True if nothing is newly known but that a call has ended.
    pub(crate) fn only_ends_calls(&self) -> bool {
        let says_nothing = |call: &CallDelta| call.head.is_none() && call.arguments.is_empty();
        !self.calls.is_empty()
            && self.calls.iter().all(says_nothing)
            && self.reasoning.is_empty()
            && self.text.is_empty()
            && self.scored.is_empty()
            && self.tokens.is_empty()
    }

    /// True if there is neither thought nor call: what there is belongs to the text.
    pub(crate) fn is_plain(&self) -> bool {
        self.reasoning.is_empty() && self.calls.is_empty()
    }

    /// True if nothing is newly known.
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_content() && self.finish.is_none()
    }
}

/// What is newly known of a tool call. Calls come one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CallDelta {
    /// Set where the call begins; the arguments of a delta without belong to the call before.
    pub(crate) head: Option<CallHead>,
    /// More of the arguments' JSON.
    pub(crate) arguments: String,
    /// Nothing more comes.
    pub(crate) is_whole: bool,
}

/// Which tool is called.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CallHead {
    /// The call's id, if the model gave one.
    pub(crate) id: Option<String>,
    pub(crate) name: String,
}

impl CallDelta {
    fn of(call: ToolCall) -> CallDelta {
        let ToolCall { id, name, arguments } = call;
        CallDelta { head: Some(CallHead { id, name }), arguments, is_whole: false }
    }

    /// The tool's name; empty if the call has begun before.
    pub(crate) fn name(&self) -> &str {
        self.head.as_ref().map_or("", |head| &head.name)
    }
}

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScoredToken {
    pub(crate) token: TokenId,
    /// Characters of the choice's text before the token.
    pub(crate) start_chars: usize,
    pub(crate) logprob: Logprob,
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Finish {
    /// The model ended it, or a stop string did.
    Stop,
    /// The length that was asked for, or the context, is used up.
    Length,
    /// The model wants tools called.
    ToolCalls,
    /// Somebody ended it by its id.
    Cancelled,
}

/// The state of one choice between two tokens.
#[derive(Debug)]
pub(crate) struct ChoiceText {
    rules: TextRules,
    detokenizer: Detokenizer,
    stops: StopStrings,
    parser: Option<AnswerParser>,
    /// Characters that left the detokeniser.
    decoded_chars: usize,
    /// Characters that are past the stop strings.
    released_chars: usize,
    /// Tokens that begin at or after `released_chars`.
    held: VecDeque<ScoredToken>,
    /// Drawn, but not told before the end.
    end_tokens: Vec<TokenId>,
    num_tokens: u32,
    num_reasoning_tokens: u32,
    has_calls: bool,
    is_over: bool,
}

impl ChoiceText {
    /// Starts before the first token. The detokeniser has seen the prompt if the text goes on from
    /// it.
    pub(crate) fn new(
        rules: &TextRules,
        detokenizer: Detokenizer,
        parser: Option<AnswerParser>,
    ) -> ChoiceText {
        ChoiceText {
            detokenizer,
            stops: StopStrings::new(rules.stops.clone()),
            parser,
            rules: rules.clone(),
            decoded_chars: 0,
            released_chars: 0,
            held: VecDeque::new(),
            end_tokens: Vec::new(),
            num_tokens: 0,
            num_reasoning_tokens: 0,
            has_calls: false,
            is_over: false,
        }
    }

    /// Tokens drawn so far, the one that ended it included.
    pub(crate) fn num_tokens(&self) -> u32 {
        self.num_tokens
    }

    /// Of those, drawn while thinking.
    pub(crate) fn num_reasoning_tokens(&self) -> u32 {
        self.num_reasoning_tokens
    }

    /// Takes the next token. The choice is over if the result says how it finished.
    pub(crate) fn push(&mut self, token: TokenId, logprob: Option<Logprob>) -> Delta {
        let mut delta = Delta::default();
        self.num_tokens += 1;
        let is_end = self.rules.stop_tokens.contains(&token);
        if self.rules.wants_tokens {
            // The end token is told with the end.
            let tokens = if is_end { &mut self.end_tokens } else { &mut delta.tokens };
            tokens.push(token);
        }
        // In a conversation log-probabilities are those of the content, which the end is no part of.
        let is_scored = !is_end || self.rules.answer.is_none();
        if let Some(logprob) = logprob.filter(|_| is_scored) {
            let start_chars = self.decoded_chars;
            self.held.push_back(ScoredToken { token, start_chars, logprob });
        }
        if self.parser.as_ref().is_some_and(AnswerParser::is_reasoning) {
            self.num_reasoning_tokens += 1;
        }
        // The token that ends an answer is no part of its text, even if it is an ordinary word.
        if !is_end {
            let piece = self.detokenizer.push(token);
            self.decoded_chars += piece.chars().count();
            self.push_text(&piece, &mut delta);
        }
        delta
    }

    /// Takes the end that the engine reports.
    pub(crate) fn finish(&mut self, reason: FinishReason) -> Delta {
        let mut delta = Delta::default();
        let piece = self.detokenizer.finish();
        self.decoded_chars += piece.chars().count();
        self.push_text(&piece, &mut delta);
        if !self.is_over {
            let rest = self.stops.finish();
            self.release(&rest, &mut delta);
        }
        if !self.is_over {
            if let Some(mut parser) = self.parser.take() {
                let end = match reason {
                    FinishReason::Stop => AnswerEnd::Stopped,
                    FinishReason::Length | FinishReason::Cancelled => AnswerEnd::Cut,
                };
                self.take_segments(parser.finish(end), &mut delta);
            }
            delta.scored.extend(self.held.drain(..));
            delta.tokens.append(&mut self.end_tokens);
            self.is_over = true;
            delta.finish = Some(match (reason, self.has_calls) {
                (FinishReason::Length, _) => Finish::Length,
                (FinishReason::Cancelled, _) => Finish::Cancelled,
                (FinishReason::Stop, true) => Finish::ToolCalls,
                (FinishReason::Stop, false) => Finish::Stop,
            });
        }
        delta
    }

    fn push_text(&mut self, piece: &str, delta: &mut Delta) {
        let mut stopped = self.stops.push(piece);
        if let Some(stop_idx) = stopped.hit.filter(|_| self.rules.tells_stop) {
            stopped.text.push_str(&self.rules.stops[stop_idx]);
        }
        self.release(&stopped.text, delta);
        if let Some(stop_idx) = stopped.hit.filter(|_| !self.is_over) {
            if let Some(mut parser) = self.parser.take() {
                self.take_segments(parser.finish(AnswerEnd::Stopped), delta);
            }
            self.is_over = true;
            delta.finish = Some(if self.has_calls { Finish::ToolCalls } else { Finish::Stop });
            delta.stop = self.rules.stops.get(stop_idx).cloned();
        }
    }

    /// Passes text on that is past the stop strings.
    fn release(&mut self, text: &str, delta: &mut Delta) {
        self.released_chars += text.chars().count();
        while self.held.front().is_some_and(|scored| scored.start_chars < self.released_chars) {
            delta.scored.extend(self.held.pop_front());
        }
        match &mut self.parser {
            None => delta.text.push_str(text),
            Some(parser) => {
                let segments = parser.push(text);
                self.take_segments(segments, delta);
            }
        }
    }

    fn take_segments(&mut self, segments: Vec<Segment>, delta: &mut Delta) {
        for segment in segments {
            match segment {
                Segment::Text(text) => delta.text.push_str(&text),
                Segment::Reasoning(text) => delta.reasoning.push_str(&text),
                Segment::Call(call) => {
                    delta.calls.push(CallDelta::of(call));
                    self.has_calls = true;
                }
                Segment::Arguments(arguments) => {
                    delta.absorb_call(CallDelta { arguments, ..CallDelta::default() });
                }
                Segment::CallEnd => {
                    delta.absorb_call(CallDelta { is_whole: true, ..CallDelta::default() });
                    if self.rules.single_call {
                        self.is_over = true;
                        delta.finish = Some(Finish::ToolCalls);
                        return;
                    }
                }
            }
        }
    }
}
