//! Computes the embedding of a sequence from its final hidden states.

use jackalope_protocol::Pooling;

/// Accumulates the hidden states of one sequence for its embedding.
///
/// The sum is one left fold over the positions in f64 and is carried from chunk to chunk without
/// rounding: the additions and their order do not depend on how the prompt is cut, and neither does
/// any bit of the result.
#[derive(Clone, Debug)]
pub struct Pool {
    pooling: Pooling,
    num_tokens: usize,
    /// Sum over all positions so far, or the state of the last one.
    sum: Vec<f64>,
}

impl Pool {
    /// Creates a pool without positions.
    pub fn new(pooling: Pooling) -> Pool {
        Pool { pooling, num_tokens: 0, sum: Vec::new() }
    }

    /// Returns the number of positions added so far.
    pub fn num_tokens(&self) -> usize {
        self.num_tokens
    }

    /// Adds the next position's state, `[hidden]`.
    ///
    /// # Panics
    /// Panics if its length differs from that of the previous state.
    pub fn add(&mut self, state: &[f32]) {
        if self.num_tokens == 0 {
            self.sum = vec![0.0; state.len()];
        }
        assert_eq!(state.len(), self.sum.len(), "all states have one width");
        self.num_tokens += 1;
        for (sum, value) in self.sum.iter_mut().zip(state) {
            match self.pooling {
                Pooling::Mean => *sum += f64::from(*value),
                Pooling::Last => *sum = f64::from(*value),
            }
        }
    }

    /// Returns the embedding `[hidden]`; `None` if a value is not finite.
    ///
    /// # Panics
    /// Panics if no position was added.
    pub fn vector(&self) -> Option<Vec<f32>> {
        assert!(0 < self.num_tokens, "an embedding has positions");
        let divisor = match self.pooling {
            Pooling::Mean => self.num_tokens as f64,
            Pooling::Last => 1.0,
        };
        let vector: Vec<f32> = self.sum.iter().map(|sum| (sum / divisor) as f32).collect();
        vector.iter().all(|value| value.is_finite()).then_some(vector)
    }
}
