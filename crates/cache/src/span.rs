//! Rows of a step that belong to one sequence.

use std::ops::Range;

/// Consecutive rows of one sequence, with their position in it.
#[derive(Clone, Debug)]
pub struct StepSpan {
    /// Range of rows of the step.
    pub rows: Range<usize>,
    /// Position of the first row in its sequence.
    pub start: usize,
}

impl StepSpan {
    /// Returns the positions of the rows.
    pub fn positions(&self) -> Range<usize> {
        self.start..self.start + self.rows.len()
    }
}
