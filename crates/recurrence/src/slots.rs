//! Slots for the states of sequences that decode, side by side in arrays for MLX's operations.
//!
//! There is one array of slots per layer, so that the number of operations in a step does not depend on
//! the number of sequences. A step in which all sequences with a slot take part replaces the array by
//! the states that it computes, in the step's order. If other sequences have slots too, the states of
//! the step's sequences are copied out of the array and written back.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use jackalope_mlx::{Array, dim};

use crate::states::StateArrays;

/// Number of the slot that holds a sequence's states; `None` while the sequence has no slot and its
/// states are kept elsewhere.
pub type StateSlot = Rc<Cell<Option<usize>>>;

/// The slots of all sequences of a model.
#[derive(Debug, Default)]
pub struct StateSlots {
    /// For each slot, the [`StateSlot`] of its sequence. The slot is free if that sequence has
    /// ended, or if its `StateSlot` no longer has this slot's number.
    occupants: Vec<Weak<Cell<Option<usize>>>>,
    /// States of each layer that keeps one, `[slots, …]`; `None` before the first step.
    layers: Vec<Option<StateArrays>>,
    /// Whether a step has written states since the last [`StateSlots::take_written`].
    is_written: bool,
    /// Arrays of the copies made since the last [`StateSlots::take_written`].
    copies: Vec<Array>,
}

/// How the states of a step's sequences are read and written, in all layers alike.
#[derive(Debug)]
pub struct StateAssignment {
    /// Indices of the slots that are kept, if free slots are given up before the step; `None` if
    /// all are kept.
    kept: Option<Array>,
    /// For each sequence of the step, the index of its states among the slots, after which come the
    /// newcomers; `None` if the step's sequences are exactly these, in order.
    sources: Option<Array>,
    /// Positions in the step, in ascending order, of the sequences that had no slot before it.
    pub newcomers: Vec<usize>,
    /// Whether sequences outside the step have slots, so that the step's states are written one by
    /// one.
    has_others: bool,
}

fn is_in(occupant: &Weak<Cell<Option<usize>>>, slot: usize) -> bool {
    occupant.upgrade().is_some_and(|it| it.get() == Some(slot))
}

impl StateSlots {
    /// Creates slots of a model with this number of layers.
    pub fn new(num_layers: usize) -> StateSlots {
        StateSlots { layers: (0..num_layers).map(|_| None).collect(), ..StateSlots::default() }
    }

    /// Gives each sequence of a step a slot, and returns how [`StateSlots::read`] and
    /// [`StateSlots::write`] find the states.
    pub fn assign(&mut self, sequences: &[StateSlot]) -> StateAssignment {
        let kept = self.forget_gone();
        let num_slots = self.occupants.len();
        let is_newcomer = |idx: &usize| sequences[*idx].get().is_none();
        let newcomers: Vec<usize> = (0..sequences.len()).filter(is_newcomer).collect();
        let mut sources: Vec<usize> = Vec::with_capacity(sequences.len());
        let mut next = num_slots;
        for sequence in sequences {
            sources.push(sequence.get().unwrap_or(next));
            next += usize::from(sequence.get().is_none());
        }
        let has_others = sequences.len() < next;
        let is_in_order = sources.iter().enumerate().all(|(idx, source)| idx == *source);
        let is_whole = !has_others && is_in_order;
        // With others, newcomers follow them; else the step's sequences fill the slots.
        self.occupants.resize_with(if has_others { next } else { sequences.len() }, Weak::new);
        for (idx, (sequence, source)) in sequences.iter().zip(&sources).enumerate() {
            let slot = if has_others { *source } else { idx };
            sequence.set(Some(slot));
            self.occupants[slot] = Rc::downgrade(sequence);
        }
        StateAssignment {
            kept,
            sources: (!is_whole).then(|| indices(&sources)),
            newcomers,
            has_others,
        }
    }

    /// Gives up the free slots and renumbers the others. Returns the former indices of the slots
    /// that are kept; `None` if all are.
    fn forget_gone(&mut self) -> Option<Array> {
        let slots = 0..self.occupants.len();
        let kept: Vec<usize> = slots.filter(|slot| is_in(&self.occupants[*slot], *slot)).collect();
        if kept.len() == self.occupants.len() {
            return None;
        }
        self.occupants = kept.iter().map(|slot| self.occupants[*slot].clone()).collect();
        for (slot, occupant) in self.occupants.iter().enumerate() {
            occupant.upgrade().expect("it was just seen").set(Some(slot));
        }
        Some(indices(&kept))
    }

