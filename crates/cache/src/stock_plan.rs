//! How a step's rows are computed with MLX's operations: all sequences that decode together, those
//! of each capacity class in one operation, and the chunks of prompts one by one.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use jackalope_mlx::{Array, Dtype, dim};
use jackalope_recurrence::StateAssignment;

use super::span::StepSpan;
use super::{SequenceCache, SlotAssignment, SlotPool};

/// How a step's rows are computed with MLX's operations.
#[derive(Debug)]
pub struct StockPlan {
    /// Sequences that decode, by capacity class.
    pub groups: Vec<DecodeGroup>,
    /// Indices of the spans with several rows.
    pub prompts: Vec<usize>,
    /// Where each row of the step is after the rows of all groups and then of all prompts have been
    /// put one after the other; `None` if it is where it was.
    order: Option<Array>, // [tokens] i32
    /// Sequences that decode, in layers with states; `None` without such layers or sequences.
    pub states: Option<StateGroup>,
    /// As `order`, after the rows of `states` and then of all prompts.
    state_order: Option<Array>, // [tokens] i32
    /// The slots of the model's sequences.
    pub slots: Rc<RefCell<SlotPool>>,
}

impl StockPlan {
    /// Moves the sequences of the spans with one row into slots, and the others out of them.
    pub fn new(spans: &[StepSpan], caches: &mut [&mut SequenceCache]) -> StockPlan {
        let slots = caches[0].slots();
        let (decoding, prompts): (Vec<usize>, Vec<usize>) =
            (0..spans.len()).partition(|&idx| spans[idx].rows.len() == 1);
        prompts.iter().for_each(|&idx| caches[idx].leave_state_slot());
        let mut pool = slots.borrow_mut();
        for &idx in &prompts {
            pool.release(&caches[idx].decoding());
        }
        let sequences: Vec<_> = decoding.iter().map(|&idx| caches[idx].decoding()).collect();
        let assignments = pool.assign(&sequences);
        let has_states = caches[0].has_states() && !decoding.is_empty();
        let states = has_states.then(|| {
            let slots: Vec<_> = decoding.iter().map(|&idx| caches[idx].state_slot()).collect();
            let rows: Vec<i32> = decoding.iter().map(|&idx| dim(spans[idx].rows.start)).collect();
            StateGroup {
                assignment: pool.states.assign(&slots),
                rows: (!prompts.is_empty()).then(|| indices(&rows)),
                spans: decoding.clone(),
            }
        });
        drop(pool);
        let groups = assignments.iter().map(|assignment| {
            let members = assignment.members.iter();
            let members =
                members.map(|it| Member { span_idx: decoding[it.idx], slot: it.slot }).collect();
            DecodeGroup::new(assignment, members, spans)
        });
        let groups: Vec<DecodeGroup> = groups.collect();
        let mut rows: Vec<usize> =
            groups.iter().flat_map(|group| group.rows.rows.iter().copied()).collect();
        let of_prompts = || prompts.iter().flat_map(|&idx| spans[idx].rows.clone());
        rows.extend(of_prompts());
        let decoded = decoding.iter().map(|&idx| spans[idx].rows.start);
        let state_order = order(&decoded.chain(of_prompts()).collect::<Vec<_>>());
        StockPlan { groups, order: order(&rows), states, state_order, prompts, slots }
    }

    /// Puts the rows of all groups, then those of all prompts, back in the step's order.
    pub fn in_order(&self, outs: &[Array]) -> Array {
        ordered(outs, self.order.as_ref())
    }

    /// As [`StockPlan::in_order`], for the rows of `states` and then those of all prompts.
    pub fn states_in_order(&self, outs: &[Array]) -> Array {
        ordered(outs, self.state_order.as_ref())
    }
}

/// Returns the rows of `outs`, one after the other or in another order.
pub(super) fn ordered(outs: &[Array], order: Option<&Array>) -> Array {
    let all = match outs {
        [one] => one.clone(),
        several => Array::concatenate(&several.iter().collect::<Vec<_>>(), 0),
    };
    order.map_or(all.clone(), |order| all.take(order, 0))
}

/// Sequences that decode one token each, in layers with states.
#[derive(Debug)]
pub struct StateGroup {
    /// The slots of their states.
    pub assignment: StateAssignment,
    /// Rows of the sequences in the step, `[sequences]` i32; `None` if they are all of its rows.
    rows: Option<Array>,
    /// Indices of the sequences' spans.
    pub spans: Vec<usize>,
}

impl StateGroup {
    /// Returns the sequences' rows of `x` `[tokens, width]`, as `[sequences, 1, width]`.
    pub fn rows(&self, x: &Array) -> Array {
        self.rows.as_ref().map_or(x.clone(), |rows| x.take(rows, 0)).expand_dims(1)
    }
}

/// Returns where each row is in `rows`; `None` if each is where its number says.
pub(super) fn order(rows: &[usize]) -> Option<Array> {
    if rows.is_sorted() {
        return None;
    }
    let mut order = vec![0; rows.len()];
    for (place, &row) in rows.iter().enumerate() {
        order[row] = dim(place);
    }
    Some(indices(&order))
}

pub(super) fn indices(values: &[i32]) -> Array {
    Array::from_slice(values, &[dim(values.len())])
}

