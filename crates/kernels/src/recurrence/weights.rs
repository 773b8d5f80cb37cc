//! The small weights of a recurrence, in the order in which the jobs read them.

use super::{BLOCK, RecurrenceSizes};

/// How a token changes the state `S` of a value head; `k` is its key, `v` its value and `g` its
/// decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RecurrenceRule {
    /// The gated delta rule (Yang et al. 2024, equation 10): `S = g S + r (v - g S k) kᵀ`, the result
    /// is `S q`. Keys and queries have length one, queries are divided by the root of their width.
    /// The rate `r` is `rate_max` times a logistic function.
    GatedDelta {
        /// Maximum of the rate.
        rate_max: f32,
    },
}

/// The small weights of a recurrence.
#[derive(Debug)]
pub struct RecurrenceWeights {
    sizes: RecurrenceSizes,
    rule: RecurrenceRule,
    /// For each key head `[conv_width, 2 * key_dim]`: queries, then keys.
    key_kernels: Vec<f32>,
    /// For each block of each value head `[conv_width]` rows.
    value_kernels: Vec<[f32; BLOCK]>,
    /// Factor of each value head's decay.
    factors: Vec<f64>,
    /// Added to each value head's projection to the decay.
    dt_bias: Vec<f32>,
}

/// The kernels of the convolutions, one for each element of the projections.
#[derive(Clone, Copy, Debug)]
pub struct ConvKernels<'a> {
    /// `[key_heads, key_dim, conv_width]`.
    pub queries: &'a [f32],
    /// `[key_heads, key_dim, conv_width]`.
    pub keys: &'a [f32],
    /// `[value_heads, value_dim, conv_width]`.
    pub values: &'a [f32],
}

/// The decay of each value head: `exp(-exp(a_log) softplus(x + dt_bias))` (Gu and Dao 2023).
#[derive(Clone, Copy, Debug)]
pub struct DecayWeights<'a> {
    /// `[value_heads]`.
    pub a_log: &'a [f32],
    /// `[value_heads]`.
    pub dt_bias: &'a [f32],
}

impl RecurrenceWeights {
    /// Arranges weights.
    ///
    /// # Panics
    /// Panics if a length does not fit, or value heads are no multiple of key heads.
    #[track_caller]
    pub fn new(
        sizes: RecurrenceSizes,
        rule: RecurrenceRule,
        kernels: ConvKernels<'_>,
        decay: DecayWeights<'_>,
    ) -> RecurrenceWeights {
        let RecurrenceSizes { key_heads, value_heads, key_dim, value_dim, conv_width } = sizes;
        assert!(0 < conv_width && 0 < key_dim && 0 < value_dim, "no width is zero");
        assert!(value_heads == 0 || value_heads.is_multiple_of(key_heads), "groups of value heads");
        let keys_len = key_heads * key_dim * conv_width;
        let values_len = value_heads * value_dim * conv_width;
        assert_eq!([kernels.queries.len(), kernels.keys.len()], [keys_len; 2], "kernels of keys");
        assert_eq!(kernels.values.len(), values_len, "kernels of values");
        assert_eq!([decay.a_log.len(), decay.dt_bias.len()], [value_heads; 2], "decays");
        let mut key_kernels = Vec::with_capacity(2 * keys_len);
        for head in 0..key_heads {
            for tap in 0..conv_width {
                for of in [kernels.queries, kernels.keys] {
                    let elements = (0..key_dim).map(|idx| head * key_dim + idx);
                    key_kernels.extend(elements.map(|element| of[element * conv_width + tap]));
                }
            }
        }
        let mut value_kernels = Vec::new();
        for head in 0..value_heads {
            for lanes in sizes.blocks() {
                for tap in 0..conv_width {
                    let mut row = [0.0; BLOCK];
                    for (lane, weight) in lanes.clone().zip(&mut row) {
                        let element = head * value_dim + lane;
                        *weight = kernels.values[element * conv_width + tap];
                    }
                    value_kernels.push(row);
                }
            }
        }
        let factors = decay.a_log.iter().map(|a_log| f64::from(*a_log).exp()).collect();
        let dt_bias = decay.dt_bias.to_vec();
        RecurrenceWeights { sizes, rule, key_kernels, value_kernels, factors, dt_bias }
    }

    /// Returns the sizes.
    pub fn sizes(&self) -> RecurrenceSizes {
        self.sizes
    }

    pub(super) fn rule(&self) -> RecurrenceRule {
        self.rule
    }

    pub(super) fn has_rates(&self) -> bool {
        match self.rule {
            RecurrenceRule::GatedDelta { .. } => true,
        }
    }

    /// Returns the kernels of a key head, a row for each position.
    pub(super) fn key_kernels(&self, head: usize) -> &[f32] {
        let len = self.sizes.conv_width * 2 * self.sizes.key_dim;
        &self.key_kernels[head * len..(head + 1) * len]
    }

    /// Returns the kernels of a block of values, a row for each position.
    pub(super) fn value_kernels(&self, head: usize, block_idx: usize) -> &[[f32; BLOCK]] {
        let (width, num_blocks) = (self.sizes.conv_width, self.sizes.value_dim.div_ceil(BLOCK));
        let start = (head * num_blocks + block_idx) * width;
        &self.value_kernels[start..start + width]
    }

    /// Returns the decay of a value head for its projection `x`. It is computed in f64, because
    /// libraries differ in the last bits of these functions, and rounded once.
    pub(super) fn decay(&self, head: usize, x: f32) -> f32 {
        let x = f64::from(x) + f64::from(self.dt_bias[head]);
        let softplus = x.max(0.0) + (-x.abs()).exp().ln_1p();
        (-self.factors[head] * softplus).exp() as f32
    }
}
