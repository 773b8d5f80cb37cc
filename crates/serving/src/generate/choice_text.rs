//! Converts the tokens of one choice to text, piece by piece.
//!
//! Every token passes three filters, each of which may hold text back: the detokeniser (an
//! incomplete character), the stop strings (a prefix of one) and the answer's parser (an unfinished
//! tool call). The log-probability of a token is passed on once the text at which the token begins
//! can no longer be part of a stop string, so that no log-probability is sent for text that a stop
//! string removes.

use std::collections::VecDeque;

use jackalope_engine::FinishReason;
use jackalope_protocol::{Logprob, TokenId};
use jackalope_text::{AnswerEnd, AnswerParser, Detokenizer, Segment, StopStrings, ToolCall};

use super::output::TextRules;
use crate::outcome::Finish;

/// New output of a choice.
#[derive(Debug, Default, PartialEq)]
pub struct Delta {
    /// Reasoning text.
    pub reasoning: String,
    /// Text of the answer itself.
    pub text: String,
    /// Tool calls that begin, continue or end.
    pub calls: Vec<CallDelta>,
    /// Tokens with their log-probabilities, if they were requested.
    pub scored: Vec<ScoredToken>,
    /// Token ids, if they were requested.
    pub tokens: Vec<TokenId>,
    /// Reason why the choice ended, in its last delta.
    pub finish: Option<Finish>,
    /// The stop string that ended the choice.
    pub stop: Option<String>,
}

impl Delta {
    /// Appends `next`, the delta after this one.
    pub fn absorb(&mut self, next: Delta) {
        self.reasoning.push_str(&next.reasoning);
        self.text.push_str(&next.text);
        next.calls.into_iter().for_each(|call| self.absorb_call(call));
        self.scored.extend(next.scored);
        self.tokens.extend(next.tokens);
        self.finish = self.finish.or(next.finish);
        self.stop = self.stop.take().or(next.stop);
    }

    /// Appends a new call, or a continuation of the last one.
    fn absorb_call(&mut self, next: CallDelta) {
        match self.calls.last_mut() {
            Some(call) if next.head.is_none() => {
                call.arguments.push_str(&next.arguments);
                call.is_whole |= next.is_whole;
            }
            _ => self.calls.push(next),
        }
    }

    /// Returns whether the delta contains anything other than the end of the choice.
    pub fn has_content(&self) -> bool {
        !(self.reasoning.is_empty()
            && self.text.is_empty()
            && self.calls.is_empty()
            && self.scored.is_empty()
            && self.tokens.is_empty())
    }

    /// Returns whether the delta contains nothing but ends of calls, apart from `finish`.
    pub fn only_ends_calls(&self) -> bool {
        let says_nothing = |call: &CallDelta| call.head.is_none() && call.arguments.is_empty();
        !self.calls.is_empty()
            && self.calls.iter().all(says_nothing)
            && self.reasoning.is_empty()
            && self.text.is_empty()
            && self.scored.is_empty()
            && self.tokens.is_empty()
    }

    /// Returns whether the delta has neither reasoning nor calls, so that anything else belongs to
    /// the text.
    pub fn is_plain(&self) -> bool {
        self.reasoning.is_empty() && self.calls.is_empty()
    }

    /// Returns whether the delta contains nothing at all.
    pub fn is_empty(&self) -> bool {
        !self.has_content() && self.finish.is_none()
    }
}

/// New output of a tool call. Calls come one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallDelta {
    /// Set where the call begins; a delta without it continues the previous call.
    pub head: Option<CallHead>,
    /// The next part of the arguments' JSON.
    pub arguments: String,
    /// Whether the call is complete.
    pub is_whole: bool,
}

/// Id and tool of a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallHead {
    /// The call's id, if the model gave one.
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
}

impl CallDelta {
    fn of(call: ToolCall) -> CallDelta {
        let ToolCall { id, name, arguments } = call;
        CallDelta { head: Some(CallHead { id, name }), arguments, is_whole: false }
    }

    /// The tool's name; empty if this delta continues a call.
    pub fn name(&self) -> &str {
        self.head.as_ref().map_or("", |head| &head.name)
    }
}

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredToken {
    /// Id of the token.
    pub token: TokenId,
    /// Number of characters of the choice's text before the token.
    pub start_chars: usize,
    /// Log-probability of the token, and those of the most likely tokens at its place.
    pub logprob: Logprob,
}

