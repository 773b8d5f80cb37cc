//! The state of a layer: at the present length of its sequence, and at the lengths that are kept.
//!
//! A state that is kept or that a fork has too is never written again: the next step writes another
//! one. Keeping and forking therefore copy nothing, before the state is computed as well as after.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::states::StateArrays;

/// Length at which a cache is forked.
#[derive(Clone, Copy, Debug)]
pub enum ForkAt {
    /// At length 0.
    Start,
    /// At the kept length with this index.
    Kept(usize),
    /// At another length: if there are states, at the present one.
    End,
}

/// The states of one layer.
#[derive(Debug, Default)]
pub struct LayerStates {
    /// State at the present length; `None` at length 0, or if this rank has no part of the layer.
    present: Option<State>,
    /// States at the kept lengths of the sequence, in ascending order.
    kept: Vec<Option<State>>,
}

/// A handle to a state. Its content is there when the step that computes it has been evaluated.
#[derive(Clone, Debug)]
enum State {
    /// For our kernels.
    Buffer(Arc<StateBuffer>),
    /// For MLX's operations.
    Arrays(StateArrays),
}

/// A state for our kernels.
#[derive(Debug, Default)]
struct StateBuffer {
    elements: Mutex<Vec<f32>>,
    /// Whether a kept length or a fork has it. It never becomes false again.
    is_shared: AtomicBool,
}

impl State {
    /// Marks the state as one that is not written any more.
    fn share(&self) -> State {
        if let State::Buffer(buffer) = self {
            buffer.is_shared.store(true, Ordering::Relaxed);
        }
        self.clone()
    }
}

impl LayerStates {
    /// Keeps the present state as the last one.
    pub fn keep(&mut self) {
        self.kept.push(self.present.as_ref().map(State::share));
    }

    /// Keeps a state for MLX's operations that is elsewhere at present.
    pub fn keep_arrays(&mut self, arrays: Option<StateArrays>) {
        self.kept.push(arrays.map(State::Arrays));
    }

    /// Gives up the kept state with this index.
    pub fn forget(&mut self, idx: usize) {
        self.kept.remove(idx);
    }

    /// Returns to the last of the first `num_kept` kept states and drops the later ones; without any,
    /// to an empty sequence.
    pub fn cut(&mut self, num_kept: usize) {
        self.kept.truncate(num_kept);
        self.present = self.kept.last().cloned().flatten();
    }

    /// Returns the states of a fork, which shares its state with this layer.
    pub fn fork(&self, at: ForkAt) -> LayerStates {
        match at {
            ForkAt::Start => LayerStates::default(),
            ForkAt::Kept(idx) => {
                let state = self.kept[idx].clone();
                LayerStates { present: state.clone(), kept: vec![state] }
            }
            ForkAt::End => {
                let present = self.present.as_ref().map(State::share);
                LayerStates { present, kept: Vec::new() }
            }
        }
    }

    /// Returns the buffers of the sequence's next rows. The present state is written in place unless
    /// something else needs it.
    ///
    /// # Panics
    /// Panics if the present state is in arrays of MLX.
    pub fn step(&mut self) -> StateStep {
        let source = self.present.take().map(|present| match present {
            State::Buffer(buffer) => buffer,
            State::Arrays(_) => panic!("this cache is not the kernels'"),
        });
        let target = match &source {
            Some(buffer) if !buffer.is_shared.load(Ordering::Relaxed) => Arc::clone(buffer),
            _ => Arc::default(),
        };
        self.present = Some(State::Buffer(Arc::clone(&target)));
        StateStep { source, target }
    }

    /// Takes the present state for MLX's operations; `None` at length 0.
    ///
    /// # Panics
    /// Panics if the state is the kernels'.
    pub fn take_arrays(&mut self) -> Option<StateArrays> {
        match self.present.take()? {
            State::Arrays(arrays) => Some(arrays),
            State::Buffer(_) => panic!("this cache is the kernels'"),
        }
    }

    /// Returns the present state for MLX's operations; `None` at length 0, if it is the kernels', and while
    /// it is in a slot.
    pub fn arrays(&self) -> Option<&StateArrays> {
        match &self.present {
            Some(State::Arrays(arrays)) => Some(arrays),
            Some(State::Buffer(_)) | None => None,
        }
    }

    /// Replaces the present state.
    pub fn set_arrays(&mut self, arrays: StateArrays) {
        self.present = Some(State::Arrays(arrays));
    }
}

/// Handles to one layer's state before and after the rows of a step, which can be sent to the worker
/// thread.
#[derive(Debug)]
pub struct StateStep {
    /// `None` for an empty sequence. The same as `target` if nothing else needs it.
    source: Option<Arc<StateBuffer>>,
    target: Arc<StateBuffer>,
}

impl StateStep {
    /// Returns the state before the rows, of `len` elements; zeros for an empty sequence.
    pub fn take(&self, len: usize) -> Vec<f32> {
        let Some(source) = &self.source else { return vec![0.0; len] };
        // A poisoned lock means that a kernel panicked; its step has failed, and the cache with it.
        let mut elements = source.elements.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(source, &self.target) {
            std::mem::take(&mut *elements)
        } else {
            elements.clone()
        }
    }

    /// Stores the state after the rows.
    pub fn put(&self, state: Vec<f32>) {
        *self.target.elements.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes a step that counts its rows.
    fn count(states: &mut LayerStates, rows: f32) {
        let step = states.step();
        let mut state = step.take(1);
        state[0] += rows;
        step.put(state);
    }

    fn value(states: &LayerStates) -> f32 {
        let Some(State::Buffer(buffer)) = &states.present else { return 0.0 };
        buffer.elements.lock().unwrap()[0]
    }

    #[test]
    fn a_kept_state_survives_later_steps_and_cuts() {
        let mut states = LayerStates::default();
        count(&mut states, 3.0);
        states.keep();
        count(&mut states, 4.0);
        count(&mut states, 1.0);
        states.keep();
        count(&mut states, 5.0);
        assert_eq!(value(&states), 13.0);
        states.cut(2);
        assert_eq!(value(&states), 8.0);
        count(&mut states, 1.0);
        states.cut(1);
        count(&mut states, 10.0);
        assert_eq!(value(&states), 13.0);
        states.forget(0);
        count(&mut states, 1.0);
        assert_eq!(value(&states), 14.0);
        states.cut(0);
        assert_eq!(value(&states), 0.0);
    }

    #[test]
    fn forks_do_not_see_each_other_even_if_a_step_is_computed_later() {
        let mut states = LayerStates::default();
        count(&mut states, 2.0);
        // The graph of the next step is built, and forks are made before it is evaluated.
        let step = states.step();
        states.keep();
        let mut kept = states.fork(ForkAt::Kept(0));
        let mut end = states.fork(ForkAt::End);
        let mut state = step.take(1);
        state[0] += 3.0;
        step.put(state);
        for (fork, rows) in [(&mut kept, 10.0), (&mut end, 20.0), (&mut states, 30.0)] {
            count(fork, rows);
            count(fork, 1.0);
        }
        assert_eq!([value(&kept), value(&end), value(&states)], [16.0, 26.0, 36.0]);
        kept.cut(1);
        assert_eq!(value(&kept), 5.0);
        assert_eq!(value(&states.fork(ForkAt::Start)), 0.0);
    }

    #[test]
    fn a_state_of_its_own_is_written_in_place() {
        let mut states = LayerStates::default();
        count(&mut states, 1.0);
        let step = states.step();
        assert!(step.source.as_ref().is_some_and(|source| Arc::ptr_eq(source, &step.target)));
    }
}
