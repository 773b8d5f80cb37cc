//! How a step's rows are computed with MLX's operations in layers whose queries see only some last
//! positions: all rows are written at once, then each sequence's window is gathered. Sequences that decode
//! are computed together, whatever their lengths, as far as they see about equally many positions.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{BlockRows, SequenceCache, capacity_class};
use jackalope_mlx::{Array, Dtype, dim};

use super::reach::Reach;
use super::span::StepSpan;
use super::stock_plan::{DecodeGroup, GroupRows, order, ordered};

/// Returns where the rows of all spans are in the blocks of layers with windows, `[tokens]`; one cache for each span.
pub fn written_rows(spans: &[StepSpan], caches: &[&mut SequenceCache]) -> BlockRows {
    let mut places = Vec::new();
    for (span, cache) in spans.iter().zip(caches) {
        cache.append_block_rows(span.positions(), &mut places);
    }
    BlockRows::new(array(&places, &[-1]))
}

/// How a step's rows are computed in layers with one reach.
#[derive(Debug)]
pub struct WindowPlan {
    /// Sequences that decode.
    pub groups: Vec<WindowGroup>,
    /// Sequences that have several rows.
    pub prompts: Vec<WindowPrompt>,
    /// As in [`super::StockPlan`].
    order: Option<Array>,
}

/// Sequences that decode one token each.
#[derive(Debug)]
pub struct WindowGroup {
    /// Rows of the sequences in the step.
    pub rows: GroupRows,
    /// Positions that they attend to.
    pub window: SeenPositions,
}

/// Positions that sequences attend to; each of them decodes one token.
#[derive(Debug)]
pub struct SeenPositions {
    /// The same number of positions for each sequence; `mask` hides the surplus ones at the end.
    pub places: BlockRows, // [sequences, positions]
    /// Which of these positions each sequence attends to, boolean `[sequences, 1, 1, positions]`; `None` if all.
    pub mask: Option<Array>,
}

/// Several rows of a sequence.
#[derive(Debug)]
pub struct WindowPrompt {
    /// Number of the span.
    pub span_idx: usize,
    /// The first position that the first row sees.
    pub first: usize,
    /// The positions from there to the last row.
    pub places: BlockRows, // [1, positions]
}

impl WindowPlan {
    /// Returns how the rows of all spans are computed, one cache for each span.
    pub fn new(spans: &[StepSpan], caches: &[&mut SequenceCache], reach: Reach) -> WindowPlan {
        let num_rows = spans.last().map_or(0, |span| span.rows.end);
        let (mut decoding, mut prompts) = (BTreeMap::<usize, Vec<usize>>::new(), Vec::new());
        for (idx, span) in spans.iter().enumerate() {
            if span.rows.len() == 1 {
                let num_seen = seen(span, reach).len();
                decoding.entry(capacity_class(num_seen)).or_default().push(idx);
            } else {
                prompts.push(idx);
            }
        }
        let rows = decoding.values().flatten().chain(&prompts);
        let order = order(&rows.flat_map(|&idx| spans[idx].rows.clone()).collect::<Vec<_>>());
        let groups = decoding.values().map(|members| {
            let own: Vec<&StepSpan> = members.iter().map(|&idx| &spans[idx]).collect();
            let sequences = members.iter().map(|&idx| (&spans[idx], &*caches[idx]));
            WindowGroup {
                rows: GroupRows::new(&own, num_rows),
                window: SeenPositions::new(sequences, reach),
            }
        });
        let prompts = prompts.iter().map(|&span_idx| {
            let seen = seen(&spans[span_idx], reach);
            let first = seen.start;
            let mut places = Vec::new();
            caches[span_idx].append_block_rows(seen, &mut places);
            WindowPrompt { span_idx, first, places: BlockRows::new(array(&places, &[1, -1])) }
        });
        WindowPlan { groups: groups.collect(), prompts: prompts.collect(), order }
    }

    /// Puts the rows of all groups, then those of all prompts, back in the step's order.
    pub fn in_order(&self, outs: &[Array]) -> Array {
        ordered(outs, self.order.as_ref())
    }
}

impl SeenPositions {
    /// Returns what the sequences in the slots of a group see; in slots of others, one of the group is.
    pub fn of_slots(
        spans: &[StepSpan],
        caches: &[&mut SequenceCache],
        group: &DecodeGroup,
        reach: Reach,
    ) -> SeenPositions {
        let mut by_slot = vec![group.members[0].span_idx; group.num_slots];
        group.members.iter().for_each(|member| by_slot[member.slot] = member.span_idx);
        SeenPositions::new(by_slot.iter().map(|&idx| (&spans[idx], &*caches[idx])), reach)
    }

    fn new<'a>(
        sequences: impl Iterator<Item = (&'a StepSpan, &'a SequenceCache)> + Clone,
        reach: Reach,
    ) -> SeenPositions {
        let counts: Vec<usize> =
            sequences.clone().map(|(span, _)| seen(span, reach).len()).collect();
        let most = counts.iter().copied().max().unwrap_or(0);
        let mut places = Vec::with_capacity(counts.len() * most);
        for (span, cache) in sequences {
            cache.append_block_rows(seen(span, reach), &mut places);
            // The sequence's own newest position is a number if the sequence is sound.
            let newest = *places.last().expect("a query sees itself");
            places.resize(places.len().next_multiple_of(most), newest);
        }
        let mask = || {
            let counts: Vec<i32> = counts.iter().map(|&count| dim(count)).collect();
            Array::arange(dim(most), Dtype::I32).less(&array(&counts, &[-1, 1, 1, 1]))
        };
        let is_all = counts.iter().all(|&count| count == most);
        SeenPositions {
            places: BlockRows::new(array(&places, &[dim(counts.len()), -1])),
            mask: (!is_all).then(mask),
        }
    }
}

/// Returns the positions that the rows of a span see.
fn seen(span: &StepSpan, reach: Reach) -> Range<usize> {
    reach.first(span.start)..span.positions().end
}

/// Creates an array of a shape of which one length may be -1.
fn array(values: &[i32], shape: &[i32]) -> Array {
    let known: i32 = shape.iter().filter(|len| 0 < **len).product();
    let rest = dim(values.len()) / known;
    let shape: Vec<i32> = shape.iter().map(|&len| if len < 0 { rest } else { len }).collect();
    Array::from_slice(values, &shape)
}
