//! The states of sequences, side by side in arrays.

use jackalope_mlx::Array;

/// The states of one or several sequences in one layer, for MLX's operations.
#[derive(Clone, Debug)]
pub struct StateArrays {
    /// Last inputs of the convolution, f32 `[sequences, conv_width - 1, channels]`.
    pub inputs: Array,
    /// State of a recurrence for each sequence, f32 `[sequences, …]`; `None` if there is only a
    /// convolution.
    pub state: Option<Array>,
}

impl StateArrays {
    /// Concatenates the states of several sequences.
    pub fn joined(states: &[StateArrays]) -> StateArrays {
        if let [alone] = states {
            return alone.clone();
        }
        let join = |parts: Vec<&Array>| Array::concatenate(&parts, 0);
        let after: Vec<&Array> = states.iter().filter_map(|it| it.state.as_ref()).collect();
        StateArrays {
            inputs: join(states.iter().map(|it| &it.inputs).collect()),
            state: (!after.is_empty()).then(|| join(after)),
        }
    }

    /// Returns the states of the sequences one by one: copies, because a view of one would hold the
    /// memory of all.
    pub fn apart(self) -> Vec<StateArrays> {
        let num_sequences = self.inputs.dim(0);
        if num_sequences == 1 {
            return vec![self];
        }
        (0..num_sequences)
            .map(|idx| self.clone().picked(&Array::from_slice(&[idx], &[1])))
            .collect()
    }

    /// Returns copies of the states at `indices`.
    pub fn picked(self, indices: &Array) -> StateArrays {
        let pick = |held: &Array| match held.size() {
            // MLX takes nothing from an array without elements.
            0 => Array::zeros(&[&[indices.dim(0)], &held.shape()[1..]].concat(), held.dtype()),
            _ => held.take(indices, 0),
        };
        StateArrays { inputs: pick(&self.inputs), state: self.state.as_ref().map(pick) }
    }

    /// Returns these states with those at `indices` replaced, in place if there is no other handle.
    pub fn replaced(self, indices: &Array, new: &StateArrays) -> StateArrays {
        let replace = |held: Array, new: &Array| match held.size() {
            0 => held,
            _ => held.scatter([indices], [0], &new.expand_dims(1)),
        };
        let state = self.state.zip(new.state.as_ref());
        StateArrays {
            inputs: replace(self.inputs, &new.inputs),
            state: state.map(|(held, new)| replace(held, new)),
        }
    }

    /// Returns handles to all arrays.
    pub fn handles(&self) -> Vec<Array> {
        [&self.inputs].into_iter().chain(&self.state).cloned().collect()
    }
}
