//! The times of the steps in flight.

use std::collections::VecDeque;
use std::time::Instant;

/// When a step began, or may have: when it was sent, or when the one before it was answered,
/// whichever is later.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct StepRun {
    pub(super) began: Instant,
    /// Number of tokens that it computes.
    pub(super) num_tokens: usize,
}

/// Plans in flight.
#[derive(Debug, Default)]
pub(super) struct StepClock {
    /// Time at which each plan was sent, as if it began then; oldest first.
    sent: VecDeque<StepRun>,
    answered_at: Option<Instant>,
}

impl StepClock {
    pub(super) fn sent(&mut self, at: Instant, num_tokens: usize) {
        self.sent.push_back(StepRun { began: at, num_tokens });
    }

    /// Returns the oldest step in flight.
    pub(super) fn oldest(&self) -> Option<StepRun> {
        let StepRun { began, num_tokens } = *self.sent.front()?;
        Some(StepRun { began: self.answered_at.map_or(began, |at| began.max(at)), num_tokens })
    }

    /// Records the answer to the oldest step, and returns that step.
    pub(super) fn answered(&mut self, now: Instant) -> StepRun {
        let step = self.oldest().unwrap_or(StepRun { began: now, num_tokens: 0 });
        self.sent.pop_front();
        self.answered_at = Some(now);
        step
    }

    /// Forgets all steps, because the ranks are lost.
    pub(super) fn clear(&mut self) {
        *self = StepClock::default();
    }
}