/// State of one choice between two tokens.
#[derive(Debug)]
pub(super) struct ChoiceText {
    rules: TextRules,
    detokenizer: Detokenizer,
    stops: StopStrings,
    parser: Option<AnswerParser>,
    /// Number of characters that the detokeniser has returned.
    decoded_chars: usize,
    /// Number of characters that can no longer be part of a stop string.
    released_chars: usize,
    /// Tokens that begin at or after `released_chars`.
    held: VecDeque<ScoredToken>,
    /// Stop tokens that were sampled, held back until the end of the choice.
    end_tokens: Vec<TokenId>,
    num_tokens: u32,
    num_reasoning_tokens: u32,
    has_calls: bool,
    /// Whether a call has begun and not ended.
    is_in_call: bool,
    /// Whether the request's stop token was sampled where the model would have gone on.
    is_cut: bool,
    is_over: bool,
}

impl ChoiceText {
    /// Creates the state before the first token. If the text continues the prompt, `detokenizer`
    /// has already been fed the prompt.
    pub(super) fn new(
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
            is_in_call: false,
            is_cut: false,
            is_over: false,
        }
    }

    /// Number of tokens sampled so far, including a stop token.
    pub(super) fn num_tokens(&self) -> u32 {
        self.num_tokens
    }

    /// Number of the tokens sampled so far that belong to reasoning.
    pub(super) fn num_reasoning_tokens(&self) -> u32 {
        self.num_reasoning_tokens
    }

    /// Takes the next token. The choice has ended if `finish` is set in the result.
    pub(super) fn push(&mut self, token: TokenId, logprob: Option<Logprob>) -> Delta {
        let mut delta = Delta::default();
        self.num_tokens += 1;
        let is_end = self.rules.stop_tokens.contains(&token);
        if self.rules.output.return_token_ids {
            // A stop token is reported together with the end.
            let tokens = if is_end { &mut self.end_tokens } else { &mut delta.tokens };
            tokens.push(token);
        }
        // In a conversation, log-probabilities cover the content only, and the stop token is not
        // part of it.
        let is_scored = !is_end || self.rules.answer.is_none();
        if let Some(logprob) = logprob.filter(|_| is_scored) {
            let start_chars = self.decoded_chars;
            self.held.push_back(ScoredToken { token, start_chars, logprob });
        }
        if self.parser.as_ref().is_some_and(AnswerParser::is_reasoning) {
            self.num_reasoning_tokens += 1;
        }
        // A stop token is not part of the text, even if it is an ordinary word.
        if is_end {
            self.is_cut = !self.detokenizer.tokenizer().is_control(token);
        } else {
            let piece = self.detokenizer.push(token);
            self.decoded_chars += piece.chars().count();
            self.push_text(&piece, &mut delta);
        }
        delta
    }

    /// Ends the choice for the reason that the engine reports, and returns everything that was held
    /// back.
    pub(super) fn finish(&mut self, reason: FinishReason) -> Delta {
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
                    FinishReason::Stop if !self.is_cut => AnswerEnd::Stopped,
                    FinishReason::Stop | FinishReason::Length | FinishReason::Cancelled => {
                        AnswerEnd::Cut
                    }
                };
                self.take_segments(parser.finish(end), &mut delta);
            }
            delta.scored.extend(self.held.drain(..));
            delta.tokens.append(&mut self.end_tokens);
            self.is_over = true;
            let ends_calls = self.has_calls && !(self.is_cut && self.is_in_call);
            delta.finish = Some(match (reason, ends_calls) {
                (FinishReason::Length, _) => Finish::Length,
                (FinishReason::Cancelled, _) => Finish::Cancelled,
                (FinishReason::Stop, true) => Finish::ToolCalls,
                (FinishReason::Stop, false) => Finish::Stop,
            });
        }
        delta
    }

    fn push_text(&mut self, piece: &str, delta: &mut Delta) {
        let may_end = self.rules.min_tokens <= self.num_tokens;
        let mut stopped = self.stops.push(piece, may_end);
        if let Some(stop_idx) = stopped.hit.filter(|_| self.rules.output.include_stop_text) {
            stopped.text.push_str(&self.rules.stops[stop_idx]);
        }
        self.release(&stopped.text, delta);
        if let Some(stop_idx) = stopped.hit.filter(|_| !self.is_over) {
            // The model had not ended the answer: markup before the stop string is unfinished.
            if let Some(mut parser) = self.parser.take() {
                self.take_segments(parser.finish(AnswerEnd::Cut), delta);
            }
            self.is_over = true;
            let ends_calls = self.has_calls && !self.is_in_call;
            delta.finish = Some(if ends_calls { Finish::ToolCalls } else { Finish::Stop });
            delta.stop = self.rules.stops.get(stop_idx).cloned();
        }
    }

    /// Adds to `delta` text that can no longer be part of a stop string, and the log-probabilities
    /// of its tokens.
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
                    self.is_in_call = true;
                }
                Segment::Arguments(arguments) => {
                    delta.absorb_call(CallDelta { arguments, ..CallDelta::default() });
                }
                Segment::CallEnd => {
                    delta.absorb_call(CallDelta { is_whole: true, ..CallDelta::default() });
                    self.is_in_call = false;
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