/// The rows of sequences that decode one token each.
#[derive(Debug)]
pub struct GroupRows {
    /// Row of each sequence in the step.
    rows: Vec<usize>,
    /// `rows` as an array; `None` if they are all rows of the step in order.
    indices: Option<Array>, // [sequences] i32
    /// Position of each sequence's token, `[sequences]` i32.
    pub positions: Array,
}

impl GroupRows {
    pub(super) fn new(spans: &[&StepSpan], num_rows: usize) -> GroupRows {
        let rows: Vec<usize> = spans.iter().map(|span| span.rows.start).collect();
        let is_all = rows.len() == num_rows && rows.is_sorted();
        let numbers = || indices(&rows.iter().map(|&row| dim(row)).collect::<Vec<_>>());
        let positions: Vec<i32> = spans.iter().map(|span| dim(span.start)).collect();
        GroupRows { indices: (!is_all).then(numbers), positions: indices(&positions), rows }
    }

    /// Returns the rows `[sequences, …]` of `x` `[tokens, …]`.
    pub fn of(&self, x: &Array) -> Array {
        self.indices.as_ref().map_or(x.clone(), |rows| x.take(rows, 0))
    }
}

/// Sequences of one capacity class that decode one token each.
#[derive(Debug)]
pub struct DecodeGroup {
    /// Capacity of the class in tokens.
    pub class: usize,
    /// Rows of the sequences in the step.
    pub rows: GroupRows,
    pub(super) members: Vec<Member>,
    pub(super) num_slots: usize,
    /// Slot of each sequence, `[sequences]` i32.
    pub slots: Array,
    /// Index of the sequence whose query each slot gets; arbitrary for slots that belong to no sequence of
    /// the group. `None` if the sequences are in the order of the slots and fill them.
    queries: Option<Array>, // [slots] i32
    /// Number of positions of the sequence in each slot; 1 for slots that belong to no sequence of the group.
    lens: Vec<usize>,
    visible: OnceCell<VisibleKeys>,
}

/// A sequence of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// Number of its span.
    pub(super) span_idx: usize,
    pub(super) slot: usize,
}

/// The keys that the queries of a group see.
#[derive(Clone, Debug)]
pub struct VisibleKeys {
    /// No query sees this position or a later one.
    pub stop: usize,
    /// What each slot sees of the positions before it, boolean `[slots, 1, 1, stop]`; `None` if everything.
    pub mask: Option<Array>,
}

impl DecodeGroup {
    fn new(assignment: &SlotAssignment, members: Vec<Member>, spans: &[StepSpan]) -> DecodeGroup {
        let num_rows = spans.last().map_or(0, |span| span.rows.end);
        let spans: Vec<&StepSpan> = members.iter().map(|it| &spans[it.span_idx]).collect();
        let slots: Vec<i32> = members.iter().map(|it| dim(it.slot)).collect();
        let (mut queries, mut lens) =
            (vec![0; assignment.num_slots], vec![1; assignment.num_slots]);
        for (idx, (member, span)) in members.iter().zip(&spans).enumerate() {
            queries[member.slot] = dim(idx);
            lens[member.slot] = span.start + 1;
        }
        let is_filled = slots.len() == assignment.num_slots && slots.is_sorted();
        DecodeGroup {
            class: assignment.class,
            rows: GroupRows::new(&spans, num_rows),
            members,
            num_slots: assignment.num_slots,
            slots: indices(&slots),
            queries: (!is_filled).then(|| indices(&queries)),
            lens,
            visible: OnceCell::new(),
        }
    }

    /// Returns `[slots, heads, 1, dim]` for queries `[sequences, heads, 1, dim]`.
    pub fn by_slot(&self, queries: &Array) -> Array {
        self.queries.as_ref().map_or(queries.clone(), |indices| queries.take(indices, 0))
    }

    /// Returns `[sequences, heads * dim]` for results `[slots, heads, 1, dim]`.
    pub fn by_sequence(&self, results: &Array) -> Array {
        let rows = results.reshape(&[results.dim(0), -1]);
        if self.queries.is_some() { rows.take(&self.slots, 0) } else { rows }
    }

    /// Returns the keys that the queries see; computed once per step.
    pub fn visible(&self) -> VisibleKeys {
        self.visible.get_or_init(|| self.see()).clone()
    }

    /// Returns the number of pools of `len` positions that a query sees whole at most, and which of them each
    /// slot sees, boolean `[slots, 1, 1, pools]`; `None` if all.
    pub fn whole_pools(&self, len: usize) -> (usize, Option<Array>) {
        let counts: Vec<i32> = self.lens.iter().map(|own| dim(own / len)).collect();
        let most = counts.iter().copied().max().unwrap_or(0);
        let is_all = counts.iter().all(|count| *count == most);
        let mask = || {
            let counts = Array::from_slice(&counts, &[dim(counts.len()), 1, 1, 1]);
            Array::arange(most, Dtype::I32).less(&counts)
        };
        (most as usize, (!is_all).then(mask))
    }

    fn see(&self) -> VisibleKeys {
        let stop = self.lens.iter().copied().max().unwrap_or(0);
        let mask = || {
            let lens: Vec<i32> = self.lens.iter().map(|&len| dim(len)).collect();
            let lens = Array::from_slice(&lens, &[dim(lens.len()), 1, 1, 1]);
            Array::arange(dim(stop), Dtype::I32).less(&lens)
        };
        let is_all = self.lens.iter().all(|&len| len == stop);
        VisibleKeys { stop, mask: (!is_all).then(mask) }
    }
}