    /// Returns the states of a step's sequences in one layer, `[sequences, …]`. `newcomers` are the
    /// states of [`StateAssignment::newcomers`].
    pub fn read(
        &mut self,
        layer: usize,
        assignment: &StateAssignment,
        newcomers: Vec<StateArrays>,
    ) -> StateArrays {
        let held = self.layers[layer].take();
        let held = match (held, &assignment.kept) {
            (Some(held), Some(kept)) if 0 < kept.dim(0) => Some(held.picked(kept)),
            (_, Some(_)) => None,
            (held, None) => held,
        };
        let all: Vec<StateArrays> = held.into_iter().chain(newcomers).collect();
        let all = StateArrays::joined(&all);
        let own = match &assignment.sources {
            Some(sources) => all.clone().picked(sources),
            None => all.clone(),
        };
        if assignment.has_others {
            self.layers[layer] = Some(all);
        }
        own
    }

    /// Replaces the states of a step's sequences in one layer.
    pub fn write(&mut self, layer: usize, assignment: &StateAssignment, after: StateArrays) {
        self.is_written = true;
        let after = match (self.layers[layer].take(), &assignment.sources) {
            (Some(all), Some(slots)) => all.replaced(slots, &after),
            _ => after,
        };
        self.layers[layer] = Some(after);
    }

    /// Returns copies of the states of a slot, one for each layer.
    pub fn copy(&mut self, slot: usize) -> Vec<Option<StateArrays>> {
        let slot = indices(&[slot]);
        let copy = |held: &Option<StateArrays>| held.clone().map(|held| held.picked(&slot));
        let copies: Vec<Option<StateArrays>> = self.layers.iter().map(copy).collect();
        self.copies.extend(copies.iter().flatten().flat_map(StateArrays::handles));
        copies
    }

    /// Returns the arrays that steps and copies have written since this method was last called.
    pub fn take_written(&mut self) -> Vec<Array> {
        let mut written = std::mem::take(&mut self.copies);
        if std::mem::take(&mut self.is_written) {
            written.extend(self.layers.iter().flatten().flat_map(StateArrays::handles));
        }
        written
    }
}

fn indices(values: &[usize]) -> Array {
    let values: Vec<i32> = values.iter().map(|value| dim(*value)).collect();
    Array::from_slice(&values, &[dim(values.len())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use jackalope_mlx::Dtype;

    fn slot() -> StateSlot {
        StateSlot::default()
    }

    fn state(value: f32) -> StateArrays {
        StateArrays { inputs: Array::full(&[1, 1, 1], value, Dtype::F32), state: None }
    }

    /// Computes a step that adds 1 to the states of its sequences; newcomers begin with `start`.
    fn step(slots: &mut StateSlots, sequences: &[&StateSlot], start: f32) {
        let sequences: Vec<StateSlot> = sequences.iter().map(|it| Rc::clone(it)).collect();
        let assignment = slots.assign(&sequences);
        let newcomers = assignment.newcomers.iter().map(|_| state(start)).collect();
        let held = slots.read(0, &assignment, newcomers);
        assert_eq!(held.inputs.dim(0), dim(sequences.len()));
        let after = StateArrays { inputs: &held.inputs + 1.0, state: None };
        slots.write(0, &assignment, after);
    }

    fn value(slots: &mut StateSlots, sequence: &StateSlot) -> f32 {
        let copy = slots.copy(sequence.get().unwrap())[0].clone().unwrap();
        copy.inputs.item().unwrap()
    }

    #[test]
    fn each_sequence_keeps_its_state_whoever_joins_pauses_and_leaves() {
        let mut slots = StateSlots::new(1);
        let (a, b, c) = (slot(), slot(), slot());
        step(&mut slots, &[&a, &b], 10.0);
        step(&mut slots, &[&b, &a], 0.0);
        step(&mut slots, &[&a, &c, &b], 20.0);
        assert_eq!([&a, &b, &c].map(|it| value(&mut slots, it)), [13.0, 13.0, 21.0]);
        // Two pause, while a fourth joins.
        let d = slot();
        step(&mut slots, &[&d, &b], 30.0);
        step(&mut slots, &[&a, &c], 0.0);
        step(&mut slots, &[&d], 0.0);
        assert_eq!([&a, &b, &c, &d].map(|it| value(&mut slots, it)), [14.0, 14.0, 22.0, 32.0]);
        // One is gone, another gets its states back.
        drop(b);
        a.set(None);
        step(&mut slots, &[&d, &a], 40.0);
        assert_eq!([&a, &c, &d].map(|it| value(&mut slots, it)), [41.0, 22.0, 33.0]);
        drop((a, c));
        step(&mut slots, &[&d], 0.0);
        assert_eq!((value(&mut slots, &d), slots.occupants.len()), (34.0, 1));
    }
}
