//! The rows of a step that attend to all positions that they see, and those that attend to chosen ones.

use super::span::StepSpan;

/// Number of rows with chosen positions that are computed together: each has a copy of the cached
/// vectors of its positions.
const CHOOSING_ROWS: usize = 16;

/// Consecutive rows of a step, of one or several sequences.
#[derive(Debug)]
pub struct Runs {
    /// Whether each row attends to chosen positions only.
    pub is_chosen: bool,
    /// Rows of a sequence, and the number of the sequence in the step.
    pub of_sequences: Vec<SequenceRun>,
}

/// Consecutive rows of a sequence.
#[derive(Debug)]
pub struct SequenceRun {
    /// Number of the sequence in the step.
    pub sequence: usize,
    /// The rows.
    pub span: StepSpan,
}

impl Runs {
    /// Returns the number of rows.
    pub fn num_rows(&self) -> usize {
        self.of_sequences.iter().map(|run| run.span.rows.len()).sum()
    }

    /// Divides the rows of a step, in order. Rows that see more than `num_chosen` positions attend to
    /// chosen ones; none if it is `None`.
    pub fn of_step(spans: &[StepSpan], num_chosen: Option<usize>) -> Vec<Runs> {
        let mut all: Vec<Runs> = Vec::new();
        for (sequence, span) in spans.iter().enumerate() {
            let seeing_few = num_chosen.map_or(usize::MAX, |most| most.saturating_sub(span.start));
            let mut done = 0;
            while done < span.rows.len() {
                let is_chosen = seeing_few <= done;
                let is_full = |it: &Runs| is_chosen && it.num_rows() == CHOOSING_ROWS;
                if all.last().is_none_or(|it| it.is_chosen != is_chosen || is_full(it)) {
                    all.push(Runs { is_chosen, of_sequences: Vec::new() });
                }
                let last = all.last_mut().expect("one was just added");
                let room =
                    if is_chosen { CHOOSING_ROWS - last.num_rows() } else { seeing_few - done };
                let len = room.min(span.rows.len() - done);
                let first = span.rows.start + done;
                let part = StepSpan { rows: first..first + len, start: span.start + done };
                last.of_sequences.push(SequenceRun { sequence, span: part });
                done += len;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans() -> Vec<StepSpan> {
        vec![
            StepSpan { rows: 0..3, start: 0 },
            StepSpan { rows: 3..33, start: 6 },
            StepSpan { rows: 33..34, start: 50 },
            StepSpan { rows: 34..35, start: 2 },
        ]
    }

    /// Whether positions are chosen, and for each sequence its rows and their first position.
    fn found(num_chosen: Option<usize>) -> Vec<(bool, Vec<[usize; 3]>)> {
        let runs = Runs::of_step(&spans(), num_chosen).into_iter().map(|runs| {
            let sequences = runs
                .of_sequences
                .iter()
                .map(|run| [run.sequence, run.span.rows.len(), run.span.start]);
            (runs.is_chosen, sequences.collect())
        });
        runs.collect()
    }

    #[test]
    fn rows_that_see_few_positions_attend_to_all() {
        let all = vec![[0, 3, 0], [1, 30, 6], [2, 1, 50], [3, 1, 2]];
        assert_eq!(found(None), [(false, all.clone())]);
        assert_eq!(found(Some(51)), [(false, all)]);
        // Rows see one position more than are before them.
        let expected = [
            (false, vec![[0, 3, 0], [1, 4, 6]]),
            (true, vec![[1, 16, 10]]),
            (true, vec![[1, 10, 26], [2, 1, 50]]),
            (false, vec![[3, 1, 2]]),
        ];
        assert_eq!(found(Some(10)), expected);
    }
}
