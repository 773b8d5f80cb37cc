//! The constraint of a sequence, and the tokens that it allows next.

use jackalope_protocol::TokenId;

use super::Scheduler;
use crate::constraint::{
    AllowedTokens, ConstraintError, ConstraintFault, TokenConstraint, TokenMask,
};
use crate::constraint_question::{Answer, Question};
use crate::cost_history::CostHistory;
use crate::{Event, FinishReason, RequestId};

/// Message for a sequence without any token that may come next.
const CONTRADICTION: &str = "the constraints of the request contradict each other: no token that the \
    structure of the answer allows here is among the tokens that the request allows";

/// A constraint with its last answer.
#[derive(Debug)]
pub(super) struct SequenceConstraint {
    /// Gone while it is being asked.
    constraint: Option<Box<dyn TokenConstraint>>,
    /// Tokens that it has not taken in yet.
    tokens: Vec<TokenId>,
    /// What the request allows besides.
    bound: Option<TokenMask>,
    next: Next,
    /// The scheduler has not acted on `next` yet.
    is_news: bool,
    /// The token under way was planned as one that does not end the output.
    planned_not_end: bool,
    costs: CostHistory,
}

/// The constraint's answer about the token after the last known one.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// The constraint has not been asked.
    Unknown,
    /// Any.
    All,
    /// Any that does not end the output.
    NotEnd,
    /// One of these.
    Masked(TokenMask),
    /// The output is complete.
    End,
    /// The constraint has failed.
    Failed(ConstraintError),
}

impl SequenceConstraint {
    pub(super) fn new(
        constraint: Box<dyn TokenConstraint>,
        bound: Option<TokenMask>,
    ) -> SequenceConstraint {
        SequenceConstraint {
            constraint: Some(constraint),
            tokens: Vec::new(),
            bound,
            next: Next::Unknown,
            is_news: true,
            planned_not_end: false,
            costs: CostHistory::default(),
        }
    }

    /// Returns the constraint's last answer.
    pub(super) fn next(&self) -> &Next {
        &self.next
    }

    /// True while it is not known what may come next: a token must not be planned.
    pub(super) fn is_awaited(&self) -> bool {
        self.constraint.is_none() || self.next == Next::Unknown
    }

    /// True if the next token may be planned only once the one before it is known.
    pub(super) fn binds_next(&self) -> bool {
        !matches!(self.next, Next::All | Next::NotEnd)
    }

    /// Records that a token is planned according to the last answer.
    pub(super) fn note_planned(&mut self) {
        self.planned_not_end = self.next == Next::NotEnd;
    }

    /// True if a token that was planned before the last answer is still one it allows, sampled as
    /// it would be now.
    fn keeps_planned(&self) -> bool {
        match self.next {
            Next::All => !self.planned_not_end,
            Next::NotEnd => self.planned_not_end,
            Next::Unknown | Next::Masked(_) | Next::End | Next::Failed(_) => false,
        }
    }

    pub(super) fn accept(&mut self, token: TokenId) {
        // No token is under way while the constraint is being asked.
        assert!(self.constraint.is_some(), "a token was planned by what the constraint said");
        self.is_news = true;
        self.tokens.push(token);
        self.next = Next::Unknown;
    }

    /// Returns the question to ask, if one is open.
    fn question(&mut self, id: RequestId, vocab_size: u32) -> Option<Question> {
        if self.next != Next::Unknown {
            return None;
        }
        let constraint = self.constraint.take()?;
        let tokens = std::mem::take(&mut self.tokens);
        Some(Question { id, constraint, tokens, vocab_size, costs: self.costs })
    }

    fn take_answer(&mut self, answer: Answer) {
        let Answer { constraint, allowed, mut mask, costs, .. } = answer;
        self.constraint = Some(constraint);
        self.costs = costs;
        self.is_news = true;
        self.next = match allowed {
            Err(err) => Next::Failed(err),
            Ok(AllowedTokens::All) => Next::All,
            Ok(AllowedTokens::NotEnd) => Next::NotEnd,
            Ok(AllowedTokens::Masked) if mask.is_empty() => Next::End,
            Ok(AllowedTokens::Masked) => {
                if let Some(bound) = &self.bound {
                    mask.intersect(bound);
                }
                if mask.is_empty() {
                    let message = CONTRADICTION.to_owned();
                    Next::Failed(ConstraintError { message, fault: ConstraintFault::Contradiction })
                } else {
                    Next::Masked(mask)
                }
            }
        };
    }
}

impl Scheduler {
    /// Asks every constraint whose sequence has a new token, on this thread. Callers do this after
    /// each [`Scheduler::submit`] and [`Scheduler::commit`], unless they have threads that ask the
    /// constraints while the ranks compute; a sequence whose constraint was not asked computes no
    /// token.
    pub fn ask_constraints(&mut self) {
        let answers = self.take_questions().into_iter().map(Question::ask).collect();
        self.take_answers(answers);
    }

    /// Returns the questions that are open. Their sequences compute no token until
    /// [`Scheduler::take_answers`] has the answers.
    pub(crate) fn take_questions(&mut self) -> Vec<Question> {
        let vocab_size = self.limits.vocab_size;
        let all = self.running.iter_mut().chain(&mut self.waiting);
        all.filter_map(|it| it.constraint.as_mut()?.question(it.id, vocab_size)).collect()
    }

    /// Acts on answers of constraints, and on questions that have none yet.
    pub(crate) fn take_answers(&mut self, answers: Vec<Answer>) {
        for answer in answers {
            // The request may have ended.
            let sequence = self.sequence_mut(answer.id);
            if let Some(constraint) = sequence.and_then(|it| it.constraint.as_mut()) {
                constraint.take_answer(answer);
            }
        }
        self.follow_constraints();
    }

    /// Ends the sequences that constraints end, and discards tokens that were planned without a
    /// constraint that now holds.
    fn follow_constraints(&mut self) {
        let mut over: Vec<RequestId> = Vec::new();
        for sequence in self.running.iter_mut().chain(&mut self.waiting) {
            let Some(constraint) = sequence.constraint.as_mut().filter(|it| it.is_news) else {
                continue;
            };
            constraint.is_news = false;
            if constraint.is_awaited() {
                sequence.discard_pending();
                continue;
            }
            match constraint.next() {
                Next::End | Next::Failed(_) => over.push(sequence.id),
                _ if constraint.keeps_planned() => {}
                _ => sequence.discard_pending(),
            }
        }
        over.sort_unstable();
        for id in over {
            let sequence = self.take(id);
            if sequence.cached_tokens.is_none() {
                self.emit_started(&sequence);
            }
            if sequence.cache.is_some() {
                self.release(&sequence);
            }
            if let Some(Next::Failed(ConstraintError { message, fault })) =
                sequence.constraint.as_ref().map(SequenceConstraint::next)
            {
                let failed = Event::ConstraintFailed {
                    message: message.clone(),
                    fault: *fault,
                    completion_tokens: sequence.usage().completion_tokens,
                };
                self.events.push((id, failed));
            } else {
                self.emit_finished(&sequence, FinishReason::Stop);
            }
        }
    }
}
