//! From the final hidden states of a sequence to its embedding.

use jackalope_protocol::Pooling;

/// The hidden states of one sequence on their way to its embedding.
///
/// The sum is one left fold over the positions in f64 and is carried from chunk to chunk as it is:
/// the additions and their order are the same however the prompt is cut, and so is every bit of
/// the result.
#[derive(Clone, Debug)]
pub struct Pool {
    pooling: Pooling,
    num_tokens: usize,
    /// Of all positions so far, or of the last one.
    sum: Vec<f64>,
}

impl Pool {
    /// Without a position.
    pub fn new(pooling: Pooling) -> Pool {
        Pool { pooling, num_tokens: 0, sum: Vec::new() }
    }

    /// Positions taken in.
    pub fn num_tokens(&self) -> usize {
        self.num_tokens
    }

    /// Takes in the next position's state, `[hidden]`.
    ///
    /// # Panics
    /// If it has another length than the one before.
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

    /// The embedding `[hidden]`; none if it is not made of numbers.
    ///
    /// # Panics
    /// If there was no position.
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
