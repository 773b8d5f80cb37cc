//! Weights of the streams of hyper-connections (Xie et al. 2025, "mHC: Manifold-Constrained
//! Hyper-Connections").

/// How the weights of a token are computed from its product.
#[derive(Clone, Debug)]
pub struct WeightRule {
    /// Number of streams.
    pub num_streams: usize,
    /// Number of iterations.
    pub iterations: usize,
    /// Epsilon that is added to the weights and to divisors.
    pub eps: f64,
    /// Factors of the elements for the sum, for the additions and for the matrix.
    pub scales: [f32; 3],
    /// What is added to each element.
    pub base: Vec<f32>,
}

/// The weights of a token.
#[derive(Debug)]
pub struct StreamWeights {
    /// Weight of each stream in the sum that the block reads.
    pub read: Vec<f32>,
    /// Weight with which the block's result is added to each stream.
    pub add: Vec<f32>,
    /// Weight of each old stream (row) in each new stream (column), in row-major order.
    pub mix: Vec<f32>,
}

impl WeightRule {
    /// Returns the number of weights with which streams are expanded.
    pub fn num_expanding(&self) -> usize {
        (1 + self.num_streams) * self.num_streams
    }

    /// Returns the weights of a token. They are computed in f64, because libraries differ in the last
    /// bits of these functions, and rounded once.
    pub fn weights(&self, product: &[f32]) -> StreamWeights {
        let n = self.num_streams;
        let placed = product.iter().zip(&self.base).enumerate().map(|(idx, (value, base))| {
            f64::from(*value) * f64::from(self.scales[(idx / n).min(2)]) + f64::from(*base)
        });
        let placed: Vec<f64> = placed.collect();
        let mut mix = Vec::with_capacity(n * n);
        for row in placed[2 * n..].chunks_exact(n) {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let powers: Vec<f64> = row.iter().map(|value| (value - max).exp()).collect();
            let sum: f64 = powers.iter().sum();
            mix.extend(powers.iter().map(|power| power / sum + self.eps));
        }
        for iteration in 0..self.iterations {
            if 0 < iteration {
                for row in mix.chunks_exact_mut(n) {
                    let sum = row.iter().sum::<f64>() + self.eps;
                    row.iter_mut().for_each(|value| *value /= sum);
                }
            }
            for column in 0..n {
                let sum = mix[column..].iter().step_by(n).sum::<f64>() + self.eps;
                mix[column..].iter_mut().step_by(n).for_each(|value| *value /= sum);
            }
        }
        let rounded = |value: f64| value as f32;
        StreamWeights {
            read: placed[..n].iter().map(|it| rounded(logistic(*it) + self.eps)).collect(),
            add: placed[n..2 * n].iter().map(|it| rounded(2.0 * logistic(*it))).collect(),
            mix: mix.into_iter().map(rounded).collect(),
        }
    }
}

/// Returns the logistic function of `x`.
fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
