//! In a pipeline, a step's rows are computed in parts, one after another, so that the next stage
//! begins with the first part while this one computes the second. Pure; all stages cut alike.

use std::ops::Range;

use jackalope_models::Span;

/// Minimum number of rows of a part: with fewer, too little work would be done each time the
/// weights are streamed.
const MICRO_BATCH_ROWS_MIN: usize = 128;

/// Maximum number of parts of a step, per stage: while neither the first nor the last parts are
/// computed, all stages are busy.
const MICRO_BATCHES_PER_STAGE: usize = 4;

/// A part of a step: a run of consecutive tokens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct MicroBatch {
    /// Range of the step's tokens.
    pub(crate) tokens: Range<usize>,
    /// Range of the step's spans; the first and the last may be included only in part.
    pub(crate) rows: Range<usize>,
    /// The spans of `rows` as far as they are in this part, with token indices counted from the
    /// beginning of the part.
    pub(crate) spans: Vec<Span>,
}

impl MicroBatch {
    /// Returns those of `indices` that are in this part, counted from its beginning.
    pub(crate) fn own(&self, indices: &[usize]) -> Vec<usize> {
        let own = indices.iter().filter(|idx| self.tokens.contains(idx));
        own.map(|idx| idx - self.tokens.start).collect()
    }
}

/// Cuts the rows of a step for a pipeline of `num_stages`; with one stage there is a single part.
pub(crate) fn micro_batches(spans: &[Span], num_stages: usize) -> Vec<MicroBatch> {
    let num_tokens = spans.last().map_or(0, |span| span.start_idx + span.len);
    let most = if num_stages == 1 { 1 } else { MICRO_BATCHES_PER_STAGE * num_stages };
    let num_parts = (num_tokens / MICRO_BATCH_ROWS_MIN).clamp(1, most);
    let len = num_tokens.div_ceil(num_parts);
    let starts = (0..num_tokens).step_by(len.max(1));
    starts.map(|start| part(spans, start..num_tokens.min(start + len))).collect()
}

fn part(spans: &[Span], tokens: Range<usize>) -> MicroBatch {
    let first = spans.partition_point(|span| span.start_idx + span.len <= tokens.start);
    let end = spans.partition_point(|span| span.start_idx < tokens.end);
    let own = spans[first..end].iter().map(|span| {
        let start = span.start_idx.max(tokens.start);
        let end = (span.start_idx + span.len).min(tokens.end);
        Span { start_idx: start - tokens.start, len: end - start }
    });
    let spans = own.collect();
    MicroBatch { tokens, rows: first..end, spans }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(lens: &[usize]) -> Vec<Span> {
        let mut start_idx = 0;
        let spans = lens.iter().map(|&len| {
            let span = Span { start_idx, len };
            start_idx += len;
            span
        });
        spans.collect()
    }

    #[test]
    fn every_token_is_in_one_part_and_parts_are_of_one_size() {
        for lens in [&[1][..], &[1, 1, 1], &[512], &[1, 300, 1, 211], &[127, 2], &[5000, 1]] {
            let spans = spans(lens);
            for num_stages in 1..5 {
                let parts = micro_batches(&spans, num_stages);
                let mut seen = vec![Vec::new(); spans.len()];
                for part in &parts {
                    let lens: usize = part.spans.iter().map(|span| span.len).sum();
                    assert_eq!(lens, part.tokens.len());
                    for (row, span) in part.rows.clone().zip(&part.spans) {
                        let start = part.tokens.start + span.start_idx;
                        seen[row].extend(start..start + span.len);
                    }
                }
                let all = spans.iter().map(|span| span.start_idx..span.start_idx + span.len);
                let all: Vec<Vec<usize>> = all.map(Iterator::collect).collect();
                assert_eq!(seen, all, "{lens:?} over {num_stages}");
                let num_tokens: usize = lens.iter().sum();
                let is_cut = num_stages != 1 && 2 * MICRO_BATCH_ROWS_MIN <= num_tokens;
                assert_eq!(1 < parts.len(), is_cut, "{lens:?} over {num_stages}");
                assert!(parts.len() <= MICRO_BATCHES_PER_STAGE * num_stages);
            }
        }
    }

    #[test]
    fn a_part_counts_from_its_own_begin() {
        let part = part(&spans(&[2, 300, 1]), 100..303);
        assert_eq!(part.rows, 1..3);
        assert_eq!(part.spans, [Span { start_idx: 0, len: 202 }, Span { start_idx: 202, len: 1 }]);
        assert_eq!(part.own(&[0, 99, 100, 150, 302]), [0, 50, 202]);
    }
}
