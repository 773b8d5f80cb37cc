//! Evidence against one request; see [`super::isolation`] for what follows from it.

/// Failures in a row after which a request becomes a suspect and is computed alone.
const SUSPECT_FAILURES: u32 = 2;

/// Failures while computed alone, after control steps, for which a request is ended. One or two may
/// be external losses that hit it by chance.
const ALONE_FAILURES: usize = 3;

/// Number of control steps that have to complete before each of these failures counts.
const CONTROL_STEPS: [u32; ALONE_FAILURES] = [1, 8, 32];

/// Failures in a row for which a request is ended if nothing else was in flight in the last one,
/// even without control steps.
const LONE_FAILURES: u32 = 8;

/// Evidence that a request makes ranks fail.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Suspicion {
    /// Failures in a row without progress.
    pub(super) num_failures: u32,
    /// Number of these failures with nothing else in flight, after control steps.
    num_alone: usize,
    /// Whether nothing else was in flight in the last failure.
    was_alone: bool,
    /// Maximum number of positions that were ever computed.
    computed_max: usize,
}

impl Suspicion {
    /// Records that the positions below `end` have been computed.
    pub(super) fn note_computed(&mut self, end: usize) {
        let is_progress = self.computed_max < end;
        self.computed_max = self.computed_max.max(end);
        if is_progress {
            self.note_progress();
        }
    }

    /// Records progress: a further position or token.
    pub(super) fn note_progress(&mut self) {
        (self.num_failures, self.num_alone) = (0, 0);
    }

    pub(super) fn note_failure(&mut self, is_alone: bool, num_control: u32) {
        let is_controlled = self.is_suspect() && self.control_steps() <= num_control;
        self.num_failures += 1;
        self.num_alone += usize::from(is_alone && is_controlled);
        self.was_alone = is_alone;
    }

    /// Returns the number of control steps that have to complete before this suspect is computed.
    pub(super) fn control_steps(&self) -> u32 {
        CONTROL_STEPS[self.num_alone.min(ALONE_FAILURES - 1)]
    }

    /// Returns true if the request may be computed only alone.
    pub(super) fn is_suspect(&self) -> bool {
        SUSPECT_FAILURES <= self.num_failures
    }

    pub(super) fn is_poisonous(&self) -> bool {
        ALONE_FAILURES <= self.num_alone || (LONE_FAILURES <= self.num_failures && self.was_alone)
    }
}
